//! Requests that a domain takes and refuses, mappings that are cut, numbers that come back.

use alloc::sync::Arc;
use alloc::vec;

use portolan::addr::{Iova, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::{Domain, DomainError, DomainSplitError, DomainUnmapError, IommuError};
use portolan::table::{Access, SplitError, TableMapError, TableUnmapError};

use super::kit::*;
use crate::promise::tests::promised;
use portolan_spec::virtio::{self as spec, Request, config};

fn split(domain: &Space, at: u64) -> Result<(), DomainSplitError> {
    let mut owed = Gather::new();
    let outcome = domain.split(Iova::new(at), &mut owed);
    sync(domain, &mut owed).unwrap();
    outcome
}

#[test]
fn a_mapping_is_cut_by_taking_it_away_and_making_its_parts() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    mapped(&device, &domain, 0x4000, 0x4000);
    split(&domain, 0x6000).unwrap();
    let parts = [told(0x4000, 0x2000), told(0x6000, 0x2000)];
    assert_eq!(device.take(), [untold(0x4000, 0x4000), parts[0], parts[1]]);
    // An address inside a page stands for the end of it.
    split(&domain, 0x4800).unwrap();
    let parts = [told(0x4000, 0x1000), told(0x5000, 0x1000)];
    assert_eq!(device.take(), [untold(0x4000, 0x2000), parts[0], parts[1]]);
    sync(&domain, &mut unmap(&domain, 0x5000, 0x1000)).unwrap();
    assert_eq!(device.take(), [untold(0x5000, 0x1000)]);
    let all = [0x4000, 0x5000, 0x6fff, 0x7000].map(|at| found(&domain, at));
    let above = |at| Some(at + MEMORY);
    assert_eq!(all, [above(0x4000), None, above(0x6fff), above(0x7000)]);
}

#[test]
fn nothing_is_cut_where_no_mapping_has_an_inside() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    mapped(&device, &domain, 0x4000, 0x2000);
    mapped(&device, &domain, 0x8000, 0x2000);
    // Taken back, and not yet told to the device.
    let mut owed = unmap(&domain, 0x8000, 0x2000);
    for at in [0x3000, 0x4000, 0x5800, 0x6000, 0x9000] {
        let mut none = Gather::new();
        let iova = Iova::new(at);
        let refused = Err(SplitError::NoBlock { iova }.into());
        assert_eq!(domain.split(iova, &mut none), refused, "{at:x}");
    }
    assert_eq!(device.take(), []);
    sync(&domain, &mut owed).unwrap();
    assert_eq!(device.take(), [untold(0x8000, 0x2000)]);
    split(&domain, 0x5000).unwrap();
}

#[test]
fn what_the_device_may_have_or_not_is_not_cut() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    let mut owed = map(&domain, 0x4000, 0x2000);
    device.answer(&[Answer::Unwritten]);
    sync(&domain, &mut owed).unwrap_err();
    let (iova, mut none) = (Iova::new(0x5000), Gather::new());
    let contended = Err(SplitError::Contended { iova }.into());
    assert_eq!(domain.split(iova, &mut none), contended);
    sync(&domain, &mut owed).unwrap();
    split(&domain, 0x5000).unwrap();
}

/// A cut that fails leaves the mapping whole.
#[test]
fn a_device_that_does_not_forget_a_mapping_has_it_whole() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    mapped(&device, &domain, 0x4000, 0x2000);
    device.answer(&[Answer::Status(1)]);
    split(&domain, 0x5000).unwrap_err();
    assert_eq!(device.take(), [untold(0x4000, 0x2000)]);
    assert_eq!(found(&domain, 0x5000), Some(0x5000 + MEMORY));
    sync(&domain, &mut unmap(&domain, 0x4000, 0x2000)).unwrap();
    assert_eq!(device.take(), [untold(0x4000, 0x2000)]);
}

#[test]
fn only_whole_mappings_are_unmapped() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    mapped(&device, &domain, 0x4000, 0x2000);
    mapped(&device, &domain, 0x6000, 0x1000);
    let refused = |start, bytes| {
        let outcome = try_unmap(&domain, range(start, bytes), &mut Gather::new());
        let Err(DomainUnmapError::Unmap(error)) = outcome else {
            panic!("{start:x}: {outcome:?}");
        };
        error
    };
    let block = range(0x4000, 0x2000);
    for (start, bytes) in [(0x4000, 0x1000), (0x5000, 0x1000), (0x5000, 0x2000)] {
        assert_eq!(refused(start, bytes), TableUnmapError::NeedsSplit { block });
    }
    for (start, bytes, hole) in [(0x3000, 0x2000, 0x3000), (0x4000, 0x4000, 0x7000)] {
        let iova = Iova::new(hole);
        assert_eq!(refused(start, bytes), TableUnmapError::NotMapped { iova });
    }
    for (start, bytes) in [(0x4000, 0x1800), (0x4800, 0x1800)] {
        let range = range(start, bytes);
        assert_eq!(refused(start, bytes), TableUnmapError::Unaligned { range });
    }
    let outside = range(0xffff_f000, 0x2000);
    let error = TableUnmapError::OutOfRange { range: outside };
    assert_eq!(refused(0xffff_f000, 0x2000), error);
    sync(&domain, &mut unmap(&domain, 0x4000, 0x3000)).unwrap();
    assert_eq!(device.take(), [untold(0x4000, 0x3000)]);
}

#[test]
fn what_devices_do_not_check_is_refused_before_they_hear_of_it() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    let refused = |iova: u64, pa: u64, bytes: u64, access| {
        let memory = promised(PhysAddr::new(pa), bytes);
        let outcome = domain.map(Iova::new(iova), memory, access, &mut Gather::new());
        let Err(DomainError::Map(error)) = outcome else {
            panic!("{iova:x}: {outcome:?}");
        };
        error
    };
    let both = Access::READ_WRITE;
    let iova = Iova::new(0x4800);
    let unaligned = TableMapError::UnalignedIova { iova };
    assert_eq!(refused(0x4800, 0x1000, 0x1000, both), unaligned);
    for (pa, bytes) in [(0x1800, 0x1000), (0x1000, 0x1800)] {
        let pa_ = PhysAddr::new(pa);
        let error = TableMapError::UnalignedMemory { pa: pa_, bytes };
        assert_eq!(refused(0x4000, pa, bytes, both), error);
    }
    let iova = Iova::new(0xffff_f000);
    let outside = TableMapError::IovaOutOfRange { iova };
    assert_eq!(refused(0xffff_f000, 0x1000, 0x2000, both), outside);
    // No device fetches instructions through it, and the device has not said that it maps
    // registers.
    for access in [Access::DEVICE, both | Access::EXECUTE, both | Access::DEVICE] {
        let error = refused(0x4000, 0x1000, 0x1000, access);
        assert!(matches!(error, TableMapError::Access(_)), "{error:?}");
    }
    assert_eq!(device.take(), []);
}

#[test]
fn registers_of_devices_are_mapped_as_such_where_the_device_can() {
    let device = Scripted::with(spec::F_MMIO);
    let (_unit, domain) = device.attached();
    let (memory, mut owed) = (promised(PhysAddr::new(0x9000), 0x1000), Gather::new());
    let access = Access::WRITE | Access::DEVICE;
    domain.map(Iova::new(0x4000), memory, access, &mut owed).unwrap();
    sync(&domain, &mut owed).unwrap();
    let asked = Request::Map {
        domain: DOMAIN,
        start: 0x4000,
        last: 0x4fff,
        phys: 0x9000,
        flags: spec::MAP_WRITE | spec::MAP_MMIO,
    };
    assert_eq!(device.take(), [asked]);
}

#[test]
fn pieces_side_by_side_are_one_mapping_and_an_overlap_maps_none_of_them() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    let piece = |pa, bytes| promised(PhysAddr::new(pa), bytes);
    let pieces = [piece(0x10_0000, 0x1000), piece(0x10_1000, 0x2000), piece(0x20_0000, 0x1000)];
    let mut owed = Gather::new();
    let try_at =
        |iova, owed: &mut Gather| domain.map_sg(Iova::new(iova), &pieces, Access::READ, owed);
    mapped(&device, &domain, 0x7000, 0x1000);
    let iova = Iova::new(0x7000);
    let overlap = DomainError::Map(TableMapError::AlreadyMapped { iova });
    assert_eq!(try_at(0x4000, &mut owed), Err(overlap));
    sync(&domain, &mut owed).unwrap();
    assert_eq!((device.take(), found(&domain, 0x4000)), (vec![], None));
    assert_eq!(try_at(0x3000, &mut owed), Ok(range(0x3000, 0x4000)));
    sync(&domain, &mut owed).unwrap();
    let asked = |start, bytes, phys| Request::Map {
        domain: DOMAIN,
        start,
        last: start + bytes - 1,
        phys,
        flags: spec::MAP_READ,
    };
    let wanted = [asked(0x3000, 0x3000, 0x10_0000), asked(0x6000, 0x1000, 0x20_0000)];
    assert_eq!(device.take(), wanted);
    let nothing = domain.map_sg(Iova::new(0x9000), &[], Access::READ, &mut owed);
    let iova = Iova::new(0x9000);
    assert_eq!(nothing, Err(TableMapError::Empty { iova }.into()));
}

/// A device that has one domain.
fn of_one() -> Scripted {
    let device = Scripted::new();
    device.set(config::DOMAIN_RANGE_END, DOMAIN.into());
    device
}

#[test]
fn a_domain_gives_its_number_back() {
    let device = of_one();
    let unit = device.start().unwrap();
    for _ in 0..2 {
        let domain = unit.domain().unwrap();
        assert_eq!(domain.number(), DOMAIN);
        assert_eq!(unit.domain().err(), Some(IommuError::OutOfContexts));
    }
}

/// A request that was given up may be carried out on any domain that has the number then.
#[test]
fn a_number_is_not_given_out_while_a_request_of_it_is_on_its_way() {
    use portolan::iommu::Iommu as _;
    for returned in [false, true] {
        let device = of_one();
        let (unit, domain) = device.attached();
        device.answer(&[Answer::Lost]);
        sync(&domain, &mut map(&domain, 0x1000, 0x1000)).unwrap_err();
        unit.block(FIRST).unwrap();
        device.state().returned = returned;
        assert_eq!(Arc::strong_count(&domain), 1);
        drop(domain);
        assert_eq!(unit.domain().is_ok(), returned);
    }
}
