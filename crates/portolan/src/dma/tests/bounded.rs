//! Work and reachable memory that stay within bounds however bad the hardware is.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::buffers::Pages;
use super::rig::{Rig, Setup, device_of};
use crate::addr::StreamId;
use crate::dma::{Constraints, LazyBounds, NotUnmapped, Policy, ToDevice};

#[test]
fn a_failure_is_bounded_however_many_streams_there_are() {
    let rig = Rig::policy(Policy::Strict);
    let devices: Vec<_> =
        (1..=64).map(|stream| device_of(&rig, stream, Constraints::trusted())).collect();
    let alive = Arc::default();
    let buffer = Pages::new(&alive, &[(0x4000_0000, 0x1000)]);
    let mapping = devices[0].map(buffer, ToDevice).ok().unwrap();
    // A unit that is dead says so after its deadline, each time it is asked.
    rig.hardware.block_takes.store(1_000_000_000, Ordering::Relaxed);
    rig.hardware.holds_on.store(true, Ordering::Relaxed);
    rig.set_broken(1);
    let before = rig.hardware.now.load(Ordering::Relaxed);
    assert!(mapping.unmap().is_err());
    let took = rig.hardware.now.load(Ordering::Relaxed) - before;
    assert!(took <= 4_000_000_000, "an atomic call took {} s", took / 1_000_000_000);
}

#[test]
fn lazy_bytes_are_bounded_while_a_flush_is_under_way() {
    let rig = Rig::new(&Setup {
        policy: Policy::Lazy,
        bounds: LazyBounds { bytes: 1 << 20, ..LazyBounds::default() },
        ..Setup::default()
    });
    let device = device_of(&rig, 1, Constraints::trusted());
    let alive = Arc::default();
    let map = |number: u64| {
        let at = 0x1_0000_0000 + (number << 21);
        let buffer = Pages::new(&alive, &[(at, 0x20_0000)]);
        device.map(buffer, ToDevice).ok().unwrap()
    };
    let mut mappings: Vec<_> = (0..100).map(map).collect();
    let last = mappings.pop().unwrap();
    let (space, most) = (rig.space.clone(), Arc::new(AtomicU64::new(0)));
    let seen = most.clone();
    rig.hardware.during_sync.set(move || {
        mappings.into_iter().for_each(|mapping| {
            mapping.unmap().ok().unwrap();
        });
        seen.store(space.waiting().1, Ordering::Relaxed);
    });
    last.unmap().ok().unwrap();
    let most = most.load(Ordering::Relaxed) >> 20;
    assert!(
        most <= 4,
        "{most} MiB are their owners', and a device reaches them; the bound is 1 MiB"
    );
}

#[test]
fn a_worker_blocks_the_streams_of_a_broken_space_one_time_out_at_a_time() {
    let rig = Rig::policy(Policy::Strict);
    let devices: Vec<_> =
        (1..=3).map(|stream| device_of(&rig, stream, Constraints::trusted())).collect();
    let alive = Arc::default();
    let buffer = Pages::new(&alive, &[(0x4000_0000, 0x1000)]);
    let mapping = devices[0].map(buffer, ToDevice).ok().unwrap();
    let blocked = || rig.hardware.blocked.lock().clone();
    rig.set_broken(1);
    assert!(!rig.space.is_flush_due());
    assert!(mapping.unmap().is_err());
    let wanted = rig.hardware.flushes_wanted.load(Ordering::Relaxed);
    assert!(rig.space.is_flush_due() && wanted == 1);
    assert_eq!(blocked(), []);
    rig.hardware.holds_on.store(true, Ordering::Relaxed);
    assert!(rig.space.tick().is_ok());
    assert_eq!(blocked(), [1].map(StreamId::new), "the unit does not answer");
    rig.hardware.holds_on.store(false, Ordering::Relaxed);
    assert!(rig.space.tick().is_ok());
    assert_eq!(blocked(), [1, 2, 3].map(StreamId::new));
    assert!(!rig.space.is_flush_due());
    assert!(rig.space.tick().is_ok());
    assert_eq!(blocked().len(), 3);
}

#[test]
fn a_lazy_space_that_is_broken_keeps_what_is_beyond_its_bounds() {
    let rig = Rig::new(&Setup {
        policy: Policy::Lazy,
        bounds: LazyBounds { entries: 2, ..LazyBounds::default() },
        ..Setup::default()
    });
    let device = device_of(&rig, 1, Constraints::trusted());
    let alive = Arc::default();
    let map = |page: u64| {
        let buffer = Pages::new(&alive, &[(page << 12, 0x1000)]);
        device.map(buffer, ToDevice).ok().unwrap()
    };
    let mappings: Vec<_> = (1..=8).map(map).collect();
    rig.set_broken(1);
    let mut deferred = Vec::new();
    let mut given = 0;
    for mapping in mappings {
        match mapping.unmap() {
            Ok(_) => given += 1,
            Err(failed) => match failed.value {
                NotUnmapped::Deferred(one) => deferred.push(one),
                NotUnmapped::Mapped(_) => panic!("{}", failed.error),
            },
        }
    }
    assert!(given <= 2, "{given} buffers are their owners', and a device reaches them");
    rig.set_broken(0);
    rig.space.recover().unwrap();
    for one in deferred {
        one.reclaim().ok().unwrap();
    }
    assert_eq!((rig.space.quarantine().addresses, rig.space.waiting()), (0, (0, 0)));
}
