//! Device trees whose reading takes time in proportion to their length, with any contents.

use alloc::string::String;
use alloc::vec::Vec;

use portolan_tables::counted::looked;

use crate::topology::Topology;
use crate::topology::pci::PciOverrides;
use crate::tree_bytes::Builder;

/// Looks at each byte of a tree: some for each property that is asked for of a node.
const LOOKS: usize = 120;

/// Asserts that `tree` is surveyed in time.
fn is_read_in_time(tree: &[u8]) {
    assert!((1 << 15..1 << 20).contains(&tree.len()), "{} bytes", tree.len());
    let before = looked();
    let topology = Topology::from_device_tree(tree).expect("a tree with a unit");
    topology.survey(PciOverrides::KNOWN, |_, _| None);
    let bytes = looked() - before;
    assert!(bytes <= LOOKS * tree.len(), "{} looks at each byte", bytes / tree.len());
}

fn with_unit() -> Builder {
    let unit = Builder::default().named("").named("smmu@0");
    let unit = unit.text("compatible", "arm,smmu-v3").cells("phandle", &[1]);
    unit.cells("reg", &[0, 0x1000, 0x2_0000]).end()
}

/// Many properties, all named by one text that is as long as they are many.
#[test]
fn properties_that_share_a_long_name_are_read_in_time() {
    let name = String::from_iter(core::iter::repeat_n('a', 1 << 15));
    let tree = with_unit().named("many").shared(&name, 4_000).end().end();
    is_read_in_time(&tree.bytes());
}

/// Many properties of a bus, and many nodes below it.
#[test]
fn a_bus_of_many_properties_and_many_nodes_is_read_in_time() {
    let mut tree = with_unit().named("bus").shared("x", 4_000);
    tree = tree.cells("#address-cells", &[2]).cells("ranges", &[]);
    for _ in 0..2_000 {
        tree = tree.named("device").cells("reg", &[0, 0x4000, 0x1000]).end();
    }
    is_read_in_time(&tree.end().end().bytes());
}

/// Many hosts, each with many entries, at many units.
#[test]
fn hosts_with_many_entries_are_read_in_time() {
    let mut tree = with_unit();
    let entries: Vec<u32> = (0..400).flat_map(|first| [first, 1, first, 1]).collect();
    for _ in 0..64 {
        tree = tree.named("pcie").cells("iommu-map", &entries).end();
    }
    is_read_in_time(&tree.end().bytes());
}
