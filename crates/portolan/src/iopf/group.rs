//! State of a group that is not answered yet, and its possible outcomes.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::counts::Cause;
use super::outcome::Taken;
use super::{Handler, PageRequest, ReplyName, ReplyTo, Response};
use crate::addr::{Pasid, StreamId};
use crate::platform::Nanos;

/// Key of a group that is not answered yet.
pub(super) type Key = (StreamId, ReplyName);

/// Tells a group from a later one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(pub(super) u64);

/// Progress of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its last request is still to come.
    Partial { deadline: Nanos },
    /// It waits for a handler.
    Ready,
    /// A handler has it.
    Running,
}

/// A group that is not answered yet.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) ticket: Ticket,
    pub(super) pasid: Option<Pasid>,
    pub(super) to: ReplyTo,
    pub(super) phase: Phase,
    /// Its requests, in memory of the pool; without memory while a handler has them.
    pub(super) requests: Vec<PageRequest>,
}

/// A group that was taken out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    pub(super) to: ReplyTo,
    pub(super) phase: Phase,
}

/// A response that a caller now owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owed {
    pub to: ReplyTo,
    pub response: Response,
    pub cause: Cause,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Partial,
    Ready,
    StopMarker,
    Duplicate,
    Ignored,
    /// Of a group that is answered later.
    RefusedPart(Cause),
    Refused(Owed),
}

impl Outcome {
    /// Outcome for the driver.
    pub fn taken(self) -> Taken {
        match self {
            Self::Partial => Taken::Partial,
            Self::Ready => Taken::Ready,
            Self::StopMarker => Taken::StopMarker,
            Self::Duplicate => Taken::Duplicate,
            Self::Ignored => Taken::Ignored,
            Self::RefusedPart(cause) => Taken::RefusedPart { cause },
            Self::Refused(Owed { to, response, cause }) => Taken::Refused { to, response, cause },
        }
    }
}

/// As many responses wait for being sent as there is room for; the request was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueIsFull;

/// Claim to the answer of a group that a handler had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    Ours,
    /// Another caller has answered it.
    Overtaken,
}

/// A group on its way to a handler.
pub(super) struct Work {
    pub key: Key,
    pub ticket: Ticket,
    pub to: ReplyTo,
    pub requests: Vec<PageRequest>,
    pub handler: Arc<dyn Handler>,
}
