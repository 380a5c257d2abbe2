//! Parts of which the drivers of this crate are built: the command ring, waiting, memory blocks,
//! registers and fields of them, lists, counters.
//!
//! A driver has only its unit's own parts (layouts, registers, codes); the algorithm is written
//! once here and compiled for each unit.
//!
//! *Context.* Interrupt, but for functions that wait for the unit (atomic) and those that take or
//! give back memory (task): they say so.

// Tests that explore interleavings have a model checker's in its place.
use core::sync::atomic;

pub(crate) mod arm;
mod block;
pub(crate) mod book;
mod conditions;
mod counts;
pub(crate) mod entry;
pub(crate) mod handed;
mod handle;
mod lists;
mod operation;
mod published;
mod records;
mod refusals;
mod regs;
pub(crate) mod ring;
pub(crate) mod sets;
mod submitters;
#[cfg(test)]
pub(crate) mod tests;
mod unit;
mod wait;

pub(crate) use block::Block;
pub(crate) use conditions::{common_methods, plain, played};
pub(crate) use counts::counters;
pub(crate) use handle::{handle, opaque};
pub(crate) use lists::{Sorted, with_room};
pub(crate) use operation::{Operation, OperationState, Shut};
pub(crate) use published::Published;
pub(crate) use records::NextRecord;
pub use records::PageRequestEvent;
pub(crate) use refusals::Ticket;
pub(crate) use regs::Present;
pub(crate) use ring::{BatchEnd, Outcome, Ring};
pub(crate) use submitters::Submitters;
pub(crate) use unit::{RingShape, Stop, Unit, Words};
pub(crate) use wait::{wait_for, wait_until, wait_while_it_works};
