//! Device trees put together by hand, and damaged ones.

use super::*;
use alloc::vec::Vec;

extern crate std;

std::thread_local! {
    /// Bytes of trees that were looked at.
    static LOOKED: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

pub(super) fn count(bytes: usize) {
    LOOKED.set(LOOKED.get() + bytes);
}

/// Number of bytes of trees that `work` reads.
pub(crate) fn looked(work: impl FnOnce()) -> usize {
    let before = LOOKED.get();
    work();
    LOOKED.get() - before
}

const NAMES: &[u8] = b"compatible\0reg\0device_type\0";

/// A tree put together: nodes begin and end, and properties come before the nodes below.
#[derive(Default)]
pub(crate) struct Builder {
    body: Vec<u8>,
    names: Vec<u8>,
}

impl Builder {
    pub(crate) fn begin(self) -> Self {
        self.named("node")
    }

    pub(crate) fn named(mut self, name: &str) -> Self {
        begin(&mut self.body, &[name.as_bytes(), b"\0"].concat());
        self
    }

    pub(crate) fn end(mut self) -> Self {
        self.body.extend(END_NODE.to_be_bytes());
        self
    }

    pub(crate) fn text(mut self, name: &str, value: &str) -> Self {
        let at = self.names.len() as u32;
        self.names.extend(name.as_bytes());
        self.names.push(0);
        property(&mut self.body, at, &[value.as_bytes(), b"\0"].concat());
        self
    }

    pub(crate) fn cells(mut self, name: &str, cells: &[u32]) -> Self {
        let at = self.names.len() as u32;
        self.names.extend(name.as_bytes());
        self.names.push(0);
        let value: Vec<u8> = cells.iter().flat_map(|cell| cell.to_be_bytes()).collect();
        property(&mut self.body, at, &value);
        self
    }

    /// So many empty properties that share one name.
    pub(crate) fn shared(mut self, name: &str, count: usize) -> Self {
        let at = self.names.len() as u32;
        self.names.extend(name.as_bytes());
        self.names.push(0);
        (0..count).for_each(|_| property(&mut self.body, at, &[]));
        self
    }

    pub(crate) fn bytes(mut self) -> Vec<u8> {
        self.body.extend(9u32.to_be_bytes());
        whole(&self.body, &self.names)
    }
}

/// The header, the structure and the names.
fn whole(body: &[u8], names: &[u8]) -> Vec<u8> {
    let strings = HEADER_BYTES + body.len();
    let mut all = Vec::new();
    for number in [MAGIC, (strings + names.len()) as u32, HEADER_BYTES as u32, strings as u32] {
        all.extend(number.to_be_bytes());
    }
    all.resize(HEADER_BYTES, 0);
    all.extend(body);
    all.extend(names);
    all
}

fn push(tree: &mut Vec<u8>, bytes: &[u8]) {
    tree.extend(bytes);
    tree.resize(tree.len().next_multiple_of(4), 0);
}

fn property(tree: &mut Vec<u8>, name: u32, value: &[u8]) {
    for number in [PROPERTY, value.len() as u32, name] {
        tree.extend(number.to_be_bytes());
    }
    push(tree, value);
}

fn begin(tree: &mut Vec<u8>, name: &[u8]) {
    tree.extend(BEGIN_NODE.to_be_bytes());
    push(tree, name);
}

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
