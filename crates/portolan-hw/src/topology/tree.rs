//! SMMUs of version 3 and RISC-V IOMMUs by a device tree.
//!
//! Devicetree bindings `arm,smmu-v3`, `riscv,iommu` and `riscv,pci-iommu` (units), `pci-iommu` (`iommu-map`,
//! `iommu-map-mask` and `linux,pci-domain` of a PCI host; its `dma-ranges` are read in `dma`), `pci`
//! (`external-facing` of its ports), `iommu` (`iommus` of other devices, which the survey names), `power-domains` and
//! `clocks` of units (in `power`), `reserved-memory`
//! (`iommu-addresses`) and `riscv,imsics` (`msi-parent` of a unit). Units and devices may be on buses of their own,
//! whose `ranges` are followed. Not supported: `msi-map`, `#iommu-cells` other than 1, other units.

mod bus;
mod carveouts;
mod dma;
mod imsic;
mod power;
mod riscv;
mod wires;

pub use wires::Wire;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use portolan::addr::{
    IovaRange, PciFunction, PciSegment, PhysAddr, PhysRange, RequesterId, StreamId,
};
use portolan::platform::Platform;

use super::claim::Claim;
use super::remark::Remark;
use super::survey::{Place, Survey, UnitKind};
use super::{
    EnableError, Enabling, FirmwareMemory, Outcome, TopologyError, enable_all, enable_at, iort,
    streams_lg2, window,
};
use crate::firmware::fdt::{DeviceTree, Node};
use crate::smmuv3::{Config, Features, RegisterPages, Smmu};
use bus::{Bus, Window, okay, registers};
use carveouts::Carveout;
use imsic::Imsic;
use portolan_tables::overrides::CoherencyOverride;
use power::ClockSource;

/// Buses between a device and the root, at most.
const MOST_BUSES: usize = 16;
/// Cells of an entry of `iommu-map`.
const ENTRY: usize = 4;
/// Units that other drivers are for.
const OTHERS: [&str; 4] = ["arm,smmu-v1", "arm,smmu-v2", "arm,mmu-500", "qcom,smmu-500"];

/// Place of a unit's registers.
enum At {
    /// There, so many bytes.
    Registers(PhysAddr, u64),
    /// In the first window of this function, on a bus with these windows.
    Function(PciFunction, Vec<Window>),
}

/// Driver of a unit.
enum Driver {
    Smmu { coherency: CoherencyOverride, pages: RegisterPages },
    Riscv,
}

/// A unit.
struct Unit<'t> {
    node: Node<'t>,
    /// The number by which other nodes refer to it.
    phandle: u32,
    at: At,
    driver: Driver,
    /// The interrupt controller of its wires, if its node does not name another.
    parent: Option<u32>,
}

/// A PCI host.
struct Host<'t> {
    node: Node<'t>,
    segment: PciSegment,
    mask: u32,
    /// Of its `iommu-map`.
    entries: Vec<Entry>,
    /// The addresses that devices below it can use.
    reach: Option<IovaRange>,
}

/// An entry of `iommu-map`: the first requester, the unit, its stream, and the number of
/// requesters.
type Entry = [u32; ENTRY];

/// A device that is no PCI function.
struct Device {
    phandle: Option<u32>,
    base: PhysAddr,
    /// Units, by the number by which nodes refer to them, and its streams there.
    streams: Vec<(u32, u32)>,
    /// Cells of an address and of a length on its bus.
    widths: (usize, usize),
}

/// Description of units by a tree.
#[derive(Default)]
struct Described<'t> {
    units: Vec<Unit<'t>>,
    /// Their numbers, by that by which nodes refer to them.
    by_phandle: BTreeMap<u32, usize>,
    hosts: Vec<Host<'t>>,
    devices: Vec<Device>,
    /// PCI functions that other nodes may refer to, by the number by which they do.
    functions: Vec<(u32, PciFunction)>,
    /// PCI functions that lead out of the machine, or that such are below.
    external: Vec<PciFunction>,
    carveouts: Vec<Carveout<'t>>,
    imsics: Vec<Imsic>,
    /// Sources of clocks, by the number by which nodes refer to them.
    clocks: BTreeMap<u32, ClockSource>,
    others: Vec<PhysAddr>,
}

fn read(tree: &[u8]) -> Result<Described<'_>, TopologyError> {
    let tree = DeviceTree::parse(tree).ok_or(TopologyError::NoTree)?;
    let mut found = Described::default();
    let mut buses: Vec<Bus<'_>> = Vec::new();
    for (depth, node) in tree.walk() {
        // The root has depth 1.
        let above = usize::try_from(depth).map_or(0, |depth| depth.saturating_sub(1));
        buses.truncate(above);
        if buses.len() == above && above <= MOST_BUSES {
            if okay(&node) {
                found.add(node, &buses);
            }
            buses.push(Bus::of(node));
        }
    }
    Ok(found)
}

/// An SMMU of version 3 as its node describes it.
fn smmu(node: &Node<'_>) -> Driver {
    let coherency = match node.property("dma-coherent") {
        Some(_) => CoherencyOverride::Coherent,
        None => CoherencyOverride::NotCoherent,
    };
    let pages = match node.property("cavium,cn9900-broken-page1-regspace") {
        Some(_) => RegisterPages::OnlyFirst,
        None => RegisterPages::Two,
    };
    Driver::Smmu { coherency, pages }
}

impl<'t> Described<'t> {
    fn add(&mut self, node: Node<'t>, buses: &[Bus<'t>]) {
        if node.property("external-facing").is_some() {
            self.external.extend(self.first_bus(&node, buses));
        }
        if let Some((phandle, source)) = ClockSource::of(&node) {
            self.clocks.entry(phandle).or_insert(source);
        }
        let at = registers(&node, 0, buses);
        let registers = at.map(|(base, bytes)| At::Registers(base, bytes));
        if node.is("arm,smmu-v3") {
            self.add_unit(node, buses, registers, smmu(&node));
        } else if node.is("riscv,pci-iommu") {
            let function = self.function(&node, buses);
            let at = function.map(|function| At::Function(function, bus::windows(buses)));
            self.add_unit(node, buses, at, Driver::Riscv);
        } else if node.is("riscv,iommu") {
            self.add_unit(node, buses, registers, Driver::Riscv);
        } else if node.is("riscv,imsics") {
            self.imsics.extend(Imsic::of(&node, buses));
        } else if OTHERS.iter().any(|other| node.is(other)) {
            self.others.extend(at.map(|(base, _)| base));
        } else if node.property("iommu-map").is_some() {
            let segment = node.cell("linux,pci-domain", 0);
            let next = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
            if let Ok(segment) = u16::try_from(segment.unwrap_or(next)) {
                let segment = PciSegment::new(segment);
                self.hosts.push(Host {
                    node,
                    segment,
                    mask: node.cell("iommu-map-mask", 0).unwrap_or(u32::MAX),
                    entries: entries(&node),
                    reach: dma::reach(node, buses),
                });
            }
        } else if node.property("iommu-addresses").is_some() {
            self.carveouts.extend(Carveout::of(node, buses));
        } else if let Some((base, _)) = at {
            self.add_device(&node, buses, base);
        } else if let (Some(phandle), Some(function)) =
            (node.cell("phandle", 0), self.function(&node, buses))
        {
            self.functions.push((phandle, function));
        }
    }

    fn add_unit(&mut self, node: Node<'t>, buses: &[Bus<'t>], at: Option<At>, driver: Driver) {
        let Some(at) = at else { return };
        let phandle = node.cell("phandle", 0).unwrap_or(0);
        self.by_phandle.entry(phandle).or_insert(self.units.len());
        self.units.push(Unit { node, phandle, at, driver, parent: wires::parent(&node, buses) });
    }

    fn add_device(&mut self, node: &Node<'_>, buses: &[Bus<'_>], base: PhysAddr) {
        let cells: Vec<u32> = node.cells("iommus").collect();
        let pairs = cells.chunks_exact(2);
        let streams: Vec<(u32, u32)> = pairs.map(|pair| (pair[0], pair[1])).collect();
        let Some(widths) = buses.last().and_then(|bus| bus.widths) else {
            return;
        };
        if !streams.is_empty() {
            self.devices.push(Device { phandle: node.cell("phandle", 0), base, streams, widths });
        }
    }

    /// The PCI function on the first bus of the last host that `node` is, or is below. A port behind
    /// another one is on a bus whose number the tree does not say; so all below that one counts.
    fn first_bus(&self, node: &Node<'_>, buses: &[Bus<'_>]) -> Option<PciFunction> {
        let host = self.hosts.last()?.node.offset();
        let depth = buses.iter().position(|bus| bus.node.offset() == host)? + 1;
        let (above, below) = buses.split_at_checked(depth)?;
        let first = below.first().map_or(node, |bus| &bus.node);
        self.function(first, above)
    }

    /// The PCI function that `node` is, on the first bus of the host that it is below.
    fn function(&self, node: &Node<'_>, buses: &[Bus<'_>]) -> Option<PciFunction> {
        let host = self.hosts.last()?;
        (buses.last()?.node.offset() == host.node.offset()).then_some(())?;
        let requester = u16::try_from(node.cell("reg", 0)? >> 8 & 0xffff).ok()?;
        Some(PciFunction { segment: host.segment, requester: RequesterId::new(requester) })
    }

    fn unit(&self, phandle: u32) -> Option<usize> {
        self.by_phandle.get(&phandle).copied()
    }

    /// The number of the unit of `function`, and its stream there.
    fn find(&self, function: PciFunction) -> Option<(usize, StreamId)> {
        let mut hosts = self.hosts.iter();
        let host = hosts.find(|host| host.segment == function.segment)?;
        let requester = u32::from(function.requester.get()) & host.mask;
        let mut entries = host.entries.iter();
        entries.find_map(|&[first, unit, stream, count]| {
            let above = requester.checked_sub(first).filter(|above| *above < count)?;
            let stream = stream.checked_add(above)?;
            Some((self.unit(unit)?, StreamId::new(stream)))
        })
    }

    /// The last stream that anything has at the unit that nodes refer to by `phandle`.
    fn last_stream(&self, phandle: u32) -> Option<u32> {
        let hosts = self.hosts.iter().flat_map(|host| &host.entries);
        let ranges = hosts.filter(|[_, unit, _, count]| *unit == phandle && *count > 0);
        let mapped = ranges.map(|[_, _, stream, count]| stream.saturating_add(count - 1));
        let devices = self.devices.iter().flat_map(|device| &device.streams);
        let named = devices.filter(|(unit, _)| *unit == phandle);
        mapped.chain(named.map(|(_, stream)| *stream)).max()
    }
}

impl Unit<'_> {
    fn kind(&self) -> UnitKind {
        match self.driver {
            Driver::Smmu { .. } => UnitKind::SmmuV3,
            Driver::Riscv => UnitKind::Riscv,
        }
    }

    fn place(&self) -> Place {
        match self.at {
            At::Registers(base, bytes) => Place::of(base, bytes),
            At::Function(function, _) => Place::Function(function),
        }
    }

    fn window(&self, platform: &impl Platform) -> Result<PhysRange, EnableError> {
        match &self.at {
            At::Registers(base, bytes) => window(*base, *bytes),
            At::Function(function, windows) => riscv::window(platform, *function, windows),
        }
    }
}

/// The entries of the `iommu-map` of `host`.
fn entries(host: &Node<'_>) -> Vec<Entry> {
    let cells: Vec<u32> = host.cells("iommu-map").collect();
    let entries = cells.chunks_exact(ENTRY);
    entries.filter_map(|entry| entry.try_into().ok()).collect()
}

/// Number of units in the tree.
pub(super) fn count(tree: &[u8]) -> Result<usize, TopologyError> {
    Ok(read(tree)?.units.len())
}

/// Takes over and enables all units of the tree.
pub(super) fn enable<P: Platform>(
    tree: &[u8],
    by: &Enabling<'_, P>,
) -> Result<Vec<Outcome>, EnableError> {
    let described = read(tree)?;
    let reserved = match by.options.reserved {
        FirmwareMemory::Reached => described.reserved(),
        FirmwareMemory::Refused => Vec::new(),
    };
    let units = described.units.iter().enumerate().map(Ok);
    enable_all(units, by.survey, |(number, unit), added| {
        let window = unit.window(by.platform)?;
        if described.needs_power(&unit.node) && !by.platform.power_on(window) {
            return Err(EnableError::NoPower { window });
        }
        let its = reserved.iter().filter(|(of, _)| *of == number);
        let its = its.map(|(_, reserved)| *reserved);
        match &unit.driver {
            &Driver::Smmu { coherency, pages } => {
                let mut config = Config {
                    coherency,
                    pages,
                    combining: by.options.combining,
                    ..Config::default()
                };
                config.reserved.believe(by.description);
                // What makes no sense is left out, and counted there.
                let _ = config.reserved.read(its);
                let _ = config.reserved.read(added.iter().copied().map(Ok));
                config.at_work = iort::at_work(&config.reserved, by.description)?;
                if let Some(last) = described.last_stream(unit.phandle) {
                    config.stream_lg2 = streams_lg2(last);
                }
                enable_at(by, window, |registers, memory, clock| {
                    let lg2 = Features::read(&registers)?.output_lg2;
                    Smmu::enable(registers, memory.below(lg2), clock, config)
                })
            }
            Driver::Riscv => {
                let mut config = riscv::config(&described, unit, by);
                config.combining = by.options.combining;
                config.reserved.believe(by.description);
                let _ = config.reserved.read(its);
                let _ = config.reserved.read(added.iter().copied().map(Ok));
                super::riscv::enable(by, window, config)
            }
        }
    })
}

/// The number of the unit of `function`, and its stream there.
pub(super) fn find(
    tree: &[u8],
    function: PciFunction,
) -> Result<Option<(usize, StreamId)>, TopologyError> {
    Ok(read(tree)?.find(function))
}

/// The addresses that `function` can use below its host; `None` if there are none.
pub(super) fn reach(
    tree: &[u8],
    function: PciFunction,
) -> Result<Option<IovaRange>, TopologyError> {
    let described = read(tree)?;
    let mut hosts = described.hosts.iter();
    let host = hosts.find(|host| host.segment == function.segment);
    Ok(host.and_then(|host| host.reach))
}

/// Tells if all units are such as could have messages of devices go through tables, to files that
/// the tree names. Their registers decide if they can.
pub(super) fn remaps(tree: &[u8]) -> Result<bool, TopologyError> {
    let described = read(tree)?;
    let mut units = described.units.iter();
    Ok(units.all(|unit| matches!(unit.driver, Driver::Riscv) && described.files(unit).is_some()))
}

/// The wire by which a unit tells of faults.
pub(super) fn wire(tree: &[u8], unit: usize) -> Result<Option<Wire>, TopologyError> {
    let described = read(tree)?;
    let unit = described.units.get(unit);
    let unit = unit.filter(|unit| matches!(unit.driver, Driver::Riscv));
    Ok(unit.and_then(|unit| Wire::first(&unit.node, unit.parent)))
}

/// The functions of PCI hosts' first buses that lead out of the machine.
pub(super) fn external_ports(tree: &[u8]) -> Result<Vec<PciFunction>, TopologyError> {
    Ok(read(tree)?.external)
}

/// Surveys the units, PCI hosts and other devices of the tree.
pub(super) fn survey(tree: &[u8], into: &mut Survey) -> Result<(), TopologyError> {
    let described = read(tree)?;
    for unit in &described.units {
        into.unit(unit.kind(), unit.place(), None);
    }
    for host in &described.hosts {
        for &[first, unit, stream, count] in &host.entries {
            let last = count.checked_sub(1).and_then(|more| first.checked_add(more));
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
    for device in &described.devices {
        let base = device.base;
        for &(unit, stream) in &device.streams {
            let stream = StreamId::new(stream);
            if let Some(unit) = described.unit(unit) {
                into.claim(unit, Claim::Device { base, stream });
            }
        }
    }
    for (unit, reserved) in described.reserved() {
        into.reserve(unit, [reserved]);
    }
    for other in described.others {
        into.remark(Remark::NotDriven(other));
    }
    Ok(())
}
