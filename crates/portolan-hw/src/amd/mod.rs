//! AMD-Vi.

mod attach;
mod command;
mod config;
mod counters;
mod counters_in_use;
mod device_tlb;
mod faults;
mod features;
mod former;
mod guest;
mod handover;
mod interrupts;
mod log;
mod nested;
mod pasids;
mod posted;
mod power;
mod prepared;
mod queue;
mod sleepers;
mod tables;
mod takeover;
mod unit;

#[cfg(test)]
pub(crate) use tables::{ENTRY, MOVING_ENTRY, WIDE_ENTRY};
#[cfg(test)]
mod tests;

pub use crate::chassis::PageRequestEvent;
pub use command::refusal;
pub use command::{CommandKind, Counts};
pub use config::{Config, StreamSettings};
pub use counters::{AmdCounterError, Counter, CounterEvent};
pub use counters_in_use::CounterBanks;
pub use faults::decode_event;
pub use features::{AmdFeature, Capability, Features, GuestFeatures, NotAnIommu, Offers};
pub use guest::{AmdGuestDomain, ForeignAmdGuestDomain, WithoutPasid};
pub use interrupts::{InterruptTable, NotAnInterruptTable};
pub use nested::{GuestEntryError, GuestRoots};
pub use posted::SleeperEvent;
pub use queue::AmdQueue;
pub use unit::{AmdDomain, AmdVi};
