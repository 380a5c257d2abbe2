//! Slots taken and given back from a pool that is partly in use, with or without the copy.

use std::hint::black_box;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::bounce::{BouncePool as _, Need, PoolMemory, PoolOptions, Slots};
use portolan::dma::Unowned;
use portolan_linux::memory::{Backing, Base, HostMemory};
use portolan_sim::swiotlb::{self, AnyArea, Strategy};

use super::pass::{Threads, Turn, cpus};
use crate::Failure;
use crate::raw::unowned;

/// Bytes of the pools that are measured.
pub(super) const POOL: u64 = 64 << 20;

/// A pool in memory of this process, with buffers in use.
pub(super) struct Stage {
    pool: PoolMemory<Threads, HostMemory, AnyArea<Threads>>,
    held: Vec<Slots>,
    /// Behind the pool, one for each thread.
    buffers: PhysAddr,
    bytes: u64,
}

/// A block of a disk: the copy keeps the position in its page.
fn need(bytes: u64) -> Need {
    Need { keep: PageSize::SIZE_4K, ..Need::bytes(bytes) }
}

/// Needs of a slot by itself: no page is shared, so none has to be kept.
fn need_of(bytes: u64) -> Need {
    if bytes < PageSize::SIZE_4K.bytes() { Need::bytes(bytes) } else { need(bytes) }
}

impl Stage {
    /// A pool of `size` bytes for `threads`, of whose buffers of `bytes` so many in a hundred are in use, here and
    /// there.
    pub(super) fn new(
        strategy: Strategy,
        size: u64,
        threads: usize,
        bytes: u64,
        percent: usize,
    ) -> Result<Self, Failure> {
        let behind = (threads as u64 * bytes).next_multiple_of(1 << 20);
        let base = Base::At(PhysAddr::new(1 << 32));
        let memory = HostMemory::new(size + behind, Backing::Anonymous, base)
            .map_err(|_| Failure::HostMemory)?;
        memory.populate();
        let start = memory.range().start();
        let range = PhysRange::from_len(start, size).ok_or(Failure::Addresses)?;
        let buffers = start.checked_add(size).ok_or(Failure::Addresses)?;
        let options = PoolOptions::of_areas(threads as u32);
        let pool = swiotlb::pool(cpus(threads), unowned(range), options, strategy)
            .map_err(|_| Failure::Addresses)?;
        let take = || pool.take(&need_of(bytes)).ok();
        let mut held: Vec<Slots> = std::iter::from_fn(take).collect();
        let mut random = fastrand::Rng::with_seed(7);
        let most = held.len() * percent / 100;
        while held.len() > most {
            let slots = held.swap_remove(random.usize(..held.len()));
            pool.give(slots).map_err(|_| Failure::Addresses)?;
        }
        let pool = PoolMemory::new(pool, memory);
        Ok(Self { pool, held, buffers, bytes })
    }

    /// The work of each thread without the copy.
    pub(super) fn bare(&self, threads: usize) -> Vec<SlotTurn<'_>> {
        (0..threads).map(|_| SlotTurn(black_box(self))).collect()
    }

    /// The work of each thread with the copy.
    pub(super) fn copying(&self, threads: usize) -> Result<Vec<CopyTurn<'_>>, Failure> {
        let one = |thread: usize| {
            let start = self.buffers.checked_add(thread as u64 * self.bytes)?;
            let buffer = PhysRange::from_len(start, self.bytes)?;
            Some(CopyTurn { stage: self, buffer: unowned(buffer) })
        };
        let all: Option<Vec<_>> = (0..threads).map(one).collect();
        all.ok_or(Failure::Addresses)
    }

    /// Buffers in use.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for slots in self.held.drain(..) {
            let given = self.pool.give(slots);
            debug_assert!(given.is_ok());
        }
    }
}

/// Takes slots and gives them back.
pub(super) struct SlotTurn<'s>(&'s Stage);

impl Turn for SlotTurn<'_> {
    fn turn(&mut self, times: u64) -> Result<(), Failure> {
        let pool = self.0.pool.pool();
        for _ in 0..times {
            let need = need_of(black_box(self.0.bytes));
            let slots = pool.take(&need).map_err(|_| Failure::Addresses)?;
            let slots = black_box(slots);
            pool.give(slots).map_err(|_| Failure::NotPrepared)?;
        }
        Ok(())
    }
}

/// Takes slots, copies a buffer to where a device would read it, and gives them back.
pub(super) struct CopyTurn<'s> {
    stage: &'s Stage,
    buffer: Unowned,
}

impl Turn for CopyTurn<'_> {
    fn turn(&mut self, times: u64) -> Result<(), Failure> {
        let pool = &self.stage.pool;
        for _ in 0..times {
            let need = need_of(black_box(self.stage.bytes));
            let slots = pool.take(&need).map_err(|_| Failure::Addresses)?;
            let copied = pool.copy_in(&self.buffer, &slots);
            copied.map_err(|_| Failure::NotPrepared)?;
            let given = pool.give(black_box(slots));
            given.map_err(|_| Failure::NotPrepared)?;
        }
        Ok(())
    }
}

/// No pool: copies the same bytes repeatedly. Source and target are page-aligned, because unaligned ones can make a
/// copy ten times slower, and the comparison has to be fair.
pub(crate) struct Memcpy {
    from: Vec<u8>,
    to: Vec<u8>,
    bytes: usize,
}

impl Memcpy {
    pub(crate) fn new(bytes: u64) -> Self {
        let bytes = bytes as usize;
        let page = PageSize::SIZE_4K.bytes() as usize;
        Self { from: vec![1; bytes + page], to: vec![2; bytes + page], bytes }
    }
}

/// The bytes from the first page boundary on.
fn aligned(all: &[u8], bytes: usize) -> std::ops::Range<usize> {
    let page = PageSize::SIZE_4K.bytes() as usize;
    let start = all.as_ptr().addr().wrapping_neg() & (page - 1);
    start..start + bytes
}

impl Turn for Memcpy {
    fn turn(&mut self, times: u64) -> Result<(), Failure> {
        let from = &self.from[aligned(&self.from, self.bytes)];
        let place = aligned(&self.to, self.bytes);
        let to = &mut self.to[place];
        for _ in 0..times {
            to.copy_from_slice(black_box(from));
            black_box(&mut *to);
        }
        Ok(())
    }
}

/// No allocator: a stack of slot numbers.
pub(super) struct Stack(Vec<u32>);

impl Stack {
    pub(super) fn new() -> Self {
        Self((0..1024).collect())
    }
}

impl Turn for Stack {
    fn turn(&mut self, times: u64) -> Result<(), Failure> {
        for _ in 0..times {
            let slot = black_box(self.0.pop().ok_or(Failure::NotPrepared)?);
            self.0.push(slot);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::pass::pass;
    use super::*;

    #[test]
    fn pools_are_filled_as_asked_and_give_what_is_asked_for() {
        for strategy in Strategy::ALL {
            for (bytes, all) in [(2048, 2048), (4096, 1024), (65536, 64)] {
                let stage = Stage::new(strategy, 4 << 20, 2, bytes, 90).unwrap();
                assert_eq!(stage.held(), all * 90 / 100, "{strategy:?} {bytes}");
                let used = stage.pool.in_use().used;
                assert!(pass(&mut stage.bare(2), 50).unwrap() > 0.0);
                assert!(pass(&mut stage.copying(2).unwrap(), 5).unwrap() > 0.0);
                assert_eq!(stage.pool.in_use().used, used, "all were given back");
            }
        }
        assert!(pass(&mut [Memcpy::new(4096)], 5).unwrap() > 0.0);
        assert!(pass(&mut [Stack::new(), Stack::new()], 5).unwrap() > 0.0);
    }
}
