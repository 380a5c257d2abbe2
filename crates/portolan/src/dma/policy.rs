//! Policies for the invalidation of unmapped ranges.
//!
//! *Context.* Interrupt: everything here is a value.

/// Time at which an unmap is invalidated.
///
/// A [`Mapping`](super::Mapping) that is deferred is safe under each of them: its buffer comes back
/// only when it is quiet. The unit, not the space, chooses the submitter: the drivers of
/// `portolan-hw` have one submitter for CPUs that meet under each policy as an option
/// (`combining`), and a [`Combined`](crate::inval::Combined) queue has it in front of any other
/// unit.
///
/// ```
/// use portolan::dma::{Policy, SpaceOptions};
///
/// let mut options = SpaceOptions::default();
/// assert_eq!(options.policy, Policy::Strict);
/// options.policy = Policy::Deferred; // one invalidation for the buffers that are reclaimed together
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Each unmap pays its own debt before it returns.
    #[default]
    Strict,
    /// Unmaps join their CPU's queue; one that has to return the buffer flushes that queue, and
    /// so pays for all that was deferred there before.
    Deferred,
    /// Unmaps join their CPU's queue and return at once: devices may reach unmapped buffers until
    /// the queue is flushed, within its bounds. Addresses are not reused before. For devices that
    /// are trusted: others are refused.
    Lazy,
}

/// Permission of a caller's operation to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayBlock {
    /// For hardware, other CPUs and the heap.
    Yes,
    /// A handler's: for nothing.
    No,
}
