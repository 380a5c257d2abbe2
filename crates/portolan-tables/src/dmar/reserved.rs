//! Reserved memory (RMRR) device by device.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, section 8.4.
//!
//! *Context.* Interrupt, if the caller's function that finds buses may be called there.

use portolan::iommu::ReservedKind;
use portolan::table::Access;

use super::{Dmar, Reserved as Block, Scope, ScopeKind, Structure, Structures};
use crate::TableError;
use crate::reserved::{Reserved, Streams};
use crate::reserved::{region, within};
use portolan::addr::{PciSegment, RequesterId};

impl<'a> Dmar<'a> {
    /// The memory that PCI functions go on using whose streams are among `streams`, function by
    /// function. `secondary_bus` says which bus a bridge leads to now, as for
    /// [`super::Scope::requester`].
    ///
    /// Regions may overlap. Items are errors where a structure of the table or a scope is wrong, or
    /// memory is wider than [`Dmar::address_lg2`]; the walk goes on behind it as [`Structures`]
    /// does.
    pub fn reserved<F: FnMut(RequesterId) -> Option<u8>>(
        &self,
        segment: PciSegment,
        streams: Streams,
        secondary_bus: F,
    ) -> ReservedRegions<'a, F> {
        ReservedRegions {
            structures: self.structures(),
            segment,
            streams,
            address_lg2: self.address_lg2(),
            current: None,
            secondary_bus,
        }
    }
}

/// The regions of PCI functions. Errors are those of all structures.
#[derive(Clone, Debug)]
pub struct ReservedRegions<'a, F> {
    structures: Structures<'a>,
    segment: PciSegment,
    streams: Streams,
    address_lg2: u32,
    /// Rest of a structure.
    current: Option<Block<'a>>,
    secondary_bus: F,
}

impl<F: FnMut(RequesterId) -> Option<u8>> ReservedRegions<'_, F> {
    /// The stream that a scope names, if it is asked for.
    fn named(&mut self, scope: Scope<'_>) -> Option<Streams> {
        let function = scope.requester(&mut self.secondary_bus);
        let stream = function.filter(|_| scope.kind == ScopeKind::Endpoint)?.stream();
        self.streams.contains(stream).then_some(Streams::one(stream))
    }
}

impl<F: FnMut(RequesterId) -> Option<u8>> Iterator for ReservedRegions<'_, F> {
    type Item = Result<Reserved, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(block) = &mut self.current else {
                match self.structures.next()? {
                    Ok(Structure::Reserved(block)) if block.segment == self.segment => {
                        self.current = Some(block);
                    }
                    Ok(_) => {}
                    Err(error) => return Some(Err(error)),
                }
                continue;
            };
            let (memory, at) = (block.range, block.offset.saturating_add(8));
            let scope = match block.scopes.next() {
                Some(Ok(scope)) => scope,
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    self.current = None;
                    continue;
                }
            };
            if let Some(streams) = self.named(scope) {
                let kind = ReservedKind::Direct(Access::READ_WRITE);
                let checked = within(memory, Some(self.address_lg2), at);
                return Some(
                    checked.map(|memory| Reserved { streams, region: region(memory, kind) }),
                );
            }
        }
    }
}
