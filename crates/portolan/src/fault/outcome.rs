//! What became of requests, groups and registrations.

use super::counts::Cause;
use super::{ReplyTo, Response};
use crate::addr::{Pasid, StreamId};
use thiserror::Error;

/// What became of a request.
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
    /// It is of a device that nobody knows and not the last of its group; it is dropped.
    Ignored,
    /// Its group is refused, and is told so with its last request, or in time.
    RefusedPart {
        /// Why.
        cause: Cause,
    },
    /// Its group was answered.
    Refused {
        /// Whom.
        to: ReplyTo,
        /// With what.
        response: Response,
        /// Why.
        cause: Cause,
    },
}

/// A group that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It got this response.
    Answered {
        /// Whom.
        to: ReplyTo,
        /// With what.
        response: Response,
    },
    /// It had got another response before its handler was done.
    Overtaken {
        /// Whom.
        to: ReplyTo,
    },
}

/// Why an address space was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// Somebody has registered it, or its unregistering has not ended.
    #[error("{stream:?} has a handler for {pasid:?} already")]
    Taken {
        /// Whose.
        stream: StreamId,
        /// Which.
        pasid: Option<Pasid>,
    },
}

/// What was answered when something ended.
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
