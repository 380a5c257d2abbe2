//! Intel VT-d.
//!
//! The code in [`portolan::iommu::IommuError::Refused`] is that of the refused descriptor
//! (`IQERCD.IQEI`), or 0 if it is not known any more.

mod attach;
mod command;
mod control;
mod device_tlb;
mod domain;
mod faults;
mod features;
mod interrupts;
mod queue;
mod quirks;
mod tables;
mod takeover;
#[cfg(test)]
mod tests;
mod unit;

pub use command::{CommandKind, Counts, InterruptEntries};
pub use device_tlb::PageEvent;
pub use domain::{FirstDomain, ForeignFirstDomain, SecondDomain};
pub use features::{Config, Features, Invalidation, Mode, Takeover, VtdFeature};
pub use portolan::iommu::DeviceTlb;
pub use queue::VtdQueue;
pub use quirks::{INTEL, PciIdentity, Quirks, tylersburg};
#[cfg(test)]
pub(crate) use tables::ENTRY;
pub use unit::Vtd;
