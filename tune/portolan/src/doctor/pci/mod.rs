//! The PCI functions of a machine: configuration spaces, drivers, groups, windows and names, from `/sys` or from what
//! `lspci -xxxx` prints.
//!
//! [`PciTree`] and its groups are the library's own. A user who is not root reads 64 bytes of configuration space, so
//! that kinds are those that `/sys` tells and ACS is unknown. Not supported: virtual functions as members of the tree,
//! and functions beyond [`MOST_FUNCTIONS`].

mod function;
mod listed;
mod names;
mod space;
#[cfg(test)]
mod tests;

pub use function::{BarWindow, Bus, GroupMode, KnownFunction, REMOVABLE};
pub use names::nearest;
pub use space::Extent;

use std::cell::RefCell;
use std::collections::BTreeMap;

use portolan::addr::PciFunction;
use portolan_hw::topology::pci::{AcsState, Groups, Join, PciKind, PciNode, PciOverrides, PciTree};

use super::{Files, Subject};

/// Functions of a machine that are read.
pub const MOST_FUNCTIONS: usize = 1 << 12;
/// Segments of which the tree has the functions: each costs thousands of look-ups.
const MOST_SEGMENTS: usize = 256;
/// Folder with a folder for each function.
pub const FOLDER: &str = "sys/bus/pci/devices";

/// ACS of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcsKnown {
    /// The function has it.
    Present(AcsState),
    /// The function does not have it.
    Absent,
    /// Configuration space beyond its first part was not readable.
    Unknown,
}

/// The PCI functions of a machine.
#[derive(Clone, Debug)]
pub struct Pci {
    functions: BTreeMap<PciFunction, KnownFunction>,
    tree: PciTree,
    groups: Groups,
    /// The first function on each bus.
    first: BTreeMap<Bus, PciFunction>,
    /// Modes of groups that were read.
    modes: RefCell<BTreeMap<u32, GroupMode>>,
    left_out: usize,
}

impl Pci {
    /// Reads the functions of `subject`.
    pub fn new(subject: &Subject) -> Self {
        let files = &subject.files;
        let mut functions = BTreeMap::new();
        let names = files.names(FOLDER).found().unwrap_or_default();
        let places: Vec<PciFunction> = names.iter().filter_map(|name| name.parse().ok()).collect();
        for &at in places.iter().take(MOST_FUNCTIONS) {
            functions.insert(at, KnownFunction::read(files, at));
        }
        if let Some(text) = &subject.lspci {
            listed::add(text, &mut functions);
        }
        names::add(files, &mut functions);
        let left_out = places.len().saturating_sub(MOST_FUNCTIONS);
        Self::of(functions, left_out)
    }

    fn of(mut functions: BTreeMap<PciFunction, KnownFunction>, left_out: usize) -> Self {
        space::complete(&mut functions);
        let mut segments: Vec<_> = functions.keys().map(|at| at.segment).collect();
        segments.dedup();
        segments.truncate(MOST_SEGMENTS);
        let read = |at: PciFunction, offset| functions.get(&at)?.word(offset);
        let tree = PciTree::scan(segments, PciOverrides::KNOWN, read);
        let groups = Groups::of(&tree);
        let mut first = BTreeMap::new();
        for at in functions.keys() {
            first.entry(Bus::of(*at)).or_insert(*at);
        }
        Self { functions, tree, groups, first, modes: RefCell::default(), left_out }
    }

    /// The functions, in order.
    pub fn functions(&self) -> impl Iterator<Item = &KnownFunction> {
        self.functions.values()
    }

    /// Number of functions that were left out.
    pub const fn left_out(&self) -> usize {
        self.left_out
    }

    /// The function at `at`.
    pub fn function(&self, at: PciFunction) -> Option<&KnownFunction> {
        self.functions.get(&at)
    }

    /// The function that `name` names: a place, or a name that its driver gave it (`nvme0`, `eth0`, `card1`, `sda`).
    pub fn named(&self, files: &Files, name: &str) -> Option<&KnownFunction> {
        if let Ok(at) = name.parse() {
            return self.function(at);
        }
        let named = self.functions().find(|one| one.names.iter().any(|own| own == name));
        named.or_else(|| names::disk(files, name).and_then(|at| self.function(at)))
    }

    /// The function's place in the tree.
    pub fn node(&self, at: PciFunction) -> Option<&PciNode> {
        self.tree.node(at)
    }

    /// The tree.
    pub const fn tree(&self) -> &PciTree {
        &self.tree
    }

    /// The bridges on the way up, the nearest first.
    pub fn way_up(&self, at: PciFunction) -> Vec<&PciNode> {
        self.tree.way_up(at).collect()
    }

    /// ACS of `at`; a conventional function has no space for it.
    pub fn acs(&self, at: PciFunction) -> AcsKnown {
        let node = self.node(at);
        let is_conventional = node.is_some_and(|node| {
            matches!(node.kind, PciKind::Conventional | PciKind::ConventionalBridge)
        });
        let is_read = self.function(at).is_some_and(|one| match one.extent {
            Extent::Header => false,
            Extent::Short => is_conventional,
            Extent::Whole => true,
        });
        match node.and_then(|node| node.acs) {
            Some(acs) => AcsKnown::Present(acs),
            None if is_read => AcsKnown::Absent,
            None => AcsKnown::Unknown,
        }
    }

    /// The bus that begins at the host bridge of `at`, as `/sys` tells it, or that of the topmost bridge.
    pub fn host(&self, at: PciFunction) -> Bus {
        let known = self.function(at).and_then(|one| one.host);
        known.unwrap_or_else(|| Bus::of(self.tree.way_up(at).last().map_or(at, |node| node.at)))
    }

    /// The first function on the bus of the host bridge of `at`, by which Linux knows the host bridge.
    pub fn host_bridge(&self, at: PciFunction) -> Option<&KnownFunction> {
        self.function(*self.first.get(&self.host(at))?)
    }

    /// The members of the group of `at`, itself included: those that Linux put there, or those that configuration
    /// space demands where no group is known.
    pub fn members(&self, at: PciFunction) -> Vec<&KnownFunction> {
        match self.function(at).and_then(|one| one.group) {
            Some(group) => self.functions().filter(|one| one.group == Some(group)).collect(),
            None => {
                let its = self.groups.members(&self.tree, at).map(|node| node.at);
                let mut found: Vec<_> = its.filter_map(|at| self.function(at)).collect();
                if found.is_empty() {
                    found.extend(self.function(at));
                }
                found
            }
        }
    }

    /// Joins among `members` by configuration space.
    pub fn joins(&self, members: &[&KnownFunction]) -> Vec<Join> {
        let has = |at| members.iter().any(|one| one.at == at);
        let all = self.groups.joins().iter();
        all.filter(|join| has(join.function) && has(join.with)).copied().collect()
    }

    /// The mode of the group of `at`.
    pub fn mode(&self, files: &Files, at: PciFunction) -> GroupMode {
        match self.function(at).and_then(|one| one.group) {
            Some(group) => {
                let mut modes = self.modes.borrow_mut();
                *modes.entry(group).or_insert_with(|| GroupMode::read(files, group))
            }
            None => match files.names(FOLDER).found() {
                Some(_) => GroupMode::None,
                None => GroupMode::Unknown,
            },
        }
    }
}
