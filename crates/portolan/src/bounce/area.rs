//! Search for free slots in a part of a pool.

use super::GiveError;
pub use super::bits::Want;

/// The slots of one part of a pool, numbered from 0, each free or taken.
///
/// *Implementer's duties.* A run that [`Area::take`] returned has slots that were free, and none of
/// them is returned again before [`Area::give`]. Several CPUs call at the same time, interrupt
/// handlers among them: nothing waits but for a platform's lock, and no heap is used. One that is wrong
/// mixes up bytes of the pool, and reaches nothing else.
///
/// *Context.* Interrupt, all methods.
pub trait Area: Send + Sync {
    /// Takes the run that `want` describes and returns its first slot; `None` if no run is free.
    fn take(&self, want: Want) -> Option<u32>;

    /// Frees the `count` slots from `first`, which one call of [`Area::take`] returned.
    ///
    /// # Errors
    /// [`GiveError::AlreadyFree`] if one of the slots is free.
    fn give(&self, first: u32, count: u32) -> Result<(), GiveError>;

    /// Tells if all of the `count` slots from `first` are taken.
    fn is_taken(&self, first: u32, count: u32) -> bool;

    /// The length of the longest free run, and the number of free slots.
    fn survey(&self) -> (u32, u32);
}
