//! Copies between pieces of memory, for bounce pools.
//!
//! *Context.* Interrupt, all methods.

use crate::addr::{PhysAddr, PhysRange};

/// Memory that the CPU reaches by physical address.
///
/// *Implementer's duties.* Calls touch the bytes named and no others. Memory that the library was
/// given (buffers, pools) can be reached; for any other a call does nothing.
pub trait PhysMemory: Send + Sync {
    /// Copies `bytes` bytes; the two places do not overlap.
    fn copy(&self, from: PhysAddr, to: PhysAddr, bytes: u64);

    /// Writes zeros.
    fn clear(&self, memory: PhysRange);
}

impl<M: PhysMemory + ?Sized> PhysMemory for alloc::sync::Arc<M> {
    #[inline]
    fn copy(&self, from: PhysAddr, to: PhysAddr, bytes: u64) {
        (**self).copy(from, to, bytes);
    }

    #[inline]
    fn clear(&self, memory: PhysRange) {
        (**self).clear(memory);
    }
}
