//! The wires by which units tell of faults.
//!
//! Devicetree specification 0.4, section 2.4 (interrupts). Not supported: interrupt nexus nodes
//! (`interrupt-map`).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::fdt::TreeNode;

/// Cells that name an interrupt, at most.
const MOST_CELLS: usize = 3;

/// A wire of an interrupt controller, as a device tree names it.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// The number (`phandle`) by which the tree refers to the controller.
    pub controller: u32,
    /// Cells by which the controller's binding names the wire: its number first. Cells that the
    /// controller does not have are 0.
    pub specifier: [u32; MOST_CELLS],
}

/// Tells if `node` names wires.
pub(crate) fn has_any(node: &TreeNode<'_>) -> bool {
    let named = |what| node.property(what).is_some();
    named("interrupts-extended") || named("interrupts")
}

impl Wire {
    /// The first wire of `node`, which is of `parent` where it does not say otherwise. `controllers` has
    /// the number of cells that name an interrupt of each.
    pub(crate) fn first(
        node: &TreeNode<'_>,
        parent: Option<u32>,
        controllers: &BTreeMap<u32, u32>,
    ) -> Option<Self> {
        let mut cells = node.cells("interrupts-extended").peekable();
        let (controller, cells): (u32, Vec<u32>) = match cells.next() {
            Some(controller) => (controller, cells.take(MOST_CELLS).collect()),
            None => {
                let cells = node.cells("interrupts");
                (parent?, cells.take(MOST_CELLS).collect())
            }
        };
        let width = usize::try_from(*controllers.get(&controller)?).ok()?;
        (1..=MOST_CELLS).contains(&width).then_some(())?;
        let mut specifier = [0; MOST_CELLS];
        specifier.get_mut(..width)?.copy_from_slice(cells.get(..width)?);
        Some(Self { controller, specifier })
    }
}
