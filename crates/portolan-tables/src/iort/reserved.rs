//! Reserved memory (RMR nodes) stream by stream.
//!
//! Arm I/O Remapping Table (DEN0049), revision E.f, section 3.1.1.7 (reserved memory range node).
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use portolan::addr::StreamId;
use portolan::iommu::ReservedKind;
use portolan::table::Access;

use super::node::{IortBody, IortNode, MemoryRanges, ReservedMemory};
use super::{Iort, IortMapping, IortMappings, IortNodes, Single};
use crate::TableError;
use crate::reserved::region;
use crate::reserved::{Reserved, Streams};

/// Bit of a node's flags: the memory may be mapped elsewhere.
const MAY_MOVE: u32 = 1;
/// From this revision of a node on, its flags have memory attributes.
const HAS_ATTRIBUTES: u8 = 3;
/// The first attribute that is of memory; those below are of devices.
const NORMAL: u32 = 4;

impl<'a> Iort<'a> {
    /// The memory that streams of an SMMU go on using that are among `streams`. `unit` is the
    /// SMMU's node.
    ///
    /// Regions may overlap. Items are errors where a node or a descriptor of the table is wrong, or
    /// a mapping runs past the last stream; the walk goes on behind it as [`IortNodes`] does.
    pub fn reserved(&self, unit: &IortNode<'a>, streams: Streams) -> IortReservedRegions<'a> {
        IortReservedRegions { nodes: self.nodes(), unit: unit.offset, streams, current: None }
    }
}

/// The regions of streams. Errors are those of all nodes.
#[derive(Clone, Debug)]
pub struct IortReservedRegions<'a> {
    nodes: IortNodes<'a>,
    unit: usize,
    streams: Streams,
    /// Rest of a node.
    current: Option<Current<'a>>,
}

/// A reserved memory node: each of its ranges is for the streams of each of its mappings.
#[derive(Clone, Debug)]
struct Current<'a> {
    memory: ReservedMemory<'a>,
    kind: ReservedKind,
    mappings: IortMappings<'a>,
    offset: usize,
    /// Offset of the unit of the last mapping.
    target: usize,
    /// Streams of the last mapping, and the ranges that are left for them.
    at: Option<(Streams, MemoryRanges<'a>)>,
}

impl<'a> Current<'a> {
    fn of(node: IortNode<'a>) -> Option<Self> {
        let IortBody::ReservedMemory(memory) = node.body else {
            return None;
        };
        Some(Self {
            kind: meaning(&node, &memory),
            memory,
            target: 0,
            mappings: node.mappings,
            offset: node.offset,
            at: None,
        })
    }

    /// The streams that come out of the next mapping to the unit, if there is one.
    fn next_streams(&mut self, unit: Option<usize>) -> Option<Result<Streams, TableError>> {
        let to_unit = |mapping: &IortMapping| {
            let target = usize::try_from(mapping.target).ok();
            unit.is_none() || target == unit
        };
        let mapping = self.mappings.find(to_unit)?;
        self.target = usize::try_from(mapping.target).unwrap_or(usize::MAX);
        let above = match mapping.single {
            Single::Single => 0,
            Single::Range => mapping.count_minus_one,
        };
        let last = mapping.output.checked_add(above);
        let streams = last.and_then(|last| {
            let (first, last) = (StreamId::new(mapping.output), StreamId::new(last));
            Streams::new(first, last)
        });
        Some(
            streams
                .ok_or(TableError::Nonsense { offset: self.offset, value: mapping.output.into() }),
        )
    }

    /// The next region for some of `wanted`, of any unit if `unit` says none.
    fn next(
        &mut self,
        unit: Option<usize>,
        wanted: Streams,
    ) -> Option<Result<Reserved, TableError>> {
        loop {
            if let Some((streams, ranges)) = &mut self.at {
                if let Some(range) = ranges.next() {
                    let (streams, kind) = (*streams, self.kind);
                    return Some(
                        range.map(|(_, memory)| Reserved { streams, region: region(memory, kind) }),
                    );
                }
            }
            match self.next_streams(unit)? {
                Ok(streams) if streams.overlaps(wanted) => {
                    self.at = Some((streams, self.memory.ranges()));
                }
                Ok(_) => self.at = None,
                Err(error) => {
                    self.at = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// The regions of `node`, if it reserves memory, each with the offset of its unit.
pub(crate) fn regions(
    node: IortNode<'_>,
) -> impl Iterator<Item = (usize, Result<Reserved, TableError>)> {
    let mut current = Current::of(node);
    core::iter::from_fn(move || {
        let current = current.as_mut()?;
        let region = current.next(None, Streams::ALL)?;
        Some((current.target, region))
    })
}

/// Kind of the memory of a node.
fn meaning(node: &IortNode<'_>, memory: &ReservedMemory<'_>) -> ReservedKind {
    let mut access = Access::READ_WRITE;
    let attributes = memory.flags >> 2 & 0xff;
    if node.revision >= HAS_ATTRIBUTES && attributes < NORMAL {
        access |= Access::DEVICE;
    }
    match memory.flags & MAY_MOVE {
        0 => ReservedKind::Direct(access),
        _ => ReservedKind::DirectUntilDriven(access),
    }
}

impl Iterator for IortReservedRegions<'_> {
    type Item = Result<Reserved, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(current) = &mut self.current {
                if let Some(found) = current.next(Some(self.unit), self.streams) {
                    return Some(found);
                }
            }
            match self.nodes.next()? {
                Ok(node) => self.current = Current::of(node),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
