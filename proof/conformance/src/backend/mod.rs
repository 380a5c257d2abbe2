//! Machines to run the conformance scenarios on.
//!
//! [`BackendName`] names them. [`smmuv2`], [`smmuv3`], [`tegra`], [`vtd`], [`amd`], [`riscv`],
//! [`virtio`]: those drivers. [`nested`]: drivers with guests. [`seam`]: layers between a
//! driver and its hardware. [`qemu`]: QEMU's memory and devices; [`model`]: those of the model
//! behind registers.

pub mod amd;
pub mod asks;
pub mod behind;
pub mod bent;
mod disk;
pub mod model;
mod named;
pub mod nested;
pub mod qemu;
pub mod riscv;
pub mod seam;
pub mod smmuv2;
pub mod smmuv3;
pub mod tegra;
pub mod virtio;
pub mod vtd;

pub use named::BackendName;

use std::collections::BTreeMap;
use std::fmt;

use crate::conformance::Outcome;

/// Counts by name.
fn by_name<N: Into<String>>(counts: impl IntoIterator<Item = (N, u64)>) -> BTreeMap<String, u64> {
    let counts = counts.into_iter();
    counts.map(|(name, count)| (name.into(), count)).collect()
}

/// Outcome of a driver that does not take its unit over.
fn failed(why: impl fmt::Display) -> Outcome {
    Outcome::Fail(format!("enabling the unit: {why}"))
}
