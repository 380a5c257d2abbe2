//! Tables written by hand from the specifications, byte by byte, and the values read from them.

extern crate std;

use std::vec;
use std::vec::Vec;

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::iommu::ReservedKind;
use portolan::table::Access;

use crate::TableError;
use crate::dmar::{self, Dmar, PathStep, ScopeKind, Serves, Structure};
use crate::reserved::Streams;
use crate::sdt::{Sdt, Tables};
use crate::tests::lookup;
use crate::viot::{self, Viot};
use portolan::addr::{PciSegment, RequesterId};

pub(crate) mod bytes;
mod edges;
mod iort;
mod ivrs;
mod rimt;

use bytes::{dmar_bytes, ivrs_bytes, reseal, seal, table, viot_bytes};

#[test]
fn dmar_by_hand() {
    let bytes = dmar_bytes();
    let dmar = Dmar::parse(&bytes).unwrap();
    assert_eq!((dmar.address_lg2(), dmar.flags()), (39, 1));
    let mut structures = dmar.structures();
    let Some(Ok(Structure::Drhd(unit))) = structures.next() else {
        panic!("no unit");
    };
    assert_eq!((unit.serves, unit.segment), (Serves::Named, PciSegment::new(1)));
    assert_eq!(unit.registers.start(), PhysAddr::new(0xfed9_1000));
    assert_eq!(unit.registers.last(), PhysAddr::new(0xfed9_2fff));
    let scopes: Vec<_> = unit.scopes.map(Result::unwrap).collect();
    assert_eq!(scopes[0].kind, ScopeKind::Endpoint);
    let path: Vec<_> = scopes[0].path().collect();
    let step = |device, function| PathStep { device, function };
    assert_eq!(path, [step(0x1c, 0), step(2, 3)]);
    let secondary = |bridge| (bridge == RequesterId::of(5, 0x1c, 0)).then_some(9);
    let there = scopes[0].requester(secondary);
    assert_eq!(there, Some(RequesterId::of(9, 2, 3)));
    assert_eq!(scopes[0].requester(|_| None), None);
    assert_eq!((scopes[1].kind, scopes[1].enumeration), (ScopeKind::IoApic, 8));
    assert_eq!(scopes[1].requester(|_| None), None);

    let Some(Ok(Structure::Reserved(reserved))) = structures.next() else {
        panic!("no reserved memory");
    };
    assert_eq!(structures.unknown(), 1);
    assert_eq!(reserved.range.last(), PhysAddr::new(0x7c0f_ffff));
    let mut scopes = reserved.scopes;
    let device = scopes.next().unwrap().unwrap().requester(|_| None);
    assert_eq!(device, Some(RequesterId::new(0xa0)));

    let rest: Vec<_> = structures.by_ref().map(Result::unwrap).collect();
    assert!(matches!(rest[0], Structure::RootPorts(p) if p.ports == dmar::Ports::All));
    assert!(matches!(rest[1], Structure::Affinity(a) if a.proximity == 3));
    assert!(matches!(rest[2], Structure::NamedDevice(d) if d.number == 7 && d.name == b"\\_SB"));
    let Structure::TranslationCaches(mut caches) = rest[3] else {
        panic!("no SATC");
    };
    assert_eq!((caches.flags, caches.scopes.next()), (1, None));
    assert_eq!(caches.scopes.unknown(), 1);
    assert!(matches!(rest[4], Structure::Properties(p) if p.scopes.count() == 1));
    assert_eq!((rest.len(), structures.unknown()), (5, 1));
}

#[test]
fn dmar_reserves_memory_for_a_function() {
    let good = dmar_bytes();
    let of = |bytes: &[u8], segment, id| -> Vec<_> {
        let dmar = Dmar::parse(bytes).unwrap();
        let asked = Streams::one(RequesterId::new(id).stream());
        let found = dmar.reserved(PciSegment::new(segment), asked, |_| None);
        found.collect()
    };
    let found = of(&good, 0, 0xa0)[0].unwrap();
    assert_eq!(found.streams, Streams::one(StreamId::new(0xa0)));
    let range = found.region.range;
    assert_eq!(range.start(), Iova::new(0x7c00_0000));
    assert_eq!(range.last(), Iova::new(0x7c0f_ffff));
    let both = Access::READ | Access::WRITE;
    assert_eq!(found.region.kind, ReservedKind::Direct(both));
    let none = [of(&good, 0, 0xa1), of(&good, 1, 0xa0)];
    assert_eq!(none, [vec![], vec![]]);
    // A scope that is a bridge at the same place means the devices behind it.
    let mut bytes = good.clone();
    bytes[86 + 24] = 2;
    reseal(&mut bytes);
    assert_eq!(of(&bytes, 0, 0xa0), []);
    // A machine with 30 bits has no such memory.
    let mut bytes = good.clone();
    bytes[36] = 29;
    reseal(&mut bytes);
    let (offset, value) = (86 + 8, 0x7c0f_ffff);
    assert_eq!(of(&bytes, 0, 0xa0), [Err(TableError::Nonsense { offset, value })]);
    // A scope that says a length that cannot be.
    let mut bytes = good;
    bytes[86 + 25] = 2;
    reseal(&mut bytes);
    let (offset, length) = (86 + 24, 2);
    assert_eq!(of(&bytes, 0, 0xa0), [Err(TableError::Length { offset, length })]);
}

#[test]
fn dmar_says_what_is_wrong_and_where() {
    let good = dmar_bytes();
    let errors = |bytes: &[u8]| -> Vec<_> {
        let structures = Dmar::parse(bytes).unwrap().structures();
        structures.filter_map(Result::err).collect()
    };
    // A structure without a length, which would be found for ever.
    let mut bytes = good.clone();
    bytes[50] = 0;
    reseal(&mut bytes);
    let (offset, length) = (48, 0);
    assert_eq!(errors(&bytes), [TableError::Length { offset, length }]);
    // One past the end.
    let mut bytes = good.clone();
    bytes[51] = 0x7f;
    reseal(&mut bytes);
    let (offset, needed) = (48, 0x7f20);
    assert_eq!(errors(&bytes), [TableError::Truncated { offset, needed }]);
    // Reserved memory that ends before it begins; the rest is still read.
    let mut bytes = good.clone();
    bytes[86 + 19] = 0;
    reseal(&mut bytes);
    let (offset, value) = (86 + 8, 0x7c00_0000);
    assert_eq!(errors(&bytes), [TableError::Nonsense { offset, value }]);
    assert_eq!(Dmar::parse(&bytes).unwrap().structures().count(), 7);
    let (found, wanted) = (*b"DMAR", *b"VIOT");
    let other = Err(TableError::Signature { found, wanted });
    assert_eq!(Viot::parse(&good).map(|_| ()), other);
}

/// ACPICA warns of a wrong checksum, Linux's walk of DMAR ends with padding, and both go on.
#[test]
fn a_flipped_bit_or_padding_does_not_take_the_table_away() {
    let good = dmar_bytes();
    let errors = |bytes: &[u8]| -> Vec<TableError> {
        let structures = Dmar::parse(bytes).unwrap().structures();
        structures.filter_map(Result::err).collect()
    };
    // A flipped bit.
    let mut bytes = good.clone();
    bytes[60] ^= 4;
    let sum = Sdt::parse(&bytes).map(drop);
    assert!([4, 252].map(|sum| Err(TableError::Checksum { sum })).contains(&sum));
    assert!(Dmar::parse(&bytes).is_ok());
    let mut bytes = ivrs_bytes();
    bytes[9] ^= 1;
    assert!(matches!(crate::ivrs::Ivrs::parse(&bytes), Err(TableError::Checksum { .. })));
    // Zeros behind the last structure are none; anything else is.
    let mut bytes = good.clone();
    bytes.extend([0; 8]);
    seal(&mut bytes);
    assert_eq!(errors(&bytes), []);
    let last = bytes.len() - 1;
    bytes[last] = 1;
    seal(&mut bytes);
    let (offset, length) = (good.len(), 0);
    assert_eq!(errors(&bytes), [TableError::Length { offset, length }]);
}

#[test]
fn viot_by_hand() {
    let bytes = viot_bytes();
    let viot = Viot::parse(&bytes).unwrap();
    let mut walk = viot.nodes();
    assert_eq!((walk.by_ref().count(), walk.unknown()), (4, 1));
    let of =
        |segment, id| lookup::viot_endpoint(&viot, PciSegment::new(segment), RequesterId::new(id));
    let unit =
        viot::Viommu::Pci { segment: PciSegment::new(0), requester: RequesterId::of(0, 1, 0) };
    assert_eq!(of(2, 0x123), Ok(Some((unit, StreamId::new(0x1023)))));
    assert_eq!(of(3, 0x1ff), Ok(Some((unit, StreamId::new(0x1_10ff)))));
    assert_eq!((of(2, 0xff), of(4, 0x100)), (Ok(None), Ok(None)));
    let second = lookup::viot_unit(&viot, 64).unwrap();
    let base = PhysAddr::new(0x0a00_0000);
    assert_eq!(second, viot::Viommu::Mmio { base });
    for offset in [0, 47, 80, 84, 4000, u16::MAX] {
        assert!(lookup::viot_unit(&viot, offset).is_err(), "{offset}");
    }
}

#[test]
fn many_tables_in_a_row() {
    let mut all = vec![0; 3];
    all.extend(viot_bytes());
    all.extend([0; 13]);
    // A table without a checksum.
    let mut facs = table(*b"FACS", &[1, 2, 3]);
    facs[9] ^= 1;
    all.extend(facs);
    let dmar = all.len();
    all.extend(dmar_bytes());
    let mut tables = Tables::new(&all);
    let found: Vec<_> =
        tables.by_ref().map(|found| found.map(|(at, sdt)| (at, sdt.signature()))).collect();
    assert_eq!(found, [Ok((3, *b"VIOT")), Ok((dmar, *b"DMAR"))]);
    assert_eq!(tables.damaged(), 1);
    all.extend(*b"XSDT\x10\0\0\0");
    assert_eq!(Tables::new(&all).filter(Result::is_err).count(), 1);

    let xsdt = table(*b"XSDT", &[0, 0x10, 0, 0, 1, 0, 0, 0, 7]);
    let sdt = Sdt::parse(&xsdt).unwrap();
    let entries = sdt.entries().unwrap();
    assert!(entries.eq([PhysAddr::new(0x1_0000_1000)]));
    let rsdt = table(*b"RSDT", &[0, 0x10, 0, 0, 1, 0, 0, 0]);
    let sdt = Sdt::parse(&rsdt).unwrap();
    assert_eq!(sdt.entries().unwrap().count(), 2);
    assert!(Sdt::parse(&viot_bytes()).unwrap().entries().is_err());
}
