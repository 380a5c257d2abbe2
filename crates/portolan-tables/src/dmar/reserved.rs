//! Reserved memory (RMRR) device by device.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, section 8.4.
//!
//! *Context.* Task: a block holds its scopes.

use alloc::vec::Vec;

use portolan::addr::{PciSegment, PhysRange, RequesterId};
use portolan::iommu::ReservedKind;
use portolan::table::Access;

use super::{Dmar, PathScope, Rmrr, ScopeKind, Structure};
use crate::TableError;
use crate::reserved::{Reserved, Streams, region, within};

/// A block of memory, and the devices that go on using it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    /// The segment of the devices.
    pub segment: PciSegment,
    /// The memory.
    pub range: PhysRange,
    /// The devices, with an error where the list is damaged.
    pub scopes: Vec<Result<PathScope, TableError>>,
    /// Offset in the table of the memory's address.
    offset: usize,
    address_lg2: u32,
}

impl MemoryBlock {
    /// The block with its scopes, copied, of a machine with addresses of so many bits.
    pub fn of(block: &Rmrr<'_>, address_lg2: u32) -> Self {
        Self {
            segment: block.segment,
            range: block.range,
            scopes: block.scopes.map(|scope| scope.map(|scope| PathScope::of(&scope))).collect(),
            offset: block.offset.saturating_add(8),
            address_lg2,
        }
    }

    /// The memory as a region of each function that a scope names. `secondary_bus` says which bus a
    /// bridge leads to now, as for [`PathScope::requester`]. Items are errors where a scope is wrong,
    /// or the memory is wider than the machine's addresses.
    pub fn regions<'b>(
        &'b self,
        mut secondary_bus: impl FnMut(RequesterId) -> Option<u8> + 'b,
    ) -> impl Iterator<Item = Result<Reserved, TableError>> + 'b {
        let memory = within(self.range, Some(self.address_lg2), self.offset);
        self.scopes.iter().filter_map(move |scope| {
            let scope = match scope {
                Ok(scope) => scope,
                Err(error) => return Some(Err(*error)),
            };
            let function = scope.requester(&mut secondary_bus);
            let stream = function.filter(|_| scope.kind == ScopeKind::Endpoint)?.stream();
            let kind = ReservedKind::Direct(Access::READ_WRITE);
            Some(memory.map(|memory| Reserved::one(stream, region(memory, kind))))
        })
    }
}

impl Dmar<'_> {
    /// The memory that PCI functions go on using whose streams are among `streams`, function by
    /// function. `secondary_bus` says which bus a bridge leads to now, as for
    /// [`super::Scope::requester`].
    ///
    /// Regions may overlap. Items are errors where a structure of the table or a scope is wrong, or
    /// memory is wider than [`Dmar::address_lg2`]; the walk goes on behind it as [`super::Structures`]
    /// does.
    pub fn reserved(
        &self,
        segment: PciSegment,
        streams: Streams,
        mut secondary_bus: impl FnMut(RequesterId) -> Option<u8>,
    ) -> impl Iterator<Item = Result<Reserved, TableError>> {
        let address_lg2 = self.address_lg2();
        self.structures().flat_map(move |structure| -> Vec<Result<Reserved, TableError>> {
            let block = match structure {
                Ok(Structure::Reserved(block)) if block.segment == segment => block,
                Ok(_) => return Vec::new(),
                Err(error) => return alloc::vec![Err(error)],
            };
            let block = MemoryBlock::of(&block, address_lg2);
            let found = block.regions(&mut secondary_bus);
            found
                .filter(|one| one.is_err() || one.is_ok_and(|one| streams.overlaps(one.streams)))
                .collect()
        })
    }
}
