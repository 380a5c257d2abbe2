//! Intel VT-d.

mod attach;
mod config;
mod control;
mod core;
mod domain;
mod faults;
mod features;
mod interrupts;
mod keep;
mod page_requests;
mod queue;
mod quirks;
mod request;
mod tables;
mod takeover;
#[cfg(test)]
mod tests;
mod unit;

pub use self::core::VtdQueue;
pub use config::{Config, Invalidation, Takeover};
pub use domain::{FirstDomain, ForeignFirstDomain, SecondDomain};
pub use features::{Features, VtdFeature};
pub use page_requests::PageEvent;
pub use portolan::iommu::DeviceTlb;
pub use quirks::{INTEL, PciIdentity, Quirks, tylersburg};
pub use request::InterruptEntries;
pub use request::refusal;
pub use request::{CommandKind, Counts};
#[cfg(test)]
pub(crate) use tables::ENTRY;
pub use tables::Mode;
pub use unit::Vtd;
