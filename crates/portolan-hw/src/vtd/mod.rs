//! Intel VT-d.

mod attach;
mod attach_domain;
mod config;
mod control;
mod core;
mod counts;
mod direct;
mod domains;
mod fault;
mod features;
mod gone;
mod interrupts;
mod keep;
mod own_message;
mod page_queue;
mod page_request;
mod pay;
mod quirks;
pub mod refusal;
mod request;
mod reserved;
mod ring;
mod streams;
mod structures;
mod takeover;
#[cfg(test)]
mod tests;
pub mod tylersburg;
mod unit;
mod words;

pub use self::core::VtdQueue;
pub(crate) use config::INTERRUPTS;
pub use config::{Config, Invalidation, Takeover};
pub use counts::{CommandKind, Counts};
pub use domains::{FirstDomain, ForeignFirstDomain, SecondDomain};
pub use features::{Features, Has};
pub use page_request::PageEvent;
pub use portolan::iommu::DeviceTlb;
pub use quirks::{INTEL, PciIdentity, Quirks};
pub use request::InterruptEntries;
#[cfg(test)]
pub(crate) use structures::ENTRY;
pub use structures::Mode;
pub use unit::Vtd;
