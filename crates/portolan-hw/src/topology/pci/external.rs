//! Ports that lead out of the machine (external-facing: Thunderbolt, USB4), and the functions below them, of which
//! anyone may have plugged in any.
//!
//! Their configuration space does not tell them. ACPI does (`ExternalFacingPort` in the `_DSD` of a root port), and a
//! device tree (`external-facing`). As in Linux (`set_pcie_untrusted`) all functions below such a port are not
//! trusted, and the port itself is. A group is trusted no further than any of its functions.
//!
//! *Context.* Task.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use portolan::addr::{PciFunction, PciSegment};

use super::{Groups, PciTree};
use crate::order::in_order;

/// The external-facing ports of a tree, and what is below them.
#[derive(Clone, Debug, Default)]
pub(in crate::topology) struct ExternalPorts {
    /// In order.
    ports: Vec<PciFunction>,
    /// Functions that are trusted all the same.
    trusted: Vec<PciFunction>,
    /// Buses that ports claim whose bus numbers make no sense.
    claimed: BTreeMap<(PciSegment, u8), PciFunction>,
    /// Groups that have a function below a port, by their first functions.
    groups: BTreeMap<PciFunction, PciFunction>,
}

impl ExternalPorts {
    /// `ports` of `tree`, but for what is `trusted` below them.
    pub fn of(
        tree: &PciTree,
        groups: &Groups,
        ports: Vec<PciFunction>,
        trusted: Vec<PciFunction>,
    ) -> Self {
        let mut ports = in_order(ports);
        ports.dedup();
        let mut found = Self { ports, trusted, ..Self::default() };
        for odd in tree.odd() {
            if found.has(odd.bridge) {
                let (first, last) = (odd.buses.first, odd.buses.last);
                for bus in first.min(last)..=first.max(last) {
                    let key = (odd.bridge.segment, bus);
                    found.claimed.entry(key).or_insert(odd.bridge);
                }
            }
        }
        for node in tree.nodes() {
            if let Some(port) = found.above(tree, node.at) {
                found.groups.insert(groups.first(tree, node.at), port);
            }
        }
        found
    }

    /// The ports, in order.
    pub fn ports(&self) -> &[PciFunction] {
        &self.ports
    }

    fn has(&self, port: PciFunction) -> bool {
        self.ports.binary_search(&port).is_ok()
    }

    /// The port above `function` itself.
    fn above(&self, tree: &PciTree, function: PciFunction) -> Option<PciFunction> {
        if self.trusted.contains(&function) {
            return None;
        }
        let (segment, bus) = (function.segment, function.requester.bus());
        let mut above = tree.above(segment, bus).map(|bridge| bridge.at);
        let believed = above.find(|bridge| self.has(*bridge));
        believed.or_else(|| self.claimed.get(&(segment, bus)).copied())
    }

    /// The port above `function`, or above one of its group.
    pub fn above_group(
        &self,
        tree: &PciTree,
        groups: &Groups,
        function: PciFunction,
    ) -> Option<PciFunction> {
        let own = self.above(tree, function);
        own.or_else(|| self.groups.get(&groups.first(tree, function)).copied())
    }
}
