//! When what was unmapped is invalidated.
//!
//! *Context.* Interrupt: everything here is a value.

/// What an unmap that does not wait for its buffer's owner to come back does.
///
/// A [`Mapping`](super::Mapping) that is deferred is safe under each of them: its buffer comes back
/// only when it is quiet. To have one submitter for all CPUs under [`Policy::Strict`], put the
/// unit's queue behind one that combines what they submit.
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
    /// Unmaps join their CPU's queue and return at once: devices may reach what was unmapped until
    /// the queue is flushed, within its bounds. Addresses are not reused before. For devices that
    /// are trusted: others are refused.
    Lazy,
}
