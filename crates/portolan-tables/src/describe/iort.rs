//! SMMUs by the IORT table.
//!
//! The way of each mapping is followed from its root complex or component to the SMMU, so that a claim says
//! which requesters have which streams there.

use alloc::vec::Vec;

use portolan::addr::{PciSegment, RequesterId, StreamId};

use super::{
    BrokenClaim, Description, Place, SmmuV3Settings, TableKind, UnitDescription, UnitKind,
    UnitSettings,
};
use crate::TableError;
use crate::claim::Claim;
use crate::iort::{Iort, IortBody, IortMapping, IortNode, Single, SmmuV3, regions};
use crate::sdt::Maker;

/// Bytes of a unit's registers: two pages of 64 KiB.
pub(super) const WINDOW: u64 = 0x2_0000;
/// Bytes of those of a unit whose second page is in the first.
pub(super) const ONE_PAGE: u64 = 0x1_0000;
/// The model of Cavium ThunderX2.
const THUNDERX2: u32 = 2;
/// Nodes on a way: a component, translators and an interrupt service are fewer.
const MOST_STEPS: u32 = 16;
/// Ways that are followed of one table.
const MOST_WAYS: u32 = 1 << 16;

/// A node, whose mappings have been read.
struct Parsed<'t> {
    node: IortNode<'t>,
    mappings: Vec<IortMapping>,
}

/// Nodes in the order of the table, which is that of their offsets.
struct Graph<'t> {
    nodes: Vec<Parsed<'t>>,
    /// Offsets of those that are units, and the numbers of these.
    units: Vec<(usize, usize)>,
    ways: u32,
}

/// Identifiers on their way from a device to an SMMU.
#[derive(Clone, Copy)]
struct Way {
    /// The first, as the device has it, and the number of the others.
    input: u32,
    others: u32,
    /// The first, where it is now.
    id: u32,
    /// Kind of the mappings so far: all identifiers became one at a single one.
    single: Single,
    /// The node that referred there, and the offset that it named.
    from: usize,
    at: u32,
    steps: u32,
}

/// The end of a way: a unit, and the way there.
type Arrival = (usize, Way);

impl<'t> Graph<'t> {
    /// The node at `offset`.
    fn node(&self, offset: usize) -> Option<&Parsed<'t>> {
        let at = self.nodes.binary_search_by_key(&offset, |parsed| parsed.node.offset);
        self.nodes.get(at.ok()?)
    }

    /// The number of the unit at `offset`.
    fn unit(&self, offset: usize) -> Option<usize> {
        let at = self.units.binary_search_by_key(&offset, |(its, _)| *its);
        self.units.get(at.ok()?).map(|(_, unit)| *unit)
    }

    /// Ends of the way at units. Ways that end elsewhere are none.
    ///
    /// # Errors
    /// [`TableError::Reference`] where a way leads to no node, [`TableError::Loop`] if it does not end.
    fn arrivals(&mut self, start: Way) -> Result<Vec<Arrival>, TableError> {
        let mut found = Vec::new();
        let mut open = alloc::vec![start];
        while let Some(way) = open.pop() {
            self.ways = self.ways.saturating_add(1);
            if way.steps >= MOST_STEPS || self.ways > MOST_WAYS {
                return Err(TableError::Loop { offset: start.from });
            }
            let offset = usize::try_from(way.at).unwrap_or(usize::MAX);
            let none = TableError::Reference { offset: way.from, target: way.at };
            let Parsed { node, mappings } = self.node(offset).ok_or(none)?;
            match node.body {
                IortBody::Smmu(_) | IortBody::SmmuV3(_) => {
                    if let Some(unit) = self.unit(offset) {
                        found.push((unit, way));
                    }
                }
                IortBody::ItsGroup(_) => {}
                _ => open.extend(mappings.iter().rev().filter_map(|one| way.by(node, one))),
            }
        }
        Ok(found)
    }
}

impl Way {
    /// The way of identifiers by a `mapping` of `node`: those of the device that it is for.
    fn start(node: &IortNode<'_>, mapping: &IortMapping) -> Self {
        let (input, others) = match mapping.single {
            Single::Single => (mapping.input, 0),
            Single::Range => (mapping.input, mapping.count_minus_one),
        };
        Self {
            input,
            others,
            id: mapping.output,
            single: mapping.single,
            from: node.offset,
            at: mapping.target,
            steps: 1,
        }
    }

    /// The part of the way that goes on by a `mapping` of `node`, where it is now.
    fn by(self, node: &IortNode<'_>, mapping: &IortMapping) -> Option<Self> {
        let next = Self { from: node.offset, at: mapping.target, steps: self.steps + 1, ..self };
        if mapping.single == Single::Single {
            // Elsewhere a single mapping is for the messages that the node sends itself.
            let of_devices =
                matches!(node.body, IortBody::NamedComponent(_) | IortBody::RootComplex(_));
            let one = Self { id: mapping.output, single: Single::Single, ..next };
            return of_devices.then_some(one);
        }
        let first = mapping.input.max(self.id);
        let end = mapping.input.saturating_add(mapping.count_minus_one);
        let own = if self.single == Single::Single { 0 } else { self.others };
        let last = end.min(self.id.saturating_add(own));
        let others = last.checked_sub(first)?;
        let id = mapping.output.checked_add(first - mapping.input)?;
        match self.single {
            Single::Single => Some(Self { id, ..next }),
            Single::Range => {
                let input = self.input.checked_add(first - self.id)?;
                Some(Self { input, others, id, ..next })
            }
        }
    }

    /// The claim of its identifiers, which are those of a segment's functions.
    fn claim(&self, segment: PciSegment) -> Option<Claim> {
        let stream = StreamId::new(self.id);
        if self.single == Single::Single {
            return Some(Claim::OneStream { segment, stream });
        }
        let first = u16::try_from(self.input).ok()?;
        let last = self.input.saturating_add(self.others).min(u16::MAX.into()) as u16;
        let (first, last) = (RequesterId::new(first), RequesterId::new(last));
        Some(Claim::Range { segments: (segment, segment), first, last, stream })
    }
}

pub(super) fn describe(bytes: &[u8]) -> Result<Description, TableError> {
    let table = Iort::parse(bytes)?;
    let mut found = Description::new(TableKind::Iort);
    let mut graph = Graph { nodes: Vec::new(), units: Vec::new(), ways: 0 };
    // Reserved memory in the table's order, with the offset of its unit; errors are every unit's.
    let mut memory = Vec::new();
    for node in table.nodes() {
        let node = match node {
            Ok(node) => node,
            Err(error) => {
                found.damage(error);
                found.units.push(UnitDescription::damaged(UnitKind::SmmuV3, error));
                memory.push((None, Err(error)));
                continue;
            }
        };
        if let Some(unit) = unit(&node, table.maker()) {
            graph.units.push((node.offset, found.units.len()));
            found.units.push(unit);
        }
        memory.extend(regions(node).map(|(target, region)| (Some(target), region)));
        graph.nodes.push(Parsed { node, mappings: node.mappings.collect() });
    }
    found.last_streams(&graph);
    for (target, region) in memory {
        match target {
            Some(target) => {
                if let Some(unit) = graph.unit(target) {
                    found.reserve(unit, region);
                }
            }
            None => graph.units.iter().for_each(|(_, unit)| found.reserve(*unit, region)),
        }
    }
    found.claim_by(&mut graph);
    Ok(found)
}

/// The unit that a node is.
fn unit(node: &IortNode<'_>, maker: Maker) -> Option<UnitDescription> {
    match node.body {
        IortBody::SmmuV3(unit) => Some(version_3(&unit)),
        IortBody::Smmu(unit) => {
            let bytes = unit.registers.len_minus_one().saturating_add(1);
            let place = Place::of(unit.registers.start(), bytes);
            let settings = UnitSettings::Smmu(unit, maker);
            Some(UnitDescription::new(UnitKind::Smmu, place, settings))
        }
        _ => None,
    }
}

fn version_3(unit: &SmmuV3) -> UnitDescription {
    let one_page = unit.model == THUNDERX2;
    let bytes = if one_page { ONE_PAGE } else { WINDOW };
    let settings = SmmuV3Settings { coherency: unit.coherency(), node: Some(*unit), one_page };
    let place = Place::of(unit.base, bytes);
    UnitDescription::new(UnitKind::SmmuV3, place, UnitSettings::SmmuV3(settings))
}

impl Description {
    /// Notes the last stream that anything has at each unit.
    fn last_streams(&mut self, graph: &Graph<'_>) {
        for mapping in graph.nodes.iter().flat_map(|node| &node.mappings) {
            let target = usize::try_from(mapping.target).ok();
            let unit = target.and_then(|target| graph.unit(target));
            if let Some(unit) = unit.and_then(|unit| self.units.get_mut(unit)) {
                unit.last_stream = unit.last_stream.max(Some(mapping.last_output()));
            }
        }
    }

    /// Adds the claims of root complexes and components.
    fn claim_by(&mut self, graph: &mut Graph<'_>) {
        let mut components = 0;
        for at in 0..graph.nodes.len() {
            let Some(Parsed { node, mappings }) = graph.nodes.get(at) else {
                continue;
            };
            let (segment, lg2) = match node.body {
                IortBody::RootComplex(complex) => (Some(complex.segment), complex.address_lg2),
                IortBody::NamedComponent(component) => (None, Some(component.address_lg2)),
                _ => continue,
            };
            let ways: Vec<Way> = mappings.iter().map(|one| Way::start(node, one)).collect();
            for way in ways {
                let claim = |way: Way| {
                    let claim = segment.and_then(|segment| way.claim(segment));
                    claim.unwrap_or(Claim::Named(components))
                };
                let arrivals = match graph.arrivals(way) {
                    Ok(arrivals) => arrivals,
                    Err(error) => {
                        self.note(error);
                        self.broken.push(BrokenClaim { claim: claim(way), error });
                        continue;
                    }
                };
                for (unit, way) in arrivals {
                    self.claim(unit, claim(way));
                    if let Some(lg2) = lg2.filter(|lg2| *lg2 < 64) {
                        self.limit(unit, claim(way), lg2);
                    }
                }
            }
            components += u64::from(segment.is_none());
        }
    }
}
