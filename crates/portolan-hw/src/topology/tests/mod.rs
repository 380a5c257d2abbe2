//! Surveys of machines whose tables were published, and of machines whose tables lie.

mod agree;
mod build;
mod io_apics;
mod lies;
mod machines;
mod rimt;
mod riscv_trees;
mod tree_work;
mod trees;
mod tylersburg;
mod viommu_trees;
mod viot;
mod virtual_functions;

pub(super) use super::pci::tests::{Fake, Has, Is};
pub(super) use build::{is, survey};
