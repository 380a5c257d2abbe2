//! Bounce-buffer pools: memory that a device can reach, lent out by the slot.
//!
//! [`Pool`] finds and returns slots, without locks, first in the part that the calling CPU uses.
//! [`PoolMemory`] is such a pool with the way to its memory: a [`Device`](crate::dma::Device)
//! copies there. Its memory is [`Unowned`](crate::dma::Unowned), by the promise of the code that
//! made it: safe code can make a pool of no other, and have nothing copied by its address. A
//! [`GrowingPool`] takes its memory from the platform, as devices need it.
//!
//! *Context.* Slots are taken, given back and copied in interrupts as well: nothing waits, and no
//! heap is used. Pools are made and dropped by tasks.

mod area;
mod bits;
mod copy;
mod error;
mod growing;
mod lockfree;
mod pool;

pub use crate::platform::contract::HostVisibility;
pub use area::{Area, Want};
#[cfg(test)]
pub(crate) use copy::sealed::Sealed;
pub use copy::{BouncePool, PoolMemory};
pub(crate) use copy::{Copied, Original, Padding};
pub use error::{CopyError, GiveError, PoolError, PoolRefused, TakeError};
pub use growing::{GrowError, GrowingPool, Growth, Throttle};
pub use lockfree::LockFree;
pub use pool::{Need, Pool, PoolOptions, PoolUse, Slots};

#[cfg(test)]
mod tests;
