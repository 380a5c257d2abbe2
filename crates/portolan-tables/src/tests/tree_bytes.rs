//! Device trees put together by hand. Tests of other crates have them, too.

extern crate std;

use std::vec::Vec;

const MAGIC: u32 = 0xd00d_feed;
const BEGIN_NODE: u32 = 1;
pub(crate) const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const HEADER_BYTES: usize = 40;

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
pub(crate) fn whole(body: &[u8], names: &[u8]) -> Vec<u8> {
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

pub(crate) fn push(tree: &mut Vec<u8>, bytes: &[u8]) {
    tree.extend(bytes);
    tree.resize(tree.len().next_multiple_of(4), 0);
}

pub(crate) fn property(tree: &mut Vec<u8>, name: u32, value: &[u8]) {
    for number in [PROPERTY, value.len() as u32, name] {
        tree.extend(number.to_be_bytes());
    }
    push(tree, value);
}

pub(crate) fn begin(tree: &mut Vec<u8>, name: &[u8]) {
    tree.extend(BEGIN_NODE.to_be_bytes());
    push(tree, name);
}
