//! Bytes of a buffer, cut into slots that each have one owner.

use alloc::sync::Arc;
use core::ptr::NonNull;

use crate::platform::free_list::FreeList;

/// Keeper of a buffer that is exclusive and may be written.
pub(crate) trait KeepsBuffer: Send + Sync {
    /// The CPU's view of the buffer, if it has one. The keeper lends it to no other code, and keeps the
    /// buffer where it is, as long as it lives.
    fn view(&self) -> Option<NonNull<[u8]>>;
}

/// A keeper, with the bytes of its buffer as slots of one length.
pub(crate) struct Slotted<K> {
    keeper: K,
    first: NonNull<u8>,
    /// Length of a slot.
    bytes: usize,
    free: FreeList,
}

// SAFETY: each byte is reached through the one `OwnedSlot` of its slot alone, by way of which it may
// go to any CPU, since a buffer may. The rest is the keeper, and atomics.
unsafe impl<K: Send> Send for Slotted<K> {}
// SAFETY: as above.
unsafe impl<K: Sync> Sync for Slotted<K> {}

impl<K: KeepsBuffer> Slotted<K> {
    /// A slot of `bytes` bytes for each number that is `free`; none at all if the buffer is shorter than
    /// that, or has no view.
    pub(crate) fn new(keeper: K, bytes: usize, free: FreeList) -> Arc<Self> {
        let first = NonNull::dangling();
        let mut made = Arc::new(Self { keeper, first, bytes, free });
        // The buffer stays where it is from here on: a move may end the validity of an earlier view.
        if let Some(made) = Arc::get_mut(&mut made) {
            made.see();
        }
        made
    }

    /// Looks where the buffer is.
    fn see(&mut self) {
        let wanted = self.bytes.checked_mul(self.free.len());
        match self.keeper.view() {
            Some(view) if wanted.is_some_and(|wanted| wanted <= view.len()) => {
                self.first = view.cast();
            }
            _ => self.free = FreeList::empty(),
        }
    }
}

impl<K> Slotted<K> {
    /// A slot that is free, if there is one.
    #[inline]
    pub(crate) fn take(self: &Arc<Self>) -> Option<OwnedSlot<K>> {
        let number = self.free.take()?;
        Some(OwnedSlot { slots: self.clone(), number })
    }

    /// The keeper.
    #[inline]
    pub(crate) const fn keeper(&self) -> &K {
        &self.keeper
    }

    /// Length of a slot in bytes.
    #[inline]
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The keeper; no slot has an owner any more.
    pub(crate) fn into_keeper(self) -> K {
        self.keeper
    }
}

/// A slot that has an owner. Dropping it leaves the slot without one for good.
pub(crate) struct OwnedSlot<K> {
    slots: Arc<Slotted<K>>,
    number: u32,
}

impl<K> OwnedSlot<K> {
    /// Makes it free. Returns its slots if no other code has them any more.
    #[inline]
    pub(crate) fn give(self) -> Option<Slotted<K>> {
        self.slots.free.give(self.number());
        Arc::into_inner(self.slots)
    }

    /// Leaves it without an owner. Returns its slots if no other code has them any more.
    pub(crate) fn lose(self) -> Option<Slotted<K>> {
        Arc::into_inner(self.slots)
    }

    /// Its slots.
    #[inline]
    pub(crate) fn slots(&self) -> &Slotted<K> {
        &self.slots
    }

    /// Its number.
    #[inline]
    pub(crate) const fn number(&self) -> usize {
        self.number as usize
    }

    fn first(&self) -> NonNull<u8> {
        // SAFETY: the number is one of the list's, all slots of which are inside the view.
        unsafe { self.slots.first.add(self.number() * self.slots.bytes) }
    }

    /// Its bytes.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the slot is inside a view that is valid as long as the keeper, is initialised, and has
        // this owner alone.
        unsafe { core::slice::from_raw_parts(self.first().as_ptr(), self.slots.bytes) }
    }

    /// Its bytes, to write.
    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above; the buffer may be written.
        unsafe { core::slice::from_raw_parts_mut(self.first().as_ptr(), self.slots.bytes) }
    }
}
