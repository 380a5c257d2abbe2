//! Device trees put together by hand, and damaged ones.

use super::*;
use alloc::vec::Vec;

use crate::tests::tree_bytes::{begin, property, whole};

const NAMES: &[u8] = b"compatible\0reg\0device_type\0";

/// A root with memory, a bus that has a device of its own, and a device.
fn tree() -> Vec<u8> {
    let (compatible, reg, kind) = (0, 11, 15);
    let range = |start: u64, bytes: u64| [start.to_be_bytes(), bytes.to_be_bytes()].concat();
    let mut body = Vec::new();
    begin(&mut body, b"\0");
    property(&mut body, compatible, b"board\0");
    begin(&mut body, b"memory@40000000\0");
    property(&mut body, kind, b"memory\0");
    property(&mut body, reg, &range(0x4000_0000, 0x1000_0000));
    body.extend(END_NODE.to_be_bytes());
    begin(&mut body, b"bus\0");
    body.extend(NOTHING.to_be_bytes());
    begin(&mut body, b"inner\0");
    property(&mut body, compatible, b"a,device\0");
    body.extend(END_NODE.to_be_bytes());
    body.extend(END_NODE.to_be_bytes());
    begin(&mut body, b"device@9\0");
    property(&mut body, compatible, b"a,new-device\0a,device\0");
    property(&mut body, reg, &range(0x902_0000, 0x18));
    body.extend(END_NODE.to_be_bytes());
    body.extend(END_NODE.to_be_bytes());
    body.extend(9u32.to_be_bytes());
    whole(&body, NAMES)
}

#[test]
fn nodes_below_the_root_are_found_by_what_they_are() {
    let bytes = tree();
    let tree = DeviceTree::parse(&bytes).unwrap();
    let range = |start, bytes| PhysRange::from_len(PhysAddr::new(start), bytes);
    assert_eq!(tree.nodes().count(), 3);
    assert_eq!(tree.memory(), range(0x4000_0000, 0x1000_0000));
    for name in ["a,device", "a,new-device"] {
        let found = tree.compatible(name).and_then(|node| node.reg());
        assert_eq!(found, range(0x902_0000, 0x18), "{name}");
    }
    let names: Vec<&[u8]> = tree.nodes().map(|node| node.name()).collect();
    assert_eq!(names, [&b"memory@40000000"[..], b"bus", b"device@9"]);
    assert!(tree.compatible("a").is_none() && tree.compatible("board").is_none());
    assert!(tree.compatible("a,device").unwrap().property("device_type").is_none());
}

#[test]
fn a_damaged_tree_ends_every_walk() {
    let good = tree();
    for at in 0..good.len() {
        for value in [0, 0xff, good[at] ^ 1, good[at] ^ 4] {
            let mut bad = good.clone();
            bad[at] = value;
            let Some(tree) = DeviceTree::parse(&bad) else {
                continue;
            };
            let _ = (tree.memory(), tree.compatible("a,device").and_then(|node| node.reg()));
            assert!(tree.nodes().count() <= good.len());
        }
    }
    for bytes in 0..good.len() {
        assert!(DeviceTree::parse(&good[..bytes]).is_none());
    }
    assert!(range(&[0; 15], 0).is_none() && range(&[0; 16], usize::MAX).is_none());
}
