//! Bounce-buffer pools: memory that a device can reach, lent out by the slot.
//!
//! [`Pool`] finds and returns slots; [`Strategy`] chooses how, from Linux's first design to one
//! without locks, so that each step can be measured in the same code. [`GrowingPool`] adds and
//! gives back memory in the background. [`Copied`] is a piece of a buffer and its copy.
//!
//! *Context.* Slots are taken, given back and copied in interrupts as well: nothing waits, and no
//! heap is used. Pools are made, grown and dropped by tasks.

mod bits;
mod copy;
mod error;
mod growing;
mod locked;
mod lockfree;
mod pool;

pub use copy::{BouncePool, Copied, Fill, Padding, PoolMemory, SlotSource, Way};
pub use error::{GiveError, PoolError, TakeError};
pub use growing::{GrowingPool, Growth, Maintained, PoolSource};
pub use pool::{Need, Pool, PoolOptions, PoolUse, Slots, Strategy};

#[cfg(test)]
mod tests;
