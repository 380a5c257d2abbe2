//! Waits of ranges, and permission of their callers to wait.
//!
//! *Context.* Interrupt: values.

use super::flush_queue::Ticket;
use crate::addr::IovaRange;

/// Permission of a map to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    Allowed,
    Refused,
}

/// Wait of an unmapped range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// Never quiet without.
    pub ticket: Option<Ticket>,
    /// Addresses that are to be given back once it is quiet: the queue had no room for them.
    pub range: Option<IovaRange>,
}

/// Chooser of addresses, which decides the way they go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    Allocator,
    Caller,
}

/// Addresses for which a queue had no place, or that are none of its kind, until they are quiet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub ticket: Ticket,
    pub range: IovaRange,
    pub chosen: Chosen,
}

/// State of a range after an unmap that failed.
#[derive(Debug)]
pub(super) enum Left {
    /// It is mapped, as it was.
    Mapped,
    /// It is unmapped, and not known to be quiet.
    Held(Wait),
}

/// State that an unmap has to reach before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// The state that the policy asks for.
    Policy,
    /// No device reaches the memory.
    Quiet,
}

impl Wait {
    pub fn on(ticket: Ticket) -> Self {
        let (ticket, range) = (Some(ticket), None);
        Self { ticket, range }
    }
}
