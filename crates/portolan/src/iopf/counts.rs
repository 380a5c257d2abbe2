//! Causes of answers without a handler, and counts of all events.

macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident,)*) => {
        /// Cause of an answer to a group without a handler, or in spite of one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Cause {$($(#[$doc])* $cause,)*}

        impl Cause {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$cause),*];
        }
    };
}

causes! {
    /// Nothing is registered for the device.
    UnknownDevice,
    /// Nothing is registered for the device's address space.
    UnknownPasid,
    /// The address is outside of the registered range.
    Outside,
    /// A request makes no sense by itself.
    Impossible,
    /// Requests of one group name different address spaces.
    Mixed,
    /// The group has too many requests.
    Large,
    /// The last request of the group did not come in time.
    Late,
    /// Too many groups are not answered yet, or there is no memory for another.
    Full,
    /// The device sends more than it may.
    Flooded,
    /// The address space was unregistered, or the device removed.
    Detached,
    /// The handler never came back.
    HandlerLost,
}

const CAUSES: usize = Cause::ALL.len();

/// Counts of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Requests that came, of every kind.
    pub requests: u64,
    /// Markers that a device has stopped using an address space.
    pub stop_markers: u64,
    /// Requests of a group that has all its requests and is not answered yet; they are dropped.
    pub duplicates: u64,
    /// Requests before the last of a device that is not registered; they are dropped.
    pub ignored: u64,
    /// Groups that were given to a handler.
    pub handled: u64,
    /// Responses of handlers that came after the group had got another one; they are dropped.
    pub overtaken: u64,
    /// Number of times that the unit lost requests.
    pub overflows: u64,
    /// Incomplete groups forgotten because the unit lost requests, and answers those itself.
    pub discarded: u64,
    /// Responses that the responder did not send, or does not know to have sent.
    pub unsent: u64,
    refused: [u64; CAUSES],
}

impl FaultCounts {
    /// Groups answered because of `cause`, and not as a handler said.
    pub fn refused(&self, cause: Cause) -> u64 {
        self.refused.get(cause as usize).copied().unwrap_or(0)
    }

    pub(super) fn count_refusal(&mut self, cause: Cause) {
        if let Some(count) = self.refused.get_mut(cause as usize) {
            *count += 1;
        }
    }
}
