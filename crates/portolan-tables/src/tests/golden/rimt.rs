//! RIMT by hand.

use portolan::addr::PciFunction;
use portolan::iommu::{Polarity, Trigger};

use super::bytes::rimt_bytes;
use super::*;
use crate::rimt::{GlobalWire, Rimt, RimtBody, RimtMapping, Unit, UnitPlace};

/// Offsets of the nodes.
const PLATFORM: usize = 48;
const FUNCTION: usize = 104;
const COMPLEX: usize = 148;
const UNKNOWN: usize = 208;
const DEVICE: usize = 216;

#[test]
fn every_node_is_read() {
    let bytes = rimt_bytes();
    let table = Rimt::parse(&bytes).unwrap();
    let mut nodes = table.nodes();
    let all: Vec<_> = nodes.by_ref().map(Result::unwrap).collect();
    assert_eq!(nodes.unknown(), 1);
    let offsets: Vec<usize> = all.iter().map(|node| node.offset).collect();
    assert_eq!(offsets, [PLATFORM, FUNCTION, COMPLEX, DEVICE]);
    let wire = GlobalWire { interrupt: 36, trigger: Trigger::Edge, polarity: Polarity::High };
    let platform =
        Unit { place: UnitPlace::Registers(PhysAddr::new(0x301_0000)), wire: Some(wire) };
    assert_eq!(all[0].body, RimtBody::Unit(platform));
    let at = PciFunction { segment: PciSegment::new(2), requester: RequesterId::of(0, 1, 2) };
    let function = Unit { place: UnitPlace::Function(at), wire: None };
    assert_eq!(all[1].body, RimtBody::Unit(function));
    let RimtBody::RootComplex { segment, mappings } = all[2].body else {
        panic!("{:?}", all[2]);
    };
    assert_eq!(segment.get(), 2);
    let first = RimtMapping { first: 0, count: 10, stream: StreamId::new(0x100), unit: 104 };
    let second = RimtMapping { first: 0xb, count: 0xfff5, stream: StreamId::new(0xb), unit: 48 };
    assert_eq!(mappings.collect::<Vec<_>>(), [first, second]);
    let RimtBody::Device { name, mappings } = all[3].body else {
        panic!("{:?}", all[3]);
    };
    assert_eq!(name, b"\\_SB.D");
    let streams: Vec<u32> = mappings.map(|one| one.stream.get()).collect();
    assert_eq!(streams, [0x4_0000]);
    assert_eq!(bytes[UNKNOWN], 0x99);
}

#[test]
fn a_function_has_the_stream_of_the_mapping_that_has_it() {
    let bytes = rimt_bytes();
    let table = Rimt::parse(&bytes).unwrap();
    let of = |segment, id| {
        let requester = RequesterId::new(id);
        lookup::rimt_stream(&table, PciFunction { segment: PciSegment::new(segment), requester })
    };
    let found = |unit, stream| Ok(Some((unit, StreamId::new(stream))));
    assert_eq!(of(2, 0), found(FUNCTION, 0x100));
    assert_eq!(of(2, 9), found(FUNCTION, 0x109));
    assert_eq!(of(2, 0xa), Ok(None));
    assert_eq!(of(2, 0xb), found(PLATFORM, 0xb));
    assert_eq!(of(2, 0xffff), found(PLATFORM, 0xffff));
    assert_eq!(of(1, 0), Ok(None));
    // Nodes that are no unit, and an offset within one.
    for target in [148u8, 49, 0] {
        let mut wrong = rimt_bytes();
        wrong[COMPLEX + 20 + 12] = target;
        reseal(&mut wrong);
        let (segment, requester) = (PciSegment::new(2), RequesterId::new(3));
        let wrong = Rimt::parse(&wrong).unwrap();
        let refused = lookup::rimt_stream(&wrong, PciFunction { segment, requester });
        let (offset, target) = (COMPLEX, target.into());
        assert_eq!(refused, Err(TableError::Reference { offset, target }));
    }
    // A stream past the last.
    let last = RimtMapping { first: 0, count: u32::MAX, stream: StreamId::new(u32::MAX), unit: 48 };
    assert_eq!(last.stream_of(0), Some(StreamId::new(u32::MAX)));
    assert_eq!((last.stream_of(1), last.stream_of(u32::MAX)), (None, None));
}

#[test]
fn what_does_not_fit_is_an_error_and_the_walk_goes_on_if_it_can() {
    let walk = |edit: fn(&mut Vec<u8>)| {
        let mut bytes = rimt_bytes();
        edit(&mut bytes);
        reseal(&mut bytes);
        let table = Rimt::parse(&bytes).map(|table| {
            let nodes = table.nodes().map(|node| node.map(|node| node.offset));
            nodes.collect::<Vec<_>>()
        });
        table.unwrap()
    };
    let truncated = |offset, needed| Err(TableError::Truncated { offset, needed });
    let length = |offset, length| Err(TableError::Length { offset, length });
    let rest = [Ok(FUNCTION), Ok(COMPLEX), Ok(DEVICE)];
    // Wires past the node's end.
    let found = walk(|bytes| bytes[PLATFORM + 38] = 41);
    assert_eq!(found[0], truncated(PLATFORM + 41, 16));
    assert_eq!(found[1..], rest);
    // Mappings past the node's end.
    let found = walk(|bytes| bytes[COMPLEX + 18] = 3);
    assert_eq!(found[2], truncated(COMPLEX + 20, 60));
    // Shorter than its fixed part; shorter than what all have.
    let found = walk(|bytes| bytes[UNKNOWN] = 0);
    assert_eq!(found[3], length(UNKNOWN, 8));
    assert_eq!(walk(|bytes| bytes[PLATFORM + 2] = 7), [length(PLATFORM, 7)]);
    // One node more than there is.
    let found = walk(|bytes| bytes[36] = 6);
    assert_eq!(found.len(), 5);
    assert!(found[4].is_err());
    // Nodes within the header.
    let mut bytes = rimt_bytes();
    bytes[40] = 47;
    reseal(&mut bytes);
    let (offset, value) = (40, 47);
    let refused = Rimt::parse(&bytes).err();
    assert_eq!(refused, Some(TableError::Nonsense { offset, value }));
}
