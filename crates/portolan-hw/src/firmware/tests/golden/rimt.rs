//! RIMT by hand.

use portolan::addr::PciFunction;
use portolan::iommu::{Polarity, Trigger};

use super::*;
use crate::firmware::rimt::{self, Body, Mapping, Place, Rimt, Unit, Wire};

/// Offsets of the nodes.
const PLATFORM: usize = 48;
const FUNCTION: usize = 104;
const COMPLEX: usize = 148;
const UNKNOWN: usize = 208;
const DEVICE: usize = 216;

#[rustfmt::skip]
pub(crate) fn rimt_bytes() -> Vec<u8> {
    table(rimt::SIGNATURE, &[
        // Five nodes from offset 48 on; reserved.
        5, 0, 0, 0, 48, 0, 0, 0, 0, 0, 0, 0,
        // At 48: a platform device, 56 bytes, number 0, "RSCV0004", 0x301_0000.
        0, 1, 56, 0, 0, 0, 0, 0, b'R', b'S', b'C', b'V', b'0', b'0', b'0', b'4',
        0, 0, 1, 3, 0, 0, 0, 0,
        // No flags, domain 0, no function; two wires from byte 40 on.
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 40, 0,
        36, 0, 0, 0, 2, 0, 0, 0, 37, 0, 0, 0, 0, 0, 0, 0,
        // At 104: the function 0002:00:01.2, 44 bytes (four behind), no wires.
        0, 1, 44, 0, 0, 0, 1, 0, 0x36, 0x1b, 0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        // At 148: segment 2, 60 bytes, two mappings from byte 20 on.
        1, 1, 60, 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 2, 0, 20, 0, 2, 0,
        // Requesters 0 to 9 are streams 0x100 and so on of the function.
        0, 0, 0, 0, 10, 0, 0, 0, 0, 1, 0, 0, 104, 0, 0, 0, 0, 0, 0, 0,
        // Requesters 0xb to 0xffff are as they are, of the platform device.
        0x0b, 0, 0, 0, 0xf5, 0xff, 0, 0, 0x0b, 0, 0, 0, 48, 0, 0, 0, 0, 0, 0, 0,
        // At 208: of unknown type.
        0x99, 1, 8, 0, 0, 0, 0, 0,
        // At 216: the device \_SB.D, 40 bytes, one mapping from byte 20 on: stream 0x4_0000.
        2, 1, 40, 0, 0, 0, 3, 0, 20, 0, 1, 0, b'\\', b'_', b'S', b'B', b'.', b'D', 0, 0,
        0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 4, 0, 48, 0, 0, 0, 0, 0, 0, 0,
    ])
}

#[test]
fn every_node_is_read() {
    let bytes = rimt_bytes();
    let table = Rimt::parse(&bytes).unwrap();
    let mut nodes = table.nodes();
    let all: Vec<_> = nodes.by_ref().map(Result::unwrap).collect();
    assert_eq!(nodes.unknown(), 1);
    let offsets: Vec<usize> = all.iter().map(|node| node.offset).collect();
    assert_eq!(offsets, [PLATFORM, FUNCTION, COMPLEX, DEVICE]);
    let wire = Wire { interrupt: 36, trigger: Trigger::Edge, polarity: Polarity::High };
    let platform = Unit { place: Place::Registers(PhysAddr::new(0x301_0000)), wire: Some(wire) };
    assert_eq!(all[0].body, Body::Unit(platform));
    let at = PciFunction { segment: PciSegment::new(2), requester: RequesterId::of(0, 1, 2) };
    let function = Unit { place: Place::Function(at), wire: None };
    assert_eq!(all[1].body, Body::Unit(function));
    let Body::RootComplex { segment, mappings } = all[2].body else {
        panic!("{:?}", all[2]);
    };
    assert_eq!(segment.get(), 2);
    let first = Mapping { first: 0, count: 10, stream: StreamId::new(0x100), unit: 104 };
    let second = Mapping { first: 0xb, count: 0xfff5, stream: StreamId::new(0xb), unit: 48 };
    assert_eq!(mappings.collect::<Vec<_>>(), [first, second]);
    let Body::Device { name, mappings } = all[3].body else {
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
        table.resolve(PciFunction {
            segment: PciSegment::new(segment),
            requester: RequesterId::new(id),
        })
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
        let refused = Rimt::parse(&wrong)
            .unwrap()
            .resolve(PciFunction { segment: PciSegment::new(2), requester: RequesterId::new(3) });
        let (offset, target) = (COMPLEX, target.into());
        assert_eq!(refused, Err(TableError::Reference { offset, target }));
    }
    // A stream past the last.
    let last = Mapping { first: 0, count: u32::MAX, stream: StreamId::new(u32::MAX), unit: 48 };
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
