//! Layouts of IOMMUs: registers, descriptors, commands and records; PCI's lists of capabilities; TDISP's report.
//!
//! Each module implements the layouts of one specification, which it names with its sections, and
//! nothing else: constants and fields for drivers, register models and monitors. Page tables are not
//! here: `portolan::table` has their formats.
//!
//! *Context.* Interrupt: everything here is a value.
#![no_std]
#![forbid(unsafe_code)]

mod bits;

pub mod amd;
pub mod pci;
pub mod riscv;
pub mod smmuv2;
pub mod smmuv3;
pub mod tdisp;
pub mod tegra_smmu;
pub mod virtio;
pub mod vtd;

pub use bits::{ADDRESS, Bits, Bits32};

/// The crate's page, whose example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
