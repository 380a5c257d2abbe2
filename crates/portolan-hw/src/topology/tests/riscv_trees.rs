//! Device trees with RISC-V IOMMUs: a board like QEMU's `virt`, a unit that is a PCI function, reserved
//! memory, and damaged ones.

use portolan::addr::PciFunction;

use super::build::{at, is};

use crate::interrupt::ApicMode;
use crate::topology::pci::PciOverrides;
use crate::topology::pci::tests::{Fake, Has, Is};
use crate::topology::{FaultInterrupt, Survey, Topology, Wire};
use crate::tree_bytes::Builder;

/// QEMU's `virt` with `iommu-sys=on,aia=aplic-imsic`, as far as its IOMMU goes: one hart, its IMSIC, the
/// APLIC, the unit, the PCI host, whose map says each requester twice, and memory.
fn virt() -> Builder {
    Builder::default()
        .named("")
        .cells("#address-cells", &[2])
        .cells("#size-cells", &[2])
        .text("compatible", "riscv-virtio")
        .named("memory@80000000")
        .text("device_type", "memory")
        .cells("reg", &[0, 0x8000_0000, 0, 0x800_0000])
        .end()
        .named("soc")
        .cells("#address-cells", &[2])
        .cells("#size-cells", &[2])
        .text("compatible", "simple-bus")
        .cells("ranges", &[])
        .named("interrupt-controller@28000000")
        .cells("phandle", &[4])
        .cells("riscv,num-ids", &[255])
        .cells("reg", &[0, 0x2800_0000, 0, 0x1000])
        .cells("interrupts-extended", &[2, 9])
        .cells("msi-controller", &[])
        .cells("interrupt-controller", &[])
        .cells("#interrupt-cells", &[0])
        .text("compatible", "riscv,imsics")
        .end()
        .named("interrupt-controller@d000000")
        .cells("phandle", &[6])
        .cells("riscv,num-sources", &[96])
        .cells("reg", &[0, 0xd00_0000, 0, 0x8000])
        .cells("msi-parent", &[4])
        .cells("interrupt-controller", &[])
        .cells("#interrupt-cells", &[2])
        .text("compatible", "riscv,aplic")
        .end()
        .named("pci@30000000")
        .cells("iommu-map", &[0, 0x8000, 0, 0, 0, 0x8000, 0, 0xffff])
        .cells("#address-cells", &[3])
        .cells("#size-cells", &[2])
        .cells("linux,pci-domain", &[0])
        .cells("reg", &[0, 0x3000_0000, 0, 0x1000_0000])
        .cells("msi-parent", &[4])
        .text("compatible", "pci-host-ecam-generic")
        .end()
        .named("iommu@3010000")
        .cells("#iommu-cells", &[1])
        .cells("phandle", &[0x8000])
        .cells("interrupt-parent", &[6])
        .cells("interrupts", &[36, 1, 37, 1, 38, 1, 39, 1])
        .cells("msi-parent", &[4])
        .cells("reg", &[0, 0x301_0000, 0, 0x1000])
        .text("compatible", "riscv,iommu")
        .end()
        .end()
        .end()
}

fn surveyed(tree: &[u8], fake: &Fake) -> Survey {
    let topology = Topology::from_device_tree(tree).unwrap();
    topology.survey(PciOverrides::KNOWN, |of, at| fake.read(of, at))
}

#[test]
fn qemus_virt_has_one_unit_for_all_of_pci() {
    let tree = virt().bytes();
    let fake = Fake::default().with(at(0, 0, 0), Is::Conventional, None, Has::Nothing).with(
        at(0, 1, 0),
        Is::Endpoint,
        None,
        Has::Nothing,
    );
    is(
        &surveyed(&tree, &fake),
        "unit 0: RISC-V IOMMU, registers at 0x3010000..=0x3010fff
           serves 0000:00:00.0 to ff:1f.6, streams from 0x0 on
         0000:00:00.0: unit 0, streams 0x0
         0000:00:01.0: unit 0, streams 0x8",
    );
    let topology = Topology::from_device_tree(&tree).unwrap();
    let wire = Wire { controller: 6, specifier: [36, 1, 0] };
    assert_eq!(topology.fault_interrupt(0), Ok(FaultInterrupt::Wire(wire)));
    assert_eq!(topology.fault_interrupt(1), Ok(FaultInterrupt::Absent));
    // There is an IMSIC; the board below has none.
    assert_eq!(topology.interrupt_remapping(|_, _| None), Some(ApicMode::X2Apic));
    let board = Topology::from_device_tree(&board().bytes()).unwrap();
    assert_eq!(board.interrupt_remapping(|_, _| None), None);
}

/// Memory of the board's, and errors beside it.
fn reserved(tree: Builder) -> Builder {
    tree.named("reserved-memory")
        .cells("#address-cells", &[2])
        .cells("#size-cells", &[2])
        .cells("ranges", &[])
        .named("splash")
        .cells("reg", &[1, 0x4000_0000, 0, 0x10_0000])
        // The display's bus has one cell for each; the card's is PCI, with three and two.
        .cells("iommu-addresses", &[5, 0x10_0000, 0x1000, 8, 0, 1, 0x4000_0000, 0, 0x10_0000])
        .end()
        .named("nothing")
        .cells("iommu-addresses", &[77, 0, 0])
        .end()
        .named("short")
        .cells("iommu-addresses", &[5, 0x10_0000])
        .end()
        .end()
}

/// A tree with a PCI host on a bus of its own, whose function 00:02.0 is the unit of the others, a device
/// with two streams at a unit on the same bus, and reserved memory for both and for a function.
fn board() -> Builder {
    let root = Builder::default()
        .named("")
        .cells("#address-cells", &[2])
        .cells("#size-cells", &[2])
        .cells("interrupt-parent", &[9]);
    reserved(root)
        .named("intc")
        .cells("phandle", &[9])
        .cells("#interrupt-cells", &[1])
        .end()
        .named("soc")
        .cells("#address-cells", &[1])
        .cells("#size-cells", &[1])
        .cells("ranges", &[0, 0x1, 0x8000_0000, 0x1000_0000])
        .named("pci")
        .cells("#address-cells", &[3])
        .cells("#size-cells", &[2])
        .cells("reg", &[0x30_0000, 0x10_0000])
        .cells("iommu-map", &[0, 3, 0x100, 0x10, 0x11, 3, 0x111, 0xffef])
        // Ports at 0; memory from 0x4000_0000 on, which is at 0x100_0000 of the bus outside.
        .cells(
            "ranges",
            &[
                0x100_0000,
                0,
                0,
                0x70_0000,
                0,
                0x1000, //
                0x200_0000,
                0,
                0x4000_0000,
                0x100_0000,
                0,
                0x10_0000,
            ],
        )
        .named("iommu@2,0")
        .cells("reg", &[0x1000, 0, 0, 0, 0])
        .cells("phandle", &[3])
        .text("compatible", "riscv,pci-iommu")
        .end()
        .named("card@3,0")
        .cells("reg", &[0x1800, 0, 0, 0, 0])
        .cells("phandle", &[8])
        .end()
        .end()
        .named("iommu@20000")
        .cells("reg", &[0x2_0000, 0x1000])
        .cells("interrupts", &[12])
        .cells("phandle", &[4])
        .text("compatible", "riscv,iommu")
        .end()
        .named("display")
        .cells("reg", &[0x3_0000, 0x1000])
        .cells("phandle", &[5])
        .cells("iommus", &[4, 1, 4, 0x80])
        .end()
        .end()
        .end()
}

#[test]
fn functions_and_devices_are_units_and_have_memory() {
    let fake = Fake::default().with(at(0, 2, 0), Is::Endpoint, None, Has::Nothing).with(
        at(0, 3, 0),
        Is::Endpoint,
        None,
        Has::Nothing,
    );
    is(
        &surveyed(&board().bytes(), &fake),
        "unit 0: RISC-V IOMMU, PCI function 0000:00:02.0
           serves 0000:00:00.0 to 00:01.7, streams from 0x100 on
           serves 0000:00:02.1 to ff:1f.7, streams from 0x111 on
           reserves 0x140000000..=0x1400fffff (DirectUntilDriven(Access(READ | WRITE))) of streams 0x118..=0x118
         unit 1: RISC-V IOMMU, registers at 0x180020000..=0x180020fff
           serves the device at 0x180030000, stream 0x1
           serves the device at 0x180030000, stream 0x80
           reserves 0x100000..=0x100fff (Unusable) of streams 0x1..=0x1
           reserves 0x100000..=0x100fff (Unusable) of streams 0x80..=0x80
         0000:00:02.0: no unit
         0000:00:03.0: unit 0, streams 0x118
         remark: unit 0: 1 reserved ranges are ignored: the structure at offset 0xe0 refers to 0x4d, where there is none
         remark: unit 1: 2 reserved ranges are ignored: 0x100000 at offset 0x108 makes no sense",
    );
}

#[test]
fn wires_are_of_the_nearest_controller() {
    let topology = Topology::from_device_tree(&board().bytes()).unwrap();
    let wire = Wire { controller: 9, specifier: [12, 0, 0] };
    assert_eq!(topology.fault_interrupt(0), Ok(FaultInterrupt::Absent));
    assert_eq!(topology.fault_interrupt(1), Ok(FaultInterrupt::Wire(wire)));
}

#[test]
fn damaged_trees_end() {
    let mut rng = fastrand::Rng::with_seed(portolan_chips::fixture::seed());
    let read = |of: PciFunction, offset: u16| {
        let there = of.requester.get() < 32 && of.segment.get() < 4;
        (there && offset == 0).then_some(0x1234_8086)
    };
    let mut surveyed = 0;
    for whole in [virt().bytes(), board().bytes()] {
        for _ in 0..300 {
            let mut bytes = whole.clone();
            for _ in 0..rng.usize(1..5) {
                let place = rng.usize(4..bytes.len());
                bytes[place] = rng.u8(..);
            }
            let Ok(topology) = Topology::from_device_tree(&bytes) else {
                continue;
            };
            let found = topology.survey(PciOverrides::KNOWN, read);
            assert!(found.units().len() <= 2);
            for unit in 0..3 {
                let _ = (topology.fault_interrupt(unit), topology.interrupt_remapping(|_, _| None));
            }
            surveyed += 1;
        }
    }
    assert!(surveyed > 100, "{surveyed}");
}
