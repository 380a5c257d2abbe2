//! Events of a queue of page requests.
//!
//! *Context.* Interrupt: a value.

use portolan::iopf::RawPageRequest;

/// Event of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRequestEvent {
    /// A request.
    Request(RawPageRequest),
    /// Requests were lost; the unit answered them.
    Lost,
}
