//! The RISC-V IOMMU.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0. Not here: guests with first stages of their own.

mod attach;
mod command;
mod device_tlb;
mod events;
mod faults;
mod features;
mod filed;
mod former;
mod handover;
mod interrupts;
mod messages;
mod power;
mod queue;
mod tables;
mod takeover;
mod unit;

#[cfg(test)]
pub(crate) use tables::CONTEXT;
#[cfg(test)]
mod tests;

pub use crate::chassis::PageRequestEvent;
pub use command::refusal;
pub use command::{CommandKind, Counts};
pub use events::{CounterError, Event, EventCounter};
pub use faults::decode_fault;
pub use features::{Config, Features, Messages, RiscvFeature, Signal};
pub use portolan_tables::imsic::InterruptFiles;
pub use queue::RiscvQueue;
pub use unit::{FirstDomain, RiscvIommu, SecondDomain};
