//! Addresses on a device tree's buses, and what processors reach them by.
//!
//! Devicetree specification 0.4, sections 2.3.5 (`#address-cells`), 2.3.6 (`reg`) and 2.3.8 (`ranges`);
//! bus binding of PCI (IEEE 1275) for the ranges of a PCI host.

use alloc::vec::Vec;

use portolan::addr::PhysAddr;

use crate::firmware::fdt::Node;

/// Cells of an address on a PCI bus: what space it is in, and two cells of address.
const PCI_CELLS: usize = 3;
/// Cells of a length on a PCI bus.
const PCI_SIZE: usize = 2;
/// Bit of the first of them: memory, and not registers of configuration or ports.
const PCI_MEMORY: u32 = 1 << 25;

/// Whether a node is in use.
pub(super) fn okay(node: &Node<'_>) -> bool {
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

/// Cells of addresses and of lengths on a bus.
pub(super) fn widths(bus: &Node<'_>) -> Option<(usize, usize)> {
    let width = |name, usual: u32| usize::try_from(bus.cell(name, 0).unwrap_or(usual)).ok();
    let (address, size) = (width("#address-cells", 2)?, width("#size-cells", 1)?);
    (address <= 2 && size <= 2).then_some((address, size))
}

/// Where the registers number `number` of `node` are, and how many bytes, by the buses above it, the root
/// first.
pub(super) fn registers(
    node: &Node<'_>,
    number_of: usize,
    buses: &[Node<'_>],
) -> Option<(PhysAddr, u64)> {
    let (address, size) = widths(buses.last()?)?;
    let skipped = number_of.checked_mul(address + size)?;
    let reg: Vec<u32> = node
        .cells("reg")
        .skip(skipped)
        .take(address + size)
        .collect();
    let bytes = number(reg.get(address..)?)?;
    let at = number(reg.get(..address)?)?;
    Some((PhysAddr::new(reached(at, buses)?), bytes))
}

/// Where processors reach the address `at` of the last of `buses`, of which the root is the first.
fn reached(mut at: u64, buses: &[Node<'_>]) -> Option<u64> {
    let (mut bus, above) = buses.split_last()?;
    for next in above.iter().rev() {
        at = translated(at, bus, next)?;
        bus = next;
    }
    Some(at)
}

/// Where `at` of `bus` is on the bus `above`.
fn translated(at: u64, bus: &Node<'_>, above: &Node<'_>) -> Option<u64> {
    bus.property("ranges")?;
    let ((address, size), (outer, _)) = (widths(bus)?, widths(above)?);
    let cells: Vec<u32> = bus.cells("ranges").collect();
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
pub(super) struct Window {
    bus: u64,
    processor: u64,
    bytes: u64,
}

impl Window {
    /// Where processors reach the address `at` of the bus.
    pub(super) fn reached(&self, at: u64) -> Option<u64> {
        let inside = at.checked_sub(self.bus)?;
        (inside < self.bytes).then_some(())?;
        self.processor.checked_add(inside)
    }
}

/// The windows of the PCI host that is the last of `buses`.
pub(super) fn windows(buses: &[Node<'_>]) -> Vec<Window> {
    let Some((host, above)) = buses.split_last() else {
        return Vec::new();
    };
    let outer = above.last().and_then(widths);
    let Some((outer, _)) = outer else {
        return Vec::new();
    };
    let cells: Vec<u32> = host.cells("ranges").collect();
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
