//! Reserved memory (RMR nodes) stream by stream.
//!
//! Arm I/O Remapping Table (DEN0049), revision E.f, section 3.1.1.7 (reserved memory range node).
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use portolan::addr::StreamId;
use portolan::table::Access;

use super::super::TableError;
use super::super::reserved::{ReservedKind, ReservedRegion};
use super::node::{Body, MemoryRanges, Node, ReservedMemory};
use super::{Iort, Mapping, Nodes, Single};

/// Bit of a node's flags: the memory may be mapped elsewhere.
const MAY_MOVE: u32 = 1;
/// From this revision of a node on, its flags have memory attributes.
const HAS_ATTRIBUTES: u8 = 3;
/// The first attribute that is of memory; those below are of devices.
const NORMAL: u32 = 4;

impl<'a> Iort<'a> {
    /// The memory that a stream of an SMMU goes on using. `unit` is the SMMU's node.
    ///
    /// Regions may overlap: [`disjoint`](super::super::reserved::disjoint) puts them together. Items
    /// are errors where a node or a descriptor of the table is wrong; the walk goes on behind it as
    /// [`Nodes`] does.
    pub fn reserved(&self, unit: &Node<'a>, stream: StreamId) -> ReservedRegions<'a> {
        ReservedRegions {
            nodes: self.nodes(),
            unit: unit.offset,
            stream,
            current: None,
        }
    }
}

/// The regions of one stream. Errors are those of all nodes.
#[derive(Clone, Debug)]
pub struct ReservedRegions<'a> {
    nodes: Nodes<'a>,
    unit: usize,
    stream: StreamId,
    /// What is left of a node that has the stream.
    current: Option<(MemoryRanges<'a>, ReservedKind, Access)>,
}

impl ReservedRegions<'_> {
    /// Whether a mapping of a reserved memory node has the stream in its output.
    fn has(&self, mapping: &Mapping) -> bool {
        let above = self.stream.get().checked_sub(mapping.output);
        let most = match mapping.single {
            Single::Single => 0,
            Single::Range => mapping.count_minus_one,
        };
        usize::try_from(mapping.target) == Ok(self.unit) && above.is_some_and(|above| above <= most)
    }
}

/// What becomes of the memory of a node, and what the device may do there.
fn meaning(node: &Node<'_>, memory: &ReservedMemory<'_>) -> (ReservedKind, Access) {
    let kind = match memory.flags & MAY_MOVE {
        0 => ReservedKind::Direct,
        _ => ReservedKind::DirectUntilDriven,
    };
    let mut access = Access::READ | Access::WRITE;
    let attributes = memory.flags >> 2 & 0xff;
    if node.revision >= HAS_ATTRIBUTES && attributes < NORMAL {
        access |= Access::DEVICE;
    }
    (kind, access)
}

impl Iterator for ReservedRegions<'_> {
    type Item = Result<ReservedRegion, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((ranges, kind, access)) = &mut self.current {
                if let Some(range) = ranges.next() {
                    let (kind, access) = (*kind, *access);
                    return Some(range.map(|(_, memory)| ReservedRegion {
                        memory,
                        kind,
                        access,
                    }));
                }
                self.current = None;
            }
            let mut node = match self.nodes.next()? {
                Ok(node) => node,
                Err(error) => return Some(Err(error)),
            };
            let Body::ReservedMemory(memory) = node.body else {
                continue;
            };
            if node.mappings.any(|mapping| self.has(&mapping)) {
                let (kind, access) = meaning(&node, &memory);
                self.current = Some((memory.ranges(), kind, access));
            }
        }
    }
}
