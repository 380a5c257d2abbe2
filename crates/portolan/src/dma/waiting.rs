//! Waits of ranges, and outcomes of their unmaps.
//!
//! *Context.* Interrupt: values.

use super::flush_queue::Ticket;
use crate::addr::IovaRange;
use crate::inval::Flushed;

/// Wait of an unmapped range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// `None`: the range is never known to be flushed.
    pub ticket: Option<Ticket>,
    /// Addresses that are to be given back once it is flushed: the queue had no room for them.
    pub range: Option<IovaRange>,
}

impl Wait {
    pub fn on(ticket: Ticket) -> Self {
        Self { ticket: Some(ticket), range: None }
    }
}

/// Outcome of an unmap.
#[derive(Debug)]
pub(super) enum Outcome {
    /// No device reaches the range any more.
    Flushed(Flushed),
    /// It is unmapped, and devices may reach it.
    Waits(Wait),
    /// It is mapped, as it was.
    Mapped,
}

/// Reason for which a buffer, or the slots of its copies, go back to their owner.
#[derive(Debug)]
pub(super) enum Clearance {
    /// No device reaches them any more.
    Flushed(Flushed),
    /// No device has reached them, or not through tables: its driver says when it is done.
    Untranslated,
    /// The policy is lazy: devices that are trusted may reach them within its bounds.
    Lazy,
}

/// Chooser of addresses, which decides the way they go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    Allocator,
    Caller,
}

/// Addresses for which a queue had no place, or that are none of its kind, until they are flushed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub ticket: Ticket,
    pub range: IovaRange,
    pub chosen: Chosen,
}
