//! SMMUs of version 3 by a device tree.
//!
//! Devicetree bindings `arm,smmu-v3` (units), `pci-iommu` (`iommu-map`, `iommu-map-mask` and
//! `linux,pci-domain` of a PCI host) and `iommu` (`iommus` of other devices, which the survey names).
//! Units and devices may be on buses of their own, whose `ranges` are followed. Not supported: memory
//! that devices go on using (`reserved-memory` with `iommu-addresses`), `msi-map`, other units.

use alloc::vec::Vec;

use portolan::addr::{PciFunction, PhysAddr, RequesterId, Segment, StreamId};
use portolan::platform::Platform;

use super::claim::Claim;
use super::remark::Remark;
use super::survey::{Place, Survey, UnitKind};
use super::{EnableError, Enabled, TopologyError, enable_all, enable_at, window};
use crate::firmware::fdt::{DeviceTree, Node};
use crate::overrides::CoherencyOverride;
use crate::smmuv3::{Config, RegisterPages, Smmu};

/// Buses between a device and the root, at most.
const MOST_BUSES: usize = 16;
/// Cells of an entry of `iommu-map`.
const ENTRY: usize = 4;
/// Units that other drivers are for.
const OTHERS: [&str; 5] = [
    "arm,smmu-v1",
    "arm,smmu-v2",
    "arm,mmu-500",
    "riscv,iommu",
    "qcom,smmu-500",
];

/// A unit.
struct Unit {
    /// The number by which other nodes refer to it.
    phandle: u32,
    base: PhysAddr,
    bytes: u64,
    config: Config,
}

/// A PCI host.
struct Host<'t> {
    node: Node<'t>,
    segment: Segment,
}

/// What a tree says of units.
#[derive(Default)]
struct Described<'t> {
    units: Vec<Unit>,
    hosts: Vec<Host<'t>>,
    /// Registers of other devices, with a unit's number and a stream.
    devices: Vec<(PhysAddr, u32, u32)>,
    others: Vec<PhysAddr>,
}

/// Whether a node is in use.
fn okay(node: &Node<'_>) -> bool {
    match node.property("status") {
        None => true,
        Some(status) => status.starts_with(b"okay\0") || status.starts_with(b"ok\0"),
    }
}

/// The number in `cells`, of one or two cells.
fn number(cells: &[u32]) -> Option<u64> {
    match *cells {
        [one] => Some(one.into()),
        [high, low] => Some(u64::from(high) << 32 | u64::from(low)),
        _ => None,
    }
}

/// Cells of addresses and of lengths on a bus.
fn widths(bus: &Node<'_>) -> Option<(usize, usize)> {
    let width = |name, usual: u32| usize::try_from(bus.cell(name, 0).unwrap_or(usual)).ok();
    let (address, size) = (width("#address-cells", 2)?, width("#size-cells", 1)?);
    (address <= 2 && size <= 2).then_some((address, size))
}

/// Where the first registers of `node` are, by the buses above it, the root first.
fn registers(node: &Node<'_>, buses: &[Node<'_>]) -> Option<(PhysAddr, u64)> {
    let (bus, above) = buses.split_last()?;
    let (address, size) = widths(bus)?;
    let reg: Vec<u32> = node.cells("reg").take(address + size).collect();
    let bytes = number(reg.get(address..)?)?;
    let mut at = number(reg.get(..address)?)?;
    let mut bus = bus;
    for next in above.iter().rev() {
        at = translated(at, bus, next)?;
        bus = next;
    }
    Some((PhysAddr::new(at), bytes))
}

/// Where `at` of `bus` is on the bus `above`.
fn translated(at: u64, bus: &Node<'_>, above: &Node<'_>) -> Option<u64> {
    bus.property("ranges")?;
    let ((address, size), (outer, _)) = (widths(bus)?, widths(above)?);
    let cells: Vec<u32> = bus.cells("ranges").collect();
    if cells.is_empty() {
        return Some(at);
    }
    let entry = address.checked_add(outer)?.checked_add(size)?;
    cells.chunks_exact(entry.max(1)).find_map(|entry| {
        let (from, rest) = entry.split_at_checked(address)?;
        let (to, length) = rest.split_at_checked(outer)?;
        let inside = at.checked_sub(number(from)?)?;
        (inside < number(length)?).then_some(())?;
        number(to)?.checked_add(inside)
    })
}

fn read(tree: &[u8]) -> Result<Described<'_>, TopologyError> {
    let tree = DeviceTree::parse(tree).ok_or(TopologyError::NoTree)?;
    let mut found = Described::default();
    let mut buses: Vec<Node<'_>> = Vec::new();
    for (depth, node) in tree.walk() {
        // The root has depth 1.
        let above = usize::try_from(depth).map_or(0, |depth| depth.saturating_sub(1));
        buses.truncate(above);
        if buses.len() == above && above <= MOST_BUSES {
            if okay(&node) {
                found.add(node, &buses);
            }
            buses.push(node);
        }
    }
    Ok(found)
}

impl<'t> Described<'t> {
    fn add(&mut self, node: Node<'t>, buses: &[Node<'t>]) {
        let at = registers(&node, buses);
        if node.is("arm,smmu-v3") {
            let Some((base, bytes)) = at else { return };
            let phandle = node.cell("phandle", 0).unwrap_or(0);
            let coherency = match node.property("dma-coherent") {
                Some(_) => CoherencyOverride::Coherent,
                None => CoherencyOverride::NotCoherent,
            };
            let pages = match node.property("cavium,cn9900-broken-page1-regspace") {
                Some(_) => RegisterPages::OnlyFirst,
                None => RegisterPages::Two,
            };
            let config = Config {
                coherency,
                pages,
                ..Config::default()
            };
            self.units.push(Unit {
                phandle,
                base,
                bytes,
                config,
            });
        } else if OTHERS.iter().any(|other| node.is(other)) {
            self.others.extend(at.map(|(base, _)| base));
        } else if node.property("iommu-map").is_some() {
            let segment = node.cell("linux,pci-domain", 0);
            let next = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
            if let Ok(segment) = u16::try_from(segment.unwrap_or(next)) {
                let segment = Segment::new(segment);
                self.hosts.push(Host { node, segment });
            }
        } else if let (Some(at), Some(unit), Some(stream)) =
            (at, node.cell("iommus", 0), node.cell("iommus", 1))
        {
            self.devices.push((at.0, unit, stream));
        }
    }

    fn unit(&self, phandle: u32) -> Option<usize> {
        self.units.iter().position(|unit| unit.phandle == phandle)
    }
}

/// An entry of `iommu-map`: the first requester, the unit, its stream, and how many there are.
fn entries(host: &Host<'_>) -> Vec<[u32; ENTRY]> {
    let cells: Vec<u32> = host.node.cells("iommu-map").collect();
    let entries = cells.chunks_exact(ENTRY);
    entries.filter_map(|entry| entry.try_into().ok()).collect()
}

/// How many units the tree has.
pub(super) fn count(tree: &[u8]) -> Result<usize, TopologyError> {
    Ok(read(tree)?.units.len())
}

/// Takes over and enables all units of the tree.
pub(super) fn enable<P: Platform>(tree: &[u8], platform: &P) -> Result<Vec<Enabled>, EnableError> {
    let units = read(tree)?.units.into_iter().map(Ok);
    enable_all(units, |unit| {
        let window = window(unit.base, unit.bytes)?;
        enable_at(platform, window, |registers, memory, clock| {
            Smmu::enable(registers, memory, clock, unit.config)
        })
    })
}

/// The number of the unit of `function`, and its stream there.
pub(super) fn find(
    tree: &[u8],
    function: PciFunction,
) -> Result<Option<(usize, StreamId)>, TopologyError> {
    let described = read(tree)?;
    let mut hosts = described.hosts.iter();
    let Some(host) = hosts.find(|host| host.segment == function.segment) else {
        return Ok(None);
    };
    let mask = host.node.cell("iommu-map-mask", 0).unwrap_or(u32::MAX);
    let requester = u32::from(function.requester.get()) & mask;
    let found = entries(host)
        .into_iter()
        .find_map(|[first, unit, stream, count]| {
            let above = requester
                .checked_sub(first)
                .filter(|above| *above < count)?;
            let stream = stream.checked_add(above)?;
            Some((described.unit(unit)?, StreamId::new(stream)))
        });
    Ok(found)
}

/// What the tree says of units, of PCI hosts and of other devices.
pub(super) fn survey(tree: &[u8], into: &mut Survey) -> Result<(), TopologyError> {
    let described = read(tree)?;
    for unit in &described.units {
        into.unit(UnitKind::SmmuV3, Place::of(unit.base, unit.bytes), None);
    }
    for host in &described.hosts {
        for [first, unit, stream, count] in entries(host) {
            let last = count
                .checked_sub(1)
                .and_then(|more| first.checked_add(more));
            let ends = (u16::try_from(first), last.map(u16::try_from));
            let (Ok(first), Some(Ok(last))) = ends else {
                continue;
            };
            let claim = Claim::Range {
                segments: (host.segment, host.segment),
                first: RequesterId::new(first),
                last: RequesterId::new(last),
                stream: StreamId::new(stream),
            };
            match described.unit(unit) {
                Some(unit) => into.claim(unit, claim),
                None => into.astray(claim),
            }
        }
    }
    for &(base, unit, stream) in &described.devices {
        let stream = StreamId::new(stream);
        if let Some(unit) = described.unit(unit) {
            into.claim(unit, Claim::Device { base, stream });
        }
    }
    for other in described.others {
        into.remark(Remark::NotDriven(other));
    }
    Ok(())
}
