//! virtio-iommu devices by a device tree, as QEMU's `virt` describes them where there is no firmware.

extern crate std;

use std::vec::Vec;

use portolan::addr::PhysAddr;
use portolan_tables::describe::UnitSettings;
use portolan_tables::viot::Viommu;

use super::build::{at, is};
use crate::topology::Topology;
use crate::topology::pci::PciOverrides;
use crate::topology::pci::tests::{Fake, Has, Is};
use crate::tree_bytes::Builder;

/// A PCI host whose function 0:1.0, of that name, is the unit of all others; and a unit behind the MMIO transport, for
/// a disk that is behind one as well. A third transport has no unit.
fn tree(name: &str) -> Vec<u8> {
    Builder::default()
        .begin()
        .cells("#address-cells", &[2])
        .cells("#size-cells", &[2])
        .begin()
        .text("compatible", "virtio,mmio")
        .cells("reg", &[0, 0x0a00_0000, 0, 0x200])
        .cells("#iommu-cells", &[1])
        .cells("phandle", &[10])
        .end()
        .begin()
        .text("compatible", "virtio,mmio")
        .cells("reg", &[0, 0x0a00_0200, 0, 0x200])
        .cells("iommus", &[10, 5])
        .end()
        .begin()
        .text("compatible", "virtio,mmio")
        .cells("reg", &[0, 0x0a00_0400, 0, 0x200])
        .end()
        .begin()
        .text("compatible", "pci-host-ecam-generic")
        .cells("reg", &[0x40, 0x1000_0000, 0, 0x1000_0000])
        .cells("iommu-map", &[0, 9, 0, 8, 9, 9, 9, 0xfff7])
        .begin()
        .text("compatible", name)
        .cells("reg", &[0x800, 0, 0, 0, 0])
        .cells("#iommu-cells", &[1])
        .cells("phandle", &[9])
        .end()
        .end()
        .end()
        .bytes()
}

#[test]
fn units_of_both_transports_and_what_they_serve() {
    let fake = Fake::default().with(at(0, 1, 0), Is::Endpoint, None, Has::Nothing).with(
        at(0, 2, 0),
        Is::Endpoint,
        None,
        Has::Nothing,
    );
    for name in ["virtio,pci-iommu", "pci1af4,1057"] {
        let topology = Topology::from_device_tree(&tree(name)).unwrap();
        let settings = topology.description.units.iter().map(|unit| &unit.settings);
        let (function, base) = (at(0, 1, 0), PhysAddr::new(0x0a00_0000));
        let pci = Viommu::Pci { segment: function.segment, requester: function.requester };
        let units = [Viommu::Mmio { base }, pci].map(UnitSettings::Virtio);
        assert!(settings.eq(&units), "{name}");
        let survey = topology.survey(PciOverrides::KNOWN, |of, at| fake.read(of, at));
        // The unit's own function is behind none.
        is(
            &survey,
            "unit 0: virtio-iommu, transport at 0xa000000
               serves the device at 0xa000200, stream 0x5
             unit 1: virtio-iommu, PCI function 0000:00:01.0
               serves 0000:00:00.0 to 00:00.7, streams from 0x0 on
               serves 0000:00:01.1 to ff:1f.7, streams from 0x9 on
             0000:00:01.0: no unit
             0000:00:02.0: unit 1, streams 0x10",
        );
    }
}
