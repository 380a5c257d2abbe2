//! What an operation on a table owes the hardware, and the commands that pay it.
//!
//! Map and unmap never flush: they add to a [`Gather`]. [`plan()`] turns a gather into the cheapest
//! correct list of [`Step`]s; carrying them out with [`sync()`] yields [`Quiesced`], without which no
//! table page comes back. After a map other things are owed than after an unmap, and the gather
//! keeps the two apart.

mod capability;
mod command;
mod gather;
mod plan;
mod runs;
mod steps;
mod sync;
#[cfg(test)]
mod tests;

pub use capability::{
    Caching, Capabilities, LeafOnly, PageForm, Preference, Quirks, RangeForm, WalkFlush, Walker,
    WriteBuffer,
};
pub use command::{Command, Depth, Run, Step};
pub use gather::{Gather, Quiesced, Span};
pub use plan::{Plan, PlanCounts, plan};
pub use steps::Steps;
pub use sync::{InvalidationQueue, SyncFailed, sync};

pub(crate) use gather::{TableChain, Vacancy};
