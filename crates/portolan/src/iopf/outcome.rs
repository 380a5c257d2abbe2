//! Outcomes of requests, groups and registrations.

use super::counts::Cause;
use super::{ReplyTo, Response};
use crate::addr::{Pasid, StreamId};
use thiserror::Error;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Its group waits for more.
    Partial,
    /// Its group is complete, for [`Dispatcher::serve`](super::Dispatcher::serve).
    Ready,
    /// It only says that the device has stopped; nothing is owed.
    StopMarker,
    /// Its group is complete and not answered yet; it is dropped.
    Duplicate,
    /// It is of a device that is not registered and not the last of its group; it is dropped.
    Ignored,
    /// Its group is refused, and is told so with its last request, or in time.
    RefusedPart {
        /// The reason for the refusal.
        cause: Cause,
    },
    /// Its group was answered; from [`Dispatcher::queue`](super::Dispatcher::queue), it will be by
    /// the next [`Dispatcher::serve`](super::Dispatcher::serve).
    Refused {
        /// The group that the response is for.
        to: ReplyTo,
        /// The response that the group gets.
        response: Response,
        /// The reason for the refusal.
        cause: Cause,
    },
}

/// A group that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It got this response.
    Answered {
        /// The group that the response is for.
        to: ReplyTo,
        /// The response that the group gets.
        response: Response,
    },
    /// It had got another response before its handler was done.
    Overtaken {
        /// The group that the response is for.
        to: ReplyTo,
    },
}

/// Error of registering an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// It is registered already, or its unregistering has not ended.
    #[error("{stream:?} has a handler for {pasid:?} already")]
    Taken {
        /// The stream whose address space it is.
        stream: StreamId,
        /// The PASID of the address space; none for requests without one.
        pasid: Option<Pasid>,
    },
    /// There is no memory for its record; nothing was registered.
    #[error("no memory for a record of {stream:?}")]
    NoMemory {
        /// The stream whose address space it is.
        stream: StreamId,
    },
}

/// There was no memory for the groups that the bounds allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no memory for {groups} groups of {requests} requests")]
pub struct NoMemory {
    /// Groups that there was to be room for.
    pub groups: usize,
    /// Requests of each.
    pub requests: usize,
}

/// As many responses wait to be sent as there is room for: the request was not taken in, and is to
/// come again after the next [`Dispatcher::serve`](super::Dispatcher::serve).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{waiting} responses wait to be sent")]
pub struct QueueFull {
    /// Responses that wait.
    pub waiting: usize,
}

/// Numbers of groups that were answered when a registration ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Groups that got their response.
    pub answered: u64,
    /// Those of them whose response could not be sent.
    pub unsent: u64,
}

impl Ended {
    pub(super) fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.unsent += other.unsent;
    }
}
