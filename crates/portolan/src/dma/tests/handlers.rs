//! Calls of an interrupt handler while the code that it has interrupted is flushing.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::pin;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};

use super::buffers::Pages;
use super::rig::{BUSY, Cpus, Rig, Setup, device_of, range};
use crate::addr::StreamId;
use crate::dma::{
    Constraints, Deferred, Device, LazyBounds, Mapping, NotUnmapped, Policy, ToDevice, UnmapError,
};
use crate::inval::{Caching, Flushed};
use crate::platform::Clock as _;

type Mapped = Mapping<Cpus, Pages, ToDevice>;

/// A space with a device, and the count of its living buffers.
struct Scene {
    rig: Rig,
    device: Device<Cpus>,
    alive: Arc<AtomicUsize>,
}

impl Scene {
    fn new(policy: Policy, entries: usize) -> Self {
        let bounds = LazyBounds { entries, ..LazyBounds::default() };
        let rig = Rig::new(&Setup { policy, bounds, ..Setup::default() });
        Self { device: device_of(&rig, 7, Constraints::trusted()), rig, alive: Arc::default() }
    }

    fn map(&self, page: u64) -> Mapped {
        let buffer = Pages::new(&self.alive, &[(page << 12, 0x1000)]);
        self.device.map(buffer, ToDevice).ok().unwrap()
    }

    /// Runs `then` in the middle of the flush that an unmap of `mapping` does.
    fn strike(&self, mapping: Mapped, then: impl FnOnce() + Send + 'static) {
        self.rig.hardware.during_sync.set(then);
        mapping.unmap().ok().unwrap();
    }

    fn is_healthy(&self) -> bool {
        let blocked = self.rig.hardware.blocked.lock();
        self.rig.space.failure().is_none() && *blocked == Vec::<StreamId>::new()
    }
}

#[test]
fn an_unmap_on_the_cpu_that_is_flushing_completes() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let scene = Scene::new(policy, 1);
        let (one, two) = (scene.map(1), scene.map(2));
        let done = Arc::new(AtomicU64::new(0));
        let said = done.clone();
        scene.strike(one, move || {
            let unmapped = two.unmap();
            said.store(1 + u64::from(unmapped.is_ok()), Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 2, "{policy:?}");
        assert!(scene.is_healthy(), "{policy:?}");
        scene.rig.space.flush().unwrap();
        assert_eq!(scene.alive.load(Ordering::Relaxed), 0);
        assert_eq!(scene.rig.space.waiting(), (0, 0));
    }
}

#[test]
fn deferred_buffers_beyond_the_room_of_a_queue_keep_their_addresses_and_come_back() {
    let scene = Scene::new(Policy::Deferred, 2);
    let deferred: Vec<Deferred<_, _>> =
        (0..20).map(|page| scene.map(page).defer().ok().unwrap()).collect();
    // Four are in the queue; nothing was paid, and a worker is wanted.
    assert_eq!((scene.rig.syncs(), scene.rig.space.waiting().0), (0, 4));
    assert!(scene.rig.space.is_flush_due());
    let wanted = scene.rig.hardware.flushes_wanted.load(Ordering::Relaxed);
    // The second one reached the limit, and all that came after it.
    assert_eq!(wanted, 19);
    scene.rig.space.tick().unwrap();
    assert!(!scene.rig.space.is_flush_due());
    assert_eq!(scene.rig.syncs(), 1);
    let back = deferred.into_iter().map(Deferred::try_reclaim);
    assert_eq!(back.filter(Result::is_ok).count(), 20);
    let whole = range(0x10_0000, 0xffff_ffff);
    assert_eq!(scene.rig.space.reserve(whole), Ok(()));
    assert_eq!(scene.rig.space.quarantine(), Default::default());
}

#[test]
fn retires_during_a_flush_wait_for_nothing() {
    let scene = Scene::new(Policy::Deferred, 1);
    let one = scene.map(100);
    let mapped: Vec<_> = (0..10).map(|page| scene.map(page)).collect();
    let kept = Arc::new(spin::Mutex::new(Vec::new()));
    let (keep, cpus) = (kept.clone(), scene.rig.cpus.clone());
    scene.strike(one, move || {
        let before = cpus.now();
        let deferred = mapped.into_iter().map(|one| one.defer().ok().unwrap());
        keep.lock().extend(deferred);
        assert_eq!(cpus.now(), before);
    });
    let deferred = core::mem::take(&mut *kept.lock());
    assert_eq!((deferred.len(), scene.rig.syncs()), (10, 1));
    for one in deferred {
        assert!(one.reclaim().is_ok());
    }
    assert_eq!(scene.rig.syncs(), 2);
    let whole = range(0x10_0000, 0xffff_ffff);
    assert_eq!(scene.rig.space.reserve(whole), Ok(()));
}

#[test]
fn a_wait_for_the_flush_underneath_is_given_up_and_loses_nothing() {
    let scene = Scene::new(Policy::Deferred, 8);
    let one = scene.map(1);
    let waiting = scene.map(2).defer().ok().unwrap();
    let kept = Arc::new(spin::Mutex::new(None));
    let keep = kept.clone();
    scene.strike(one, move || {
        let failed = waiting.reclaim().err().unwrap();
        assert!(matches!(failed.error, UnmapError::Busy { .. }));
        *keep.lock() = Some(failed.value);
    });
    assert!(scene.is_healthy());
    let deferred = kept.lock().take().unwrap();
    assert!(deferred.try_reclaim().is_ok());
}

#[test]
fn a_queue_that_others_have_for_too_long_breaks_nothing() {
    for policy in [Policy::Strict, Policy::Deferred] {
        let scene = Scene::new(policy, 8);
        let one = scene.map(1);
        scene.rig.set_broken(BUSY);
        let failed = one.unmap().err().unwrap();
        assert!(matches!(failed.error, UnmapError::Busy { .. }));
        let NotUnmapped::Deferred(kept) = failed.value else {
            panic!("it is unmapped and not quiet");
        };
        assert!(scene.is_healthy());
        scene.rig.set_broken(0);
        assert!(kept.reclaim().is_ok());
        assert_eq!(scene.rig.space.waiting(), (0, 0));
    }
}

#[test]
fn a_future_yields_to_the_flush_underneath() {
    let scene = Scene::new(Policy::Deferred, 8);
    let one = scene.map(1);
    let mut waiting = scene.map(2).defer().ok().unwrap();
    let cpus = scene.rig.cpus.clone();
    let kept = Arc::new(spin::Mutex::new(None));
    let keep = kept.clone();
    scene.strike(one, move || {
        let before = cpus.now();
        let mut context = Context::from_waker(Waker::noop());
        {
            let mut quiet = pin!(waiting.quiet());
            for _ in 0..5 {
                assert_eq!(quiet.as_mut().poll(&mut context), Poll::Pending);
            }
        }
        assert_eq!(cpus.now(), before);
        // The future is dropped, and the buffer is not.
        *keep.lock() = Some(waiting);
    });
    let waiting = kept.lock().take().unwrap();
    assert!(waiting.try_reclaim().is_ok());
    assert_eq!(scene.rig.space.quarantine(), Default::default());
}

#[test]
fn a_deferred_buffer_that_is_dropped_loses_its_addresses_and_is_counted() {
    let scene = Scene::new(Policy::Deferred, 1);
    let deferred = (0..3).map(|page| scene.map(page).defer().ok().unwrap());
    deferred.for_each(drop);
    scene.rig.space.flush().unwrap();
    let lost = scene.rig.space.quarantine();
    // Two were in the queue, with their addresses.
    assert_eq!((lost.dropped, lost.addresses), (3, 1));
    assert_eq!(scene.alive.load(Ordering::Relaxed), 3);
}

#[test]
fn a_map_that_must_not_wait_does_not() {
    let scene = Scene::new(Policy::Deferred, 8);
    let buffer = Pages::new(&scene.alive, &[(0x5000, 0x1000)]);
    let mapping = scene.device.try_map(buffer, ToDevice).ok().unwrap();
    assert_eq!(scene.rig.syncs(), 0);
    mapping.unmap().ok().unwrap();
    // Where the hardware has to be told of each map, the buffer comes back.
    let rig = Rig::new(&Setup { caching: Caching::NotPresentToo, ..Setup::default() });
    let device = device_of(&rig, 7, Constraints::trusted());
    let buffer = Pages::new(&scene.alive, &[(0x5000, 0x1000)]);
    let refused = device.try_map(buffer, ToDevice).err().unwrap();
    assert_eq!(refused.error, crate::dma::MapError::WouldWait);
    assert!(refused.value.into_buffer().is_ok());
    assert_eq!((rig.syncs(), rig.space.waiting()), (0, (0, 0)));
}

#[test]
fn a_generation_is_quiet_after_its_addresses_are_back() {
    let scene = Scene::new(Policy::Deferred, 8);
    let space = &scene.rig.space;
    let deferred = scene.map(1).defer().ok().unwrap();
    let ticket = space.pending.waiting(&space.cpus, 0, false).unwrap();
    let mut given = 0;
    let mut give_back = |ranges: &[_], flushed: &Flushed| {
        given += ranges.len();
        assert!(space.pending.proof(ticket).is_none());
        // A caller that finds no addresses meanwhile waits for this.
        let in_flight = space.pending.waiting(&space.cpus, 0, false);
        assert_eq!(in_flight, Some(ticket));
        space.give_back_all(ranges, flushed);
    };
    let settled = space.pending.try_settle(&*space.domain, ticket, &mut give_back);
    assert!(settled.unwrap().is_some());
    assert_eq!(given, 1);
    assert!(deferred.try_reclaim().is_ok());
}

#[test]
fn a_long_range_that_finds_no_room_is_paid_for_by_its_unmap() {
    let scene = Scene::new(Policy::Lazy, 1);
    let long = |page: u64| {
        let buffer = Pages::new(&scene.alive, &[(page << 12, 0x10_0000)]);
        scene.device.map(buffer, ToDevice).ok().unwrap()
    };
    let mapped: Vec<_> = (0..4).map(|number| long(number << 8)).collect();
    let alive = scene.alive.clone();
    scene.strike(scene.map(0x9000), move || {
        for mapping in mapped {
            mapping.unmap().ok().unwrap();
        }
        assert_eq!(alive.load(Ordering::Relaxed), 1);
    });
    // One was queued beside the flush, the others paid at once.
    assert_eq!((scene.rig.syncs(), scene.rig.space.waiting().0), (4, 1));
    scene.rig.space.flush().unwrap();
    let whole = range(0x10_0000, 0xffff_ffff);
    assert_eq!(scene.rig.space.reserve(whole), Ok(()));
}

#[test]
fn what_is_being_flushed_still_waits() {
    let scene = Scene::new(Policy::Deferred, 8);
    let deferred: Vec<_> = (0..3).map(|page| scene.map(page).defer().ok().unwrap()).collect();
    let space = scene.rig.space.clone();
    scene.rig.hardware.during_sync.set(move || {
        assert_eq!(space.waiting().0, 3);
    });
    scene.rig.space.flush().unwrap();
    assert_eq!((scene.rig.syncs(), scene.rig.space.waiting()), (1, (0, 0)));
    let back = deferred.into_iter().map(Deferred::try_reclaim);
    assert_eq!(back.filter(Result::is_ok).count(), 3);
}
