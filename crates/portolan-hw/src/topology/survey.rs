//! A machine by firmware's table and configuration space, put together without touching a unit:
//! units, the functions that each serves with their streams, groups, reserved ranges. Entries that
//! make no sense are among the remarks (`remark`).
//!
//! [`Topology::survey`](super::Topology::survey) makes it. [`Iommus`](super::Iommus) opens devices
//! by it, and a program that shows a machine's topology prints it.
//!
//! *Context.* Task: it takes heap memory.

use alloc::vec::Vec;

use portolan::addr::{PciFunction, PciSegment, RequesterId, StreamId};
use portolan::dma::Trust;
use portolan::iommu::ReservedRegion;

use super::pci::{ExternalPorts, Groups, PciNode, PciOverrides, PciTree, VirtualFunctions};
use super::remark::Remark;
use super::{ConfigSpace, EnableError, Topology, TopologyError};
use crate::order::in_order;
use crate::reservations::{Reservations, Reserved};
use portolan_tables::TableError;
use portolan_tables::claim::Claim;
use portolan_tables::describe::MOST_CLAIMS;
pub use portolan_tables::describe::{Place, ReachedBy, UnitKind};

/// Segments whose functions are looked for.
const MOST_SEGMENTS: usize = 64;

/// One unit.
#[derive(Clone, Debug)]
pub struct SurveyedUnit {
    /// Its register interface.
    pub kind: UnitKind,
    /// Place of the unit.
    pub place: Place,
    /// The segment of the functions that it serves, if they are all of one.
    pub segment: Option<PciSegment>,
    /// Devices that it serves, by firmware.
    pub claims: Vec<Claim>,
    /// Claims of which not all addresses arrive at the unit.
    pub limits: Vec<ReachedBy>,
    /// Addresses reserved for its streams.
    pub reserved: Reservations,
    /// The buses behind the bridges that it serves.
    pub(super) buses: Vec<(PciFunction, (u8, u8))>,
    /// Reservations of it that the embedder added.
    pub(super) added: Vec<Reserved>,
    /// The reason for which it is not enabled, where the table tells it.
    pub(super) refused: Option<EnableError>,
}

/// One function of the tree and its streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The function.
    pub function: PciFunction,
    /// The number of the unit that serves it; `None` if no unit does.
    pub unit: Option<usize>,
    /// Its streams there: the identifiers of its accesses for the unit, with any requester
    /// identifier.
    pub streams: Vec<StreamId>,
}

/// A machine as it is described.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    units: Vec<SurveyedUnit>,
    tree: PciTree,
    groups: Groups,
    served: Vec<Served>,
    external: ExternalPorts,
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

    /// The ports that lead out of the machine
    /// ([`Topology::external_ports`](super::Topology::external_ports)), in order.
    pub fn external_ports(&self) -> &[PciFunction] {
        self.external.ports()
    }

    /// The external-facing port that `function` is below, or another function of its group is. A
    /// function that is not in the tree is looked for by its bus.
    pub fn external_port_above(&self, function: PciFunction) -> Option<PciFunction> {
        self.external.above_group(&self.tree, &self.groups, function)
    }

    /// The most trust in `function` that its place gives reason for: none below an external-facing
    /// port.
    pub fn trust(&self, function: PciFunction) -> Trust {
        match self.external_port_above(function) {
            Some(_) => Trust::Untrusted,
            None => Trust::Trusted,
        }
    }

    /// Entries that are odd, or worth knowing.
    pub fn remarks(&self) -> &[Remark] {
        &self.remarks
    }

    pub(super) fn remark(&mut self, remark: Remark) {
        self.remarks.push(remark);
    }

    /// Adds a unit; returns its number.
    pub(super) fn unit(
        &mut self,
        kind: UnitKind,
        place: Place,
        segment: Option<PciSegment>,
    ) -> usize {
        self.units.push(SurveyedUnit {
            kind,
            place,
            segment,
            claims: Vec::new(),
            limits: Vec::new(),
            reserved: Reservations::default(),
            buses: Vec::new(),
            added: Vec::new(),
            refused: None,
        });
        self.units.len() - 1
    }

    /// Notes the reason for which a unit will not be enabled, if there is one.
    pub(super) fn refuse(&mut self, unit: usize, reason: Option<EnableError>) {
        if let Some(unit) = self.units.get_mut(unit) {
            unit.refused = reason;
        }
    }

    pub(super) fn claim(&mut self, unit: usize, claim: Claim) {
        if let Some(unit) = self.units.get_mut(unit).filter(|_| self.claims < MOST_CLAIMS) {
            self.claims += 1;
            unit.claims.push(claim);
        }
    }

    /// Adds the buses behind a bridge that a unit serves, if it has some.
    pub(super) fn leads_to(&mut self, unit: usize, bridge: PciFunction, buses: Option<(u8, u8)>) {
        if let (Some(unit), Some(buses)) = (self.units.get_mut(unit), buses) {
            unit.buses.push((bridge, buses));
        }
    }

    /// Adds claims of which only some addresses arrive at a unit.
    pub(super) fn limits(&mut self, unit: usize, limits: &[ReachedBy]) {
        if let Some(unit) = self.units.get_mut(unit) {
            unit.limits.extend_from_slice(limits);
        }
    }

    /// Adds addresses reserved for streams of a unit.
    pub(super) fn reserve(
        &mut self,
        unit: usize,
        found: impl IntoIterator<Item = Result<Reserved, TableError>>,
    ) {
        if let Some(unit) = self.units.get_mut(unit) {
            // Ignored ones are counted there, and remarked on in the end.
            let _ = unit.reserved.read(found);
        }
    }

    /// Adds a reservation of the embedder for a stream of a unit.
    pub(super) fn add(&mut self, unit: usize, reserved: Reserved) {
        self.reserve(unit, [Ok(reserved)]);
        if let Some(unit) = self.units.get_mut(unit) {
            unit.added.push(reserved);
        }
    }

    /// Reservations of the embedder for streams of a unit.
    pub(super) fn added(&self, unit: usize) -> &[Reserved] {
        self.units.get(unit).map_or(&[], |unit| &unit.added)
    }

    /// Adds addresses that a unit of a kind reserves for all streams.
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
        find: impl Fn(&Self, PciFunction) -> Option<(usize, StreamId)>,
    ) {
        let mut segments = alloc::vec![PciSegment::new(0)];
        for unit in &self.units {
            let claimed = unit.claims.iter().filter_map(Claim::segment);
            segments.extend(unit.segment.into_iter().chain(claimed));
            segments = in_order(segments);
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
            seen.extend(served.streams.iter().map(|stream| ((unit, *stream), number)));
        }
        self.groups.same_streams(&self.tree, seen);
        self.check();
    }

    /// Notes the external-facing ports, and which functions are trusted below them.
    pub(super) fn note_external(&mut self, ports: Vec<PciFunction>, trusted: Vec<PciFunction>) {
        self.external = ExternalPorts::of(&self.tree, &self.groups, ports, trusted);
        let is_port = |port: &&PciFunction| self.tree.node(**port).is_some_and(PciNode::is_bridge);
        let ports = self.external.ports().iter().filter(|port| !is_port(port));
        let remarks = ports.map(|&port| Remark::NoPort { port });
        if !self.tree.nodes().is_empty() {
            self.remarks.extend(remarks);
        }
    }

    /// By which unit and streams `function` is served, and remarks on identifiers that are not.
    fn serve(
        &mut self,
        function: PciFunction,
        find: impl Fn(&Self, PciFunction) -> Option<(usize, StreamId)>,
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
        find: impl Fn(&Self, PciFunction) -> Option<(usize, StreamId)>,
    ) -> (Served, Vec<RequesterId>) {
        let own = find(self, function);
        let mut served = Served { function, unit: own.map(|(unit, _)| unit), streams: Vec::new() };
        let mut elsewhere = Vec::new();
        if own.is_none() {
            return (served, elsewhere);
        }
        for requester in self.tree.requesters(function) {
            let segment = function.segment;
            match find(self, PciFunction { segment, requester }) {
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

    /// The virtual functions that are switched on, each with the unit and the streams by which it is
    /// served. `topology` is the one that was surveyed, and `read` gives 32 bits of configuration space
    /// as it is now. Those of a physical function that make no sense are left out
    /// ([`Remark::OddVirtualFunctions`]). A physical function may say that it has thousands: they are
    /// looked for one by one, as far as the caller goes on.
    ///
    /// ```
    /// # use portolan::addr::PciFunction;
    /// # use portolan_hw::topology::{Survey, Topology};
    /// # type Config = dyn Fn(PciFunction, u16) -> Option<u32>;
    /// fn show(topology: &Topology, survey: &Survey, config: &Config) {
    ///     for found in survey.virtual_functions(topology, config).take(256).flatten() {
    ///         let (virtuals, served) = found;
    ///         println!("{} of {}: unit {:?}", served.function, virtuals.physical, served.unit);
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// For a function whose unit cannot be told.
    pub fn virtual_functions<'s>(
        &'s self,
        topology: &'s Topology,
        read: ConfigSpace<'s>,
    ) -> impl Iterator<Item = Result<(VirtualFunctions, Served), TopologyError>> + 's {
        let believed = self.tree.virtual_functions(read);
        let believed = believed.filter(|virtuals| !virtuals.is_odd());
        believed.flat_map(move |virtuals| {
            // A function that is in the tree is one of its own, even if another claims it.
            let places = virtuals.places();
            let places = places.filter(|at| self.tree.node(*at).is_none());
            places.map(move |at| {
                topology.find(self, read, at)?;
                let find = |survey: &_, of| topology.find(survey, read, of).ok().flatten();
                Ok((virtuals, self.serving(at, find).0))
            })
        })
    }

    /// Tells if functions of the tree besides `function` have `stream` of `unit`.
    pub(super) fn is_shared(&self, function: PciFunction, unit: usize, stream: StreamId) -> bool {
        let mut others = self.served.iter().filter(|one| one.function != function);
        others.any(|one| one.unit == Some(unit) && one.streams.contains(&stream))
    }
}
