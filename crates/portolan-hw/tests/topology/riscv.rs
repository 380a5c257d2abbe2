//! RISC-V IOMMUs of a device tree: a platform device, and a PCI function whose window is read.

use std::sync::Arc;

use portolan::addr::{Iova, PciFunction, RequesterId, StreamId};
use portolan::iommu::{
    Destination, InterruptError, InterruptSource, InterruptTarget, IommuError, ReservedKind, Vector,
};
use portolan::table::Access;
use portolan_chips::riscv::RiscvSetup;
use portolan_hw::interrupt::Remapping;
use portolan_hw::topology::{EnableError, Options, Topology};
use portolan_sim::decode::AccessKind;

use super::machine::{DEVICE, Machine, PciWords, REGISTERS, described, riscv, table};
use super::{driver, unit_at};

/// A flattened tree as it is put together.
#[derive(Default)]
pub(crate) struct Tree {
    body: Vec<u8>,
    names: Vec<u8>,
}

impl Tree {
    pub(crate) fn words(&mut self, words: &[u32]) {
        let bytes = words.iter().flat_map(|word| word.to_be_bytes());
        self.body.extend(bytes);
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.body.extend(bytes);
        self.body.resize(self.body.len().next_multiple_of(4), 0);
    }

    pub(crate) fn node(&mut self, inside: impl FnOnce(&mut Self)) {
        self.named("node", inside);
    }

    fn named(&mut self, name: &str, inside: impl FnOnce(&mut Self)) {
        self.words(&[1]);
        self.padded(&[name.as_bytes(), b"\0"].concat());
        inside(self);
        self.words(&[2]);
    }

    pub(crate) fn set(&mut self, name: &str, value: &[u8]) {
        let at = self.names.len() as u32;
        self.names.extend(name.as_bytes());
        self.names.push(0);
        self.words(&[3, value.len() as u32, at]);
        self.padded(value);
    }

    pub(crate) fn cells(&mut self, name: &str, cells: &[u32]) {
        let value: Vec<u8> = cells.iter().flat_map(|cell| cell.to_be_bytes()).collect();
        self.set(name, &value);
    }

    pub(crate) fn bytes(mut self) -> Vec<u8> {
        self.words(&[9]);
        let strings = 40 + self.body.len() as u32;
        let whole = strings + self.names.len() as u32;
        let header = [0xd00d_feed, whole, 40, strings, 0, 0, 0, 0, 0, 0];
        let mut all: Vec<u8> = header.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
        all.extend(self.body);
        all.extend(self.names);
        all
    }
}

/// The unit's function.
const UNIT: PciFunction = PciFunction::of(0, 2, 0);

/// Memory that the device refers to as 5.
const FRAMES: [u32; 4] = [0, 0x7000_0000, 0, 0x1000];

/// A PCI host with `map` and 16 MiB of memory at 0x1000_0000, which processors reach where the unit's
/// registers are; and the unit, as `of` describes it, on the root's bus or on that of the host.
fn tree(map: &[u32], outside: impl FnOnce(&mut Tree), inside: impl FnOnce(&mut Tree)) -> Vec<u8> {
    let mut tree = Tree::default();
    tree.node(|tree| {
        tree.cells("#address-cells", &[2]);
        tree.cells("#size-cells", &[2]);
        tree.node(|tree| {
            tree.cells("iommu-map", map);
            let window = [0x200_0000, 0, 0x1000_0000, 0, REGISTERS as u32, 0, 0x100_0000];
            tree.cells("ranges", &window);
            tree.node(inside);
            tree.node(|tree| {
                let device = u32::from(DEVICE.requester.get());
                tree.cells("reg", &[device << 8, 0, 0, 0, 0]);
                tree.cells("phandle", &[5]);
            });
        });
        tree.node(outside);
        tree.node(imsic);
        tree.named("reserved-memory", |tree| {
            tree.cells("#address-cells", &[2]);
            tree.cells("#size-cells", &[2]);
            tree.cells("ranges", &[]);
            tree.node(|tree| {
                tree.cells("reg", &FRAMES);
                tree.cells("iommu-addresses", &[&[5, 0][..], &FRAMES].concat());
            });
        });
    });
    tree.bytes()
}

pub(crate) fn platform_device() -> Vec<u8> {
    platform_device_with(|_| {})
}

/// A platform device with more properties, and clocks: one that runs always has the number 8, another 9 and cells of
/// its own.
fn platform_device_with(more: impl FnOnce(&mut Tree)) -> Vec<u8> {
    let clock = |tree: &mut Tree, kind: &[u8], numbers: [u32; 2]| {
        tree.node(|tree| {
            tree.set("compatible", kind);
            tree.cells("phandle", &numbers[..1]);
            tree.cells("#clock-cells", &numbers[1..]);
        });
    };
    let unit = |tree: &mut Tree| {
        more(tree);
        tree.cells("reg", &[0, REGISTERS as u32, 0, 0x1000]);
        tree.set("compatible", b"riscv,iommu\0");
        tree.cells("interrupts", &[9]);
        tree.cells("phandle", &[7]);
        tree.cells("msi-parent", &[4]);
        clock(tree, b"fixed-clock\0", [8, 0]);
        clock(tree, b"vendor,clocks\0", [9, 1]);
    };
    tree(&[0, 7, 0x100, 0x1_0000], unit, |_| {})
}

/// The file of the first of four harts, each with one for a guest.
pub(crate) const INTERRUPT_FILES: u64 = 0x2800_0000;

fn imsic(tree: &mut Tree) {
    tree.set("compatible", b"riscv,imsics\0");
    tree.cells("reg", &[0, INTERRUPT_FILES as u32, 0, 0x8000]);
    tree.cells("interrupts-extended", &[1, 9, 2, 9, 3, 9, 8, 9]);
    tree.cells("riscv,num-ids", &[63]);
    tree.cells("riscv,guest-index-bits", &[1]);
    tree.cells("phandle", &[4]);
}

fn function() -> Vec<u8> {
    let unit = |tree: &mut Tree| {
        tree.cells("reg", &[u32::from(UNIT.requester.get()) << 8, 0, 0, 0, 0]);
        tree.set("compatible", b"riscv,pci-iommu\0");
        tree.cells("phandle", &[7]);
    };
    tree(&[0, 7, 0x100, 0x10, 0x11, 7, 0x111, 0xffef], |_| {}, unit)
}

/// RIMT with the unit, and a root complex whose streams are as in the trees.
fn rimt(place: Place) -> Vec<u8> {
    let (base, flags, at) = match place {
        Place::Registers => (REGISTERS, 0u32, 0),
        Place::Function => (0, 1, UNIT.requester.get()),
    };
    let mut body = vec![2, 0, 0, 0, 48, 0, 0, 0, 0, 0, 0, 0];
    // 48 bytes with one wire.
    body.extend([0, 1, 48, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    body.extend(base.to_le_bytes());
    body.extend(flags.to_le_bytes());
    body.extend([0; 6]);
    body.extend(at.to_le_bytes());
    body.extend([1, 0, 40, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    body.extend([1, 1, 40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 20, 0, 1, 0]);
    for word in [0u32, 0x1_0000, 0x100, 48, 0] {
        body.extend(word.to_le_bytes());
    }
    table(*b"RIMT", &body)
}

/// Where the unit of a table is.
enum Place {
    Registers,
    Function,
}

#[test]
fn a_disk_behind_a_unit_of_acpi_does_dma() {
    // ACPI's bases are those that processors reach.
    const BASE: PciWords = &[(UNIT, 0x10, REGISTERS as u32)];
    for (place, config) in [(Place::Registers, &[][..]), (Place::Function, BASE)] {
        let machine = Machine { config, ..riscv(&RiscvSetup::default()) };
        let bytes = rimt(place);
        let topology = Topology::from_acpi([&bytes[..]]).expect("a table with a unit");
        let iommus = topology.enable(machine.kernel(), Options::default(), described());
        let iommus = iommus.expect("enabled");
        let (_, stream) = iommus.unit_of(DEVICE).expect("a unit");
        assert_eq!(stream, StreamId::new(0x118));
        let device = iommus.trusted_device(DEVICE).expect("a device");
        driver(&device, |at| {
            let unit = &machine.unit;
            let found = unit.dma(stream, None, at, AccessKind::Write, 8).ok()?;
            found.first().map(|piece| piece.pa.get())
        });
        drop(device);
        assert_eq!(machine.unit.violations(), []);
        assert_eq!(machine.unit.counts().fault_interrupts, 1);
    }
    let bytes = rimt(Place::Function);
    let topology = Topology::from_acpi([&bytes[..]]).expect("a table with a unit");
    let refused =
        topology.enable(riscv(&RiscvSetup::default()).kernel(), Options::default(), described());
    let wanted = EnableError::NoWindow { function: UNIT };
    assert_eq!(refused.err(), Some(wanted));
}

fn does_dma(tree: &[u8], config: PciWords) {
    let machine = Machine { config, ..riscv(&RiscvSetup::default()) };
    let topology = Topology::from_device_tree(tree).expect("a tree with a unit");
    let iommus = topology.enable(machine.kernel(), Options::default(), described());
    let iommus = iommus.expect("enabled");
    let (unit, stream) = iommus.unit_of(DEVICE).expect("a unit");
    assert!(Arc::ptr_eq(unit, unit_at(&iommus, 0)));
    assert_eq!(stream, StreamId::new(0x118));
    let mut reserved = Vec::new();
    unit.reserved(stream, &mut |one| reserved.push(one));
    let [one] = reserved[..] else {
        panic!("{reserved:?}");
    };
    let both = Access::READ_WRITE;
    assert_eq!(one.kind, ReservedKind::DirectUntilDriven(both));
    let at = Iova::new(FRAMES[1].into());
    assert_eq!(one.range.start(), at);
    let reads = || machine.unit.dma(stream, None, at, AccessKind::Read, 8).is_ok();
    // Firmware has it at work.
    assert!(reads());
    let device = iommus.trusted_device(DEVICE).expect("a device");
    assert!(reads());
    driver(&device, |at| {
        let unit = &machine.unit;
        let found = unit.dma(stream, None, at, AccessKind::Write, 8).ok()?;
        found.first().map(|piece| piece.pa.get())
    });
    drop(device);
    assert_eq!(machine.unit.violations(), []);
}

/// Without power an access to a register ends the program.
#[test]
fn a_unit_without_power_is_refused_and_no_register_is_touched() {
    let domain = platform_device_with(|tree| tree.cells("power-domains", &[9, 3]));
    let clocks = platform_device_with(|tree| tree.cells("clocks", &[8, 9, 3]));
    let unknown = platform_device_with(|tree| tree.cells("clocks", &[77]));
    for tree in [domain, clocks, unknown] {
        let machine = riscv(&RiscvSetup::default());
        let topology = Topology::from_device_tree(&tree).expect("a tree with a unit");
        let refused = topology.enable(machine.kernel(), Options::default(), described());
        let error = refused.err();
        let no_power = matches!(error, Some(EnableError::NoPower { window })
            if window.start().get() == REGISTERS);
        assert!(no_power, "{error:?}");
        assert_eq!(machine.unit.accesses(), 0);
        let machine = Machine { switches_power: true, ..riscv(&RiscvSetup::default()) };
        let topology = Topology::from_device_tree(&tree).expect("a tree with a unit");
        let enabled = topology.enable(machine.kernel(), Options::default(), described());
        assert!(enabled.is_ok());
    }
}

#[test]
fn a_unit_whose_clock_runs_always_needs_no_power() {
    let tree = platform_device_with(|tree| tree.cells("clocks", &[8, 8]));
    does_dma(&tree, &[]);
}

#[test]
fn a_disk_behind_a_platform_device_does_dma() {
    does_dma(&platform_device(), &[]);
}

#[test]
fn a_disk_behind_a_function_does_dma_wherever_its_window_is() {
    // 32 bits; 64 bits, prefetchable.
    does_dma(&function(), &[(UNIT, 0x10, 0x1000_0000)]);
    does_dma(&function(), &[(UNIT, 0x10, 0x1000_000c), (UNIT, 0x14, 0)]);
}

#[test]
fn a_function_without_a_window_that_processors_reach_is_refused() {
    // None; not placed; ports; beyond the bus' memory, by the low half and by the high one.
    const WRONG: [PciWords; 5] = [
        &[],
        &[(UNIT, 0x10, 0)],
        &[(UNIT, 0x10, 0x1000_0001)],
        &[(UNIT, 0x10, 0x2000_0000)],
        &[(UNIT, 0x10, 0x1000_0004), (UNIT, 0x14, 1)],
    ];
    for config in WRONG {
        let machine = Machine { config, ..riscv(&RiscvSetup::default()) };
        let topology = Topology::from_device_tree(&function()).expect("a tree with a unit");
        let refused = topology.enable(machine.kernel(), Options::default(), described()).err();
        let wanted = EnableError::NoWindow { function: UNIT };
        assert_eq!(refused, Some(wanted), "{config:x?}");
    }
}

/// Bit 1 of `fctl`, and the fault queue's interrupt.
#[test]
fn a_unit_tells_of_faults_by_wire_if_the_tree_names_one_and_the_unit_has_it() {
    let told = |interrupts: u64| {
        let mut setup = RiscvSetup::default();
        setup.identification.capabilities &= !(3 << 28);
        setup.identification.capabilities |= interrupts << 28;
        let machine = riscv(&setup);
        let topology = Topology::from_device_tree(&platform_device()).expect("a tree");
        let iommus = topology.enable(machine.kernel(), Options::default(), described());
        let _iommus = iommus.expect("enabled");
        let stream = StreamId::new(0x118);
        let at = Iova::new(0);
        let refused = machine.unit.dma(stream, None, at, AccessKind::Write, 8);
        assert!(refused.is_err());
        machine.unit.counts().fault_interrupts
    };
    // Messages alone; wires alone; both.
    assert_eq!([0, 1, 2].map(told), [0, 1, 1]);
}

/// The remapping that a topology is asked for.
fn remapping() -> Options {
    let mut options = Options::default();
    options.interrupts = Some(Remapping::default());
    options
}

#[test]
fn messages_of_a_device_go_to_the_files_that_the_tree_names() {
    let mut setup = RiscvSetup::default();
    setup.identification = setup.identification.extended();
    let machine = riscv(&setup);
    let topology = Topology::from_device_tree(&platform_device()).expect("a tree");
    let iommus = topology.enable(machine.kernel(), remapping(), described());
    let iommus = iommus.expect("enabled");
    let device = iommus.trusted_device(DEVICE).expect("a device");
    let (unit, stream) = iommus.unit_of(DEVICE).expect("a unit");
    let interrupts = unit.interrupts().expect("interrupts are remapped");
    let source = InterruptSource::Requester(RequesterId::new(stream.get() as u16));
    let to = |vector, hart| {
        let vector = Vector::new(vector).expect("a vector");
        InterruptTarget::new(vector, Destination::Physical(hart))
    };
    let interrupt = interrupts.allocate(source, to(63, 3)).expect("an entry");
    let message = interrupts.message(&interrupt).expect("its message");
    assert_eq!(message.data, 63);
    let send = || {
        let at = Iova::new(message.address);
        let found = machine.unit.dma(stream, None, at, AccessKind::Write, 4);
        found.ok()?.first().map(|piece| piece.pa.get())
    };
    assert_eq!(send(), Some(INTERRUPT_FILES + 0x6000));
    let refused = interrupts.allocate(source, to(64, 3));
    assert_eq!(refused, Err(InterruptError::Target));
    assert!(interrupts.allocate(source, to(63, 4)).is_err());
    drop(device);
    assert_eq!(send(), None);
    assert_eq!(machine.unit.violations(), []);
}

#[test]
fn messages_go_through_tables_only_where_unit_and_tree_have_what_it_takes() {
    let error = |tree: &[u8], setup: &RiscvSetup| {
        let topology = Topology::from_device_tree(tree).expect("a tree");
        topology.enable(riscv(setup).kernel(), remapping(), described()).err()
    };
    // Contexts in base format have no such tables.
    let plain = error(&platform_device(), &RiscvSetup::default());
    let unsupported = IommuError::Unsupported;
    assert!(matches!(plain, Some(EnableError::Iommu { error, .. }) if error == unsupported));
    // The function's node names no IMSIC.
    let mut setup = RiscvSetup::default();
    setup.identification = setup.identification.extended();
    let refused = error(&function(), &setup);
    assert_eq!(refused, Some(EnableError::NoRemapping { offered: None }));
}
