//! Device trees: where the devices are that hang on the root, and memory.
//!
//! Devicetree specification 0.4, chapters 2 (properties) and 5 (flattened trees). Only nodes below the
//! root are looked at. Not supported: interrupts, references between nodes, and buses with addresses of
//! their own.
//!
//! *Context.* Interrupt: a lookup walks the tree.

use portolan::addr::{PhysAddr, PhysRange};

const MAGIC: u32 = 0xd00d_feed;
const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOTHING: u32 = 4;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 40;

/// The number at `at`.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(four.try_into().ok()?))
}

/// The text at the start of `bytes`, up to a zero.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The bytes of a tree, by its header; `None` if it is no tree.
pub fn length(header: &[u8]) -> Option<usize> {
    let magic = word(header, 0)?;
    let bytes = usize::try_from(word(header, 4)?).ok()?;
    (magic == MAGIC && bytes >= HEADER_BYTES).then_some(bytes)
}

/// A flattened tree.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTree<'t> {
    structure: &'t [u8],
    strings: &'t [u8],
}

/// A node below the root: its properties lie between two offsets.
#[derive(Clone, Copy, Debug)]
pub struct Node<'t> {
    tree: DeviceTree<'t>,
    first: usize,
}

/// One piece of the structure.
enum Token<'t> {
    Begin,
    End,
    Property { name: u32, value: &'t [u8] },
}

impl<'t> DeviceTree<'t> {
    /// The tree at the start of `bytes`.
    pub fn parse(bytes: &'t [u8]) -> Option<Self> {
        let bytes = bytes.get(..length(bytes)?)?;
        let structure = bytes.get(word(bytes, 8)? as usize..)?;
        let strings = bytes.get(word(bytes, 12)? as usize..)?;
        Some(Self { structure, strings })
    }

    /// The token at `at`, and where the next one is; `None` at the end, or where the tree is damaged.
    fn token(self, mut at: usize) -> Option<(Token<'t>, usize)> {
        loop {
            let kind = word(self.structure, at)?;
            at = at.checked_add(4)?;
            match kind {
                NOTHING => {}
                BEGIN_NODE => {
                    let name = text(self.structure.get(at..)?).len().checked_add(1)?;
                    let next = at.checked_add(name)?.checked_next_multiple_of(4)?;
                    return Some((Token::Begin, next));
                }
                END_NODE => return Some((Token::End, at)),
                PROPERTY => {
                    let bytes = word(self.structure, at)? as usize;
                    let name = word(self.structure, at.checked_add(4)?)?;
                    let start = at.checked_add(8)?;
                    let end = start.checked_add(bytes)?;
                    let value = self.structure.get(start..end)?;
                    let next = end.checked_next_multiple_of(4)?;
                    return Some((Token::Property { name, value }, next));
                }
                _ => return None,
            }
        }
    }

    /// The nodes below the root.
    pub fn nodes(self) -> impl Iterator<Item = Node<'t>> {
        let (mut at, mut depth) = (0, 0u32);
        core::iter::from_fn(move || {
            loop {
                let (token, next) = self.token(at)?;
                at = next;
                match token {
                    Token::Begin => depth = depth.checked_add(1)?,
                    Token::End => depth = depth.checked_sub(1)?,
                    Token::Property { .. } => {}
                }
                if matches!(token, Token::Begin) && depth == 2 {
                    let (tree, first) = (self, at);
                    return Some(Node { tree, first });
                }
            }
        })
    }

    /// The first node below the root that says that it is compatible with `what`.
    pub fn compatible(self, what: &str) -> Option<Node<'t>> {
        let is = |node: &Node<'_>| {
            let names = node.property("compatible").unwrap_or_default();
            names
                .split(|byte| *byte == 0)
                .any(|name| name == what.as_bytes())
        };
        self.nodes().find(is)
    }

    /// The largest range of memory.
    pub fn memory(self) -> Option<PhysRange> {
        let memory = self.nodes().filter(|node| {
            let kind = node.property("device_type").unwrap_or_default();
            text(kind) == b"memory"
        });
        memory
            .filter_map(|node| node.reg())
            .max_by_key(|range| range.len_minus_one())
    }
}

impl<'t> Node<'t> {
    /// The value of a property of the node's own.
    pub fn property(&self, wanted: &str) -> Option<&'t [u8]> {
        let mut at = self.first;
        loop {
            // Properties come before the nodes below.
            let (Token::Property { name, value }, next) = self.tree.token(at)? else {
                return None;
            };
            at = next;
            let name = self.tree.strings.get(name as usize..)?;
            if text(name) == wanted.as_bytes() {
                return Some(value);
            }
        }
    }

    /// The first range of the node's registers, or of its memory, where addresses and lengths have two
    /// cells each.
    pub fn reg(&self) -> Option<PhysRange> {
        let reg = self.property("reg")?;
        range(reg, 0)
    }
}

/// The range at `at` of a property: its address and its length, of two cells each.
pub fn range(property: &[u8], at: usize) -> Option<PhysRange> {
    let cell = |number: usize| Some(u64::from(word(property, at.checked_add(4 * number)?)?));
    let start = cell(0)? << 32 | cell(1)?;
    let bytes = cell(2)? << 32 | cell(3)?;
    PhysRange::from_len(PhysAddr::new(start), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const NAMES: &[u8] = b"compatible\0reg\0device_type\0";

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
        let strings = HEADER_BYTES + body.len();
        let mut all = Vec::new();
        for number in [
            MAGIC,
            (strings + NAMES.len()) as u32,
            HEADER_BYTES as u32,
            strings as u32,
        ] {
            all.extend(number.to_be_bytes());
        }
        all.resize(HEADER_BYTES, 0);
        all.extend(body);
        all.extend(NAMES);
        all
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
        assert!(tree.compatible("a").is_none() && tree.compatible("board").is_none());
        assert!(
            tree.compatible("a,device")
                .unwrap()
                .property("device_type")
                .is_none()
        );
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
                let _ = (
                    tree.memory(),
                    tree.compatible("a,device").and_then(|node| node.reg()),
                );
                assert!(tree.nodes().count() <= good.len());
            }
        }
        for bytes in 0..good.len() {
            assert!(DeviceTree::parse(&good[..bytes]).is_none());
        }
        assert!(range(&[0; 15], 0).is_none() && range(&[0; 16], usize::MAX).is_none());
    }
}
