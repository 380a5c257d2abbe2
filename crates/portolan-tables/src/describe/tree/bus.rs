//! Addresses on a device tree's buses, and processors' addresses for them.
//!
//! Devicetree specification 0.4, sections 2.3.5 (`#address-cells`), 2.3.6 (`reg`) and 2.3.8 (`ranges`);
//! bus binding of PCI (IEEE 1275) for the ranges of a PCI host.

use alloc::vec::Vec;

use portolan::addr::PhysAddr;

use crate::fdt::TreeNode;

/// Cells of an address on a PCI bus: one for its space, and two of address.
const PCI_CELLS: usize = 3;
/// Cells of a length on a PCI bus.
const PCI_SIZE: usize = 2;
/// Ranges of a bus that are looked at for each node below it.
const MOST_RANGES: usize = 256;
/// Cells of one, at most: two addresses, of which one may be PCI's, and a length.
const MOST_RANGE_CELLS: usize = PCI_CELLS + 2 + PCI_SIZE;
/// Bit of the first of them: memory, and not registers of configuration or ports.
const PCI_MEMORY: u32 = 1 << 25;

/// Tells if a node is in use.
pub(super) fn okay(node: &TreeNode<'_>) -> bool {
    match node.property("status") {
        None => true,
        Some(status) => status.starts_with(b"okay\0") || status.starts_with(b"ok\0"),
    }
}

/// The number in `cells`, of one or two cells.
pub(super) fn number(cells: &[u32]) -> Option<u64> {
    match *cells {
        [one] => Some(one.into()),
        [high, low] => Some(u64::from(high) << 32 | u64::from(low)),
        _ => None,
    }
}

/// A node that others lie below, with the properties that each of those needs: looked up once,
/// since it may have many properties and many children.
#[derive(Clone, Copy)]
pub(super) struct Bus<'t> {
    pub node: TreeNode<'t>,
    /// Cells of addresses and of lengths, where they have as many as a number has.
    pub widths: Option<(usize, usize)>,
    ranges: Option<&'t [u8]>,
    pub interrupt_parent: Option<u32>,
}

impl<'t> Bus<'t> {
    pub(super) fn of(node: TreeNode<'t>) -> Self {
        let width = |name, usual: u32| usize::try_from(node.cell(name, 0).unwrap_or(usual)).ok();
        let widths = width("#address-cells", 2).zip(width("#size-cells", 1));
        Self {
            widths: widths.filter(|(address, size)| *address <= 2 && *size <= 2),
            ranges: node.property("ranges"),
            interrupt_parent: node.cell("interrupt-parent", 0),
            node,
        }
    }

    /// The cells of its ranges, as far as they are looked at.
    fn ranges(&self) -> Vec<u32> {
        let words = self.ranges.unwrap_or_default().chunks_exact(4);
        let words = words.take(MOST_RANGES * MOST_RANGE_CELLS);
        words.filter_map(|word| Some(u32::from_be_bytes(word.try_into().ok()?))).collect()
    }
}

/// Processors' address and number of bytes of the registers number `number_of` of `node`, by the
/// buses above it, the root first.
pub(super) fn registers(
    node: &TreeNode<'_>,
    number_of: usize,
    buses: &[Bus<'_>],
) -> Option<(PhysAddr, u64)> {
    let (address, size) = buses.last()?.widths?;
    let skipped = number_of.checked_mul(address + size)?;
    let reg: Vec<u32> = node.cells("reg").skip(skipped).take(address + size).collect();
    let bytes = number(reg.get(address..)?)?;
    let at = number(reg.get(..address)?)?;
    Some((PhysAddr::new(reached(at, buses)?), bytes))
}

/// Processors' address for the address `at` of the last of `buses`, of which the root is the first.
fn reached(mut at: u64, buses: &[Bus<'_>]) -> Option<u64> {
    let (mut bus, above) = buses.split_last()?;
    for next in above.iter().rev() {
        at = translated(at, bus, next)?;
        bus = next;
    }
    Some(at)
}

/// Address on the bus `above` for `at` of `bus`.
fn translated(at: u64, bus: &Bus<'_>, above: &Bus<'_>) -> Option<u64> {
    bus.ranges?;
    let ((address, size), (outer, _)) = (bus.widths?, above.widths?);
    let cells = bus.ranges();
    if cells.is_empty() {
        return Some(at);
    }
    let entry = address.checked_add(outer)?.checked_add(size)?;
    cells.chunks_exact(entry.max(1)).find_map(|entry| {
        let (from, rest) = entry.split_at_checked(address)?;
        let (to, length) = rest.split_at_checked(outer)?;
        let inside = at.checked_sub(number(from)?)?;
        (inside < number(length)?).then_some(())?;
        number(to)?.checked_add(inside)
    })
}

/// Memory on a PCI bus, and where processors reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    bus: u64,
    processor: u64,
    bytes: u64,
}

impl Window {
    /// Processors' address for the address `at` of the bus.
    pub fn reached(&self, at: u64) -> Option<u64> {
        let inside = at.checked_sub(self.bus)?;
        (inside < self.bytes).then_some(())?;
        self.processor.checked_add(inside)
    }
}

/// The windows of the PCI host that is the last of `buses`.
pub(super) fn windows(buses: &[Bus<'_>]) -> Vec<Window> {
    let Some((host, above)) = buses.split_last() else {
        return Vec::new();
    };
    let outer = above.last().and_then(|bus| bus.widths);
    let Some((outer, _)) = outer else {
        return Vec::new();
    };
    let cells = host.ranges();
    let entries = cells.chunks_exact(PCI_CELLS + outer + PCI_SIZE);
    let windows = entries.filter_map(|entry| {
        let (from, rest) = entry.split_at_checked(PCI_CELLS)?;
        let (to, bytes) = rest.split_at_checked(outer)?;
        let (space, bus) = from.split_first()?;
        (space & PCI_MEMORY != 0).then_some(())?;
        Some(Window {
            bus: number(bus)?,
            processor: reached(number(to)?, above)?,
            bytes: number(bytes)?,
        })
    });
    windows.collect()
}
