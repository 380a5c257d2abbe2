//! IORT by hand.

extern crate std;

use std::vec;
use std::vec::Vec;

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::iommu::ReservedKind;
use portolan::table::Access;

use super::bytes::{
    ITS, LOOPED, NAMED, PARENT, ROOT, SMMU, iort_bytes, node, reseal, table, words,
};
use crate::TableError;
use crate::iort::{Iort, IortBody};
use crate::reserved::Streams;
use crate::tests::lookup;
use portolan::addr::{PciSegment, RequesterId};

#[test]
fn iort_by_hand() {
    let bytes = iort_bytes();
    let iort = Iort::parse(&bytes).unwrap();
    let mut walk = iort.nodes();
    let nodes: Vec<_> = walk.by_ref().map(Result::unwrap).collect();
    assert_eq!((nodes.len(), walk.unknown()), (8, 1));
    let offsets: Vec<_> = nodes.iter().take(6).map(|n| n.offset as u32).collect();
    assert_eq!(offsets, [ITS, SMMU, PARENT, ROOT, NAMED, LOOPED]);
    assert!(matches!(nodes[0].body, IortBody::ItsGroup(its) if its.ids().eq([4])));
    let IortBody::SmmuV3(smmu) = nodes[1].body else {
        panic!("no SMMUv3");
    };
    assert_eq!(smmu.base, PhysAddr::new(0x905_0000));
    assert_eq!((smmu.interrupts.event, smmu.interrupts.sync), (106, 108));
    assert_eq!((smmu.proximity, smmu.device_mapping), (Some(2), None));
    assert!(matches!(nodes[2].body, IortBody::Smmu(s) if s.model == 3 && s.flags == 2));
    assert!(matches!(nodes[3].body, IortBody::RootComplex(r) if r.address_lg2 == Some(48)));
    let IortBody::NamedComponent(named) = nodes[4].body else {
        panic!("no named component");
    };
    assert_eq!((named.address_lg2, named.name), (40, &b"\\_SB.X"[..]));
    let IortBody::ReservedMemory(reserved) = nodes[6].body else {
        panic!("no reserved memory");
    };
    let (_, range) = reserved.ranges().next().unwrap().unwrap();
    assert_eq!(range.last(), PhysAddr::new(0x801f_ffff));
    assert!(matches!(nodes[7].body, IortBody::CounterGroup(c) if c.counted == SMMU));
}

#[test]
fn iort_identifiers_are_followed() {
    let bytes = iort_bytes();
    let iort = Iort::parse(&bytes).unwrap();
    let of =
        |segment, id| lookup::iort_stream(&iort, PciSegment::new(segment), RequesterId::new(id));
    let at = |segment, id| {
        let found = of(segment, id).unwrap().unwrap();
        (found.unit.offset as u32, found.stream)
    };
    assert_eq!(at(2, 0x42), (SMMU, StreamId::new(0x1042)));
    assert_eq!(at(2, 0x1ff), (PARENT, StreamId::new(0xff)));
    // Straight to interrupts, not mapped, of no segment.
    assert_eq!(of(2, 0x210), Ok(None));
    assert_eq!(of(2, 0x300), Ok(None));
    assert_eq!(of(1, 0), Ok(None));
    let offset = LOOPED as usize;
    assert_eq!(of(9, 0), Err(TableError::Loop { offset }));
    let named = iort.nodes().nth(4).unwrap().unwrap();
    let found = lookup::iort_end(&iort, &named, 5).unwrap().unwrap();
    assert_eq!((found.unit.offset as u32, found.stream.get()), (SMMU, 77));
}

#[test]
fn a_way_has_the_width_of_the_component_at_which_it_begins() {
    let mut bytes = iort_bytes();
    let width = |bytes: &[u8], at: usize, input| {
        let iort = Iort::parse(bytes).unwrap();
        let node = iort.nodes().nth(at).unwrap().unwrap();
        lookup::iort_end(&iort, &node, input).unwrap().unwrap().address_lg2
    };
    assert_eq!((width(&bytes, 3, 0x42), width(&bytes, 4, 5)), (Some(48), Some(40)));
    // A root complex of the first revision has none.
    bytes[ROOT as usize + 3] = 0;
    reseal(&mut bytes);
    assert_eq!(width(&bytes, 3, 0x42), None);
}

#[test]
fn iort_references_to_nothing() {
    let good = iort_bytes();
    let segment = PciSegment::new(2);
    for target in [0, 47, SMMU + 1, LOOPED + 4096, u32::MAX] {
        let mut bytes = good.clone();
        let at = ROOT as usize + 16 + 24 + 12;
        bytes[at..at + 4].copy_from_slice(&target.to_le_bytes());
        reseal(&mut bytes);
        let iort = Iort::parse(&bytes).unwrap();
        let found = lookup::iort_stream(&iort, segment, RequesterId::new(1));
        assert!(found.is_err(), "{target:#x} gave {found:?}");
    }
    // Mappings past the end of their node.
    let mut bytes = good.clone();
    bytes[ROOT as usize + 8] = 200;
    reseal(&mut bytes);
    let iort = Iort::parse(&bytes).unwrap();
    let errors = iort.nodes().filter_map(Result::err);
    let (offset, needed) = (ROOT as usize + 40, 4000);
    assert!(errors.eq([TableError::Truncated { offset, needed }]));
    // More nodes than there is room for.
    let mut bytes = good;
    bytes[36] = 10;
    reseal(&mut bytes);
    let iort = Iort::parse(&bytes).unwrap();
    assert_eq!(iort.nodes().filter(Result::is_err).count(), 1);
}

/// An ITS, an SMMU, and a root complex of segment 2 with these mappings.
pub(super) fn root_with(mappings: &[[u32; 5]]) -> Vec<u8> {
    let mut body = words(&[3, 48, 0]);
    body.extend(node(0, 1, &[1, 4], &[]));
    let smmu = [0x905_0000, 0, 9, 0, 0, 0, 0, 106, 107, 109, 108, 2, 0];
    body.extend(node(4, 4, &smmu, &[[0, 0xffff, 0, ITS, 0]]));
    body.extend(node(2, 3, &[3, 0, 0, 2, 48, 0], mappings));
    table(crate::iort::SIGNATURE, &body)
}

/// The stream of a requester of segment 2.
pub(super) fn stream_of(bytes: &[u8], requester: u16) -> Option<u32> {
    let iort = Iort::parse(bytes).unwrap();
    let found = lookup::iort_stream(&iort, PciSegment::new(2), RequesterId::new(requester));
    found.unwrap().map(|found| found.stream.get())
}

#[test]
fn single_mapping_of_a_root_complex_is_for_all_its_functions() {
    let bytes = root_with(&[[0, 0, 77, SMMU, 1]]);
    for requester in [0, 0x42, 0xffff] {
        assert_eq!(stream_of(&bytes, requester), Some(77));
    }
}

/// Firmware of HIP07 and HIP08 writes the number of identifiers, not that less one.
#[test]
fn ranges_of_firmware_that_counts_whole_do_not_reach_one_too_far() {
    let mappings = [[0x100, 0x100, 0x5100, SMMU, 0], [0x300, 1, 9, SMMU, 0]];
    let good = root_with(&mappings);
    assert_eq!(stream_of(&good, 0x200), Some(0x5200));
    for table in [b"HIP07   ", b"HIP08   "] {
        let mut bytes = good.clone();
        bytes[10..16].copy_from_slice(b"HISI  ");
        bytes[16..24].copy_from_slice(table);
        reseal(&mut bytes);
        let count = Iort::parse(&bytes).unwrap().id_count();
        assert_eq!(count, crate::iort::IdCount::Whole);
        assert_eq!(stream_of(&bytes, 0x1ff), Some(0x51ff));
        assert_eq!(stream_of(&bytes, 0x200), None);
        assert_eq!(stream_of(&bytes, 0x300), Some(9));
        assert_eq!(stream_of(&bytes, 0x301), None);
        // A later table of theirs counts as specified.
        bytes[24] = 1;
        reseal(&mut bytes);
        assert_eq!(stream_of(&bytes, 0x200), Some(0x5200));
    }
}

/// Two ranges that share an identifier, in either order: the one that begins there has it.
#[test]
fn an_identifier_at_the_end_of_one_range_belongs_to_the_range_that_begins_there() {
    let (low, high) = ([0, 0x100, 0x1000, SMMU, 0], [0x100, 0x100, 0x7000, SMMU, 0]);
    for mappings in [[low, high], [high, low]] {
        let bytes = root_with(&mappings);
        assert_eq!(stream_of(&bytes, 0xff), Some(0x10ff));
        assert_eq!(stream_of(&bytes, 0x100), Some(0x7000));
        assert_eq!(stream_of(&bytes, 0x200), Some(0x7100));
    }
}

/// Two pieces for streams 0x20 to 0x2f of the SMMU, in a node of `revision`.
fn memory_of(revision: u8, flags: u32) -> Vec<u8> {
    let mut body = words(&[3, 48, 0]);
    body.extend(node(0, 1, &[1, 4], &[]));
    let smmu = [0x905_0000, 0, 9, 0, 0, 0, 0, 106, 107, 109, 108, 2, 0];
    body.extend(node(4, 4, &smmu, &[[0, 0xffff, 0, ITS, 0]]));
    // The mapping stands behind 28 bytes and the descriptors.
    let mut memory = node(6, revision, &[flags, 2, 28], &[]);
    memory.extend(words(&[0x8000_0000, 0, 0x20_0000, 0, 0]));
    memory.extend(words(&[0x9000_0000, 0, 0, 0, 0]));
    memory.extend(words(&[0, 0xf, 0x20, SMMU, 0]));
    let length = memory.len() as u8;
    memory[1] = length;
    memory[8..16].copy_from_slice(&words(&[1, 68]).try_into().unwrap() as &[u8; 8]);
    body.extend(memory);
    table(crate::iort::SIGNATURE, &body)
}

#[test]
fn iort_reserves_memory_for_a_stream() {
    let of = |bytes: &[u8], stream| -> Vec<_> {
        let iort = Iort::parse(bytes).unwrap();
        let unit = iort.node_at(0, SMMU).unwrap();
        let asked = Streams::one(StreamId::new(stream));
        iort.reserved(&unit, asked).collect()
    };
    let normal = memory_of(3, 5 << 2);
    let [Ok(first), Err(second)] = of(&normal, 0x20)[..] else {
        panic!("{:?}", of(&normal, 0x20));
    };
    let streams = Streams::new(StreamId::new(0x20), StreamId::new(0x2f)).unwrap();
    assert_eq!(first.streams, streams);
    assert_eq!(first.region.range.last(), Iova::new(0x801f_ffff));
    let both = Access::READ | Access::WRITE;
    assert_eq!(first.region.kind, ReservedKind::Direct(both));
    // An empty piece is an error of its own.
    assert!(matches!(second, TableError::Nonsense { value: 0, .. }));
    assert_eq!(of(&normal, 0x2f).len(), 2);
    assert_eq!((of(&normal, 0x1f), of(&normal, 0x30)), (vec![], vec![]));
    // Another unit's stream of the same number.
    let iort = Iort::parse(&normal).unwrap();
    let its = iort.node_at(0, ITS).unwrap();
    assert_eq!(iort.reserved(&its, Streams::ALL).count(), 0);
    // Memory of a device; such that may be mapped elsewhere; flags from before there were attributes.
    let kind = |bytes: &[u8]| of(bytes, 0x20)[0].unwrap().region.kind;
    let until = ReservedKind::DirectUntilDriven(both | Access::DEVICE);
    assert_eq!(kind(&memory_of(3, 1)), until);
    assert_eq!(kind(&memory_of(1, 0)), ReservedKind::Direct(both));
    // The last attribute of devices, and the first of memory: bits 9:2 of the flags.
    let of_device = ReservedKind::Direct(both | Access::DEVICE);
    assert_eq!(kind(&memory_of(3, 3 << 2)), of_device);
    assert_eq!(kind(&memory_of(3, 4 << 2)), ReservedKind::Direct(both));
}

/// The flag of either kind of SMMU decides, set or clear; other flags do not.
#[test]
fn firmware_overrides_coherency_of_an_smmu() {
    use crate::overrides::CoherencyOverride::{Coherent, NotCoherent};
    let said = |kind, flags: u32| {
        let mut smmu = [0x905_0000, 0, 0x1_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        smmu[if kind == 3 { 5 } else { 2 }] = flags;
        let mut body = words(&[1, 48, 0]);
        body.extend(node(kind, 4, &smmu, &[]));
        let bytes = table(crate::iort::SIGNATURE, &body);
        let iort = Iort::parse(&bytes).unwrap();
        match iort.nodes().next().unwrap().unwrap().body {
            IortBody::Smmu(unit) => unit.coherency(),
            IortBody::SmmuV3(unit) => unit.coherency(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((said(3, 0b10), said(4, 0b01)), (Coherent, Coherent));
    let others = (said(3, !0b10), said(4, !0b01));
    assert_eq!(others, (NotCoherent, NotCoherent));
}
