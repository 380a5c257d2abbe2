//! Device trees: their nodes and properties, and memory.
//!
//! Devicetree specification 0.4, chapters 2 (properties) and 5 (flattened trees). References
//! between nodes and buses with addresses of their own are for readers of a tree
//! ([`crate::describe`]). Not supported: interrupts.
//!
//! *Context.* Interrupt: a lookup walks the tree.

use portolan::addr::{PhysAddr, PhysRange};

use crate::counted;

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
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    counted::add(text.len());
    text
}

/// Tells if the text at the start of `bytes` is `wanted`. It reads no more bytes than `wanted` has:
/// many properties may share one long name.
fn is_text(bytes: &[u8], wanted: &[u8]) -> bool {
    counted::add(wanted.len());
    let rest = bytes.strip_prefix(wanted);
    rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == 0))
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
pub struct TreeNode<'t> {
    tree: DeviceTree<'t>,
    name: &'t [u8],
    first: usize,
}

/// One piece of the structure.
enum Token<'t> {
    Begin { name: &'t [u8] },
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
            counted::add(4);
            let kind = word(self.structure, at)?;
            at = at.checked_add(4)?;
            match kind {
                NOTHING => {}
                BEGIN_NODE => {
                    let name = text(self.structure.get(at..)?);
                    let end = at.checked_add(name.len())?.checked_add(1)?;
                    let next = end.checked_next_multiple_of(4)?;
                    return Some((Token::Begin { name }, next));
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

    /// All nodes, each before those below it, with their depth: 1 is the root's.
    pub fn walk(self) -> impl Iterator<Item = (u32, TreeNode<'t>)> {
        let (mut at, mut depth) = (0, 0u32);
        core::iter::from_fn(move || {
            loop {
                let (token, next) = self.token(at)?;
                at = next;
                match token {
                    Token::Begin { name } => {
                        depth = depth.checked_add(1)?;
                        let (tree, first) = (self, at);
                        return Some((depth, TreeNode { tree, name, first }));
                    }
                    Token::End => depth = depth.checked_sub(1)?,
                    Token::Property { .. } => {}
                }
            }
        })
    }

    /// The nodes below the root.
    pub fn nodes(self) -> impl Iterator<Item = TreeNode<'t>> {
        let below = self.walk().filter(|(depth, _)| *depth == 2);
        below.map(|(_, node)| node)
    }

    /// The first node below the root whose property `compatible` names `what`.
    pub fn compatible(self, what: &str) -> Option<TreeNode<'t>> {
        self.nodes().find(|node| node.is(what))
    }

    /// The node that others refer to by `phandle`.
    pub fn referred(self, phandle: u32) -> Option<TreeNode<'t>> {
        let mut nodes = self.walk().map(|(_, node)| node);
        nodes.find(|node| node.cell("phandle", 0) == Some(phandle))
    }

    /// The largest range of memory.
    pub fn memory(self) -> Option<PhysRange> {
        let memory = self.nodes().filter(|node| {
            let kind = node.property("device_type").unwrap_or_default();
            is_text(kind, b"memory")
        });
        memory.filter_map(|node| node.reg()).max_by_key(|range| range.len_minus_one())
    }
}

impl<'t> TreeNode<'t> {
    /// Its name, with the address behind `@` if it has one.
    pub fn name(&self) -> &'t [u8] {
        self.name
    }

    /// Offset of its properties in the tree's structure: no other node has the same.
    pub fn offset(&self) -> usize {
        self.first
    }

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
            if is_text(name, wanted.as_bytes()) {
                return Some(value);
            }
        }
    }

    /// Tells if its property `compatible` names `what`.
    pub fn is(&self, what: &str) -> bool {
        let names = self.property("compatible").unwrap_or_default();
        let mut names = names.split(|byte| *byte == 0);
        names.any(|name| name == what.as_bytes())
    }

    /// Cell number `number` of a property.
    pub fn cell(&self, property: &str, number: usize) -> Option<u32> {
        word(self.property(property)?, number.checked_mul(4)?)
    }

    /// The cells of a property.
    pub fn cells(&self, property: &str) -> impl Iterator<Item = u32> + use<'t> {
        let bytes = self.property(property).unwrap_or_default();
        let words = bytes.chunks_exact(4);
        words.map(|bytes| word(bytes, 0).unwrap_or(0))
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
mod tests;
