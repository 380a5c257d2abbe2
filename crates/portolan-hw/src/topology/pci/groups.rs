//! Groups: functions that an IOMMU cannot tell apart, or that reach each other past it, and so have to
//! share an address space.
//!
//! A group grows for five reasons ([`JoinReason`]). Functions behind a bridge that does not isolate are in
//! the bridge's group; so are functions of one device that do not; so are functions that may carry
//! the same requester identifier, or have the same stream by firmware's table; and those that a
//! bridge claims whose bus numbers make no sense. Linux forms its groups in the same way
//! (`pci_device_group`) and wants the same services of ACS; unlike there, the order of the functions
//! does not matter.
//!
//! *Context.* Task.

use alloc::vec::Vec;
use core::fmt;

use portolan::addr::{PciFunction, PciSegment, RequesterId, StreamId};

use super::node::{NotIsolated, PciNode};
use super::{OddBridge, PciTree};
use crate::order::in_order;

/// Reason for a function to be in the group of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinReason {
    /// It is behind a bridge that does not keep apart the functions behind it.
    Behind(NotIsolated),
    /// It is a function of the same device, which does not keep its functions apart.
    Beside(NotIsolated),
    /// Accesses of both may carry this requester identifier.
    Requester(RequesterId),
    /// Firmware's table gives both this stream of one unit.
    Stream(StreamId),
    /// It is on a bus that a bridge claims whose bus numbers make no sense.
    Odd,
}

/// One function that is in the group of another, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// The function.
    pub function: PciFunction,
    /// The other one: the bridge, or the function that was met first.
    pub with: PciFunction,
    /// The reason.
    pub why: JoinReason,
}

impl fmt::Display for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (function, with) = (self.function, self.with);
        match self.why {
            JoinReason::Behind(why) => write!(f, "{function} is behind {with}: {why}"),
            JoinReason::Beside(why) => write!(f, "{function} is a function beside {with}: {why}"),
            JoinReason::Requester(as_) => {
                let PciFunction { segment, .. } = function;
                let requester = as_;
                let as_ = PciFunction { segment, requester };
                write!(f, "accesses of {function} and {with} may both carry {as_}")
            }
            JoinReason::Stream(stream) => {
                let stream = stream.get();
                write!(f, "{function} and {with} have the same stream, {stream:#x}")
            }
            JoinReason::Odd => write!(f, "{with} claims the bus of {function}, and makes no sense"),
        }
    }
}

/// The groups of a tree.
///
/// ```
/// use portolan::addr::{PciFunction, PciSegment};
/// use portolan_hw::topology::pci::{Groups, PciOverrides, PciTree};
/// # fn config(at: PciFunction, offset: u16) -> Option<u32> { None }
/// let tree = PciTree::scan([PciSegment::new(0)], PciOverrides::KNOWN, config);
/// let groups = Groups::of(&tree);
/// for node in tree.nodes() {
///     let first = groups.first(&tree, node.at); // the group's first function names it
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// For each function of the tree, one of its group that is not behind it in the list; itself for
    /// the first of a group.
    parent: Vec<usize>,
    joins: Vec<Join>,
}

impl Groups {
    /// The groups of `tree`.
    pub fn of(tree: &PciTree) -> Self {
        let mut groups = Self { parent: (0..tree.nodes.len()).collect(), joins: Vec::new() };
        for &at in &tree.bridges {
            groups.behind(tree, at);
        }
        groups.beside(tree);
        groups.same_requesters(tree);
        groups.odd(tree);
        groups
    }

    /// The first function of the group of `function`, by which the group is known. A function that the
    /// tree does not have is in the group of the highest bridge above it that does not isolate, and
    /// otherwise alone.
    pub fn first(&self, tree: &PciTree, function: PciFunction) -> PciFunction {
        let mut known = tree.index(function);
        if known.is_none() {
            let bridges = tree.above(function.segment, function.requester.bus());
            let open = bridges.filter(|bridge| tree.isolates(bridge).is_err());
            known = open.last().and_then(|bridge| tree.index(bridge.at));
        }
        let first = known.and_then(|at| tree.nodes.get(self.root(at)));
        first.map_or(function, |node| node.at)
    }

    /// The functions of the group of `function`, in order.
    pub fn members<'t>(
        &'t self,
        tree: &'t PciTree,
        function: PciFunction,
    ) -> impl Iterator<Item = &'t PciNode> {
        let first = tree.index(self.first(tree, function));
        let nodes = tree.nodes.iter().enumerate();
        let its = nodes.filter(move |(at, _)| Some(self.root(*at)) == first);
        its.map(|(_, node)| node)
    }

    /// Joins that made the groups larger than one function.
    pub fn joins(&self) -> &[Join] {
        &self.joins
    }

    fn root(&self, mut at: usize) -> usize {
        // Each step leads to a smaller number, but for the last.
        while let Some(&parent) = self.parent.get(at) {
            if parent == at {
                break;
            }
            at = parent;
        }
        at
    }

    fn join(&mut self, nodes: &[PciNode], function: usize, with: usize, why: JoinReason) {
        let (one, other) = (self.root(function), self.root(with));
        let (first, later) = (one.min(other), one.max(other));
        if first == later {
            return;
        }
        if let Some(parent) = self.parent.get_mut(later) {
            *parent = first;
        }
        // The way is short for who asks next.
        for at in [function, with] {
            if let Some(parent) = self.parent.get_mut(at) {
                *parent = first;
            }
        }
        if let (Some(function), Some(with)) = (nodes.get(function), nodes.get(with)) {
            let (function, with) = (function.at, with.at);
            self.joins.push(Join { function, with, why });
        }
    }

    /// Joins the functions behind the bridge `at`, if that does not isolate.
    fn behind(&mut self, tree: &PciTree, at: usize) {
        let Some(bridge) = tree.nodes.get(at) else {
            return;
        };
        let (Some(buses), Err(why)) = (bridge.behind, tree.isolates(bridge)) else {
            return;
        };
        let (start, its) = tree.on(bridge.at.segment, buses.first, buses.last);
        for number in start..start + its.len() {
            self.join(&tree.nodes, number, at, JoinReason::Behind(why));
        }
    }

    /// Joins functions of one device that do not isolate.
    fn beside(&mut self, tree: &PciTree) {
        let device = |node: &PciNode| (node.at.segment, node.at.requester.get() >> 3);
        let mut open: Option<(usize, &PciNode)> = None;
        for (number, node) in tree.nodes.iter().enumerate() {
            let Err(why) = tree.isolates(node) else {
                continue;
            };
            match open {
                Some((first, before)) if device(before) == device(node) => {
                    self.join(&tree.nodes, number, first, JoinReason::Beside(why));
                }
                _ => open = Some((number, node)),
            }
        }
    }

    /// Joins functions that may carry the same requester identifier.
    fn same_requesters(&mut self, tree: &PciTree) {
        let mut seen: Vec<((PciSegment, RequesterId), usize)> = Vec::new();
        for (number, node) in tree.nodes.iter().enumerate() {
            let segment = node.at.segment;
            for requester in tree.requesters(node.at) {
                seen.push(((segment, requester), number));
            }
        }
        self.same(tree, seen, |(_, requester)| JoinReason::Requester(*requester));
    }

    /// Joins functions that a unit of firmware's table knows by the same stream. `seen` has the unit,
    /// the stream and the function's number in the tree.
    pub(in crate::topology) fn same_streams(
        &mut self,
        tree: &PciTree,
        seen: Vec<((usize, StreamId), usize)>,
    ) {
        self.same(tree, seen, |(_, stream)| JoinReason::Stream(*stream));
    }

    /// Joins functions that have been seen with the same key.
    fn same<K: Ord>(
        &mut self,
        tree: &PciTree,
        seen: Vec<(K, usize)>,
        why: impl Fn(&K) -> JoinReason,
    ) {
        for pair in in_order(seen).windows(2) {
            if let [(one, first), (other, number)] = pair {
                if one == other {
                    self.join(&tree.nodes, *number, *first, why(one));
                }
            }
        }
    }

    /// Joins the functions on buses that bridges claim which are not believed.
    fn odd(&mut self, tree: &PciTree) {
        // For each bus the first such bridge: all functions of the bus are its, and so is every other
        // bridge that claims the bus.
        let mut claimed: Vec<((PciSegment, u8), usize)> = Vec::new();
        for &OddBridge { bridge, buses } in &tree.odd {
            let Some(number) = tree.index(bridge) else {
                continue;
            };
            for bus in buses.first.min(buses.last)..=buses.first.max(buses.last) {
                let key = (bridge.segment, bus);
                match claimed.binary_search_by_key(&key, |(key, _)| *key) {
                    Ok(at) => {
                        let first = claimed.get(at).map_or(number, |(_, first)| *first);
                        self.join(&tree.nodes, number, first, JoinReason::Odd);
                    }
                    Err(at) => claimed.insert(at, (key, number)),
                }
            }
        }
        for ((segment, bus), bridge) in claimed {
            let (start, its) = tree.on(segment, bus, bus);
            for number in start..start + its.len() {
                self.join(&tree.nodes, number, bridge, JoinReason::Odd);
            }
        }
    }
}
