//! Power and clocks of a unit: those that are not on of themselves have to be switched on before its registers
//! are touched.
//!
//! Devicetree bindings `power-domain` (`power-domains`) and `clock` (`clocks`, `#clock-cells`, `fixed-clock`). Not
//! supported: `assigned-clocks`, `resets`, and regulators (`*-supply`).

use alloc::collections::BTreeMap;

use super::Described;
use crate::fdt::TreeNode;

/// A node that clocks come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockSource {
    /// Cells that tell its clocks apart.
    cells: usize,
    runs_always: bool,
}

impl ClockSource {
    /// The source that `node` is, with the number by which other nodes refer to it.
    pub(super) fn of(node: &TreeNode<'_>) -> Option<(u32, Self)> {
        let cells = usize::try_from(node.cell("#clock-cells", 0)?).ok()?;
        let runs_always = node.is("fixed-clock");
        Some((node.cell("phandle", 0)?, Self { cells, runs_always }))
    }
}

/// Tells if each clock of `node` runs always. A reference to an unknown source does not say so.
fn clocks_run_always(node: &TreeNode<'_>, sources: &BTreeMap<u32, ClockSource>) -> bool {
    let mut cells = node.cells("clocks");
    while let Some(phandle) = cells.next() {
        match sources.get(&phandle) {
            Some(source) if source.runs_always => {
                let _ = source.cells.checked_sub(1).and_then(|last| cells.nth(last));
            }
            _ => return false,
        }
    }
    true
}

impl Described<'_> {
    /// Tells if the unit of `node` has to be switched on.
    pub(super) fn needs_power(&self, node: &TreeNode<'_>) -> bool {
        node.cells("power-domains").next().is_some() || !clocks_run_always(node, &self.clocks)
    }
}
