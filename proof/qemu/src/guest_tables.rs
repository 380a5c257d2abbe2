//! Pages of guest RAM for page tables, queues and buffers: a buddy allocator.
//!
//! Blocks have a power of two of bytes from 64 up and are aligned to their size. Free neighbours
//! are joined, so that a run that gives everything back finds its memory whole. One lock, held
//! for a few steps; not meant for benchmarks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::platform::{OutOfTableMemory, TableMem};

use crate::ram::GuestRam;

/// Exponent of the smallest block.
const LG2_MIN: u32 = 6;

#[derive(Debug, Default)]
struct Blocks {
    /// Free blocks by exponent of their size.
    free: BTreeMap<u32, BTreeSet<u64>>,
    live: BTreeMap<u64, PageSize>,
    refused: u64,
}

impl Blocks {
    /// Gives `start..end` to the free blocks, in the largest aligned pieces.
    fn seed(&mut self, start: u64, end: u64) {
        let mut at = start.next_multiple_of(1 << LG2_MIN);
        while at < end {
            let fits = (end - at).ilog2().min(at.trailing_zeros());
            if fits < LG2_MIN {
                return;
            }
            self.free.entry(fits).or_default().insert(at);
            at += 1 << fits;
        }
    }

    fn take(&mut self, size: PageSize) -> Option<u64> {
        let wanted = size.lg2().max(LG2_MIN);
        let found = self.free.range(wanted..).find(|(_, blocks)| !blocks.is_empty());
        let (mut lg2, at) = found.and_then(|(lg2, blocks)| Some((*lg2, *blocks.first()?)))?;
        self.free.get_mut(&lg2)?.remove(&at);
        while lg2 > wanted {
            lg2 -= 1;
            self.free.entry(lg2).or_default().insert(at + (1 << lg2));
        }
        self.live.insert(at, size);
        Some(at)
    }

    fn give(&mut self, at: u64, size: PageSize) {
        if self.live.get(&at) != Some(&size) {
            self.refused += 1;
            return;
        }
        self.live.remove(&at);
        let (mut at, mut lg2) = (at, size.lg2().max(LG2_MIN));
        while let Some(blocks) = self.free.get_mut(&lg2) {
            let buddy = at ^ (1 << lg2);
            if !blocks.remove(&buddy) {
                break;
            }
            at = at.min(buddy);
            lg2 += 1;
        }
        self.free.entry(lg2).or_default().insert(at);
    }
}

/// Pages of guest RAM; clones share them.
///
/// A page is zeroed when it is handed out, and aligned to its size. QEMU's walkers read the same
/// memory, so nothing needs to be cleaned from caches.
#[derive(Clone, Debug)]
pub struct GuestTables {
    ram: GuestRam,
    blocks: Arc<Mutex<Blocks>>,
}

impl GuestTables {
    /// Hands out the part of `range` that is in `ram`.
    pub fn new(ram: GuestRam, range: PhysRange) -> Self {
        let (first, bytes) = (ram.base().get(), ram.bytes());
        let start = range.start().get().max(first);
        let end = range.last().get().saturating_add(1).min(first + bytes);
        let mut blocks = Blocks::default();
        blocks.seed(start, end);
        let blocks = Arc::new(Mutex::new(blocks));
        Self { ram, blocks }
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The RAM that the pages lie in.
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// Number of pages handed out and not yet taken back.
    pub fn live(&self) -> usize {
        self.lock().live.len()
    }

    /// Number of pages given back that were not handed out with that address and size; they were ignored.
    pub fn refused(&self) -> u64 {
        self.lock().refused
    }

    /// A zeroed block of `size`, aligned to it; 64 bytes at least.
    ///
    /// # Errors
    /// [`OutOfTableMemory`] if no free block is that large.
    pub fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let at = self.lock().take(size).ok_or(OutOfTableMemory { size })?;
        let at = PhysAddr::new(at);
        match self.ram.fill(at, size.bytes(), 0) {
            Ok(()) => Ok(at),
            Err(_) => Err(OutOfTableMemory { size }),
        }
    }

    /// Takes back a block of `size`; anything else is counted in [`GuestTables::refused`].
    pub fn free(&self, block: PhysAddr, size: PageSize) {
        self.lock().give(block.get(), size);
    }

    /// Bytes of the live page of `size` at `table`: all of them, or 0 if it is not live.
    fn extent(&self, table: PhysAddr, size: PageSize) -> usize {
        let live = self.lock().live.get(&table.get()) == Some(&size);
        if live { usize::try_from(size.bytes()).unwrap_or(0) } else { 0 }
    }
}

impl TableMem<AtomicU64> for GuestTables {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        Self::alloc(self, size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        Self::free(self, table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        let words = self.extent(table, size) / 8;
        self.ram.words64(table, words).unwrap_or(&[])
    }

    fn clean(&self, _: PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}
}

impl TableMem<AtomicU32> for GuestTables {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        Self::alloc(self, size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        Self::free(self, table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU32] {
        let words = self.extent(table, size) / 4;
        self.ram.words32(table, words).unwrap_or(&[])
    }

    fn clean(&self, _: PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::tests::ram;

    fn tables() -> GuestTables {
        let ram = ram(0x10_0000);
        let start = ram.base().checked_add(0x1000).unwrap();
        let range = PhysRange::new(start, PhysAddr::new(u64::MAX)).unwrap();
        GuestTables::new(ram, range)
    }

    #[test]
    fn blocks_are_aligned_zeroed_and_apart() {
        let tables = tables();
        let a = tables.alloc(PageSize::SIZE_4K).unwrap();
        let b = tables.alloc(PageSize::SIZE_64K).unwrap();
        let c = tables.alloc(PageSize::of_lg2(6)).unwrap();
        assert!(a.get() >= tables.ram().base().get() + 0x1000);
        assert!(a.is_aligned(PageSize::SIZE_4K) && b.is_aligned(PageSize::SIZE_64K));
        let block = |at, size| PhysRange::page(at, size);
        assert!(!block(b, PageSize::SIZE_64K).contains(a));
        assert!(!block(a, PageSize::SIZE_4K).contains(c));
        tables.ram().write64(a, 1).unwrap();
        tables.free(a, PageSize::SIZE_4K);
        assert_eq!(tables.alloc(PageSize::SIZE_4K), Ok(a));
        assert_eq!(tables.ram().read64(a), Ok(0));
        assert_eq!(tables.live(), 3);
    }

    #[test]
    fn all_given_back_is_whole_again() {
        let tables = tables();
        let half = PageSize::of_lg2(19);
        let whole = tables.alloc(half).unwrap();
        tables.free(whole, half);
        let size = PageSize::SIZE_4K;
        let pages: Vec<_> = std::iter::from_fn(|| tables.alloc(size).ok()).collect();
        assert_eq!(pages.len(), 255);
        for page in &pages {
            tables.free(*page, size);
        }
        assert_eq!((tables.live(), tables.alloc(half)), (0, Ok(whole)));
    }

    #[test]
    fn what_was_not_handed_out_is_refused() {
        let tables = tables();
        let size = PageSize::SIZE_4K;
        let a = tables.alloc(size).unwrap();
        tables.free(a, PageSize::SIZE_64K);
        tables.free(PhysAddr::new(0), size);
        tables.free(a, size);
        tables.free(a, size);
        assert_eq!((tables.refused(), tables.live()), (3, 0));
        let words: &[AtomicU64] = tables.table(a, size);
        assert!(words.is_empty());
        assert!(tables.alloc(PageSize::of_lg2(63)).is_err());
    }
}
