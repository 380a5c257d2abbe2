//! The PCI functions of a machine: the bridges above them, the requester identifiers by which an
//! IOMMU sees them, and those that cannot be told or kept apart.
//!
//! * [`PciNode`]: one function, from its configuration space.
//! * [`PciTree`]: all of them; [`PciTree::requesters`] has a function's identifiers.
//! * [`Groups`]: functions that have to share an address space, and why.
//! * [`PciOverrides`]: properties of functions that their configuration space does not tell.
//! * [`PciTree::device_tlb`]: the TLB that a function has of its own.
//! * [`VirtualFunctions`]: those that a physical function says it has.
//!
//! PCI Express Base Specification 6.0, section 6.12 (ACS); PCI Express to PCI/PCI-X Bridge
//! Specification 1.0, section 2.3 (requester identifiers of functions behind a bridge). Not
//! supported: virtual functions as members of the tree (one that is asked for is grouped by the
//! bridges above its bus), hot-plug (scan again).
//!
//! Bus numbers of bridges are believed only where they lead down: to a higher bus than the bridge's
//! own, and not to one that another bridge leads to. So every way up ends. Functions that a bridge
//! claims without being believed are in one group with it.
//!
//! *Context.* Task: the tree and its groups take heap memory, and configuration space is read.

mod device_tlb;
mod external;
mod groups;
mod known;
mod node;
mod overrides;
#[cfg(test)]
pub(crate) mod tests;
mod virtual_functions;
mod windows;

pub use device_tlb::{DeviceTlbFlaw, DeviceTlbOverride};
pub(super) use external::ExternalPorts;
pub use groups::{Groups, Join, JoinReason};
pub use node::{Acs, AcsState, Buses, Functions, NotIsolated, PciId, PciKind, PciNode};
pub use overrides::{AliasOf, AliasOverride, Isolation, IsolationOverride, PciOverrides};
pub use virtual_functions::VirtualFunctions;

use known::{HIDDEN_BRIDGES, TRANSLATED_BELOW};

use alloc::vec::Vec;

use crate::order::in_order;
use portolan::addr::{PciFunction, PciSegment, RequesterId};

/// Devices of a bus, and functions of a device.
const DEVICES: u8 = 32;
const FUNCTIONS: u8 = 8;

/// A bridge whose bus numbers make no sense beside those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OddBridge {
    /// The bridge.
    pub bridge: PciFunction,
    /// The buses that it claims.
    pub buses: Buses,
}

/// The functions that are there.
#[derive(Clone, Debug, Default)]
pub struct PciTree {
    /// By segment, bus, device and function.
    nodes: Vec<PciNode>,
    /// Bridges that are believed, by segment and first bus.
    bridges: Vec<usize>,
    odd: Vec<OddBridge>,
    overrides: PciOverrides,
}

/// The buses behind a bridge that firmware has numbered downwards.
fn downwards(node: &PciNode) -> bool {
    let own = node.at.requester.bus();
    node.behind.is_some_and(|buses| own < buses.first && buses.first <= buses.last)
}

impl PciTree {
    /// All functions of `segments`; `read` gives 32 bits of a function's configuration space, all ones
    /// or nothing where there is none.
    pub fn scan(
        segments: impl IntoIterator<Item = PciSegment>,
        overrides: PciOverrides,
        read: impl Fn(PciFunction, u16) -> Option<u32>,
    ) -> Self {
        let mut segments: Vec<PciSegment> = in_order(segments.into_iter().collect());
        segments.dedup();
        let mut nodes = Vec::new();
        for segment in segments {
            for bus in 0..=u8::MAX {
                (0..DEVICES)
                    .for_each(|device| scan_device(segment, bus, device, &read, &mut nodes));
            }
        }
        Self::of(nodes, overrides)
    }

    /// The tree of `nodes`, which are in order.
    fn of(nodes: Vec<PciNode>, overrides: PciOverrides) -> Self {
        let mut tree = Self { nodes, overrides, ..Self::default() };
        let mut bridges = Vec::new();
        for (at, node) in tree.nodes.iter().enumerate() {
            let Some(buses) = node.behind else { continue };
            let odd = OddBridge { bridge: node.at, buses };
            match downwards(node) {
                true => bridges.push((first_bus(&tree.nodes, at), at)),
                false => tree.odd.push(odd),
            }
        }
        // One bridge leads to a bus, the first one that says so.
        let mut before = None;
        for (bus, at) in in_order(bridges) {
            match before == bus {
                true => tree.odd.extend(odd(&tree.nodes, at)),
                false => tree.bridges.push(at),
            }
            before = bus;
        }
        let crossing = tree.crossing();
        tree.bridges.retain(|at| !crossing.contains(at));
        let crossing = crossing.iter().filter_map(|at| odd(&tree.nodes, *at));
        tree.odd.extend(crossing);
        tree
    }

    /// Bridges of which some bus is behind another bridge that is not behind them, and the other
    /// way round: the bridge that leads there is not known.
    fn crossing(&self) -> Vec<usize> {
        let mut found = Vec::new();
        for &at in &self.bridges {
            let Some(node) = self.nodes.get(at) else {
                continue;
            };
            let Some(buses) = node.behind else { continue };
            let astray = (buses.first..=buses.last).any(|bus| {
                let mut above = self.above(node.at.segment, bus);
                !above.any(|bridge| bridge.at == node.at)
            });
            if astray {
                found.push(at);
            }
        }
        found
    }

    /// The functions, by segment, bus, device and function.
    pub fn nodes(&self) -> &[PciNode] {
        &self.nodes
    }

    /// Bridges whose bus numbers make no sense.
    pub fn odd(&self) -> &[OddBridge] {
        &self.odd
    }

    /// The function at `at`.
    pub fn node(&self, at: PciFunction) -> Option<&PciNode> {
        self.index(at).and_then(|index| self.nodes.get(index))
    }

    fn index(&self, at: PciFunction) -> Option<usize> {
        self.nodes.binary_search_by_key(&at, |node| node.at).ok()
    }

    /// The functions on buses from `first` to `last`, with the number of the first of them.
    fn on(&self, segment: PciSegment, first: u8, last: u8) -> (usize, &[PciNode]) {
        let bus = |node: &PciNode| (node.at.segment, node.at.requester.bus());
        let start = self.nodes.partition_point(|node| bus(node) < (segment, first));
        let end = self.nodes.partition_point(|node| bus(node) <= (segment, last));
        (start, self.nodes.get(start..end).unwrap_or(&[]))
    }

    /// The bridge that leads to `bus`: of those that claim it the one that begins last.
    fn leads_to(&self, segment: PciSegment, bus: u8) -> Option<&PciNode> {
        let key = Some((segment, bus));
        let behind = |at: &usize| first_bus(&self.nodes, *at) <= key;
        let end = self.bridges.partition_point(behind);
        let bridges = self.bridges.get(..end)?.iter().rev();
        let mut bridges = bridges.filter_map(|at| self.nodes.get(*at));
        bridges.find(|node| {
            let claims = |buses: Buses| (buses.first..=buses.last).contains(&bus);
            node.at.segment == segment && node.behind.is_some_and(claims)
        })
    }

    /// The bridges on the way from `at` up to its root complex, the nearest first.
    pub fn way_up(&self, at: PciFunction) -> impl Iterator<Item = &PciNode> {
        self.above(at.segment, at.requester.bus())
    }

    /// The bridges above `bus`, the nearest first.
    fn above(&self, segment: PciSegment, bus: u8) -> impl Iterator<Item = &PciNode> {
        let first = self.leads_to(segment, bus);
        // A bridge that is believed is on a lower bus than those behind it: the way up ends.
        core::iter::successors(first, move |node| self.leads_to(segment, node.at.requester.bus()))
    }

    /// The requester identifiers that accesses of `at` may carry: its own, and those that bridges on
    /// the way, or the device itself, put in its place. An IOMMU has to know the function by all of
    /// them.
    pub fn requesters(&self, at: PciFunction) -> Vec<RequesterId> {
        let mut found = alloc::vec![at.requester];
        let mut add = |requester| {
            if !found.contains(&requester) {
                found.push(requester);
            }
        };
        if let Some(node) = self.node(at) {
            self.overrides.aliases_of(node).for_each(&mut add);
        }
        let above = self.above(at.segment, at.requester.bus());
        for bridge in above.take_while(|bridge| !TRANSLATED_BELOW.contains(&bridge.id)) {
            match bridge.kind {
                PciKind::ExpressToPci => behind(bridge).into_iter().for_each(&mut add),
                PciKind::ConventionalBridge if self.hides_express(bridge) => {
                    behind(bridge).into_iter().for_each(&mut add);
                }
                PciKind::ConventionalBridge | PciKind::PciToExpress => add(bridge.at.requester),
                _ => {}
            }
        }
        found
    }

    /// Tells if a bridge that seems conventional is on PCI Express, and known to hide that.
    fn hides_express(&self, bridge: &PciNode) -> bool {
        let above = self.leads_to(bridge.at.segment, bridge.at.requester.bus());
        let express = above.is_some_and(|above| {
            !matches!(above.kind, PciKind::ConventionalBridge | PciKind::ExpressToPci)
        });
        express && HIDDEN_BRIDGES.contains(&bridge.id)
    }

    /// Checks that `node` keeps apart the functions behind it, or beside it.
    fn isolates(&self, node: &PciNode) -> Result<(), NotIsolated> {
        match self.overrides.isolation_of(node) {
            Some(Isolation::Isolated) => Ok(()),
            Some(Isolation::Not) => Err(NotIsolated::NoAcs),
            None => node.isolates(),
        }
    }
}

/// The identifier that a bridge from PCI Express puts in the place of others.
fn behind(bridge: &PciNode) -> Option<RequesterId> {
    let buses = bridge.behind?;
    Some(RequesterId::of(buses.first, 0, 0))
}

fn first_bus(nodes: &[PciNode], at: usize) -> Option<(PciSegment, u8)> {
    let node = nodes.get(at)?;
    Some((node.at.segment, node.behind?.first))
}

fn odd(nodes: &[PciNode], at: usize) -> Option<OddBridge> {
    let node = nodes.get(at)?;
    let (bridge, buses) = (node.at, node.behind?);
    Some(OddBridge { bridge, buses })
}

/// Adds the functions of a device to `nodes`.
fn scan_device(
    segment: PciSegment,
    bus: u8,
    device: u8,
    read: &impl Fn(PciFunction, u16) -> Option<u32>,
    nodes: &mut Vec<PciNode>,
) {
    for function in 0..FUNCTIONS {
        let requester = RequesterId::of(bus, device, function);
        let at = PciFunction { segment, requester };
        let node = PciNode::read(at, |offset| read(at, offset));
        let one = node.is_none_or(|node| node.functions == Functions::One);
        nodes.extend(node);
        // Without function 0 there is no device, and without its word there are no others.
        if function == 0 && one {
            return;
        }
    }
}
