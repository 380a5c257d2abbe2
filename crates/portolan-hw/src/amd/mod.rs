//! AMD-Vi.

mod attach;
mod capability;
mod command;
mod control;
mod counts;
mod device_table;
mod events;
mod features;
mod queue;
pub mod refusal;
mod shared;
pub mod spec;
mod unit;
mod update;

#[cfg(test)]
mod tests;

pub use capability::{Capability, NotAnIommu, Offers};
pub use counts::Counts;
pub use features::{Features, InvalidateAll};
pub use shared::AmdQueue;
pub use unit::{AmdDomain, AmdVi, Config};
