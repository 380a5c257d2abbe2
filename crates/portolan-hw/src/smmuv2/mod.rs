//! Arm SMMU architecture v2 (IHI 0062, issue D.c): the non-secure programming interface of units of
//! the MMU-500 class, and Qualcomm's implementation of it.
//!
//! * [`SmmuV2::enable`] takes a unit over; [`Features`] has its features, and [`Implementation`]
//!   the differences of its maker.
//! * [`SmmuV2::first_stage`] and [`SmmuV2::second_stage`] make domains, each with a context bank of
//!   its own; streams are moved through the traits of `portolan::iommu`.
//! * [`SmmuV2::group`] lets streams share a match register; [`SmmuV2::next_stall`] answers accesses
//!   that wait for software.
//!
//! Commands are register writes; a synchronisation is polled, and not for ever.
//!
//! *Context.* Handlers of interrupts call `next_fault` and `next_stall`. A debt is paid in any
//! context that may wait for the hardware. All else is for tasks.
//!
//! Not supported: nested stages, AArch32 and short-descriptor tables, the upper half of the input
//! space (TTBR1), 16-bit VMIDs, extended stream numbers, hypervisor banks, secure state, address
//! translation operations, broadcast invalidation by processors, performance monitors.

mod attach;
mod banks;
mod config;
mod domain;
mod faults;
mod features;
mod machine;
mod power;
mod queue;
mod quirks;
mod streams;
mod takeover;
#[cfg(test)]
mod tests;
mod unit;

pub use crate::at_work::AtWork;
pub use crate::chassis::arm::WhenDisabled;
pub use config::Config;
pub use config::{WriteCounts, WriteKind};
pub use domain::{FirstStage, SecondStage, SmmuV2DomainOptions};
pub use faults::{OnFault, Stalled, fault_reason};
pub use features::{Features, Selection};
pub use queue::SmmuV2Queue;
pub use quirks::{Implementation, Inherited, Prefetch, WaitForSafe};
pub use streams::GroupError;
pub use unit::SmmuV2;
