//! Drivers of IOMMUs by their register interfaces.
//!
//! Each driver has one type parameter, the machine (`UnitPlatform`), and reaches it through the traits
//! of `portolan::platform` alone: registers through `Mmio`, tables and queues through `TableMem`, time
//! through `Clock`. All of them stand behind the traits of `portolan::iommu`.
//!
//! A driver's files have the same names where they have the same part: `features`, `quirks`,
//! `command`, `queue`, `tables`, `attach`, `domain`, `faults`, `interrupts`, `takeover`.
//!
//! [`ids`] gives identifiers out and takes them back; [`smmuv2`] and [`smmuv3`] drive the Arm SMMU
//! architecture v2 and v3, [`tegra_smmu`] the SMMU of Tegra30 to Tegra210, [`vtd`] Intel VT-d,
//! [`virtio`] virtio-iommu, [`amd`] AMD-Vi and [`riscv`] the RISC-V IOMMU. [`tables`] reads the
//! firmware tables of a machine's units, and device trees; [`reservations`] has the addresses
//! that they reserve for streams.
//!
//! [`interrupt`] has the common parts of units that remap interrupts.
//!
//! [`topology`] leads from those tables to devices: it enables the units and opens a device by its PCI
//! function.
//!
//! Each driver is a feature by its module's name, and all are on by default. A survey of a
//! machine ([`topology::Topology::survey`]) needs none, but the reader of its table, a feature of
//! [`portolan_tables`] that each driver brings. A unit whose driver is left out is refused beside those that work
//! ([`topology::EnableError::NoDriver`]).
//!
//! The feature `handover`, also on by default, is the code by which a unit leaves a kernel
//! ([`topology::Iommus::prepare`], [`handover`]).
//!
//! # Example
//!
//! ```no_run
//! use portolan::addr::PciFunction;
//! use portolan::dma::Device;
//! use portolan::platform::Platform;
//! use portolan_hw::TrustedDescription;
//! use portolan_hw::topology::{Options, Topology};
//!
//! fn open<K: Platform>(
//!     kernel: K,
//!     tables: &[&[u8]],
//! ) -> Result<Device<K>, Box<dyn core::error::Error>> {
//!     // SAFETY: they are this machine's tables.
//!     let described = unsafe { TrustedDescription::new() };
//!     let topology = Topology::from_acpi(tables.iter().copied())?;
//!     // From here on every device is blocked, until it is opened.
//!     let iommus = topology.enable(kernel, Options::default(), described)?;
//!     Ok(iommus.trusted_device(PciFunction::of(0, 3, 0))?)
//! }
//! ```
#![no_std]
#![deny(unsafe_code)]
// Among a few drivers not each part of the chassis has a user.
#![cfg_attr(
    not(all(
        feature = "amd",
        feature = "handover",
        feature = "riscv",
        feature = "smmuv2",
        feature = "smmuv3",
        feature = "tegra_smmu",
        feature = "virtio",
        feature = "vtd"
    )),
    allow(dead_code, unused_imports, unused_macros)
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(feature = "amd")]
pub mod amd;
#[cfg(feature = "chassis")]
mod at_work;
#[cfg(feature = "chassis")]
mod chassis;
pub mod handover;
#[cfg(feature = "chassis")]
pub mod ids;
pub mod interrupt;
mod order;
mod promise;
pub mod reservations;
#[cfg(feature = "riscv")]
pub mod riscv;
#[cfg(feature = "smmuv2")]
pub mod smmuv2;
#[cfg(feature = "smmuv3")]
pub mod smmuv3;
#[cfg(test)]
#[allow(dead_code)]
#[path = "../../portolan-tables/src/tests/golden/bytes.rs"]
mod table_bytes;
#[cfg(test)]
#[allow(dead_code, missing_docs)]
#[path = "../../portolan-tables/src/tests/lookup.rs"]
mod table_lookup;
#[cfg(feature = "tegra_smmu")]
pub mod tegra_smmu;
pub mod topology;
#[cfg(test)]
#[path = "../../portolan-tables/src/tests/tree_bytes.rs"]
mod tree_bytes;
mod turn;
#[cfg(feature = "virtio")]
pub mod virtio;
#[cfg(feature = "vtd")]
pub mod vtd;

pub use portolan_tables::{self as tables, overrides};
pub use promise::TrustedDescription;

/// Code blocks of documents that show the use of the crate.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../README.md")]
    struct OfTheCrate;

    #[doc = include_str!("../../../docs/tutorial.md")]
    struct Tutorial;
}
