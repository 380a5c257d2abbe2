//! Contents of a device tree beside those about IOMMUs.
//!
//! Devicetree specification 0.4, sections 3.4 and 3.5 (memory, and the reserved parts of it) and 3.7 and 3.8
//! (CPUs); bindings `riscv,cpus` (`riscv,cbom-block-size`) and `pci-host-ecam-generic`; PCI bus binding to IEEE
//! 1275 (`ranges`). Not supported: buses above these nodes that translate addresses.
//!
//! *Context.* Interrupt: each function walks the tree.

use core::num::NonZeroU64;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan_tables::fdt::{self, DeviceTree, TreeNode};

/// String with which a PCI host states that it is compatible.
pub(crate) const PCI_HOST: &str = "pci-host-ecam-generic";

/// All nodes, of any depth.
pub(crate) fn nodes<'t>(tree: DeviceTree<'t>) -> impl Iterator<Item = TreeNode<'t>> + use<'t> {
    tree.walk().map(|(_, node)| node)
}

/// The first node, of any depth, that says that it is compatible with `what`.
pub fn compatible<'t>(tree: DeviceTree<'t>, what: &str) -> Option<TreeNode<'t>> {
    nodes(tree).find(|node| node.is(what))
}

fn okay(node: &TreeNode<'_>) -> bool {
    let status = node.property("status");
    status.is_none_or(|status| [&b"okay\0"[..], b"ok\0"].contains(&status))
}

/// The hardware's number of the CPU of a node, if it is one's.
pub(crate) fn processor(node: &TreeNode<'_>) -> Option<u64> {
    let name = (node.property("device_type")? == b"cpu\0").then(|| node.cells("reg"))?;
    Some(number(name))
}

/// The number in `cells`, of one or two cells.
fn number(cells: impl Iterator<Item = u32>) -> u64 {
    cells.take(2).fold(0, |high, low| high << 32 | u64::from(low))
}

/// The hardware's number of each CPU that can be used: the number of a hart (RISC-V), or an affinity,
/// as in MPIDR_EL1 (AArch64).
pub fn processors(tree: DeviceTree<'_>) -> impl Iterator<Item = u64> {
    nodes(tree).filter(okay).filter_map(|node| processor(&node))
}

/// The number (`phandle`) by which the tree refers to the interrupt controller in a hart.
pub(crate) fn hart_controller(tree: DeviceTree<'_>, hart: u64) -> Option<u32> {
    let mut below = nodes(tree).skip_while(|node| processor(node) != Some(hart));
    let own = below.find(|node| node.is("riscv,cpu-intc"))?;
    own.cell("phandle", 0)
}

/// Frequency of the CPUs' time in hertz.
pub fn timebase(tree: DeviceTree<'_>) -> Option<NonZeroU64> {
    let found = nodes(tree).find(|node| node.property("timebase-frequency").is_some());
    NonZeroU64::new(number(found?.cells("timebase-frequency")))
}

/// Size of a cache block, where RISC-V's CPUs have instructions for such.
pub fn cache_block(tree: DeviceTree<'_>) -> Option<PageSize> {
    let bytes = nodes(tree).find_map(|node| node.cell("riscv,cbom-block-size", 0))?;
    let sensible = bytes.is_power_of_two() && bytes <= PageSize::SIZE_4K.bytes() as u32;
    sensible.then(|| PageSize::of_lg2(bytes.ilog2()))
}

/// The memory below 4 GiB that PCI has at the CPU's addresses, by the entries of `ranges`: a kind and an
/// address on the bus (12 bytes), one of the CPU's (8), a length (8).
pub fn pci_memory(tree: DeviceTree<'_>) -> Option<PhysRange> {
    const MEMORY_32: u8 = 2;
    let ranges = compatible(tree, PCI_HOST)?.property("ranges")?;
    let mut entries = ranges.chunks_exact(28);
    let entry = entries.find(|of| of[0] & 3 == MEMORY_32 && of[4..12] == of[12..20])?;
    fdt::range(entry, 12)
}

/// The memory from `start` on, less the parts that other nodes reserve, and less `taken`: so neither memory
/// that is reserved nor the tree itself is in it.
pub fn memory_from(tree: DeviceTree<'_>, start: PhysAddr, taken: PhysRange) -> Option<PhysRange> {
    let memory = tree.memory()?;
    let mut free = PhysRange::new(memory.start().max(start), memory.last())?;
    let others = nodes(tree).filter_map(|node| node.reg());
    for other in others.filter(|other| *other != memory).chain([taken]) {
        if !other.overlaps(free) {
            continue;
        }
        free = match other.start() > free.start() {
            true => PhysRange::new(free.start(), PhysAddr::new(other.start().get() - 1))?,
            false => PhysRange::new(other.last().checked_add(1)?, free.last())?,
        };
    }
    Some(free)
}

#[cfg(test)]
pub(crate) mod tests;
