//! Following the mappings of identifiers from a component to its SMMU.
//!
//! Arm I/O Remapping Table (DEN0049), revision E.f, section 3.1.1 (table 4).
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use portolan::addr::{PciSegment, RequesterId, StreamId};

use super::Iort;
use super::mapping::Single;
use super::node::{IortBody, IortNode};
use crate::TableError;

/// Nodes on a path: a component, translators and an interrupt service are fewer.
const MOST_STEPS: u32 = 16;

/// End of an identifier's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved<'a> {
    /// The SMMU's node.
    pub unit: IortNode<'a>,
    /// The stream there.
    pub stream: StreamId,
    /// Width of the addresses that the component passes on, in bits; `None` if the table does not say it.
    pub address_lg2: Option<u8>,
}

impl IortNode<'_> {
    /// Width of the addresses that a component passes on, in bits ("memory address size limit").
    fn address_lg2(&self) -> Option<u8> {
        match self.body {
            IortBody::NamedComponent(component) => Some(component.address_lg2),
            IortBody::RootComplex(complex) => complex.address_lg2,
            _ => None,
        }
    }

    /// Returns the node to which `id` of this node leads, and the identifier there.
    ///
    /// Ranges must not overlap. Where they share one identifier, the end of one and the start of the
    /// other, the one that starts has it.
    fn leads(&self, id: u32) -> Option<(u32, u32)> {
        // Elsewhere a single mapping is for the messages that the node sends itself.
        let single = matches!(self.body, IortBody::NamedComponent(_) | IortBody::RootComplex(_));
        let mut shared = None;
        for mapping in self.mappings {
            let fits = mapping.single == Single::Range || single;
            let Some(output) = mapping.apply(id).filter(|_| fits) else {
                continue;
            };
            let found = (mapping.target, output);
            match shared {
                None if mapping.ends_at(id) => shared = Some(found),
                Some(_) if mapping.input != id => {}
                _ => return Some(found),
            }
        }
        shared
    }
}

impl<'a> Iort<'a> {
    /// The SMMU that serves a PCI function, and the function's stream there. `None` if no root
    /// complex has the function, or it reaches memory untranslated.
    ///
    /// # Errors
    /// Errors of a node on the way; [`TableError::Loop`] if the way does not end.
    pub fn resolve(
        &self,
        segment: PciSegment,
        requester: RequesterId,
    ) -> Result<Option<Resolved<'a>>, TableError> {
        for node in self.nodes() {
            let node = node?;
            let IortBody::RootComplex(complex) = node.body else {
                continue;
            };
            if complex.segment != segment {
                continue;
            }
            // Several root complexes may share a segment, each with its buses.
            if let Some(found) = self.resolve_from(&node, requester.get().into())? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// As [`Iort::resolve`], for `input` of `node`: a requester of a root complex, or the number of
    /// an identifier of a named component.
    ///
    /// # Errors
    /// As [`Iort::resolve`].
    pub fn resolve_from(
        &self,
        node: &IortNode<'a>,
        input: u32,
    ) -> Result<Option<Resolved<'a>>, TableError> {
        let (mut at, mut id) = (*node, input);
        for _ in 0..MOST_STEPS.min(self.count.saturating_add(1)) {
            let Some((target, output)) = at.leads(id) else {
                return Ok(None);
            };
            at = self.node_at(at.offset, target)?;
            id = output;
            match at.body {
                IortBody::Smmu(_) | IortBody::SmmuV3(_) => {
                    return Ok(Some(Resolved {
                        unit: at,
                        stream: StreamId::new(id),
                        address_lg2: node.address_lg2(),
                    }));
                }
                IortBody::ItsGroup(_) => return Ok(None),
                _ => {}
            }
        }
        Err(TableError::Loop { offset: node.offset })
    }
}
