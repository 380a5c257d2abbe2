//! IOMMUs as in-process hardware: with every cache they have, a virtual clock, counters of every
//! event, and a price for each.
//!
//! * [`decode`]: table walkers that share no code with the library's.
//! * [`iommu`]: an IOMMU with IOTLB, walk caches and configuration cache, adversarial or realistic,
//!   fed through a command queue.
//! * [`amd`], [`riscv`], [`smmuv2`], [`smmuv3`], [`tegra_smmu`], [`vtd`]: such hardware behind its registers,
//!   queues and tables, for drivers.
//! * [`inject`]: faults of those on demand, and violations by a driver.
//! * [`cache`]: one such cache.
//! * [`chips`]: identification registers of real chips.
//! * [`tables`]: table memory that a walker sees late: without snooping, or behind a write buffer.
//! * [`memory`]: all of a machine's memory, for the register interfaces.
//! * [`device`]: devices that do DMA, remember where it went, and try again.
//! * [`machine`]: a unit, its memory and its clock in one value, for the tests of drivers.
//! * [`fixture`]: pieces that scenarios and benchmarks are put together from.
//! * [`profile`]: machines, as the price of each event and where each price comes from.
//! * [`swiotlb`]: bounce pools of other designs, to compare with.
//! * [`cpus`]: CPUs in virtual time, on which code that shares memory runs.
//! * [`clock`], [`counters`]: virtual time and the events in it.
//!
//! Nothing here reads a wall clock or depends on the order of a hash map: equal calls give equal runs.
//! `docs/model.md` has the limits of the model.
#![forbid(unsafe_code)]

mod adversary;
pub mod amd;
mod asking;
pub mod cache;
pub mod chips;
pub mod clock;
pub mod counters;
pub mod cpus;
pub mod decode;
pub mod device;
pub mod fixture;
pub mod inject;
pub mod interrupts;
pub mod iommu;
pub mod machine;
pub mod memory;
pub mod profile;
pub mod riscv;
pub mod smmuv2;
pub mod smmuv3;
mod stage;
pub mod swiotlb;
pub mod tables;
pub mod tegra_smmu;
mod unit;
pub mod vtd;

pub use asking::Transfer;

/// The crate's page, whose example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
