//! Devices that are no PCI functions, and address spaces of all devices of a unit.

use std::sync::Arc;

use portolan::addr::{Iova, PciFunction, PhysAddr, StreamId};
use portolan::dma::{Device, Direction};
use portolan_chips::riscv::{RiscvRegisters, RiscvSetup};
use portolan_hw::topology::{
    DeviceOptions, Iommus, OpenError, Options, PlatformDevice, SpaceScope, Topology,
};
use portolan_sim::decode::AccessKind;

use super::machine::{DEVICE, Kernel, Machine, OTHER, PciWords, REGISTERS, described, riscv};
use super::riscv::Tree;
use super::{packet, promised};

/// Two functions, of which configuration space says no more than that they are there.
const CONFIG: PciWords = &[(DEVICE, 0, 0x1234_8086), (OTHER, 0, 0x5678_8086)];

/// Address of the registers of a device of the tree.
const DISK: u64 = 0x4000_0000;
const CARD: u64 = 0x4000_1000;
const TWIN: u64 = 0x4000_2000;
const LIKE_A_FUNCTION: u64 = 0x4000_4000;
/// Behind a bus of 30 bits, and one behind a bus that passes nothing on.
const NARROW: u64 = 0x5000_0000;
const CUT_OFF: u64 = 0x5001_0000;

/// A unit, a PCI host behind it, and devices with streams of their own, but for two with the same and one with that of
/// a function.
fn board() -> Vec<u8> {
    let mut tree = Tree::default();
    let device = |tree: &mut Tree, at: u64, iommus: &[u32]| {
        tree.node(|tree| {
            tree.cells("reg", &[0, at as u32, 0, 0x1000]);
            tree.cells("iommus", iommus);
        });
    };
    let function = 0x100 + u32::from(OTHER.requester.get());
    tree.node(|tree| {
        tree.cells("#address-cells", &[2]);
        tree.cells("#size-cells", &[2]);
        tree.node(|tree| tree.cells("iommu-map", &[0, 7, 0x100, 0x1_0000]));
        tree.node(|tree| {
            tree.cells("reg", &[0, REGISTERS as u32, 0, 0x1000]);
            tree.set("compatible", b"riscv,iommu\0");
            tree.cells("phandle", &[7]);
        });
        device(tree, DISK, &[7, 0x42]);
        device(tree, CARD, &[7, 0x43, 7, 0x44]);
        device(tree, TWIN, &[7, 0x50]);
        device(tree, TWIN + 0x1000, &[7, 0x50]);
        device(tree, LIKE_A_FUNCTION, &[7, function]);
        for (at, bits, stream) in [(NARROW, 30, 0x60), (CUT_OFF, 0, 0x61)] {
            tree.node(|tree| {
                tree.cells("#address-cells", &[2]);
                tree.cells("#size-cells", &[2]);
                tree.cells("ranges", &[]);
                let bytes = if bits == 0 { 0 } else { 1 << bits };
                tree.cells("dma-ranges", &[0, 0, 0, 0, 0, bytes]);
                device(tree, at, &[7, stream]);
            });
        }
    });
    tree.bytes()
}

struct Board {
    unit: Arc<RiscvRegisters>,
    iommus: Iommus<Kernel>,
}

impl Board {
    fn new() -> Self {
        let machine = Machine { config: CONFIG, ..riscv(&RiscvSetup::default()) };
        let topology = Topology::from_device_tree(&board()).unwrap();
        let iommus = topology.enable(machine.kernel(), Options::default(), described()).unwrap();
        Self { unit: machine.unit, iommus }
    }

    fn open(&self, at: u64, options: &DeviceOptions) -> Result<Device<Kernel>, OpenError> {
        self.iommus.platform_device(named(at), options)
    }

    /// The streams of these that reach `at`.
    fn reaching(&self, streams: &[u32], at: Iova) -> Vec<u32> {
        let reaches = |stream: &&u32| {
            let stream = StreamId::new(**stream);
            self.unit.dma(stream, None, at, AccessKind::Write, 8).is_ok()
        };
        streams.iter().filter(reaches).copied().collect()
    }
}

fn named(at: u64) -> PlatformDevice {
    PlatformDevice::Registers(PhysAddr::new(at))
}

#[test]
fn addresses_that_its_bus_does_not_pass_on_are_not_the_device_s() {
    let board = Board::new();
    let narrow = board.open(NARROW, &DeviceOptions::trusted()).unwrap();
    assert_eq!(narrow.constraints().dma_mask, Iova::new((1 << 30) - 1));
    let device = named(CUT_OFF);
    let refused = board.open(CUT_OFF, &DeviceOptions::trusted()).err();
    assert_eq!(refused, Some(OpenError::NoAddressOfDevice { device }));
}

const ALL: [u32; 5] = [0x42, 0x43, 0x44, 0x118, 0x120];

#[test]
fn a_device_that_is_no_function_reaches_its_buffers_by_all_its_streams() {
    let board = Board::new();
    let options = DeviceOptions::trusted();
    let disk = board.open(DISK, &options).unwrap();
    let card = board.open(CARD, &options).unwrap();
    assert_eq!(board.reaching(&ALL, Iova::new(0x1234_5000)), []);
    let packet = card.map(packet(), Direction::FromDevice).unwrap();
    assert_eq!(board.reaching(&ALL, packet.iova()), [0x43, 0x44]);
    let packet = packet.unmap().unwrap();
    let packet = disk.map(packet, Direction::FromDevice).unwrap();
    assert_eq!(board.reaching(&ALL, packet.iova()), [0x42]);
    drop((disk, card));
    assert_eq!(board.reaching(&ALL, packet.iova()), []);
}

#[test]
fn a_device_that_cannot_be_told_apart_or_that_no_unit_serves_is_refused() {
    let board = Board::new();
    let options = DeviceOptions::trusted();
    for (at, stream) in [(TWIN, 0x50), (LIKE_A_FUNCTION, 0x120)] {
        let (device, stream) = (named(at), StreamId::new(stream));
        let refused = board.open(at, &options).err();
        assert_eq!(refused, Some(OpenError::NotAlone { device, stream }));
    }
    let device = named(REGISTERS);
    assert_eq!(board.open(REGISTERS, &options).err(), Some(OpenError::NoDevice { device }));
    let iommus = board.iommus.reaching_unserved(promised::all_memory());
    assert!(iommus.platform_device(device, &options).unwrap().is_direct());
}

#[test]
fn all_devices_of_a_unit_can_be_in_one_space() {
    let board = Board::new();
    let mut options = DeviceOptions::trusted();
    options.scope = SpaceScope::Unit;
    let functions: Vec<(PciFunction, Device<Kernel>)> =
        board.iommus.all_devices(options).map(|(at, device)| (at, device.unwrap())).collect();
    assert!(functions.iter().map(|(at, _)| *at).eq([DEVICE, OTHER]));
    let disk = board.open(DISK, &options).unwrap();
    let card = board.open(CARD, &options).unwrap();
    let packet = disk.map(packet(), Direction::FromDevice).unwrap();
    assert_eq!(board.reaching(&ALL, packet.iova()), ALL);
    // One that comes later without a wish is where its group is.
    drop((functions, card));
    assert_eq!(board.reaching(&ALL, packet.iova()), [0x42]);
    let alone = board.iommus.trusted_device(DEVICE).unwrap();
    assert_eq!(board.reaching(&ALL, packet.iova()), [0x42, 0x118]);
    drop(alone);
    assert!(packet.unmap().is_ok());
}

#[test]
fn a_device_of_a_group_that_has_a_space_of_its_own_joins_no_other() {
    let board = Board::new();
    let mut options = DeviceOptions::trusted();
    let alone = board.iommus.trusted_device(DEVICE).unwrap();
    options.scope = SpaceScope::Unit;
    let other = board.iommus.device_with(OTHER, &options).unwrap();
    let refused = board.iommus.device_with(DEVICE, &options).err();
    assert_eq!(refused, Some(OpenError::OtherSpace));
    drop(alone);
    let joined = board.iommus.device_with(DEVICE, &options).unwrap();
    assert!(Arc::ptr_eq(joined.space().unwrap(), other.space().unwrap()));
}
