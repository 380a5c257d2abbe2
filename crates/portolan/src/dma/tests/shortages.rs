//! Addresses and table pages that are there once waiting ranges have been paid for, and windows
//! with ragged ends.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::buffers::{Pages, unowned};
use super::rig::{Rig, Setup, device_of, range};
use crate::addr::{Iova, PageSize, PhysAddr, PhysRange, StreamId};
use crate::dma::{Bidirectional, Constraints, Device, IovaUse, Policy, Reservation, ToDevice};
use crate::iommu::{ReservedKind, ReservedRegion};

#[test]
fn a_map_that_lacks_table_pages_pays_for_those_that_wait() {
    let rig = Rig::new(&Setup { policy: Policy::Deferred, table_pages: 4, ..Setup::default() });
    let device = device_of(&rig, 1, Constraints::trusted());
    let alive = Arc::default();
    // All of a leaf table, in pages that do not make a block.
    let pieces: Vec<_> = (0..512).map(|page| (page << 13, 0x1000)).collect();
    let first = device.map(Pages::new(&alive, &pieces), ToDevice).ok().unwrap();
    let first = first.defer().ok().unwrap();
    let second = device.map(Pages::new(&alive, &pieces), ToDevice);
    let refused = second.err().map(|failed| failed.error);
    assert_eq!(refused, None, "there is room once the queue is flushed");
    assert!(first.reclaim().is_ok());
}

#[test]
fn memory_is_linked_by_table_pages_that_waited() {
    let rig = Rig::new(&Setup { policy: Policy::Deferred, table_pages: 4, ..Setup::default() });
    let device = device_of(&rig, 1, Constraints::trusted());
    let alive = Arc::default();
    let pieces: Vec<_> = (0..512).map(|page| (page << 13, 0x1000)).collect();
    let first = device.map(Pages::new(&alive, &pieces), ToDevice).unwrap();
    let first = first.defer().unwrap();
    let plain = Constraints::trusted();
    let mut frame = Reservation::new(rig.space.clone(), 0x20_0000, &plain).unwrap();
    let piece = PhysRange::page(PhysAddr::new(0x5000), PageSize::SIZE_4K);
    let linked = frame.link(unowned(piece), ToDevice);
    let error = linked.err().map(|failed| failed.error);
    assert_eq!(error, None, "there is room once the queue is flushed");
    frame.sync().unwrap();
    assert!(first.reclaim().is_ok());
}

#[test]
fn a_block_is_mapped_as_one_where_an_empty_table_was_left() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let alive = Arc::default();
    let at = Iova::new(0x40_0000);
    let block = || Pages::new(&alive, &[(0x4000_0000, 0x20_0000)]);
    let size = || match rig.space.find(at) {
        IovaUse::Mapped(found) => found.size,
        other => panic!("{other:?}"),
    };
    let whole = device.map_at(block(), ToDevice, at).ok().unwrap();
    assert_eq!(size(), PageSize::SIZE_2M);
    whole.unmap().ok().unwrap();
    let small = Pages::new(&alive, &[(0x1000, 0x1000)]);
    let small = device.map_at(small, ToDevice, at).ok().unwrap();
    small.unmap().ok().unwrap();
    let whole = device.map_at(block(), ToDevice, at).ok().unwrap();
    let size = size();
    whole.unmap().ok().unwrap();
    assert_eq!(size, PageSize::SIZE_2M);
}

#[test]
fn chosen_addresses_come_back_when_the_hardware_has_recovered() {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints::trusted();
    let guest = range(0x20_0000, 0x20_ffff);
    let mut memory = Reservation::at(rig.space.clone(), guest, &limits).unwrap();
    let host = PhysRange::from_len(PhysAddr::new(0x4000_0000), 0x1_0000).unwrap();
    memory.link(unowned(host), Bidirectional).unwrap();
    memory.sync().unwrap();
    rig.set_broken(1);
    assert!(memory.unlink().is_err());
    rig.set_broken(0);
    rig.space.recover().unwrap();
    let again = Reservation::at(rig.space.clone(), guest, &limits);
    assert!(again.is_ok(), "{:?}", again.err());
}

#[test]
fn chosen_addresses_of_a_buffer_come_back_when_the_hardware_has_recovered() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let alive = Arc::default();
    let at = Iova::new(0x20_0000);
    let buffer = || Pages::new(&alive, &[(0x4000_0000, 0x1000)]);
    let mapping = device.map_at(buffer(), ToDevice, at).ok().unwrap();
    rig.set_broken(1);
    let failed = mapping.unmap().err().unwrap();
    rig.set_broken(0);
    rig.space.recover().unwrap();
    drop(failed);
    let again = device.map_at(buffer(), ToDevice, at);
    assert!(again.is_ok());
}

#[test]
fn a_device_joins_although_its_reserved_addresses_wait_for_an_invalidation() {
    let rig = Rig::policy(Policy::Lazy);
    let first = device_of(&rig, 1, Constraints::trusted());
    let alive = Arc::default();
    let buffer = Pages::new(&alive, &[(0x4000_0000, 0x1000)]);
    let mapping = first.map(buffer, ToDevice).ok().unwrap();
    let at = mapping.iova().get();
    mapping.unmap().ok().unwrap();
    rig.hardware
        .reserved
        .lock()
        .push(ReservedRegion { range: range(at, at + 0xfff), kind: ReservedKind::Interrupts });
    let open = || {
        let space = rig.space.clone();
        Device::translated(space, StreamId::new(2), Constraints::trusted())
    };
    let refused = open().err();
    rig.space.flush().unwrap();
    assert!(open().is_ok(), "once the queue was flushed");
    assert_eq!(refused, None, "and no caller flushed it");
}

#[test]
fn addresses_at_a_ragged_end_come_back() {
    let rig = Rig::new(&Setup { window: range(0x10_0000, 0x10_2fff), ..Setup::default() });
    let device = device_of(&rig, 1, Constraints::trusted());
    let alive = Arc::default();
    for round in 0..2 {
        let buffer = Pages::new(&alive, &[(0x4000_0000, 0x3000)]);
        let mapping = device.map(buffer, ToDevice).map_err(|failed| failed.error);
        let mapping = mapping.unwrap_or_else(|error| panic!("{round}: {error}"));
        mapping.unmap().ok().unwrap();
    }
    assert_eq!(rig.space.quarantine().addresses, 0);
}

#[test]
fn addresses_at_a_ragged_end_can_be_chosen() {
    let rig = Rig::new(&Setup { window: range(0x10_0000, 0x10_2fff), ..Setup::default() });
    let device = device_of(&rig, 1, Constraints::trusted());
    let alive = Arc::default();
    let buffer = Pages::new(&alive, &[(0x4000_0000, 0x3000)]);
    let mapping = device.map_at(buffer, ToDevice, Iova::new(0x10_0000));
    let error = mapping.err().map(|failed| failed.error);
    assert_eq!(error, None, "no mapping has them");
}
