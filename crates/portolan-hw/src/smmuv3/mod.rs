//! Arm SMMU architecture v3 (IHI 0070): the non-secure programming interface, versions 3.0 to 3.2.
//!
//! * [`Smmu::enable`] takes a unit over; [`Features`] has its features.
//! * [`Smmu::first_stage`] and [`Smmu::second_stage`] make domains; streams are moved through the
//!   traits of `portolan::iommu`, substreams and nested streams by methods of [`Smmu`].
//! * [`Smmu::enable_with`] has CPUs use command queues of their own ([`MoreQueues`]).
//! * [`portolan_spec::smmuv3`] holds layouts only.
//!
//! Page requests and stalled accesses go to `portolan::iopf`, whose `Responder` [`Smmu`] is; streams
//! stall where [`Smmu::enable_stalls`] says so.
//!
//! Handlers of the unit's interrupts call [`Smmu::service_errors`], `next_fault` or
//! [`Smmu::next_stall_or_fault`], and [`Smmu::next_page_request`], none of which waits. Locks are
//! taken in this order: event or page-request queue, command queue, error bits.
//!
//! Not supported: broadcast invalidation by processors, secure and realm state, 32-bit and
//! big-endian tables, preset tables and queues, interrupts by message (other than syncs'), control
//! pages of enhanced command queues in memory, CMDQV's interfaces for guests, MPAM, virtual machine structures.

mod attach;
mod command;
mod domain;
mod faults;
mod features;
mod former;
mod handover;
mod machine;
mod moves;
mod queue;
mod quirks;
mod tables;
mod takeover;
#[cfg(test)]
mod tests;
mod unit;

pub use crate::at_work::AtWork;
pub use crate::chassis::arm::WhenDisabled;
pub use attach::{GuestContexts, GuestFormat, WithoutSubstream};
pub use command::SmmuTag;
pub use command::{CommandCounts, CommandKind};
pub use domain::{FirstStage, ForeignFirstStage, SecondStage, SmmuDomainOptions};
pub use faults::PageRequestEvent;
pub use faults::{GlobalErrors, StallOrFault, decode_event};
pub use features::{Features, StallModel, TableUpdate};
pub(crate) use former::former_translation;
pub use queue::{EnhancedQueues, MoreQueues, SmmuQueue, enhanced_queues};
pub use quirks::{Errata, Implementation};
pub use tables::Blocking;
#[cfg(test)]
pub(crate) use tables::CONTEXT;
#[cfg(test)]
pub(crate) use tables::STREAM;
pub use unit::{Config, RegisterPages, Smmu, Want};
