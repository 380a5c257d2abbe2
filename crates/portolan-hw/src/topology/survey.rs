//! What firmware's table and configuration space say of a machine, put together without touching a
//! unit: units, the functions that each serves and by which streams, groups, reserved ranges, and what
//! makes no sense.
//!
//! [`Topology::survey`](super::Topology::survey) makes it. [`Iommus`](super::Iommus) opens devices by
//! it, and whoever wants to show a machine's topology prints it.
//!
//! *Context.* Task: it takes heap memory.

use alloc::vec::Vec;
use core::fmt;

use portolan::addr::{PciFunction, PhysAddr, PhysRange, RequesterId, Segment, StreamId};
use portolan::iommu::ReservedRegion;
use thiserror::Error;

use super::TopologyError;
use super::claim::Claim;
use super::pci::{Groups, OddBridge, PciOverrides, PciTree, VirtualFunctions};
use crate::firmware::TableError;
use crate::firmware::reservations::{LeftOut, Reservations, Reserved};

/// Claims that are kept of a table.
const MOST_CLAIMS: usize = 1 << 16;
/// Segments whose functions are looked for.
const MOST_SEGMENTS: usize = 64;

/// The register interface of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnitKind {
    /// Intel VT-d.
    Vtd,
    /// AMD-Vi.
    AmdVi,
    /// Arm SMMU, version 3.
    SmmuV3,
    /// virtio-iommu.
    Virtio,
}

impl UnitKind {
    /// Its usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vtd => "VT-d",
            Self::AmdVi => "AMD-Vi",
            Self::SmmuV3 => "SMMUv3",
            Self::Virtio => "virtio-iommu",
        }
    }
}

/// Where a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// Its registers.
    Registers(PhysRange),
    /// It is a PCI function.
    Function(PciFunction),
    /// The registers of its transport begin here.
    Device(PhysAddr),
    /// Where no registers can be.
    Nowhere(PhysAddr),
}

impl Place {
    /// The registers from `base` on, if they can be there.
    pub(super) fn of(base: PhysAddr, bytes: u64) -> Self {
        match super::window(base, bytes) {
            Ok(registers) => Self::Registers(registers),
            Err(_) => Self::Nowhere(base),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registers(window) => write!(f, "registers at {window}"),
            Self::Function(function) => write!(f, "PCI function {function}"),
            Self::Device(at) => write!(f, "transport at {at}"),
            Self::Nowhere(at) => write!(f, "said to be at {at}, where no registers can be"),
        }
    }
}

/// One unit.
#[derive(Clone, Debug)]
pub struct SurveyedUnit {
    /// Its register interface.
    pub kind: UnitKind,
    /// Where it is.
    pub place: Place,
    /// The segment of the functions that it serves, if they are all of one.
    pub segment: Option<Segment>,
    /// What firmware says that it serves.
    pub claims: Vec<Claim>,
    /// What is reserved for its streams.
    pub reserved: Reservations,
}

/// One function of the tree and its streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The function.
    pub function: PciFunction,
    /// The number of the unit that serves it; `None` if no unit does.
    pub unit: Option<usize>,
    /// Its streams there: what the unit knows its accesses by, whichever identifier they carry.
    pub streams: Vec<StreamId>,
}

/// Something that is odd, or worth knowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Remark {
    /// The table is damaged or contradicts itself.
    #[error("the table: {0}")]
    Table(TopologyError),
    /// Registers of a unit cannot be where the table says.
    #[error("unit {unit} is said to be at {at}, where no registers can be")]
    Nowhere {
        /// The unit.
        unit: usize,
        /// Where it is said to be.
        at: PhysAddr,
    },
    /// Two units have registers in common: one of them is not there.
    #[error("units {one} and {other} are said to have the same registers")]
    SameRegisters {
        /// One.
        one: usize,
        /// The other, of a higher number.
        other: usize,
    },
    /// A unit serves something that is not there.
    #[error("unit {unit} serves {claim}, which is not there")]
    NotThere {
        /// The unit.
        unit: usize,
        /// What it serves.
        claim: Claim,
    },
    /// A claim belongs to no unit.
    #[error("{claim} is behind something that is no unit")]
    Astray {
        /// The claim.
        claim: Claim,
    },
    /// Something reserved makes no sense.
    #[error("unit {unit}: {} reserved ranges are ignored{}", left_out.count, First(left_out))]
    Reserved {
        /// The unit.
        unit: usize,
        /// What was ignored.
        left_out: LeftOut,
    },
    /// A bridge whose bus numbers make no sense.
    #[error(
        "bridge {} claims buses {:#04x} to {:#04x}, which makes no sense",
        bridge.bridge, bridge.buses.first, bridge.buses.last
    )]
    OddBridge {
        /// The bridge.
        bridge: OddBridge,
    },
    /// The virtual functions that a physical function says it has make no sense: none of them is opened.
    #[error(
        "{} says that it has {} of {} virtual functions, {:#x} behind it and {:#x} apart, which makes no sense",
        .0.physical, .0.count, .0.most, .0.offset, .0.stride
    )]
    OddVirtualFunctions(VirtualFunctions),
    /// A function has a requester identifier that its unit does not serve: what it sends by that is
    /// stopped.
    #[error("accesses of {function} may carry {alias}, which its unit does not serve")]
    Elsewhere {
        /// The function.
        function: PciFunction,
        /// The identifier that accesses of it may carry.
        alias: PciFunction,
    },
    /// A unit of a kind that is not enabled by a [`Topology`](super::Topology): its driver is.
    #[error("the SMMU of version 1 or 2 at {0} is not enabled with the others; its driver does it")]
    NotDriven(PhysAddr),
    /// The functions of some segments are not looked at.
    #[error("more than {most} segments: the others' functions are not looked at")]
    TooManySegments {
        /// How many are looked at.
        most: usize,
    },
}

/// The first thing left out, behind a colon.
struct First<'r>(&'r LeftOut);

impl fmt::Display for First<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.first {
            Some(first) => write!(f, ": {first}"),
            None => Ok(()),
        }
    }
}

impl Remark {
    /// Whether firmware is wrong, or not believed. What is not wrong is worth knowing.
    pub const fn is_wrong(&self) -> bool {
        !matches!(
            self,
            Self::NotDriven(_) | Self::NotThere { .. } | Self::TooManySegments { .. }
        )
    }
}

/// A machine as it is described.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    units: Vec<SurveyedUnit>,
    tree: PciTree,
    groups: Groups,
    served: Vec<Served>,
    remarks: Vec<Remark>,
    claims: usize,
}

impl Survey {
    /// The units, in the order of firmware's table.
    pub fn units(&self) -> &[SurveyedUnit] {
        &self.units
    }

    /// The PCI functions.
    pub fn tree(&self) -> &PciTree {
        &self.tree
    }

    /// Functions that have to share an address space.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// By which unit and streams each function of the tree is served, in the tree's order.
    pub fn served(&self) -> &[Served] {
        &self.served
    }

    /// What is odd, or worth knowing.
    pub fn remarks(&self) -> &[Remark] {
        &self.remarks
    }

    pub(super) fn remark(&mut self, remark: Remark) {
        self.remarks.push(remark);
    }

    /// What `found` is, or a remark on what is wrong with it.
    pub(super) fn note<T>(&mut self, found: Result<T, TopologyError>) -> Option<T> {
        found
            .map_err(|error| self.remark(Remark::Table(error)))
            .ok()
    }

    /// Adds a unit; returns its number.
    pub(super) fn unit(&mut self, kind: UnitKind, place: Place, segment: Option<Segment>) -> usize {
        self.units.push(SurveyedUnit {
            kind,
            place,
            segment,
            claims: Vec::new(),
            reserved: Reservations::default(),
        });
        self.units.len() - 1
    }

    /// Whether no more claims are kept.
    pub(super) fn is_full(&self) -> bool {
        self.claims >= MOST_CLAIMS
    }

    pub(super) fn claim(&mut self, unit: usize, claim: Claim) {
        if self.is_full() {
            return;
        }
        self.claims += 1;
        if let Some(unit) = self.units.get_mut(unit) {
            unit.claims.push(claim);
        }
    }

    pub(super) fn astray(&mut self, claim: Claim) {
        self.remark(Remark::Astray { claim });
    }

    /// Adds what is reserved for streams of a unit.
    pub(super) fn reserve(
        &mut self,
        unit: usize,
        found: impl IntoIterator<Item = Result<Reserved, TableError>>,
    ) {
        if let Some(unit) = self.units.get_mut(unit) {
            // What is ignored is counted there, and remarked on in the end.
            let _ = unit.reserved.read(found);
        }
    }

    /// Adds what a unit of a kind reserves for all streams.
    pub(super) fn hold(&mut self, unit: usize, windows: impl IntoIterator<Item = ReservedRegion>) {
        if let Some(unit) = self.units.get_mut(unit) {
            unit.reserved.hold(windows.into_iter());
        }
    }

    /// Looks for the functions, and which unit serves each: `find` says it of a requester identifier.
    pub(super) fn complete(
        &mut self,
        overrides: PciOverrides,
        read: impl Fn(PciFunction, u16) -> Option<u32>,
        find: impl Fn(&PciTree, PciFunction) -> Option<(usize, StreamId)>,
    ) {
        let mut segments = alloc::vec![Segment::new(0)];
        for unit in &self.units {
            let claimed = unit.claims.iter().filter_map(Claim::segment);
            segments.extend(unit.segment.into_iter().chain(claimed));
            segments.sort_unstable();
            segments.dedup();
        }
        if segments.len() > MOST_SEGMENTS {
            let most = MOST_SEGMENTS;
            self.remark(Remark::TooManySegments { most });
            segments.truncate(most);
        }
        self.tree = PciTree::scan(segments, overrides, &read);
        let virtuals = self.tree.virtual_functions(&read);
        let odd = virtuals.filter(VirtualFunctions::is_odd);
        let odd = odd.map(Remark::OddVirtualFunctions);
        self.remarks.extend(odd);
        let functions: Vec<PciFunction> = self.tree.nodes().iter().map(|node| node.at).collect();
        for function in functions {
            let served = self.serve(function, &find);
            self.served.push(served);
        }
        self.groups = Groups::of(&self.tree);
        let mut seen = Vec::new();
        for (number, served) in self.served.iter().enumerate() {
            let Some(unit) = served.unit else { continue };
            seen.extend(
                served
                    .streams
                    .iter()
                    .map(|stream| ((unit, *stream), number)),
            );
        }
        self.groups.same_streams(&self.tree, seen);
        self.check();
    }

    /// By which unit and streams `function` is served, and remarks on identifiers that are not.
    fn serve(
        &mut self,
        function: PciFunction,
        find: impl Fn(&PciTree, PciFunction) -> Option<(usize, StreamId)>,
    ) -> Served {
        let (served, elsewhere) = self.serving(function, find);
        for requester in elsewhere {
            let segment = function.segment;
            let alias = PciFunction { segment, requester };
            self.remark(Remark::Elsewhere { function, alias });
        }
        served
    }

    /// By which unit and streams `function` is served, also if the tree does not have it, and the
    /// identifiers that its unit does not serve.
    pub(super) fn serving(
        &self,
        function: PciFunction,
        find: impl Fn(&PciTree, PciFunction) -> Option<(usize, StreamId)>,
    ) -> (Served, Vec<RequesterId>) {
        let own = find(&self.tree, function);
        let mut served = Served {
            function,
            unit: own.map(|(unit, _)| unit),
            streams: Vec::new(),
        };
        let mut elsewhere = Vec::new();
        if own.is_none() {
            return (served, elsewhere);
        }
        for requester in self.tree.requesters(function) {
            let segment = function.segment;
            match find(&self.tree, PciFunction { segment, requester }) {
                Some((unit, stream)) if Some(unit) == served.unit => {
                    if !served.streams.contains(&stream) {
                        served.streams.push(stream);
                    }
                }
                _ => elsewhere.push(requester),
            }
        }
        (served, elsewhere)
    }

    /// Whether functions of the tree besides `function` have `stream` of `unit`.
    pub(super) fn is_shared(&self, function: PciFunction, unit: usize, stream: StreamId) -> bool {
        let mut others = self.served.iter().filter(|one| one.function != function);
        others.any(|one| one.unit == Some(unit) && one.streams.contains(&stream))
    }

    /// Remarks on what is wrong with units and bridges.
    fn check(&mut self) {
        let mut remarks = Vec::new();
        for (number, unit) in self.units.iter().enumerate() {
            if let Place::Nowhere(at) = unit.place {
                remarks.push(Remark::Nowhere { unit: number, at });
            }
            let left_out = unit.reserved.left_out();
            if left_out.count > 0 {
                let unit = number;
                remarks.push(Remark::Reserved { unit, left_out });
            }
            for claim in &unit.claims {
                if !claim.is_there(&self.tree) {
                    let (unit, claim) = (number, *claim);
                    remarks.push(Remark::NotThere { unit, claim });
                }
            }
        }
        remarks.extend(self.shared());
        let odd = self.tree.odd().iter();
        remarks.extend(odd.map(|&bridge| Remark::OddBridge { bridge }));
        self.remarks.extend(remarks);
    }

    /// Units that have registers in common, neighbours by address.
    fn shared(&self) -> Vec<Remark> {
        let units = self.units.iter().enumerate();
        let mut windows: Vec<(PhysRange, usize)> = units
            .filter_map(|(number, unit)| match unit.place {
                Place::Registers(window) => Some((window, number)),
                _ => None,
            })
            .collect();
        windows.sort_unstable_by_key(|(window, number)| (window.start(), *number));
        let pairs = windows.windows(2).filter_map(|pair| match pair {
            [(one, first), (other, second)] if one.last() >= other.start() => {
                let (one, other) = (*first.min(second), *first.max(second));
                Some(Remark::SameRegisters { one, other })
            }
            _ => None,
        });
        pairs.collect()
    }
}
