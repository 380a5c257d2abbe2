//! Buffers that are copied through a pool.
//!
//! What a device reaches is the copy; the buffer itself never is reachable, so it is its owner's
//! again as soon as the device is done, and only the slots have to wait for quiet.
//!
//! *Context.* Interrupt, all functions: a copy is bounded by the length of its buffer.

use core::fmt;

use super::lockfree::LockFree;
use super::{Area, GiveError, Need, Pool, PoolUse, Slots, TakeError};
use crate::addr::{PhysAddr, PhysRange};
use crate::platform::{Cpus, PhysMemory};

/// What becomes of the bytes of the slots that are not the buffer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Cleared: the device can reach them.
    Clear,
    /// Left: the device reaches the whole pool anyway.
    Leave,
}

/// A bounce pool together with the memory that it lends, as devices use it.
///
/// *Context.* Interrupt, all methods.
pub trait BouncePool: Send + Sync {
    /// Takes slots.
    ///
    /// # Errors
    /// See [`TakeError`].
    fn take(&self, need: &Need) -> Result<Slots, TakeError>;

    /// Gives slots back that no device can reach any more.
    ///
    /// # Errors
    /// See [`GiveError`].
    fn give(&self, slots: Slots) -> Result<(), GiveError>;

    /// Copies bytes.
    fn copy(&self, from: PhysAddr, to: PhysAddr, bytes: u64);

    /// Clears bytes.
    fn clear(&self, memory: PhysRange);

    /// How full the pool is.
    fn in_use(&self) -> PoolUse;
}

/// A [`Pool`] and the memory that it is in.
///
/// *Context.* Interrupt, all methods; dropping it is what dropping the pool is.
pub struct PoolMemory<P: Cpus, M: PhysMemory, A: Area = LockFree<<P as Cpus>::Word>> {
    pool: Pool<P, A>,
    memory: M,
}

impl<P: Cpus, M: PhysMemory, A: Area> PoolMemory<P, M, A> {
    /// `memory` reaches the memory of `pool` and that of buffers.
    pub const fn new(pool: Pool<P, A>, memory: M) -> Self {
        Self { pool, memory }
    }

    /// The pool.
    pub const fn pool(&self) -> &Pool<P, A> {
        &self.pool
    }
}

impl<P: Cpus, M: PhysMemory, A: Area> BouncePool for PoolMemory<P, M, A> {
    #[inline]
    fn take(&self, need: &Need) -> Result<Slots, TakeError> {
        self.pool.take(need)
    }

    #[inline]
    fn give(&self, slots: Slots) -> Result<(), GiveError> {
        self.pool.give(slots)
    }

    #[inline]
    fn copy(&self, from: PhysAddr, to: PhysAddr, bytes: u64) {
        self.memory.copy(from, to, bytes);
    }

    #[inline]
    fn clear(&self, memory: PhysRange) {
        self.memory.clear(memory);
    }

    fn in_use(&self) -> PoolUse {
        self.pool.in_use()
    }
}

/// A piece of a buffer and its copy.
///
/// *Context.* Interrupt, all methods.
#[must_use = "slots that are dropped stay taken"]
pub struct Copied {
    slots: Slots,
    original: PhysRange,
}

impl fmt::Debug for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copied")
            .field("original", &self.original)
            .field("copy", &self.slots.data())
            .finish()
    }
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From the buffer to where the device reads.
    In,
    /// From where the device wrote to the buffer.
    Out,
}

impl Copied {
    /// Takes slots for `original` and fills them with its bytes: what a device does not overwrite is as
    /// it would be in place, and nothing that an earlier user left there is seen.
    ///
    /// # Errors
    /// See [`TakeError`].
    pub fn new(
        pool: &(impl BouncePool + ?Sized),
        original: PhysRange,
        need: &Need,
        padding: Padding,
    ) -> Result<Self, TakeError> {
        let slots = pool.take(need)?;
        let copied = Self { slots, original };
        if padding == Padding::Clear {
            copied.clear_padding(pool, need);
        }
        copied.copy(pool, Way::In, original);
        Ok(copied)
    }

    /// What shares a page with the copy is nobody else's, and nobody's bytes may be in it.
    fn clear_padding(&self, pool: &(impl BouncePool + ?Sized), need: &Need) {
        let data = self.slots.data();
        let mask = need.align.bytes() - 1;
        let (start, last) = (data.start().get(), data.last().get());
        let before = start & mask;
        if let Some(range) = PhysRange::from_len(PhysAddr::new(start - before), before) {
            pool.clear(range);
        }
        let after = mask - (last & mask);
        if let Some(range) = PhysRange::from_len(PhysAddr::new(last.wrapping_add(1)), after) {
            pool.clear(range);
        }
    }

    /// The copy, which the device reaches.
    pub fn copy_range(&self) -> PhysRange {
        self.slots.data()
    }

    /// The piece of the buffer.
    pub fn original(&self) -> PhysRange {
        self.original
    }

    /// Copies the part of `part` that is this piece's, and nothing beside it.
    pub fn copy(&self, pool: &(impl BouncePool + ?Sized), way: Way, part: PhysRange) {
        let Some(part) = part.intersection(self.original) else {
            return;
        };
        let above = part.start().get() - self.original.start().get();
        let at = PhysAddr::new(self.slots.data().start().get() + above);
        let bytes = part.len_minus_one() + 1;
        match way {
            Way::In => pool.copy(part.start(), at, bytes),
            Way::Out => pool.copy(at, part.start(), bytes),
        }
    }

    /// The slots, to be given back once they are quiet.
    pub fn into_slots(self) -> Slots {
        self.slots
    }
}
