//! Trees put together by hand.

use super::*;
use alloc::vec::Vec;
use portolan::addr::PciFunction;

use crate::ecam::Ecam;

/// Nodes below the root, which begin and end; properties come before the nodes below.
#[derive(Default)]
pub(crate) struct Tree {
    body: Vec<u8>,
    names: Vec<u8>,
}

impl Tree {
    pub(crate) fn node(mut self) -> Self {
        self.body.extend([0, 0, 0, 1, b'n', 0, 0, 0]);
        self
    }

    pub(crate) fn end(mut self) -> Self {
        self.body.extend([0, 0, 0, 2]);
        self
    }

    fn property(mut self, name: &str, value: &[u8]) -> Self {
        self.body.extend(3u32.to_be_bytes());
        self.body.extend((value.len() as u32).to_be_bytes());
        self.body.extend((self.names.len() as u32).to_be_bytes());
        self.body.extend(value);
        self.body.resize(self.body.len().next_multiple_of(4), 0);
        self.names.extend(name.as_bytes());
        self.names.push(0);
        self
    }

    pub(crate) fn text(self, name: &str, value: &str) -> Self {
        self.property(name, &[value.as_bytes(), b"\0"].concat())
    }

    pub(crate) fn cells(self, name: &str, cells: &[u32]) -> Self {
        let value: Vec<u8> = cells.iter().flat_map(|cell| cell.to_be_bytes()).collect();
        self.property(name, &value)
    }

    /// The whole, with a header and a root.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let body = [&[0, 0, 0, 1, 0, 0, 0, 0][..], &self.body, &[0, 0, 0, 2, 0, 0, 0, 9]].concat();
        let strings = fdt::HEADER_BYTES + body.len();
        let mut all = Vec::new();
        for number in [0xd00d_feed, strings + self.names.len(), fdt::HEADER_BYTES, strings] {
            all.extend((number as u32).to_be_bytes());
        }
        all.resize(fdt::HEADER_BYTES, 0);
        [all, body, self.names.clone()].concat()
    }
}

#[test]
fn processors_and_their_clock_are_found() {
    let cpu = |tree: Tree, name: &[u32], status| {
        let tree = tree.node().text("device_type", "cpu").cells("reg", name);
        tree.text("status", status).cells("riscv,cbom-block-size", &[64]).end()
    };
    let tree = Tree::default().node().cells("timebase-frequency", &[10_000_000]);
    let tree = cpu(tree, &[0], "okay");
    let tree = cpu(tree, &[1], "disabled");
    let tree = cpu(tree, &[1, 2], "ok").end();
    let bytes = tree.bytes();
    let tree = DeviceTree::parse(&bytes).unwrap();
    assert_eq!(processors(tree).collect::<Vec<_>>(), [0, 0x1_0000_0002]);
    assert_eq!(timebase(tree).map(NonZeroU64::get), Some(10_000_000));
    assert_eq!(cache_block(tree), Some(PageSize::of_lg2(6)));
}

#[test]
fn what_is_not_there_or_makes_no_sense_is_not_found() {
    let none = Tree::default().bytes();
    let none = DeviceTree::parse(&none).unwrap();
    assert_eq!((timebase(none), cache_block(none), pci_memory(none)), (None, None, None));
    for bytes in [0, 3, 8192] {
        let tree = Tree::default().node().cells("riscv,cbom-block-size", &[bytes]);
        let tree = tree.cells("timebase-frequency", &[0]).end().bytes();
        let tree = DeviceTree::parse(&tree).unwrap();
        assert_eq!((timebase(tree), cache_block(tree)), (None, None), "{bytes}");
    }
}

#[test]
fn a_pci_host_has_buses_and_memory() {
    let ranges = [
        [0x0100_0000, 0, 0, 0, 0x0300_0000, 0, 0x1_0000],
        [0x0200_0000, 0, 0x4000_0000, 0, 0x4000_0000, 0, 0x1000_0000],
    ];
    let tree = Tree::default().node().node().text("compatible", PCI_HOST);
    let tree = tree.cells("reg", &[0, 0x3000_0000, 0, 0x200_0000]).cells("bus-range", &[2, 3]);
    let tree = tree.cells("ranges", &ranges.concat()).end().end();
    let bytes = tree.bytes();
    let tree = DeviceTree::parse(&bytes).unwrap();
    let memory = pci_memory(tree).map(|found| (found.start().get(), found.last().get()));
    assert_eq!(memory, Some((0x4000_0000, 0x4fff_ffff)));
    let ecam = Ecam::of_tree(tree);
    assert_eq!(ecam.buses().collect::<Vec<_>>(), [2, 3]);
    let at = |bus| ecam.registers(PciFunction::of(bus, 0, 1)).map(|found| found.start().get());
    assert_eq!([1, 2, 3, 4].map(at), [None, Some(0x3000_1000), Some(0x3010_1000), None]);
    // Bus 0 would be below the lowest address, or the last bus comes before the first one.
    for (base, buses) in [(0x10_0000, [2, 3]), (0x3000_0000, [3, 2])] {
        let tree = Tree::default().node().text("compatible", PCI_HOST);
        let tree = tree.cells("reg", &[0, base, 0, 0x1000]).cells("bus-range", &buses);
        let bytes = tree.end().bytes();
        let found = Ecam::of_tree(DeviceTree::parse(&bytes).unwrap());
        assert_eq!(found, Ecam::default());
    }
}

#[test]
fn memory_that_is_taken_is_not_free() {
    let free = |start, taken: (u64, u64)| {
        let memory = Tree::default().node().text("device_type", "memory");
        let memory = memory.cells("reg", &[0, 0x8000_0000, 0, 0x1000_0000]).end();
        // Firmware, and a buffer.
        let tree = memory.node().node().cells("reg", &[0, 0x8000_0000, 0, 0x8_0000]).end();
        let tree = tree.node().cells("reg", &[0, 0x8800_0000, 0, 0x1000]).end().end();
        let bytes = tree.bytes();
        let taken = PhysRange::from_len(PhysAddr::new(taken.0), taken.1).unwrap();
        let tree = DeviceTree::parse(&bytes).unwrap();
        let found = memory_from(tree, PhysAddr::new(start), taken);
        found.map(|found| (found.start().get(), found.last().get()))
    };
    let tree = (0x8fe0_0000, 0x4000);
    assert_eq!(free(0x8020_0000, tree), Some((0x8020_0000, 0x87ff_ffff)));
    assert_eq!(free(0x8800_0000, tree), Some((0x8800_1000, 0x8fdf_ffff)));
    assert_eq!(free(0, tree), Some((0x8008_0000, 0x87ff_ffff)));
    assert_eq!(free(0x9000_0000, tree), None);
    assert_eq!(free(0x8800_0000, (0x8000_0000, u64::MAX >> 1)), None);
}
