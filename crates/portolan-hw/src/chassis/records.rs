//! Records of the queues that a unit writes: faults and page requests.
//!
//! *Context.* Interrupt: a value.

use portolan::iopf::RawPageRequest;

/// Next record of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextRecord<const WORDS: usize> {
    /// The queue is empty.
    Nothing,
    /// A record; words beyond its size are zero.
    Record([u64; WORDS]),
    /// Records were lost after those before.
    Lost,
}

/// Event of a queue of page requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRequestEvent {
    /// A request.
    Request(RawPageRequest),
    /// Requests were lost; the unit answered them.
    Lost,
}
