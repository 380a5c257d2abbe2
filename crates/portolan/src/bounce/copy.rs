//! Buffers that are copied through a pool.
//!
//! A device reaches the copy; the buffer itself never is reachable, so it is its owner's again as
//! soon as the device is done, and only the slots have to wait for quiet.
//!
//! *Context.* Interrupt, all functions: a copy is bounded by the length of its buffer.

use core::fmt;

use super::lockfree::LockFree;
use super::{
    Area, CopyError, GiveError, Need, Pool, PoolOptions, PoolRefused, PoolUse, Slots, TakeError,
};
use crate::addr::{PhysAddr, PhysRange};
use crate::platform::contract::{Buffer as _, HostVisibility, MemoryKind, Sharing, Unowned};
use crate::platform::{Clearing, Cpus, PhysMemory, Platform, RawMemory, Transfer};

/// Treatment of the bytes of the slots that are not the buffer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Padding {
    /// Cleared: the device can reach them.
    Clear,
    /// Left: the device reaches the whole pool anyway.
    Leave,
}

/// Seal of [`BouncePool`]: no other crate implements it.
pub(crate) mod sealed {
    /// A pool of this crate.
    pub trait Sealed {}
}

/// A bounce pool together with the memory that it lends, as devices use it: [`PoolMemory`] with any types, or a
/// [`GrowingPool`](super::GrowingPool).
///
/// Buffers are copied where slots lead, so only this crate implements it. Other ways to find slots are
/// an [`Area`], other memory is a [`PhysMemory`].
///
/// *Context.* Interrupt, all methods.
pub trait BouncePool: sealed::Sealed + Send + Sync {
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

    /// Copies bytes between a buffer and slots of this pool.
    fn copy(&self, transfer: &Transfer);

    /// Zeroes bytes of this pool.
    fn clear(&self, clearing: &Clearing);

    /// Use of the pool's slots.
    fn in_use(&self) -> PoolUse;

    /// The memory that all slots are in, as it was promised to the pool; none if it grows.
    fn memory(&self) -> Option<&Unowned>;

    /// Visibility of its memory to the host of a confidential guest.
    fn visibility(&self) -> HostVisibility;
}

/// A [`Pool`] and the memory that it is in.
///
/// *Context.* Interrupt, all methods; dropping it drops the pool.
pub struct PoolMemory<P: Cpus, M: PhysMemory, A: Area = LockFree<<P as Cpus>::Word>> {
    pool: Pool<P, A>,
    memory: M,
}

impl<P: Platform> PoolMemory<P, RawMemory<P>> {
    /// A pool of memory of `platform`, all of it free.
    ///
    /// *Context.* Task: allocates its records.
    ///
    /// # Errors
    /// See [`PoolRefused`].
    pub fn of(platform: P, memory: Unowned, options: PoolOptions) -> Result<Self, PoolRefused> {
        let raw = RawMemory::for_copies(platform.clone());
        Ok(Self::new(Pool::new(platform, memory, options)?, raw))
    }
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

    /// The pool, without the way to its memory.
    pub fn into_pool(self) -> Pool<P, A> {
        self.pool
    }

    /// Copies the bytes of `buffer` to `slots`, from the first byte of both.
    ///
    /// # Errors
    /// See [`CopyError`]; nothing is copied.
    #[inline]
    pub fn copy_in(&self, buffer: &Unowned, slots: &Slots) -> Result<(), CopyError> {
        let (from, to, bytes) = self.both(buffer, slots)?;
        self.memory.copy(&Transfer::new(from, to, bytes).of(buffer.sharing()));
        Ok(())
    }

    /// Copies the bytes of `slots` to `buffer`, from the first byte of both.
    ///
    /// # Errors
    /// See [`CopyError`]; nothing is copied.
    #[inline]
    pub fn copy_out(&self, slots: &Slots, buffer: &mut Unowned) -> Result<(), CopyError> {
        let (to, from, bytes) = self.both(buffer, slots)?;
        self.memory.copy(&Transfer::new(from, to, bytes).of(buffer.sharing()));
        Ok(())
    }

    /// First address on either side of a copy of all bytes of `slots`, and its length.
    #[inline]
    fn both(
        &self,
        buffer: &Unowned,
        slots: &Slots,
    ) -> Result<(PhysAddr, PhysAddr, u64), CopyError> {
        let (memory, data) = (buffer.memory(), slots.data());
        if !self.pool.lent(slots) {
            return Err(CopyError::Foreign { at: data.start() });
        }
        if buffer.memory_kind() == MemoryKind::Registers {
            return Err(CopyError::Registers { at: memory.start() });
        }
        if memory.len_minus_one() != data.len_minus_one() {
            return Err(CopyError::Length { memory, data });
        }
        Ok((memory.start(), data.start(), data.len_minus_one() + 1))
    }
}

impl<P: Cpus, M: PhysMemory, A: Area> sealed::Sealed for PoolMemory<P, M, A> {}

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
    fn copy(&self, transfer: &Transfer) {
        self.memory.copy(transfer);
    }

    #[inline]
    fn clear(&self, clearing: &Clearing) {
        self.memory.clear(clearing);
    }

    fn in_use(&self) -> PoolUse {
        self.pool.in_use()
    }

    fn memory(&self) -> Option<&Unowned> {
        Some(self.pool.promise())
    }

    fn visibility(&self) -> HostVisibility {
        self.pool.promise().host_visibility()
    }
}

/// Memory of a buffer that is to be copied.
///
/// *Context.* Interrupt: a value.
pub(crate) struct Original {
    pub memory: PhysRange,
    pub sharing: Sharing,
}

/// A piece of a buffer and its copy.
///
/// *Context.* Interrupt, all methods.
#[must_use = "slots that are dropped stay taken"]
pub(crate) struct Copied {
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

impl Copied {
    /// Takes slots for `original` and fills them with its bytes: bytes that a device does not overwrite
    /// are as they would be in place, and nothing that an earlier user left there is seen.
    ///
    /// # Errors
    /// See [`TakeError`].
    #[inline]
    pub fn new(
        pool: &(impl BouncePool + ?Sized),
        original: Original,
        need: &Need,
        padding: Padding,
    ) -> Result<Self, TakeError> {
        let slots = pool.take(need)?;
        let Original { memory, sharing } = original;
        let copied = Self { slots, original: memory };
        if padding == Padding::Clear {
            copied.clear_padding(pool, need);
        }
        let bytes = memory.len_minus_one().saturating_add(1);
        let copy = copied.slots.data().start();
        pool.copy(&Transfer::new(memory.start(), copy, bytes).of(sharing));
        Ok(copied)
    }

    /// Clears the memory that shares a page with the copy: it is in no other buffer, and no other
    /// data may be in it.
    fn clear_padding(&self, pool: &(impl BouncePool + ?Sized), need: &Need) {
        let data = self.slots.data();
        let mask = need.align.bytes() - 1;
        let (start, last) = (data.start().get(), data.last().get());
        let before = start & mask;
        if let Some(range) = PhysRange::from_len(PhysAddr::new(start - before), before) {
            pool.clear(&Clearing::new(range));
        }
        let after = mask - (last & mask);
        if let Some(range) = PhysRange::from_len(PhysAddr::new(last.wrapping_add(1)), after) {
            pool.clear(&Clearing::new(range));
        }
    }

    /// The copy, which the device reaches.
    pub fn copy_range(&self) -> PhysRange {
        self.slots.data()
    }

    /// The slots, to be given back once they are quiet.
    pub fn into_slots(self) -> Slots {
        self.slots
    }
}
