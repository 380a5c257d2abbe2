//! Intel VT-d.
//!
//! The code in [`portolan::iommu::IommuError::Refused`] is that of the refused descriptor
//! (`IQERCD.IQEI`), or 0 if it is not known any more.

mod attach;
mod command;
mod control;
mod domain;
mod faults;
mod features;
mod former;
mod handover;
mod interrupts;
mod marks;
mod power;
mod queue;
mod tables;
mod tags;
mod takeover;
#[cfg(test)]
mod tests;
mod unit;

pub use command::{CommandKind, Counts, InterruptEntries};
pub use domain::{FirstDomain, ForeignFirstDomain, SecondDomain};
pub use faults::{PageEvent, decode_fault};
pub use features::{
    Config, Features, INTEL, Invalidation, Mode, PciIdentity, Quirks, Takeover, VtdFeature,
    tylersburg,
};
pub(crate) use former::former_translation;
pub use portolan::iommu::DeviceTlb;
pub use queue::VtdQueue;
pub use unit::Vtd;
#[cfg(test)]
pub(crate) use {interrupts::REMAPPING, tables::ENTRY};
