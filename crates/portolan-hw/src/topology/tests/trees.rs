//! Device trees: of a board like QEMU's `virt`, of one with buses of their own, and damaged ones.

extern crate std;

use std::vec::Vec;

use portolan::addr::{PciFunction, RequesterId, Segment};

use super::build::{at, is};
use crate::firmware::fdt::tests::Builder;
use crate::topology::pci::PciOverrides;
use crate::topology::pci::tests::{Fake, Has, Is};
use crate::topology::{Survey, Topology, TopologyError};

/// A tree with one SMMU below the root, a PCI host whose first bus it serves from stream 0x1000 on, and
/// one behind a bus of its own, for the second host and for a device.
fn board() -> Vec<u8> {
    Builder::default()
        .begin()
        .cells("#address-cells", &[2])
        .cells("#size-cells", &[2])
        .begin()
        .text("compatible", "arm,smmu-v3")
        .cells("reg", &[0, 0x0905_0000, 0, 0x2_0000])
        .cells("phandle", &[0x8005])
        .cells("dma-coherent", &[])
        .end()
        .begin()
        .text("compatible", "pci-host-ecam-generic")
        .cells("reg", &[0x40, 0x1000_0000, 0, 0x1000_0000])
        .cells("linux,pci-domain", &[0])
        .cells("iommu-map", &[0, 0x8005, 0x1000, 0x100])
        .end()
        .begin()
        .cells("#address-cells", &[1])
        .cells("#size-cells", &[1])
        .cells("ranges", &[0, 0x1, 0x8000_0000, 0x1000_0000])
        .begin()
        .text("compatible", "arm,smmu-v3")
        .cells("reg", &[0x10_0000, 0x2_0000])
        .cells("phandle", &[7])
        .end()
        .begin()
        .text("compatible", "arm,smmu-v3")
        .text("status", "disabled")
        .cells("reg", &[0x20_0000, 0x2_0000])
        .end()
        .begin()
        .text("compatible", "arm,mmu-500")
        .cells("reg", &[0x30_0000, 0x2_0000])
        .end()
        .begin()
        .text("compatible", "nobody,disk")
        .cells("reg", &[0x40_0000, 0x1000])
        .cells("iommus", &[7, 0x42])
        .end()
        .end()
        .begin()
        .text("compatible", "pci-host-ecam-generic")
        .cells("reg", &[0x50, 0x1000_0000, 0, 0x1000_0000])
        .cells("linux,pci-domain", &[3])
        .cells("iommu-map", &[0, 7, 0, 0x1_0000, 0, 99, 0, 1])
        .cells("iommu-map-mask", &[0xff00])
        .end()
        .end()
        .bytes()
}

fn surveyed(tree: &[u8], fake: &Fake) -> Survey {
    let topology = Topology::from_device_tree(tree).unwrap();
    topology.survey(PciOverrides::KNOWN, |of, at| fake.read(of, at))
}

#[test]
fn units_hosts_and_devices_of_a_tree() {
    let far = PciFunction {
        segment: Segment::new(3),
        requester: RequesterId::of(2, 5, 0),
    };
    let near = PciFunction {
        requester: RequesterId::of(2, 6, 0),
        ..far
    };
    let fake = Fake::default()
        .with(at(0, 1, 0), Is::Endpoint, None, Has::Nothing)
        .with(at(1, 0, 0), Is::Endpoint, None, Has::Nothing)
        .with(far, Is::Endpoint, None, Has::Nothing)
        .with(near, Is::Endpoint, None, Has::Nothing);
    // The host of segment 3 hides device and function from its unit.
    is(
        &surveyed(&board(), &fake),
        "unit 0: SMMUv3, registers at 0x9050000..=0x906ffff
           serves 0000:00:00.0 to 00:1f.7, streams from 0x1000 on
         unit 1: SMMUv3, registers at 0x180100000..=0x18011ffff
           serves 0003:00:00.0 to ff:1f.7, streams from 0x0 on
           serves the device at 0x180400000, stream 0x42
         0000:00:01.0: unit 0, streams 0x1008
         0000:01:00.0: no unit
         0003:02:05.0: unit 1, streams 0x200
         0003:02:06.0: unit 1, streams 0x200, with 0003:02:05.0
         remark: 0003:00:00.0 to 00:00.0, streams from 0x0 on is behind something that is no unit
         remark: the SMMU of version 1 or 2 at 0x180300000 is not enabled with the others; its driver does it",
    );
}

#[test]
fn what_is_no_tree_and_trees_without_units_are_refused() {
    let error = |tree: &[u8]| Topology::from_device_tree(tree).err();
    assert_eq!(error(b"DMAR"), Some(TopologyError::NoTree));
    let empty = Builder::default().begin().end().bytes();
    assert_eq!(error(&empty), Some(TopologyError::NoUnit));
    assert_eq!(error(&board()), None);
}

#[test]
fn damaged_trees_end() {
    let mut rng = fastrand::Rng::with_seed(portolan_model::fixture::seed());
    let whole = board();
    let read = |of: PciFunction, offset: u16| {
        let there = of.requester.get() < 16 && of.segment.get() < 4;
        (there && offset == 0).then_some(0x1234_8086)
    };
    let mut surveyed = 0;
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
        assert!(found.units().len() <= 3);
        surveyed += 1;
    }
    assert!(surveyed > 50, "{surveyed}");
}
