//! The SMMU in the memory controller of Tegra30, Tegra114, Tegra124 and Tegra210.
//!
//! Tegra X1 Technical Reference Manual, chapters 17.5 (SMMU) and 18 (memory controller).
//!
//! * [`TegraSmmu::enable`] takes a unit over; [`Chip`] names the chip, since nothing in the unit
//!   does.
//! * [`TegraSmmu::domain`] makes domains, one address space (ASID) each. A stream is a swgroup.
//! * Tables are walked without snooping and through a page-table cache (PTC) that keeps lines as
//!   they were read, empty entries included, so that a map owes a flush as well as an unmap. The
//!   flushes of one operation are made once, when its debt is paid.
//! * [`portolan_spec::tegra_smmu`] holds layouts only.
//!
//! *Context.* Handlers of interrupts call `next_fault`. A debt is paid in any context that may wait
//! for the hardware. All else is for tasks.
//!
//! Not supported: secure address spaces, the GPU's own choice of translation, interrupts (their
//! handler calls `next_fault`), and the switch in the AHB arbiter that lets its clients reach the SMMU
//! on chips that have one: the embedder sets it.

mod attach;
mod config;
mod faults;
mod power;
mod queue;
mod shared;
pub mod swgroup;
mod tables;
mod unit;

#[cfg(test)]
mod tests;

pub use config::Chip;
pub use config::Config;
pub use config::{Counts, WriteKind};
pub use shared::TegraQueue;
pub use tables::TegraTables;
pub use unit::{TegraDomain, TegraSmmu};
