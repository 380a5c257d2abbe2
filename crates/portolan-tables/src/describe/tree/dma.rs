//! Addresses of a bus that arrive above it.
//!
//! Devicetree specification 0.4, section 2.3.9 (`dma-ranges`); bus binding of PCI (IEEE 1275). As in Linux
//! (`of_dma_get_range`), the nearest bus that has ranges decides, and those above it are not looked at.
//!
//! Of several ranges the longest is used: addresses between two of them arrive nowhere.

use portolan::addr::{Iova, IovaRange};

use super::bus::{Bus, number};
use crate::fdt::TreeNode;

/// Ranges of a bus that are looked at.
const MOST_RANGES: usize = 256;
/// Cells of an address or a length, at most: a PCI address has three.
const MOST_CELLS: u32 = 3;

/// All addresses, where no bus says more.
pub(super) fn everything() -> Option<IovaRange> {
    IovaRange::new(Iova::new(0), Iova::new(u64::MAX))
}

/// The addresses that devices below `of` can use, which is on the last of `buses`, or that it can use itself if it
/// is no bus. `None` if there are none.
pub(super) fn reach(of: TreeNode<'_>, buses: &[Bus<'_>]) -> Option<IovaRange> {
    let mut node = of;
    for above in buses.iter().rev() {
        let bytes = node.property("dma-ranges").unwrap_or_default();
        if !bytes.is_empty() {
            return longest(&node, &above.node);
        }
        node = above.node;
    }
    everything()
}

/// The longest of the ranges of `node`, of which `above` is the parent.
fn longest(node: &TreeNode<'_>, above: &TreeNode<'_>) -> Option<IovaRange> {
    let width = |node: &TreeNode<'_>, name, usual| {
        let cells = node.cell(name, 0).unwrap_or(usual);
        (cells <= MOST_CELLS).then_some(cells as usize)
    };
    let address = width(node, "#address-cells", 2)?;
    let size = width(node, "#size-cells", 1)?;
    let entry = address + width(above, "#address-cells", 2)? + size;
    let mut cells = node.cells("dma-ranges");
    let mut found: Option<IovaRange> = None;
    for _ in 0..MOST_RANGES {
        let mut one = [0; 3 * MOST_CELLS as usize];
        for cell in one.get_mut(..entry)? {
            let Some(next) = cells.next() else {
                return found;
            };
            *cell = next;
        }
        // Of three cells, those of a PCI address, the first is no part of it.
        let at = number(one.get(address.saturating_sub(2)..address)?);
        let bytes = number(one.get(entry - size..entry)?);
        let range = at.zip(bytes).and_then(|(at, bytes)| IovaRange::from_len(Iova::new(at), bytes));
        found = found.into_iter().chain(range).max_by_key(|range| range.len_minus_one());
    }
    found
}
