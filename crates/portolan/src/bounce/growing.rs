//! A pool that grows and shrinks in the background.
//!
//! The first pool is there for good and is all that is looked at while it suffices. When it does
//! not, further pools are tried, one after the other under a lock; when those do not either, the
//! request fails and leaves word of what it needed. [`GrowingPool::maintain`], called by a worker
//! of the embedder's, then takes more memory, and gives back what has been empty for a while.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use super::error::{GiveError, TakeError};
use super::pool::{Need, Pool, PoolOptions, PoolUse, Slots};
use crate::addr::PhysRange;
use crate::platform::{Cpus, Lock, SharedWord};

/// Where further memory comes from.
///
/// *Implementer's duties.* Memory is contiguous, aligned to its length rounded up to a power of
/// two, and stays until it is given back.
pub trait PoolSource: Send + Sync {
    /// Memory of at least `bytes` bytes.
    ///
    /// *Context.* Task; no lock is held.
    fn grow(&self, bytes: u64) -> Option<PhysRange>;

    /// Takes memory back.
    ///
    /// *Context.* Task; no lock is held.
    fn shrink(&self, memory: PhysRange);
}

/// How a pool grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The least that is added at once, in bytes.
    pub step: u64,
    /// The most that further pools may hold together.
    pub most: u64,
    /// Calls of [`GrowingPool::maintain`] that find a further pool empty before it is given back.
    pub timeout: u32,
}

impl Default for Growth {
    /// 1 MiB at a time, up to 1 GiB; given back after ten calls.
    fn default() -> Self {
        Self {
            step: 1 << 20,
            most: 1 << 30,
            timeout: 10,
        }
    }
}

/// What one call of [`GrowingPool::maintain`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Maintained {
    /// Bytes added.
    pub grown: u64,
    /// Bytes given back.
    pub shrunk: u64,
    /// Bytes that are still wanted: there was no memory, or no more is allowed.
    pub wanted: u64,
}

struct Further<P: Cpus> {
    pool: Pool<P>,
    empty_for: u32,
}

/// A pool, and further ones as they are needed.
///
/// *Locking.* One lock for the list of further pools. Locks of their areas are taken under it, and
/// nothing under those. Memory is taken and given back while none is held.
///
/// *Context.* Interrupt: [`take`](Self::take), [`give`](Self::give), [`in_use`](Self::in_use).
/// Task: [`new`](Self::new), [`maintain`](Self::maintain), and dropping it.
pub struct GrowingPool<P: Cpus + Clone, S: PoolSource> {
    cpus: P,
    first: Pool<P>,
    further: P::Lock<Vec<Further<P>>>,
    /// Bytes of the largest request that failed since the last maintenance.
    wanted: P::Word,
    source: S,
    growth: Growth,
    options: PoolOptions,
}

impl<P: Cpus + Clone, S: PoolSource> GrowingPool<P, S> {
    /// Grows from `first`; further pools are divided as `options` says, in one area each.
    ///
    /// *Context.* Task.
    pub fn new(cpus: P, first: Pool<P>, source: S, growth: Growth, options: PoolOptions) -> Self {
        Self {
            cpus,
            first,
            further: Lock::new(Vec::new()),
            wanted: SharedWord::new(0),
            source,
            growth,
            options: PoolOptions {
                areas: 1,
                ..options
            },
        }
    }

    /// Takes slots for `need`.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`TakeError`], of the first pool: a later request may find that maintenance has made
    /// room.
    #[inline]
    pub fn take(&self, need: &Need) -> Result<Slots, TakeError> {
        match self.first.take(need) {
            Ok(slots) => Ok(slots),
            Err(error) => self.take_further(need, error),
        }
    }

    #[cold]
    fn take_further(&self, need: &Need, error: TakeError) -> Result<Slots, TakeError> {
        if matches!(error, TakeError::Empty) {
            return Err(error);
        }
        let found = self
            .further
            .with(|further| further.iter().find_map(|one| one.pool.take(need).ok()));
        if let Some(slots) = found {
            return Ok(slots);
        }
        // Wanted for a device with a low limit too: the source may have such memory.
        let bytes = need.bytes.saturating_add(need.keep.bytes()).max(1);
        let mut before = self.wanted.load(Relaxed);
        while before < bytes {
            match self
                .wanted
                .compare_exchange_weak(before, bytes, Relaxed, Relaxed)
            {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        Err(error)
    }

    /// Gives slots back.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`GiveError`].
    #[inline]
    pub fn give(&self, slots: Slots) -> Result<(), GiveError> {
        if slots.pool() == self.first.memory().start() {
            return self.first.give(slots);
        }
        self.further.with(|further| {
            let mut pools = further.iter().map(|one| &one.pool);
            let pool = pools.find(|pool| pool.memory().start() == slots.pool());
            let at = slots.data().start();
            pool.map_or(Err(GiveError::Foreign { at }), |pool| pool.give(slots))
        })
    }

    /// Adds what was wanted since the last call, and gives back what has been empty for a while.
    ///
    /// *Context.* Task: calls [`PoolSource`].
    pub fn maintain(&self) -> Maintained {
        let mut done = Maintained {
            shrunk: self.give_back_empty(),
            ..Maintained::default()
        };
        let wanted = self.wanted.swap(0, Relaxed);
        if wanted == 0 {
            return done;
        }
        match self.add(wanted) {
            Some(bytes) => done.grown = bytes,
            None => done.wanted = wanted,
        }
        done
    }

    fn add(&self, wanted: u64) -> Option<u64> {
        let unit = self.options.slot.bytes().checked_mul(64)?;
        let bytes = wanted.max(self.growth.step).checked_next_power_of_two()?;
        let bytes = bytes.max(unit);
        if self.held().saturating_add(bytes) > self.growth.most {
            return None;
        }
        let memory = self.source.grow(bytes)?;
        let pool = Pool::new(self.cpus.clone(), memory, self.options).ok();
        let one = pool.map(|pool| Further { pool, empty_for: 0 });
        if one.is_none_or(|one| !self.enter(one)) {
            self.source.shrink(memory);
            return None;
        }
        Some(length(memory))
    }

    /// Bytes of the further pools.
    fn held(&self) -> u64 {
        self.further.with(|further| {
            let bytes = further.iter().map(|one| length(one.pool.memory()));
            bytes.fold(0u64, u64::saturating_add)
        })
    }

    /// Enters a pool into the list, which grows outside the lock. Returns whether it did: there may
    /// be no memory for the list, and another worker may have reached [`Growth::most`] meanwhile.
    fn enter(&self, one: Further<P>) -> bool {
        let bytes = length(one.pool.memory());
        let mut one = Some(one);
        let mut larger: Vec<Further<P>> = Vec::new();
        loop {
            if self.held().saturating_add(bytes) > self.growth.most {
                return false;
            }
            let lacking = self.further.with(|further| {
                if further.len() == further.capacity() && larger.capacity() > further.len() {
                    larger.append(further);
                    core::mem::swap(further, &mut larger);
                }
                if further.len() == further.capacity() {
                    return Some(further.len() + 1);
                }
                further.extend(one.take());
                None
            });
            let Some(wanted) = lacking else {
                return true;
            };
            // What the list was before is empty now, and is freed here.
            larger = Vec::new();
            if larger
                .try_reserve_exact(wanted.next_power_of_two())
                .is_err()
            {
                return false;
            }
        }
    }

    fn give_back_empty(&self) -> u64 {
        let timeout = self.growth.timeout;
        let mut shrunk = 0u64;
        loop {
            // Slots are taken from further pools under the lock only: what is empty stays empty.
            let gone = self.further.with(|further| {
                let at = further.iter_mut().position(|one| {
                    if one.pool.in_use().used != 0 {
                        one.empty_for = 0;
                    }
                    one.empty_for > timeout
                })?;
                Some(further.swap_remove(at))
            });
            let Some(gone) = gone else {
                break;
            };
            let memory = gone.pool.memory();
            shrunk = shrunk.saturating_add(length(memory));
            self.source.shrink(memory);
        }
        self.further.with(|further| {
            let counts = further.iter_mut().map(|one| &mut one.empty_for);
            counts.for_each(|empty_for| *empty_for = empty_for.saturating_add(1));
        });
        shrunk
    }

    /// How full all pools are. Counts every slot of the further pools under one lock.
    ///
    /// *Context.* Interrupt.
    pub fn in_use(&self) -> PoolUse {
        let mut all = self.first.in_use();
        self.further.with(|further| {
            for one in further.iter() {
                let used = one.pool.in_use();
                all.slots += used.slots;
                all.used += used.used;
                all.high_water += used.high_water;
                all.longest_free = all.longest_free.max(used.longest_free);
            }
        });
        all
    }
}

fn length(memory: PhysRange) -> u64 {
    memory.len_minus_one().saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{CpuId, PageSize, PhysAddr};
    use crate::platform::{Clock, Nanos, SpinCpus};
    use alloc::sync::Arc;
    use spin::Mutex;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Nanos {
            Nanos::new(0)
        }
    }

    struct Blocks {
        next: Mutex<u64>,
        out: Mutex<Vec<PhysRange>>,
    }

    impl PoolSource for &Blocks {
        fn grow(&self, bytes: u64) -> Option<PhysRange> {
            let mut next = self.next.lock();
            let start = next.next_multiple_of(bytes);
            *next = start + bytes;
            let memory = PhysRange::from_len(PhysAddr::new(start), bytes)?;
            self.out.lock().push(memory);
            Some(memory)
        }

        fn shrink(&self, memory: PhysRange) {
            let mut out = self.out.lock();
            let at = out.iter().position(|one| *one == memory);
            out.swap_remove(at.expect("memory that was taken"));
        }
    }

    #[test]
    fn a_full_pool_grows_by_what_was_wanted_and_shrinks_when_it_is_empty() {
        let cpus = Arc::new(SpinCpus::new(1, Still, (|| CpuId::new(0)) as fn() -> CpuId));
        let options = PoolOptions {
            slot: PageSize::of_lg2(11),
            ..PoolOptions::for_cpus(&*cpus)
        };
        let memory = PhysRange::from_len(PhysAddr::new(1 << 30), 128 << 10).unwrap();
        let first = Pool::new(cpus.clone(), memory, options).unwrap();
        let blocks = Blocks {
            next: Mutex::new(1 << 32),
            out: Mutex::new(Vec::new()),
        };
        let growth = Growth {
            step: 1 << 20,
            most: 8 << 20,
            timeout: 2,
        };
        let pool = GrowingPool::new(cpus, first, &blocks, growth, options);
        let need = Need::bytes(3 << 20);
        assert!(matches!(pool.take(&need), Err(TakeError::TooLong { .. })));
        assert_eq!(pool.maintain().grown, 4 << 20);
        let large = pool.take(&need).unwrap();
        assert!(pool.take(&need).is_err());
        assert_eq!(pool.maintain().grown, 4 << 20);
        let other = pool.take(&need).unwrap();
        assert!(pool.take(&need).is_err());
        // No more is allowed.
        assert!(pool.maintain().wanted >= 3 << 20);
        pool.give(large).unwrap();
        let shrunk: u64 = (0..5).map(|_| pool.maintain().shrunk).sum();
        assert_eq!(shrunk, 4 << 20);
        pool.give(other).unwrap();
        let shrunk: u64 = (0..5).map(|_| pool.maintain().shrunk).sum();
        assert_eq!(shrunk, 4 << 20);
        assert!(blocks.out.lock().is_empty());
        assert_eq!(pool.in_use().slots, 64);
        let small = pool.take(&Need::bytes(1)).unwrap();
        pool.give(small).unwrap();
    }
}
