//! Register models of IOMMUs: registers, queues and tables in memory, for drivers.
//!
//! * [`amd`], [`riscv`], [`smmuv2`], [`smmuv3`], [`tegra_smmu`], [`vtd`]: the units, with the caches of
//!   `portolan_sim`.
//! * [`inject`]: faults of those on demand, and violations by a driver.
//! * [`chips`]: identification registers of real chips.
//! * [`memory`]: all of a machine's memory, for the register interfaces.
//! * [`machine`]: a unit, its memory and its clock in one value, for the tests of drivers.
//! * [`fixture`]: pieces that scenarios and benchmarks are put together from.
//!
//! Nothing here reads a wall clock or depends on the order of a hash map: equal calls give equal runs.
//! `docs/model.md` has the limits of the models.
#![forbid(unsafe_code)]

pub mod amd;
mod asking;
pub mod chips;
pub mod fixture;
pub mod inject;
pub mod interrupts;
pub mod machine;
pub mod memory;
pub mod riscv;
pub mod smmuv2;
pub mod smmuv3;
mod stage;
pub mod tegra_smmu;
mod unit;
pub mod vtd;

pub use asking::Transfer;

/// The crate's page, whose example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
