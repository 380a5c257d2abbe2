//! Device trees: of a board like QEMU's `virt`, of one with buses of their own, and damaged ones.

extern crate std;

use std::vec::Vec;

use portolan::addr::{IovaRange, PciFunction, PciSegment, RequesterId};

use super::build::{at, is};

use crate::topology::pci::PciOverrides;
use crate::topology::pci::tests::{Fake, Has, Is};
use crate::topology::{Survey, Topology, TopologyError};
use crate::tree_bytes::Builder;

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
    let far = PciFunction { segment: PciSegment::new(3), requester: RequesterId::of(2, 5, 0) };
    let near = PciFunction { requester: RequesterId::of(2, 6, 0), ..far };
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
    let mut rng = fastrand::Rng::with_seed(portolan_chips::fixture::seed());
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

/// A tree with one SMMU and a PCI host whose bus, and the one above, have these `dma-ranges`.
fn with_ranges(of_host: Option<&[u32]>, of_bus: Option<&[u32]>) -> Vec<u8> {
    let with = |node: Builder, ranges: Option<&[u32]>| match ranges {
        Some(cells) => node.cells("dma-ranges", cells),
        None => node,
    };
    let root = Builder::default().begin();
    let root = root.cells("#address-cells", &[2]).cells("#size-cells", &[2]);
    let unit = root.begin().text("compatible", "arm,smmu-v3");
    let unit = unit.cells("reg", &[0, 0x0905_0000, 0, 0x2_0000]).cells("phandle", &[1]).end();
    let bus = unit.begin().cells("#address-cells", &[2]).cells("#size-cells", &[2]);
    let bus = with(bus.cells("ranges", &[]), of_bus);
    let host = bus.begin().text("compatible", "pci-host-ecam-generic");
    let host = host.cells("#address-cells", &[3]).cells("#size-cells", &[2]);
    let host = host.cells("iommu-map", &[0, 1, 0, 0x1_0000]);
    with(host, of_host).end().end().end().bytes()
}

#[test]
fn dma_ranges_of_the_nearest_bus_say_which_addresses_arrive() {
    let reach = |of_host, of_bus| {
        let topology = Topology::from_device_tree(&with_ranges(of_host, of_bus)).unwrap();
        let survey = topology.survey(PciOverrides::KNOWN, |_, _| None);
        let range = topology.reach(&survey, PciFunction::of(0, 3, 0)).unwrap();
        range.map(|range: IovaRange| (range.start().get(), range.last().get()))
    };
    let all = Some((0, u64::MAX));
    assert_eq!(reach(None, None), all);
    assert_eq!(reach(Some(&[]), Some(&[])), all);
    // Qualcomm's: 36 bits for all of a bus.
    let bus: &[u32] = &[0, 0, 0, 0, 0x10, 0];
    assert_eq!(reach(None, Some(bus)), Some((0, 0xf_ffff_ffff)));
    // Broadcom's: 3 GiB of a PCI bus; and the longer of two.
    let host: &[u32] = &[0x0200_0000, 0, 0, 0, 0, 0, 0xc000_0000];
    assert_eq!(reach(Some(host), Some(bus)), Some((0, 0xbfff_ffff)));
    let two: &[u32] = &[
        0x4200_0000,
        0,
        0x4000_0000,
        0,
        0x4000_0000,
        0,
        0x8000_0000, //
        0x4200_0000,
        4,
        0,
        4,
        0,
        1,
        0,
    ];
    assert_eq!(reach(Some(two), None), Some((0x4_0000_0000, 0x4_ffff_ffff)));
    // What makes no sense leads nowhere: half an entry, no bytes, past the end.
    assert_eq!(reach(Some(&host[..6]), None), None);
    assert_eq!(reach(Some(&[0, 0, 0, 0, 0, 0, 0]), None), None);
    let past: &[u32] = &[0, u32::MAX, 0, 0, 0, 2, 0];
    assert_eq!(reach(Some(past), None), None);
}
