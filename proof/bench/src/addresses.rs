//! Taking and giving back addresses, by one thread or two: in the library, in Linux's code, and in
//! other crates.

use std::hint::black_box;
use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PageSize};
use portolan::iova::{IovaOptions, IovaSpace, Request};

use crate::linux::{self, OnCpu};
use crate::threads::{Threads, Together};
use crate::{Failure, Workload};

/// Pairs of calls in one pass.
const PAIRS: u64 = 2000;
/// Pairs in one pass of several threads, so that starting them does not count.
const PAIRS_EACH: u64 = 100_000;
/// Number of ranges that stay taken while others come and go.
const OUT: usize = 4096;
const PAGE: u64 = 4096;
/// The last address that a device with 48 bits reaches.
const LAST: u64 = (1 << 48) - 1;

type Space = IovaSpace<Threads>;

fn pages(pages: u64) -> Request {
    Request { bytes: pages * PAGE, align: PageSize::SIZE_4K, limit: Iova::new(u64::MAX) }
}

/// Takes and gives.
pub(crate) trait Taker {
    /// A range of addresses that is taken.
    type Range: Copy;

    fn take(&mut self, pages: u64) -> Option<Self::Range>;
    fn give(&mut self, range: Self::Range);
}

/// Through the calling CPU's cache.
pub(crate) struct OfCpu(Arc<Space>);

/// Through Linux's code, as its DMA layer asks.
pub(crate) struct OfLinux(Arc<linux::Space>, OnCpu);

/// `vm-allocator`, a tree of intervals without CPUs.
pub(crate) struct OfTree(vm_allocator::AddressAllocator);

/// `range-alloc`, a list of free ranges without CPUs.
pub(crate) struct OfFreeList(range_alloc::RangeAllocator<u64>);

/// A taker without an allocator.
pub(crate) struct Nothing;

impl Taker for Nothing {
    type Range = u64;

    fn take(&mut self, count: u64) -> Option<u64> {
        Some(count)
    }

    fn give(&mut self, _range: u64) {}
}

impl Taker for OfCpu {
    type Range = IovaRange;

    // In line, as in a driver: a call would return two words by memory, which are not forwarded to one
    // load of both before they are in the cache.
    #[inline(always)]
    fn take(&mut self, count: u64) -> Option<IovaRange> {
        self.0.alloc(&pages(count)).ok()
    }

    #[inline(always)]
    fn give(&mut self, range: IovaRange) {
        let _ = black_box(self.0.free(range).is_ok());
    }
}

impl Taker for OfLinux {
    type Range = (u64, u64);

    #[inline]
    fn take(&mut self, count: u64) -> Option<(u64, u64)> {
        let first = self.0.take(&self.1, count, LAST / PAGE);
        (first != 0).then_some((first, count))
    }

    #[inline]
    fn give(&mut self, (first, count): (u64, u64)) {
        self.0.give(&self.1, first, count);
    }
}

impl Taker for OfTree {
    type Range = vm_allocator::RangeInclusive;

    #[inline]
    fn take(&mut self, count: u64) -> Option<Self::Range> {
        let first = vm_allocator::AllocPolicy::FirstMatch;
        self.0.allocate(count * PAGE, PAGE, first).ok()
    }

    #[inline]
    fn give(&mut self, range: Self::Range) {
        let _ = black_box(self.0.free(&range));
    }
}

impl Taker for OfFreeList {
    type Range = (u64, u64);

    #[inline]
    fn take(&mut self, count: u64) -> Option<(u64, u64)> {
        let range = self.0.allocate_range(count).ok()?;
        Some((range.start, range.end))
    }

    #[inline]
    fn give(&mut self, (start, end): (u64, u64)) {
        self.0.free_range(start..end);
    }
}

fn space() -> Result<Arc<Space>, Failure> {
    // But for the first page.
    let all = IovaRange::new(Iova::new(PAGE), Iova::new(LAST)).ok_or(Failure::Addresses)?;
    let space = IovaSpace::new(Threads, all, PageSize::SIZE_4K, IovaOptions::default());
    Ok(Arc::new(space.map_err(|_| Failure::Addresses)?))
}

/// Makes the source that the calling thread, a CPU by its number, takes from; all that one makes share it.
pub(crate) type Source<T> = Box<dyn Fn(u32) -> T + Send + Sync>;

pub(crate) fn of_cpu() -> Result<Source<OfCpu>, Failure> {
    let space = space()?;
    Ok(Box::new(move |_| OfCpu(Arc::clone(&space))))
}

pub(crate) fn of_linux() -> Result<Source<OfLinux>, Failure> {
    let linux = linux::linux()?;
    let space = Arc::new(linux.on_cpu(0).space().ok_or(Failure::HostMemory)?);
    Ok(Box::new(move |cpu| OfLinux(Arc::clone(&space), linux.on_cpu(cpu))))
}

pub(crate) fn of_tree() -> Result<OfTree, Failure> {
    let all = vm_allocator::AddressAllocator::new(PAGE, LAST - PAGE + 1);
    Ok(OfTree(all.map_err(|_| Failure::Addresses)?))
}

pub(crate) fn of_free_list() -> OfFreeList {
    OfFreeList(range_alloc::RangeAllocator::new(1..(LAST + 1) / PAGE))
}

fn pairs(taker: &mut impl Taker, pairs: u64) -> Result<(), Failure> {
    for _ in 0..pairs {
        let range = taker.take(black_box(1)).ok_or(Failure::Addresses)?;
        taker.give(black_box(range));
    }
    Ok(())
}

/// One thread takes a page and gives it back.
pub(crate) struct Pairs<T>(pub(crate) T);

impl<T: Taker> Workload for Pairs<T> {
    fn units(&self) -> u64 {
        PAIRS
    }

    fn run(&mut self) -> Result<(), Failure> {
        pairs(&mut self.0, PAIRS)
    }
}

/// One thread takes many pages, and gives them back in the order in which it took them.
pub(crate) struct Batches<T: Taker> {
    taker: T,
    out: Vec<T::Range>,
    many: usize,
}

impl<T: Taker> Batches<T> {
    pub(crate) fn new(taker: T, many: usize) -> Self {
        Self { taker, out: Vec::with_capacity(many), many }
    }
}

impl<T: Taker> Workload for Batches<T> {
    fn units(&self) -> u64 {
        PAIRS / self.many as u64 * self.many as u64
    }

    fn run(&mut self) -> Result<(), Failure> {
        for _ in 0..PAIRS / self.many as u64 {
            for _ in 0..self.many {
                self.out.push(self.taker.take(black_box(1)).ok_or(Failure::Addresses)?);
            }
            for range in self.out.drain(..) {
                self.taker.give(black_box(range));
            }
        }
        Ok(())
    }
}

/// Gives pages back at once, many times more than a CPU's caches hold, in random order.
pub(crate) struct GiveMany<T: Taker> {
    taker: T,
    many: usize,
    out: Vec<T::Range>,
    random: fastrand::Rng,
}

impl<T: Taker> GiveMany<T> {
    pub(crate) fn new(taker: T, many: usize) -> Self {
        let random = fastrand::Rng::with_seed(12);
        Self { taker, many, out: Vec::with_capacity(many), random }
    }
}

impl<T: Taker> Workload for GiveMany<T> {
    fn units(&self) -> u64 {
        self.many as u64
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        while self.out.len() < self.many {
            self.out.push(self.taker.take(black_box(1)).ok_or(Failure::Addresses)?);
        }
        self.random.shuffle(&mut self.out);
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        for range in self.out.drain(..) {
            self.taker.give(black_box(range));
        }
        Ok(())
    }
}

/// Two threads at once, each with its own taker.
pub(crate) fn two<T: Taker + 'static>(source: Source<T>) -> Together {
    Together::new(2, PAIRS_EACH, move |cpu| {
        let mut taker = source(cpu);
        Ok(Box::new(move |count| pairs(&mut taker, count)))
    })
}

/// While 4,096 ranges are taken, gives one of 64 to 512 pages back and takes another.
pub(crate) struct Large<T: Taker> {
    taker: T,
    out: Vec<T::Range>,
    random: fastrand::Rng,
    next: (usize, u64),
}

impl<T: Taker> Large<T> {
    pub(crate) fn new(mut taker: T) -> Result<Self, Failure> {
        let mut random = fastrand::Rng::with_seed(11);
        let mut out = Vec::new();
        for _ in 0..OUT {
            out.push(taker.take(random.u64(64..=512)).ok_or(Failure::Addresses)?);
        }
        Ok(Self { taker, out, random, next: (0, 64) })
    }
}

impl<T: Taker> Workload for Large<T> {
    fn units(&self) -> u64 {
        1
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        self.next = (self.random.usize(0..OUT), self.random.u64(64..=512));
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        let (at, pages) = self.next;
        self.taker.give(self.out[at]);
        self.out[at] = self.taker.take(pages).ok_or(Failure::Addresses)?;
        Ok(())
    }
}
