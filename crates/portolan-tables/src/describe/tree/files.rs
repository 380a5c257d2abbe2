//! Interrupt files that units' messages go to: the IMSIC of a device tree.
//!
//! Devicetree binding `riscv,imsics`. Not supported: files of groups in several ranges of registers that
//! are not where the widths of the numbers say.

use super::bus::{Bus, registers};
use super::{Described, TreeUnit};
use crate::fdt::TreeNode;
use crate::imsic::InterruptFiles;

/// Position of a group's number in addresses, if the tree says nothing.
const GROUP_SHIFT: u32 = 24;
/// Cells of an entry that says at which input of which hart a file interrupts.
const ENTRY: usize = 2;

/// Interrupt files, by the number by which nodes refer to their controller.
pub(super) struct Imsic {
    phandle: u32,
    files: InterruptFiles,
}

impl Imsic {
    pub(super) fn of(node: &TreeNode<'_>, buses: &[Bus<'_>]) -> Option<Self> {
        let (base, _) = registers(node, 0, buses)?;
        let harts = node.cells("interrupts-extended").count() / ENTRY;
        let harts = u32::try_from(harts).ok().filter(|harts| *harts > 0)?;
        let mut files = InterruptFiles::new(base, harts);
        files.identities = node.cell("riscv,num-ids", 0)?;
        let said = |name| node.cell(name, 0);
        files.guests_lg2 = said("riscv,guest-index-bits").unwrap_or(0);
        let width = u32::BITS - (harts - 1).leading_zeros();
        files.harts_lg2 = said("riscv,hart-index-bits").unwrap_or(width);
        files.group_shift = said("riscv,group-index-shift").unwrap_or(GROUP_SHIFT);
        Some(Self { phandle: node.cell("phandle", 0)?, files })
    }
}

impl Described<'_> {
    /// The files that messages of devices behind `unit` go to.
    pub(super) fn files(&self, unit: &TreeUnit<'_>) -> Option<InterruptFiles> {
        let parent = unit.node.cell("msi-parent", 0)?;
        let found = self.imsics.iter().find(|imsic| imsic.phandle == parent)?;
        Some(found.files)
    }
}
