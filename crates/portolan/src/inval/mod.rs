//! What an operation on a table owes the hardware, and the commands that pay it.
//!
//! Map and unmap never flush: they add to a [`Gather`]. [`plan`] turns a gather into the cheapest
//! correct list of [`Step`]s; carrying them out yields [`Quiesced`], without which no table page
//! comes back.

mod capability;
mod command;

pub use capability::{
    Caching, Capabilities, LeafOnly, PageForm, Preference, Quirks, RangeForm, WalkFlush, Walker,
    WriteBuffer,
};
pub use command::{Command, Depth, Run, Step};
