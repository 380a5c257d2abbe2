//! Copies between pieces of memory, for bounce pools.
//!
//! *Context.* Interrupt, all methods.

use super::contract::Sharing;
use crate::addr::{PhysAddr, PhysRange};

/// Bytes to be copied from one place to another, which do not overlap.
///
/// The library alone makes one, of buffers and pools that live as long as it does. So an implementation of
/// [`PhysMemory`] needs no check, and safe code cannot have memory copied by its address.
#[derive(Debug, PartialEq, Eq)]
pub struct Transfer {
    from: PhysAddr,
    to: PhysAddr,
    bytes: u64,
    sharing: Sharing,
}

impl Transfer {
    #[inline]
    pub(crate) const fn new(from: PhysAddr, to: PhysAddr, bytes: u64) -> Self {
        let sharing = Sharing::Exclusive;
        Self { from, to, bytes, sharing }
    }

    /// The same for a buffer whose memory is reached so.
    #[inline]
    pub(crate) const fn of(self, sharing: Sharing) -> Self {
        Self { sharing, ..self }
    }

    /// The first byte that is read.
    #[inline]
    pub const fn from(&self) -> PhysAddr {
        self.from
    }

    /// The first byte that is written.
    #[inline]
    pub const fn to(&self) -> PhysAddr {
        self.to
    }

    /// Number of bytes.
    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sharing of the buffer: if others than devices may reach it meanwhile, each byte is copied by
    /// a relaxed atomic.
    #[inline]
    pub const fn sharing(&self) -> Sharing {
        self.sharing
    }
}

/// Bytes to be zeroed, in a pool that lives. The library alone makes one, as a [`Transfer`].
#[derive(Debug, PartialEq, Eq)]
pub struct Clearing(PhysRange);

impl Clearing {
    pub(crate) const fn new(memory: PhysRange) -> Self {
        Self(memory)
    }

    /// The bytes.
    #[inline]
    pub const fn memory(&self) -> PhysRange {
        self.0
    }
}

/// Memory that the CPU reaches by physical address.
///
/// *Implementer's duties.* Calls touch the bytes named and no others.
pub trait PhysMemory: Send + Sync {
    /// Copies bytes.
    fn copy(&self, transfer: &Transfer);

    /// Writes zeros.
    fn clear(&self, clearing: &Clearing);
}

impl<M: PhysMemory + ?Sized> PhysMemory for alloc::sync::Arc<M> {
    #[inline]
    fn copy(&self, transfer: &Transfer) {
        (**self).copy(transfer);
    }

    #[inline]
    fn clear(&self, clearing: &Clearing) {
        (**self).clear(clearing);
    }
}
