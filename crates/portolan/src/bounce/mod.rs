//! Bounce-buffer pools: memory that a device can reach, lent out by the slot.
//!
//! [`Pool`] finds and returns slots, without locks, first in the part that the calling CPU uses.
//! [`Copied`] is a piece of a buffer and its copy.
//!
//! *Context.* Slots are taken, given back and copied in interrupts as well: nothing waits, and no
//! heap is used. Pools are made and dropped by tasks.

mod area;
mod bits;
mod copy;
mod error;
mod lockfree;
mod pool;

pub use crate::platform::contract::HostVisibility;
pub use area::{Area, Want};
pub use copy::{BouncePool, Copied, Padding, PoolMemory, Way};
pub use error::{GiveError, PoolError, TakeError};
pub use lockfree::LockFree;
pub use pool::{Need, Pool, PoolOptions, PoolUse, Slots};

#[cfg(test)]
mod tests;
