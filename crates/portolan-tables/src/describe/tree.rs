//! SMMUs of version 3, RISC-V IOMMUs and virtio-iommus by a device tree.
//!
//! Devicetree bindings `arm,smmu-v3`, `riscv,iommu`, `riscv,pci-iommu`, `virtio,pci-iommu` and `virtio,mmio` with
//! `#iommu-cells` (units), `pci-iommu` (`iommu-map`,
//! `iommu-map-mask` and `linux,pci-domain` of a PCI host; its `dma-ranges` are read in `dma`), `pci`
//! (`external-facing` of its ports), `iommu` (`iommus` of other devices, which the survey names), `power-domains` and
//! `clocks` of units (in `power`), `reserved-memory`
//! (`iommu-addresses`) and `riscv,imsics` (`msi-parent` of a unit). Units and devices may be on buses of their own,
//! whose `ranges` are followed. Not supported: `msi-map`, `#iommu-cells` other than 1, other units.

mod bus;
mod carveouts;
mod dma;
mod files;
mod power;

pub use bus::Window;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use portolan::addr::{IovaRange, PciFunction, PciSegment, PhysAddr, RequesterId, StreamId};

use super::{
    Description, HostDescription, Note, Place, RemappingOffer, RiscvSettings, RiscvWire,
    SmmuV3Settings, TableKind, UnitDescription, UnitKind, UnitSettings,
};
use crate::claim::Claim;
use crate::fdt::{DeviceTree, TreeNode};
use crate::overrides::CoherencyOverride;
use crate::viot::Viommu;
use crate::wires::{self, Wire};
use bus::{Bus, okay, registers};
use carveouts::Carveout;
use files::Imsic;
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
#[derive(Clone, Copy)]
enum Driver {
    Smmu { coherency: CoherencyOverride, one_page: bool },
    Riscv,
    Virtio,
}

/// PCI functions that are units, by their names in `compatible`.
const FUNCTIONS: [(&str, Driver); 3] = [
    ("riscv,pci-iommu", Driver::Riscv),
    ("virtio,pci-iommu", Driver::Virtio),
    ("pci1af4,1057", Driver::Virtio),
];

/// A unit.
struct TreeUnit<'t> {
    node: TreeNode<'t>,
    /// The number by which other nodes refer to it.
    phandle: u32,
    at: At,
    driver: Driver,
    /// The interrupt controller of its wires, if its node does not name another.
    parent: Option<u32>,
}

/// A PCI host.
struct Host<'t> {
    node: TreeNode<'t>,
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
struct TreeDevice {
    phandle: Option<u32>,
    base: PhysAddr,
    /// Units, by the number by which nodes refer to them, and its streams there.
    streams: Vec<(u32, u32)>,
    /// Cells of an address and of a length on its bus.
    widths: (usize, usize),
    /// The addresses that it can use.
    reach: Option<IovaRange>,
}

/// Description of units by a tree.
#[derive(Default)]
struct Described<'t> {
    units: Vec<TreeUnit<'t>>,
    /// Their numbers, by that by which nodes refer to them.
    by_phandle: BTreeMap<u32, usize>,
    hosts: Vec<Host<'t>>,
    devices: Vec<TreeDevice>,
    /// PCI functions that other nodes may refer to, by the number by which they do.
    functions: Vec<(u32, PciFunction)>,
    /// PCI functions that lead out of the machine, or that such are below.
    external: Vec<PciFunction>,
    carveouts: Vec<Carveout<'t>>,
    imsics: Vec<Imsic>,
    /// Sources of clocks, by the number by which nodes refer to them.
    clocks: BTreeMap<u32, ClockSource>,
    /// Cells that name an interrupt of a controller, by the number by which nodes refer to it.
    controllers: BTreeMap<u32, u32>,
    others: Vec<PhysAddr>,
}

/// The description by a flattened device tree; `None` if the bytes are none.
pub(super) fn describe(bytes: &[u8]) -> Option<Description> {
    let tree = DeviceTree::parse(bytes)?;
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
    Some(found.description())
}

/// An SMMU of version 3 as its node describes it.
fn smmu(node: &TreeNode<'_>) -> Driver {
    let coherency = match node.property("dma-coherent") {
        Some(_) => CoherencyOverride::Coherent,
        None => CoherencyOverride::NotCoherent,
    };
    let one_page = node.property("cavium,cn9900-broken-page1-regspace").is_some();
    Driver::Smmu { coherency, one_page }
}

impl<'t> Described<'t> {
    fn add(&mut self, node: TreeNode<'t>, buses: &[Bus<'t>]) {
        if node.property("external-facing").is_some() {
            self.external.extend(self.first_bus(&node, buses));
        }
        if let Some((phandle, source)) = ClockSource::of(&node) {
            self.clocks.entry(phandle).or_insert(source);
        }
        let controller = node.cell("#interrupt-cells", 0);
        if let Some((cells, phandle)) = controller.zip(node.cell("phandle", 0)) {
            self.controllers.entry(phandle).or_insert(cells);
        }
        let at = registers(&node, 0, buses);
        let registers = at.map(|(base, bytes)| At::Registers(base, bytes));
        let unit = FUNCTIONS.iter().find(|(name, _)| node.is(name));
        if node.is("arm,smmu-v3") {
            self.add_unit(node, buses, registers, smmu(&node));
        } else if let Some((_, driver)) = unit {
            let function = self.function(&node, buses);
            let at = function.map(|function| At::Function(function, bus::windows(buses)));
            self.add_unit(node, buses, at, *driver);
        } else if node.is("virtio,mmio") && node.property("#iommu-cells").is_some() {
            self.add_unit(node, buses, registers, Driver::Virtio);
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

    fn add_unit(&mut self, node: TreeNode<'t>, buses: &[Bus<'t>], at: Option<At>, driver: Driver) {
        let Some(at) = at else { return };
        let phandle = node.cell("phandle", 0).unwrap_or(0);
        self.by_phandle.entry(phandle).or_insert(self.units.len());
        self.units.push(TreeUnit { node, phandle, at, driver, parent: parent(&node, buses) });
    }

    fn add_device(&mut self, node: &TreeNode<'_>, buses: &[Bus<'_>], base: PhysAddr) {
        let cells: Vec<u32> = node.cells("iommus").collect();
        let pairs = cells.chunks_exact(2);
        let streams: Vec<(u32, u32)> = pairs.map(|pair| (pair[0], pair[1])).collect();
        let Some(widths) = buses.last().and_then(|bus| bus.widths) else {
            return;
        };
        if !streams.is_empty() {
            self.devices.push(TreeDevice {
                phandle: node.cell("phandle", 0),
                base,
                streams,
                widths,
                reach: dma::reach(*node, buses),
            });
        }
    }

    /// The PCI function on the first bus of the last host that `node` is, or is below. A port behind
    /// another one is on a bus whose number the tree does not say; so all below that one counts.
    fn first_bus(&self, node: &TreeNode<'_>, buses: &[Bus<'_>]) -> Option<PciFunction> {
        let host = self.hosts.last()?.node.offset();
        let depth = buses.iter().position(|bus| bus.node.offset() == host)? + 1;
        let (above, below) = buses.split_at_checked(depth)?;
        let first = below.first().map_or(node, |bus| &bus.node);
        self.function(first, above)
    }

    /// The PCI function that `node` is, on the first bus of the host that it is below.
    fn function(&self, node: &TreeNode<'_>, buses: &[Bus<'_>]) -> Option<PciFunction> {
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

/// The interrupt controller of `node`, by its own word or by that of the nearest bus that has one.
fn parent(node: &TreeNode<'_>, buses: &[Bus<'_>]) -> Option<u32> {
    let above = || buses.iter().rev().find_map(|bus| bus.interrupt_parent);
    node.cell("interrupt-parent", 0).or_else(above)
}

/// The entries of the `iommu-map` of `host`.
fn entries(host: &TreeNode<'_>) -> Vec<Entry> {
    let cells: Vec<u32> = host.cells("iommu-map").collect();
    let entries = cells.chunks_exact(ENTRY);
    entries.filter_map(|entry| entry.try_into().ok()).collect()
}

impl TreeUnit<'_> {
    fn kind(&self) -> UnitKind {
        match self.driver {
            Driver::Smmu { .. } => UnitKind::SmmuV3,
            Driver::Riscv => UnitKind::Riscv,
            Driver::Virtio => UnitKind::Virtio,
        }
    }

    fn place(&self) -> Place {
        match (&self.at, self.driver) {
            (&At::Function(function, _), _) => Place::Function(function),
            (&At::Registers(base, _), Driver::Virtio) => Place::Device(base),
            (&At::Registers(base, bytes), _) => Place::of(base, bytes),
        }
    }

    /// Its place, if it is a virtio-iommu.
    fn viommu(&self) -> Viommu {
        match self.at {
            At::Registers(base, _) => Viommu::Mmio { base },
            At::Function(PciFunction { segment, requester }, _) => {
                Viommu::Pci { segment, requester }
            }
        }
    }
}

impl Described<'_> {
    fn description(self) -> Description {
        let mut found = Description::new(TableKind::Tree);
        found.units.extend(self.units.iter().map(|unit| self.unit_description(unit)));
        let has_files = |unit: &UnitDescription| match &unit.settings {
            UnitSettings::Riscv(settings) => settings.files.is_some(),
            _ => false,
        };
        // Destinations are places of harts among those that the tree's IMSIC interrupts.
        if found.units.iter().all(has_files) {
            found.remapping = RemappingOffer::X2Apic;
        }
        for host in &self.hosts {
            let Host { segment, mask, reach, .. } = *host;
            found.hosts.push(HostDescription { segment, mask: mask as u16, reach });
            for entry in &host.entries {
                self.claim_of_host(host, entry, &mut found);
            }
        }
        for device in &self.devices {
            let base = device.base;
            for &(unit, stream) in &device.streams {
                let stream = StreamId::new(stream);
                if let Some(unit) = self.unit(unit) {
                    let claim = Claim::Device { base, stream };
                    found.claim(unit, claim);
                    if device.reach != dma::everything() {
                        found.limit_to(unit, claim, device.reach);
                    }
                }
            }
        }
        for (unit, reserved) in self.reserved() {
            found.reserve(unit, reserved);
        }
        found.notes.extend(self.others.iter().map(|other| Note::NotDescribed(*other)));
        found.external = self.external;
        found
    }

    /// Adds the claim of an entry of a host's `iommu-map`.
    fn claim_of_host(&self, host: &Host<'_>, entry: &Entry, found: &mut Description) {
        let [first, unit, stream, count] = *entry;
        let last = count.checked_sub(1).map(|more| first.saturating_add(more));
        let (Ok(first), Some(last)) = (u16::try_from(first), last) else {
            return;
        };
        let last = last.min(u16::MAX.into()) as u16;
        let claim = Claim::Range {
            segments: (host.segment, host.segment),
            first: RequesterId::new(first),
            last: RequesterId::new(last),
            stream: StreamId::new(stream),
        };
        match self.unit(unit) {
            Some(unit) => found.claim(unit, claim),
            None => found.astray(claim),
        }
    }

    fn unit_description(&self, unit: &TreeUnit<'_>) -> UnitDescription {
        let settings = match unit.driver {
            Driver::Smmu { coherency, one_page } => {
                UnitSettings::SmmuV3(SmmuV3Settings { coherency, node: None, one_page })
            }
            Driver::Virtio => UnitSettings::Virtio(unit.viommu()),
            Driver::Riscv => {
                let wire = Wire::first(&unit.node, unit.parent, &self.controllers);
                UnitSettings::Riscv(RiscvSettings {
                    wired: wires::has_any(&unit.node),
                    wire: wire.map(RiscvWire::Controller),
                    files: self.files(unit),
                    windows: match &unit.at {
                        At::Function(_, windows) => Some(windows.clone()),
                        At::Registers(..) => None,
                    },
                })
            }
        };
        let mut described = UnitDescription::new(unit.kind(), unit.place(), settings);
        described.last_stream = self.last_stream(unit.phandle);
        described.needs_power = self.needs_power(&unit.node);
        described
    }
}
