//! Reserved memory (RMRR) device by device.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, section 8.4.
//!
//! *Context.* Interrupt, if what the caller passes in to find buses may be called there.

use portolan::table::Access;

use super::super::TableError;
use super::super::pci::{RequesterId, Segment};
use super::super::reserved::{ReservedKind, ReservedRegion, within};
use super::{Dmar, Reserved, ScopeKind, Structure, Structures};

impl<'a> Dmar<'a> {
    /// The memory that a PCI function goes on using. `secondary_bus` says which bus a bridge leads
    /// to now, as for [`super::Scope::requester`].
    ///
    /// Regions may overlap: [`disjoint`](super::super::reserved::disjoint) puts them together. Items
    /// are errors where a structure of the table or a scope is wrong, or memory is wider than
    /// [`Dmar::address_lg2`]; the walk goes on behind it as [`Structures`] does.
    pub fn reserved<F: FnMut(RequesterId) -> Option<u8>>(
        &self,
        segment: Segment,
        requester: RequesterId,
        secondary_bus: F,
    ) -> ReservedRegions<'a, F> {
        ReservedRegions {
            structures: self.structures(),
            segment,
            requester,
            address_lg2: self.address_lg2(),
            secondary_bus,
        }
    }
}

/// The regions of one PCI function. Errors are those of all structures.
#[derive(Clone, Debug)]
pub struct ReservedRegions<'a, F> {
    structures: Structures<'a>,
    segment: Segment,
    requester: RequesterId,
    address_lg2: u32,
    secondary_bus: F,
}

impl<F: FnMut(RequesterId) -> Option<u8>> ReservedRegions<'_, F> {
    /// Whether a scope of the structure is the function.
    fn names(&mut self, reserved: &Reserved<'_>) -> Result<bool, TableError> {
        for scope in reserved.scopes {
            let scope = scope?;
            let function = scope.requester(&mut self.secondary_bus);
            if scope.kind == ScopeKind::Endpoint && function == Some(self.requester) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl<F: FnMut(RequesterId) -> Option<u8>> Iterator for ReservedRegions<'_, F> {
    type Item = Result<ReservedRegion, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let reserved = match self.structures.next()? {
                Ok(Structure::Reserved(reserved)) => reserved,
                Ok(_) => continue,
                Err(error) => return Some(Err(error)),
            };
            if reserved.segment != self.segment {
                continue;
            }
            match self.names(&reserved) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => return Some(Err(error)),
            }
            let at = reserved.offset.saturating_add(8);
            let checked = within(reserved.range, Some(self.address_lg2), at);
            return Some(checked.map(|memory| ReservedRegion {
                memory,
                kind: ReservedKind::Direct,
                access: Access::READ | Access::WRITE,
            }));
        }
    }
}
