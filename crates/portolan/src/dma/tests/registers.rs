//! Another device's registers, and addresses that a caller chose.

use crate::platform::promised::{all_memory, simulated};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicUsize;
use spin::Mutex;

use super::buffers::{Pages, registers, unowned};
use super::copies::Copier;
use super::rig::{Rig, Setup, TIMED_OUT, device_of, range};
use crate::addr::{Iova, PageSize, PhysAddr, PhysRange, StreamId};
use crate::dma::{
    Bidirectional, Coherency, Constraints, CopyWhen, Device, FromDevice, IovaUse, LinkError,
    MapError, Policy, Reservation, ToDevice, Trust, UnmapError,
};
use crate::platform::DataCache;
use crate::table::Access;

fn at(start: u64, bytes: u64) -> PhysRange {
    PhysRange::from_len(PhysAddr::new(start), bytes).unwrap()
}

/// Notes the lines that it is asked to maintain.
#[derive(Default)]
struct Lines(Mutex<Vec<PhysRange>>);

impl DataCache for Lines {
    fn clean(&self, memory: PhysRange) {
        self.0.lock().push(memory);
    }

    fn invalidate(&self, memory: PhysRange) {
        self.0.lock().push(memory);
    }

    fn line(&self) -> PageSize {
        PageSize::of_lg2(6)
    }
}

#[test]
fn registers_are_neither_copied_nor_kept_coherent() {
    let copier = Copier::new();
    let rig = &copier.rig;
    let limits = Constraints { coherency: Coherency::NotCoherent, ..Constraints::trusted() };
    let lines = Arc::new(Lines::default());
    let device = device_of(rig, 1, limits)
        .with_cache(lines.clone(), simulated())
        .with_copies(copier.copying(CopyWhen::Always));
    let bar = at(0xe000_0000, 0x4000);
    let mut mapping = device.map(registers(bar), Bidirectional).ok().unwrap();
    assert!(!mapping.is_copied());
    let found = rig.space.domain.translate(mapping.iova()).unwrap();
    assert_eq!(found.pa, bar.start());
    assert_eq!(found.access & Access::WRITE, Access::WRITE);
    mapping.sync_for_device();
    mapping.sync_for_cpu();
    mapping.unmap().ok().unwrap();
    assert_eq!(*lines.0.lock(), []);
    // Its device reaches no other register of a page, and gets no copy of one.
    let untrusted = Constraints { trust: Trust::Untrusted, ..limits };
    let others = rig.beside();
    let device = device_of(&others, 2, untrusted);
    let part = at(0xe000_0010, 8);
    let refused = device.map(registers(part), FromDevice).err().unwrap();
    assert_eq!(refused.error, MapError::SubPage { piece: part });
    // Where nothing is translated, the physical address serves.
    let unit = rig.hardware.clone();
    let passed =
        Device::identity(rig.cpus.clone(), unit, StreamId::new(3), limits, all_memory()).unwrap();
    let mapping = passed.map(registers(bar), FromDevice).ok().unwrap();
    assert_eq!(mapping.iova().get(), bar.start().get());
    mapping.unmap().ok().unwrap();
}

#[test]
fn addresses_that_a_caller_chose_are_no_other_caller_s() {
    let rig = Rig::new(&Setup { window: range(0x10_0000, 0x10_7fff), ..Setup::default() });
    let plain = Constraints::trusted();
    let chosen = |first, last| Reservation::at(rig.space.clone(), range(first, last), &plain);
    // Three pages, which are no block of the allocator's.
    let mut fixed = chosen(0x10_4000, 0x10_6fff).unwrap();
    let taken = chosen(0x10_6000, 0x10_7fff).err();
    let range_of = range(0x10_6000, 0x10_7fff);
    assert_eq!(taken, Some(MapError::Taken { range: range_of }));
    let frames = fixed.link(unowned(at(0x5000, 0x2000)), Bidirectional);
    assert_eq!(frames.unwrap(), Iova::new(0x10_4000));
    let bar = fixed.link(registers(at(0xe000_0000, 0x1000)), Bidirectional);
    assert_eq!(bar.unwrap(), Iova::new(0x10_6000));
    fixed.sync().unwrap();
    let device = device_of(&rig, 1, plain);
    let alive = Arc::new(AtomicUsize::new(0));
    let map = || {
        let buffer = Pages::new(&alive, &[(0x9000, 0x1000)]);
        device.map(buffer, ToDevice).map_err(|failed| failed.error)
    };
    let held: Vec<_> = core::iter::from_fn(|| map().ok()).collect();
    assert_eq!(held.len(), 5);
    assert!(
        held.iter()
            .all(|one| one.iova().get() & !0x3000 != 0x10_4000 || one.iova().get() == 0x10_7000)
    );
    fixed.unlink().ok().unwrap();
    assert!(rig.space.domain.translate(Iova::new(0x10_4000)).is_none());
    let more: Vec<_> = core::iter::from_fn(|| map().ok()).collect();
    assert_eq!(more.len(), 3);
    for one in held.into_iter().chain(more) {
        one.unmap().ok().unwrap();
    }
    assert_eq!(rig.space.quarantine(), Default::default());
}

#[test]
fn addresses_that_a_caller_chose_are_refused_or_wait_for_what_is_deferred() {
    let rig = Rig::policy(Policy::Deferred);
    let chosen = |first, last, limits: &Constraints| {
        Reservation::at(rig.space.clone(), range(first, last), limits).map(|_| ())
    };
    let plain = Constraints::trusted();
    let outside = |first, last| Err(MapError::Outside { range: range(first, last) });
    assert_eq!(chosen(0xf_f000, 0x10_0fff, &plain), outside(0xf_f000, 0x10_0fff));
    let narrow = plain.address_bits(24);
    assert_eq!(chosen(0x100_0000, 0x100_0001, &narrow), outside(0x100_0000, 0x100_0fff));
    let device = device_of(&rig, 1, plain);
    let mapping = device.map(unowned(at(0x5000, 0x1000)), ToDevice);
    let mapping = mapping.ok().unwrap();
    let page = mapping.iova().get();
    let taken = MapError::Taken { range: range(page, page + 0xfff) };
    assert_eq!(chosen(page, page, &plain), Err(taken));
    let deferred = mapping.defer().ok().unwrap();
    assert_eq!(chosen(page, page, &plain), Ok(()));
    assert!(deferred.try_reclaim().is_ok());
}

#[test]
fn addresses_that_a_caller_chose_stay_out_of_use_until_the_hardware_has_recovered() {
    let rig = Rig::policy(Policy::Lazy);
    let (space, plain) = (|| rig.space.clone(), Constraints::trusted());
    let chosen = range(0x20_0000, 0x20_0fff);
    let mut fixed = Reservation::at(space(), chosen, &plain).unwrap();
    fixed.link(unowned(at(0x5000, 0x1000)), ToDevice).unwrap();
    fixed.sync().unwrap();
    rig.set_broken(1);
    let failed = fixed.unlink().unwrap_err();
    assert_eq!(failed.error, UnmapError::Iommu(TIMED_OUT));
    drop(failed);
    let found = rig.space.find(chosen.start());
    assert_eq!(found, IovaUse::Deferred { range: chosen });
    let _ = rig.space.flush();
    assert_eq!(rig.space.find(chosen.start()), found);
    rig.set_broken(0);
    rig.space.recover().unwrap();
    assert_eq!(rig.space.find(chosen.start()), IovaUse::Unused);
    assert_eq!(rig.space.quarantine().addresses, 0);
    assert!(Reservation::at(space(), chosen, &plain).is_ok());
}

#[test]
fn an_address_says_what_it_is_used_for() {
    let rig = Rig::policy(Policy::Deferred);
    let device = device_of(&rig, 1, Constraints::trusted());
    let alive = Arc::new(AtomicUsize::new(0));
    let buffer = Pages::new(&alive, &[(0x5800, 0x1000), (0x9000, 0x100)]);
    let mapping = device.map(buffer, ToDevice).ok().unwrap();
    let first = mapping.iova();
    let found = |at: u64| rig.space.find(Iova::new(at));
    let IovaUse::Mapped(leads) = found(first.get() + 0x10) else {
        panic!("{:?}", found(first.get()));
    };
    assert_eq!((leads.pa.get(), leads.access), (0x5810, Access::READ));
    let offsets = [0, 0xfff, 0x1000, 0x1800, 0x18ff, 0x1900];
    let offsets = offsets.map(|at| mapping.offset_of(Iova::new(first.get() + at)));
    let expected = [Some(0), Some(0xfff), None, Some(0x1000), Some(0x10ff), None];
    assert_eq!(offsets, expected);
    let deferred = mapping.defer().ok().unwrap();
    let start = first.get() & !0xfff;
    let pages = range(start, start + 0x2fff);
    assert_eq!(found(first.get()), IovaUse::Deferred { range: pages });
    deferred.reclaim().ok().unwrap();
    assert_eq!(found(first.get()), IovaUse::Unused);
    let aside = range(0x20_0000, 0x20_0fff);
    rig.space.reserve(aside).unwrap();
    assert_eq!(found(0x20_0123), IovaUse::Reserved { range: aside });
    assert_eq!(found(0x1_0000_0000), IovaUse::Outside);
}

#[test]
fn registers_are_as_writable_as_was_asked_for() {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints::trusted();
    let bar = at(0xe000_0000, 0x1000);
    for access in [Access::READ, Access::WRITE] {
        let mapped = rig.space.map_range(registers(bar), access, &limits);
        let (range, first) = mapped.unwrap();
        let found = rig.space.domain.translate(first).unwrap();
        assert_eq!(found.access.intersection(Access::READ_WRITE), access);
        rig.space.unmap_range(range).unwrap();
    }
}

#[test]
fn what_does_not_fill_its_pages_is_not_linked_for_a_device_that_is_not_trusted() {
    for (start, bytes, whole) in [
        (0x8000, 0x2000, true),
        (0x8000, 0x1800, false),
        (0x8800, 0x1800, false),
        (0x8800, 0x1000, false),
        (0x8400, 0x800, false),
    ] {
        let memory = at(start, bytes);
        for trust in [Trust::Untrusted, Trust::Trusted] {
            let limits = Constraints { trust, ..Constraints::trusted() };
            let rig = Rig::policy(Policy::Strict);
            let range = range(0x40_0000, 0x40_3fff);
            let mut held = Reservation::at(rig.space.clone(), range, &limits).unwrap();
            let linked = held.link(unowned(memory), Bidirectional);
            let linked = linked.map_err(|failed| failed.error);
            let expected = match whole || trust == Trust::Trusted {
                true => Ok(Iova::new(0x40_0000 + (start & 0xfff))),
                false => Err(LinkError::SubPage { piece: memory }),
            };
            assert_eq!(linked, expected, "{memory:?} {trust:?}");
            assert!(held.unlink().is_ok());
        }
    }
}

#[test]
fn addresses_may_be_chosen_up_to_the_last_that_the_device_has() {
    let rig = Rig::policy(Policy::Strict);
    let chosen = range(0x40_0000, 0x40_3fff);
    let at = |mask: u64| {
        let limits = Constraints { dma_mask: Iova::new(mask), ..Constraints::trusted() };
        let held = Reservation::at(rig.space.clone(), chosen, &limits)?;
        assert!(held.unlink().is_ok());
        Ok(())
    };
    assert_eq!(at(chosen.last().get()), Ok(()));
    let outside = Err(MapError::Outside { range: chosen });
    assert_eq!(at(chosen.last().get() - 1), outside);
}
