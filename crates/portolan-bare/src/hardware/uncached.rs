//! Memory that CPUs do not cache, for rings of devices that do not snoop.
//!
//! The kernel maps it: Intel SDM volume 3, 12.12 (PAT: UC); Arm architecture reference manual, D8.6 (MAIR: Normal,
//! Inner and Outer Non-cacheable); RISC-V Instruction Set Manual, volume II (Svpbmt: NC).

use alloc::vec::Vec;
use core::alloc::Layout;
use core::ptr::NonNull;

use portolan::addr::{PhysAddr, PhysRange};
use portolan::platform::{AliasedMemory, Lock};

use super::{CpuLock, HeapError, Machine};
use crate::arena::Arena;

/// A region of RAM that CPUs do not cache, lent out in blocks.
pub(super) struct Uncached {
    memory: PhysRange,
    /// Address at which CPUs see its first byte.
    first: NonNull<u8>,
    arena: CpuLock<Arena<'static>>,
}

// SAFETY: the pointer is one of the arena's memory, which is lent out under its lock.
unsafe impl Send for Uncached {}
// SAFETY: as above.
unsafe impl Sync for Uncached {}

impl Uncached {
    fn new(memory: PhysRange, first: NonNull<u8>) -> Option<Self> {
        let (words, mut records) = (Arena::records(memory), Vec::new());
        records.try_reserve_exact(words).ok()?;
        records.resize(words, 0);
        let arena = Arena::new(memory, records.leak())?;
        Some(Self { memory, first, arena: Lock::new(arena) })
    }

    pub(super) fn memory(&self) -> PhysRange {
        self.memory
    }

    /// A block, zeroed in memory.
    pub(super) fn take_zeroed(&self, layout: Layout) -> Option<AliasedMemory> {
        let at = self.arena.lock().alloc(layout)?;
        let offset = at.get().checked_sub(self.memory.start().get())?;
        // SAFETY: the block is in the region, all of which is mapped from `first` on; it is the caller's alone.
        let virt = unsafe {
            let virt = self.first.add(usize::try_from(offset).ok()?);
            virt.as_ptr().write_bytes(0, layout.size());
            virt
        };
        super::cpu::barrier();
        Some(AliasedMemory { at, virt })
    }

    pub(super) fn give(&self, at: PhysAddr, layout: Layout) {
        self.arena.lock().free(at, layout);
    }
}

impl Machine {
    /// Gives the machine memory that CPUs do not cache, of which [`alloc_uncached`] lends blocks out. Without it, rings
    /// of devices that do not snoop are refused ([`MapError::NoUncached`]).
    ///
    /// `first` is the address at which CPUs see its first byte, and the others behind it. Lines of it that are in
    /// caches are written back and dropped here.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`HeapError`]; the machine is as it was.
    ///
    /// # Safety
    /// For good, from now on:
    /// * `memory` is RAM that belongs to the machine alone.
    /// * It is mapped from `first` on, on all CPUs, for reading and writing, and no CPU caches it by that mapping: it
    ///   is UC on x86-64, Normal Non-cacheable on AArch64, NC of Svpbmt on RISC-V.
    /// * No code reaches it by a mapping of another type.
    ///
    /// [`alloc_uncached`]: portolan::platform::Platform::alloc_uncached
    /// [`MapError::NoUncached`]: portolan::dma::MapError::NoUncached
    pub unsafe fn add_uncached(
        &self,
        memory: PhysRange,
        first: NonNull<u8>,
    ) -> Result<(), HeapError> {
        if let Some(heap) = self.heap().memory().filter(|heap| heap.overlaps(memory)) {
            return Err(HeapError::Overlaps { memory, heap });
        }
        let uncached = &self.heap().uncached;
        if uncached.is_completed() {
            return Err(HeapError::Twice);
        }
        let made = Uncached::new(memory, first).ok_or(HeapError::TooSmall(memory))?;
        self.drop_lines(memory, first);
        uncached.call_once(|| made);
        Ok(())
    }
}
