//! AMD-Vi.

mod attach;
mod capability;
mod command;
mod config;
mod control;
mod counts;
mod device_table;
mod events;
mod features;
mod interrupts;
mod queue;
pub mod refusal;
mod remap;
mod shared;
mod streams;
mod takeover;
mod unit;
mod unity;

#[cfg(test)]
pub(crate) use device_table::ENTRY;
#[cfg(test)]
mod tests;

pub use capability::{Capability, NotAnIommu, Offers};
pub use config::{Config, StreamSettings};
pub use counts::{CommandKind, Counts};
pub use features::{Features, InvalidateAll};
pub(crate) use interrupts::Signal;
pub use interrupts::{InterruptTable, NotAnInterruptTable};
pub use shared::AmdQueue;
pub(crate) use streams::windows;
pub use unit::{AmdDomain, AmdVi};
