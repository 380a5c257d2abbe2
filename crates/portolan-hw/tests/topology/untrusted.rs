//! A disk that was plugged in from outside beside one of the machine's own: it reaches its buffers and nothing else.

use std::alloc::Layout;
use std::sync::Arc;

use portolan::addr::{Iova, PciFunction, PhysAddr, PhysRange, StreamId};
use portolan::bounce::{PoolMemory, PoolOptions};
use portolan::dma::{
    Buffers, Constraints, CopyWhen, Copying, DeviceError, Direction, MapError, Policy,
    PolicyPreference, Trust, Unowned,
};
use portolan::iommu::DeviceTlb;
use portolan::platform::{AllMemory, Platform};
use portolan_chips::chips::SKYLAKE_SP;
use portolan_chips::riscv::{RiscvIdentification, RiscvSetup};
use portolan_chips::smmuv3::SmmuIdentification;
use portolan_chips::vtd::VtdIdentification;
use portolan_hw::topology::{DeviceOptions, Iommus, OpenError, Options, Topology};
use portolan_sim::decode::AccessKind;

use super::Packet;
use super::machine::{
    DEVICE, Kernel, Machine, PciWords, REGISTERS, amd, described, dmar, dmar_of, drhd, riscv, smmu,
    table, vtd,
};
use super::riscv::Tree;

/// A root port that leads outside, the disk below it, and the machine's own.
const PORT: PciFunction = PciFunction::of(0, 1, 0);
const OUTSIDE: PciFunction = PciFunction::of(2, 0, 0);
const INSIDE: PciFunction = DEVICE;
/// AMD's unit.
const UNIT: PciFunction = PciFunction::of(0, 0, 2);
const CONFIG: PciWords = &[
    (PORT, 0x00, 0x1234_8086),
    (PORT, 0x04, 1 << 20),
    (PORT, 0x0c, 1 << 16),
    (PORT, 0x18, 0x0003_0200),
    (PORT, 0x34, 0x40),
    (PORT, 0x40, 1 << 24 | 4 << 20 | 0x10),
    (PORT, 0x54, 1 << 6),
    (PORT, 0x100, 0xd),
    (PORT, 0x104, 0x001d_001d),
    (OUTSIDE, 0x00, 0x1234_8086),
    (OUTSIDE, 0x04, 1 << 20),
    (OUTSIDE, 0x34, 0x40),
    (OUTSIDE, 0x40, 0x10),
    (INSIDE, 0x00, 0x1234_8086),
    (INSIDE, 0x04, 1 << 20),
    (INSIDE, 0x34, 0x40),
    (INSIDE, 0x40, 0x10),
    (UNIT, 0x40, 0x1b03_400f),
    (UNIT, 0x44, 1),
    (UNIT, 0x48, 0),
    (UNIT, 0x4c, 0),
    (UNIT, 0x50, 0x0018_2800),
];
const TLB: DeviceTlb = DeviceTlb { depth: 8, physical: 0, twice: false };

fn refused(function: PciFunction) -> OpenError {
    let port = PORT;
    OpenError::Untrusted { function, port }
}

fn all() -> AllMemory {
    // SAFETY: devices of the model reach no memory of the process.
    unsafe { AllMemory::new() }
}

/// The physical address that a device reaches by an access, or a translation of its own.
type Reach<'m> = &'m dyn Fn(StreamId, Iova) -> Option<u64>;

/// A machine whose two disks are told apart by their places.
struct Disks<'m> {
    kernel: Kernel,
    iommus: Iommus<Kernel>,
    reads: Reach<'m>,
    asks: Reach<'m>,
}

fn enabled(kernel: &Kernel, topology: Topology) -> Iommus<Kernel> {
    let iommus = topology.enable(kernel.clone(), Options::default(), described());
    iommus.expect("units that work")
}

impl Disks<'_> {
    fn page(&self) -> PhysRange {
        let layout = Layout::from_size_align(0x1000, 0x1000).expect("a page");
        let at = self.kernel.alloc(layout).expect("memory");
        PhysRange::from_len(at, 0x1000).expect("a range")
    }

    fn stream(&self, function: PciFunction) -> StreamId {
        self.iommus.unit_of(function).expect("a unit").1
    }

    /// Tells if a device that is given 512 bytes inside a page reaches the first bytes of the page too.
    fn reads_beside(&self, function: PciFunction) -> Result<bool, MapError> {
        let page = self.page();
        let start = PhysAddr::new(page.start().get() + 0x200);
        let sector = Packet(PhysRange::from_len(start, 0x200).expect("a range"));
        let device = self.iommus.trusted_device(function).expect("a device");
        let mapped = device.map(sector, Direction::ToDevice);
        let mapped = mapped.map_err(|failed| failed.error)?;
        let stream = self.stream(function);
        let inside = (self.reads)(stream, mapped.iova());
        assert!(inside.is_some(), "{function} does not reach its buffer");
        let first = Iova::new(mapped.iova().get() & !0xfff);
        let beside = (self.reads)(stream, first) == Some(page.start().get());
        mapped.unmap().expect("the unit completes");
        Ok(beside)
    }

    fn own_translations(&self, function: PciFunction) -> Option<u64> {
        let device = self.iommus.trusted_device(function).expect("a device");
        let page = Packet(self.page());
        let mapped = device.map(page, Direction::FromDevice);
        let mapped = mapped.expect("mapped");
        let found = (self.asks)(self.stream(function), mapped.iova());
        mapped.unmap().expect("the unit completes");
        found
    }

    fn policy(&self, function: PciFunction) -> Policy {
        let mut lazy = DeviceOptions::trusted();
        (lazy.buffers, lazy.preference) = (Buffers::Kept, PolicyPreference::Lazy);
        let device = self.iommus.device_with(function, &lazy).expect("a device");
        device.space().expect("it is translated").policy()
    }

    fn are_told_apart(mut self) {
        assert_eq!(self.iommus.survey().external_ports(), [PORT]);
        assert_eq!(self.iommus.survey().trust(OUTSIDE), Trust::Untrusted);
        assert_eq!(self.iommus.survey().trust(INSIDE), Trust::Trusted);
        // One that is plugged in later.
        let later = PciFunction::of(3, 0, 0);
        assert_eq!(self.iommus.survey().external_port_above(later), Some(PORT));
        assert_eq!(self.policy(INSIDE), Policy::Lazy);
        assert_eq!(self.policy(OUTSIDE), Policy::Strict);

        let passed = |disks: &Self, function| {
            let limits = Constraints::trusted();
            disks.iommus.pass_through(function, limits, all()).err()
        };
        assert_eq!(passed(&self, OUTSIDE), Some(refused(OUTSIDE)));
        assert_eq!(passed(&self, INSIDE), None);

        // Without a pool.
        assert_eq!(self.reads_beside(INSIDE), Ok(true));
        let unaligned = self.reads_beside(OUTSIDE);
        assert!(matches!(unaligned, Err(MapError::SubPage { .. })), "{unaligned:?}");
        let pages = Layout::from_size_align(0x4_0000, 0x4_0000).expect("pages");
        let memory = self.kernel.alloc(pages).expect("memory");
        let memory = PhysRange::from_len(memory, 0x4_0000).expect("a range");
        // SAFETY: it is the pool's.
        let memory = unsafe { Unowned::new(memory) };
        let pool = PoolMemory::of(self.kernel.clone(), memory, PoolOptions::of_areas(1));
        self.iommus = self.iommus.copying_for_untrusted(Copying {
            pool: Arc::new(pool.expect("a pool")),
            when: CopyWhen::Needed,
        });
        assert_eq!(self.reads_beside(INSIDE), Ok(true));
        assert_eq!(self.reads_beside(OUTSIDE), Ok(false));

        let remote = |disks: &Self, function| disks.iommus.use_device_tlb(function, TLB, all());
        assert_eq!(remote(&self, OUTSIDE), Err(refused(OUTSIDE)));
        assert_eq!(remote(&self, INSIDE), Ok(()));
        assert_eq!(self.own_translations(OUTSIDE), None);
        assert!(self.own_translations(INSIDE).is_some());
    }
}

#[test]
fn a_disk_from_outside_behind_vtd_reaches_its_buffers_alone() {
    let machine = Machine {
        config: CONFIG,
        ..vtd(SKYLAKE_SP.identification.scalable().caching_mode().page_requests())
    };
    let topology = Topology::from_acpi([&dmar(REGISTERS)[..]]).expect("a table");
    let disks = Disks {
        kernel: machine.kernel(),
        iommus: enabled(&machine.kernel(), topology.external_ports([PORT])),
        reads: &|stream, at| {
            let found = machine.unit.dma(stream, None, at, AccessKind::Read, 8);
            found.ok()?.first().map(|piece| piece.pa.get())
        },
        asks: &|stream, at| {
            let found = machine.unit.ats_access(stream, None, at, AccessKind::Write);
            found.map(PhysAddr::get)
        },
    };
    disks.are_told_apart();
    assert_eq!(machine.unit.violations(), []);
}

#[test]
fn a_disk_from_outside_behind_amd_s_unit_reaches_its_buffers_alone() {
    let machine = Machine { config: CONFIG, ..amd() };
    let mut body = vec![0; 12];
    body.extend([0x10, 0, 28, 0, 2, 0, 0x40, 0]);
    body.extend(REGISTERS.to_le_bytes());
    body.extend([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    let topology = Topology::from_acpi([&table(*b"IVRS", &body)[..]]).expect("a table");
    let disks = Disks {
        kernel: machine.kernel(),
        iommus: enabled(&machine.kernel(), topology.external_ports([PORT])),
        reads: &|stream, at| {
            let found = machine.unit.dma(stream, at, AccessKind::Read, 8);
            found.ok()?.first().map(|piece| piece.pa.get())
        },
        asks: &|stream, at| {
            let found = machine.unit.ats_access(stream, None, at, AccessKind::Write);
            found.map(PhysAddr::get)
        },
    };
    disks.are_told_apart();
    assert_eq!(machine.unit.violations(), []);
}

/// A tree with a unit and a PCI host, one of whose ports leads outside; below it is a switch, of which one port says
/// so as well.
fn tree(unit: impl FnOnce(&mut Tree)) -> Vec<u8> {
    let mut tree = Tree::default();
    tree.node(|tree| {
        tree.cells("#address-cells", &[2]);
        tree.cells("#size-cells", &[2]);
        tree.node(|tree| {
            tree.cells("iommu-map", &[0, 7, 0x100, 0x1_0000]);
            tree.node(|tree| {
                tree.cells("reg", &[u32::from(PORT.requester.get()) << 8, 0, 0, 0, 0]);
                tree.node(|tree| {
                    tree.cells("reg", &[0x1_0000, 0, 0, 0, 0]);
                    tree.cells("external-facing", &[]);
                });
            });
        });
        tree.node(|tree| {
            tree.cells("phandle", &[7]);
            unit(tree);
        });
    });
    tree.bytes()
}

#[test]
fn a_disk_below_an_external_facing_port_of_a_tree_with_an_smmu_reaches_its_buffers_alone() {
    let mut identification = SmmuIdentification::able();
    identification.idr[0] |= 1 << 10;
    let machine = Machine { config: CONFIG, ..smmu(identification) };
    let tree = tree(|tree| {
        tree.set("compatible", b"arm,smmu-v3\0");
        tree.cells("reg", &[0, REGISTERS as u32, 0, 0x2_0000]);
        tree.cells("dma-coherent", &[]);
    });
    let topology = Topology::from_device_tree(&tree).expect("a tree");
    let disks = Disks {
        kernel: machine.kernel(),
        iommus: enabled(&machine.kernel(), topology),
        reads: &|stream, at| {
            let found = machine.unit.dma(stream, None, at, AccessKind::Read, 8);
            found.ok()?.first().map(|piece| piece.pa.get())
        },
        asks: &|stream, at| {
            let found = machine.unit.ats_access(stream, None, at, AccessKind::Write);
            found.map(PhysAddr::get)
        },
    };
    disks.are_told_apart();
    assert_eq!(machine.unit.violations(), []);
}

#[test]
fn a_disk_below_an_external_facing_port_of_a_risc_v_board_reaches_its_buffers_alone() {
    let setup =
        RiscvSetup { identification: RiscvIdentification::able().ats(), ..RiscvSetup::default() };
    let machine = Machine { config: CONFIG, ..riscv(&setup) };
    let tree = tree(|tree| {
        tree.set("compatible", b"riscv,iommu\0");
        tree.cells("reg", &[0, REGISTERS as u32, 0, 0x1000]);
    });
    let topology = Topology::from_device_tree(&tree).expect("a tree");
    let disks = Disks {
        kernel: machine.kernel(),
        iommus: enabled(&machine.kernel(), topology),
        reads: &|stream, at| {
            let found = machine.unit.dma(stream, None, at, AccessKind::Read, 8);
            found.ok()?.first().map(|piece| piece.pa.get())
        },
        asks: &|stream, at| {
            let found = machine.unit.ats_access(stream, None, at, AccessKind::Write);
            found.map(PhysAddr::get)
        },
    };
    disks.are_told_apart();
    assert_eq!(machine.unit.violations(), []);
}

/// Flag 2 of DMAR, with ports that nothing names.
#[test]
fn where_firmware_asks_for_protection_ports_with_hot_plug_lead_outside_unless_others_are_named() {
    let wanted = |flags: u8| {
        let mut bytes = dmar_of(48, &[drhd(REGISTERS, None)]);
        (bytes[37], bytes[9]) = (flags, bytes[9].wrapping_sub(flags));
        Topology::from_acpi([&bytes[..]]).expect("a table")
    };
    let machine = Machine { config: CONFIG, ..vtd(VtdIdentification::default()) };
    let trust = |topology: Topology| enabled(&machine.kernel(), topology).survey().trust(OUTSIDE);
    assert!(wanted(4).wants_dma_protection() && !wanted(3).wants_dma_protection());
    assert_eq!(trust(wanted(4)), Trust::Untrusted);
    assert_eq!(trust(wanted(4).external_ports([])), Trust::Trusted);
    assert_eq!(trust(wanted(0)), Trust::Trusted);
    assert_eq!(trust(wanted(0).external_ports([PORT])), Trust::Untrusted);
    let vouched = wanted(4).trusting_external(OUTSIDE);
    assert_eq!(trust(vouched), Trust::Trusted);
}

/// A caller may trust a disk less than its place allows, and not more.
#[test]
fn trust_is_lowered_and_not_raised() {
    let machine = Machine { config: CONFIG, ..vtd(VtdIdentification::default()) };
    let topology = Topology::from_acpi([&dmar(REGISTERS)[..]]).expect("a table");
    let iommus = enabled(&machine.kernel(), topology.external_ports([PORT]));
    for (function, options, trust) in [
        (INSIDE, DeviceOptions::untrusted(), Trust::Untrusted),
        (INSIDE, DeviceOptions::trusted(), Trust::Trusted),
        (OUTSIDE, DeviceOptions::trusted(), Trust::Untrusted),
    ] {
        let device = iommus.device_with(function, &options).expect("a device");
        assert_eq!(device.constraints().trust, trust, "{function}");
    }
    let less = iommus.pass_through(INSIDE, Constraints::untrusted(), all());
    assert_eq!(less.err(), Some(OpenError::Device(DeviceError::Untrusted)));
}
