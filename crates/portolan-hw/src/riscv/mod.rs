//! The RISC-V IOMMU.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0. Not here: memory-resident interrupt files,
//! guests with first stages of their own.

mod attach;
mod command;
mod config;
mod control;
mod counts;
mod device_tlb;
mod directory;
mod events;
mod faults;
mod features;
mod files;
mod messages;
mod monitor;
mod processes;
mod queue;
mod records;
pub mod refusal;
mod remap;
mod remotes;
mod requests;
mod shared;
mod state;
mod streams;
mod takeover;
mod unit;

#[cfg(test)]
pub(crate) use directory::CONTEXT;
#[cfg(test)]
mod tests;

pub use crate::chassis::PageRequestEvent;
pub use config::{Config, Messages, Signal};
pub use counts::{CommandKind, Counts};
pub use events::{CounterError, Event, EventCounter};
pub use features::{Features, Has};
pub use files::InterruptFiles;
pub use shared::RiscvQueue;
pub use unit::{FirstDomain, RiscvIommu, SecondDomain};
