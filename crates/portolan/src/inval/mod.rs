//! Debts of table operations to the hardware, and the commands that pay them.
//!
//! Map and unmap never flush: they add to a [`Gather`]. [`plan()`] turns a gather into a correct
//! list of [`Step`]s, as few as the unit's [`Quirks`] allow; carrying them out with
//! [`PageTable::sync`](crate::table::PageTable::sync) yields [`Quiesced`], without which no table
//! page comes back; [`Domain::sync`](crate::iommu::Domain::sync) pays the debts of a domain and yields
//! [`Flushed`], without which no address and no buffer does. A map has other debts than an unmap, and
//! the gather keeps the two apart.
//! [`Combined`] puts one submitter before many callers; the drivers' units have a [`Combiner`] as
//! an option.

mod batch;
mod capability;
mod combine;
mod command;
mod gather;
mod page;
mod plan;
mod proof;
mod queue;
mod runs;
mod steps;
#[cfg(test)]
mod tests;

pub use batch::{Granules, Merging, Ranges};
pub use capability::{
    Caching, Capabilities, LeafOnly, PageForm, Preference, Quirks, RangeForm, WalkFlush, Walker,
    WriteBuffer,
};
pub use combine::{CombineOptions, Combined, Combiner};
pub use command::{Command, Depth, Run, Step};
pub use gather::{Gather, Quiesced, Span, WrongTable};
pub use plan::{Plan, PlanCounts, owes_nothing, plan};
pub use proof::Flushed;
pub use queue::{InvalidationQueue, SyncError, TablesLeft};
pub use steps::Steps;

pub(crate) use gather::TableChain;
pub(crate) use page::OneCommand;
pub(crate) use plan::PlanInputs;
pub(crate) use proof::{FlushedUpTo, Settled};
pub(crate) use queue::settle;
