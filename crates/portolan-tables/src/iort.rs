//! IORT: Arm's SMMUs, the devices behind them, and the identifiers of those.
//!
//! Arm I/O Remapping Table (DEN0049), revision E.f, chapter 3. Node types 0 to 6.
//! [`Description`](crate::describe::Description) follows identifiers to their units. Firmware that counts
//! identifiers wrongly is known by its header: [`IdCount`]. Not supported: interrupt arrays of an SMMUv1 or v2.
//!
//! *Context.* Interrupt, all functions: nothing waits or allocates; a lookup walks the table.

mod mapping;
mod model;
mod node;
mod reserved;

pub use mapping::{IdCount, IortMapping, IortMappings, Single};
pub use model::SmmuModel;
pub use node::{
    CounterGroup, Interrupts, IortBody, IortNode, ItsGroup, ItsIds, MemoryRange, MemoryRanges,
    NamedComponent, ReservedMemory, RootComplex, Smmu, SmmuV3,
};
pub use reserved::IortReservedRegions;
pub(crate) use reserved::regions;

use super::TableError;
use super::bytes::Bytes;
use super::sdt::{Maker, Sdt};
use super::walk::{End, Walk};

/// Signature of the table.
pub const SIGNATURE: [u8; 4] = *b"IORT";

/// Size of the fixed part of the table, in bytes.
const FIXED: usize = 48;
/// Bytes of the part that all nodes have.
const NODE_HEAD: usize = 16;

/// The table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iort<'a> {
    bytes: Bytes<'a>,
    count: u32,
    first: usize,
    id_count: IdCount,
    maker: Maker,
}

impl<'a> Iort<'a> {
    /// Maker of the table.
    pub fn maker(&self) -> Maker {
        self.maker
    }

    /// The table at the start of `data`.
    ///
    /// # Errors
    /// [`TableError`] of the header; nodes are checked as they are walked.
    pub fn parse(data: &'a [u8]) -> Result<Self, TableError> {
        let sdt = Sdt::parse_as(data, SIGNATURE)?;
        let bytes = sdt.bytes();
        bytes.part(0, FIXED)?;
        let first = bytes.u32(40)?;
        match usize::try_from(first) {
            Ok(offset) if offset >= FIXED => Ok(Self {
                bytes,
                count: bytes.u32(36)?,
                first: offset,
                id_count: IdCount::of(sdt.maker()),
                maker: sdt.maker(),
            }),
            _ => Err(TableError::Nonsense { offset: 40, value: first.into() }),
        }
    }

    /// Way in which the table counts the identifiers of a mapping.
    pub fn id_count(&self) -> IdCount {
        self.id_count
    }

    /// The nodes, in order.
    pub fn nodes(&self) -> IortNodes<'a> {
        IortNodes {
            walk: Walk::new(self.bytes.from(self.first), End::Count(self.count)),
            id_count: self.id_count,
        }
    }

    /// The node at `target`, which the structure at `from` refers to.
    ///
    /// # Errors
    /// [`TableError::Reference`] if there is none, or the node's own error.
    pub fn node_at(&self, from: usize, target: u32) -> Result<IortNode<'a>, TableError> {
        let none = TableError::Reference { offset: from, target };
        let at = usize::try_from(target).map_err(|_| none)?;
        if at < self.first || at >= self.bytes.len() {
            return Err(none);
        }
        node::parse(cut(self.bytes.from(at))?, self.id_count)?.ok_or(none)
    }
}

/// The nodes of a table. One that says a length that cannot be, or is missing, ends the walk with an
/// error; one whose contents are wrong is an error, and the walk goes on behind it.
#[derive(Clone, Debug)]
pub struct IortNodes<'a> {
    walk: Walk<'a>,
    id_count: IdCount,
}

impl IortNodes<'_> {
    /// Number of nodes of unknown type that were passed over so far.
    pub fn unknown(&self) -> u32 {
        self.walk.unknown()
    }
}

impl<'a> Iterator for IortNodes<'a> {
    type Item = Result<IortNode<'a>, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        let id_count = self.id_count;
        self.walk.next(cut, |bytes| node::parse(bytes, id_count))
    }
}

/// The node at the start of `rest`.
fn cut(rest: Bytes<'_>) -> Result<Bytes<'_>, TableError> {
    rest.structure(rest.u16(1)?.into(), NODE_HEAD)
}
