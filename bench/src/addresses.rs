//! Taking and giving back addresses, by one thread or two, in the library and in a peer.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use portolan::addr::{CpuId, Iova, IovaRange, PageSize};
use portolan::iova::{IovaOptions, IovaSpace, Request};
use portolan::platform::{Clock, Nanos, SpinCpus};

use crate::linux_like::LinuxLike;
use crate::{Failure, Workload};

/// Pairs of calls in one pass.
const PAIRS: u64 = 2000;
/// Pairs in one pass of several threads, so that starting them does not count.
const PAIRS_EACH: u64 = 100_000;
/// Ranges that are out while others come and go.
const OUT: usize = 4096;
const PAGE: u64 = 4096;

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

/// Time is not asked for.
#[derive(Debug)]
pub struct Still;

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

/// CPUs that are threads.
pub type Threads = SpinCpus<Still, fn() -> CpuId>;
type Space = IovaSpace<Threads>;

/// Two CPUs, each a thread.
pub fn cpus() -> Threads {
    SpinCpus::new(2, Still, || CpuId::new(CPU.get()))
}

fn pages(pages: u64) -> Request {
    Request {
        bytes: pages * PAGE,
        align: PageSize::SIZE_4K,
        limit: Iova::new(u64::MAX),
    }
}

/// Takes and gives.
pub(crate) trait Taker {
    /// What is out.
    type Range: Copy + Send;

    fn take(&mut self, pages: u64) -> Option<Self::Range>;
    fn give(&mut self, range: Self::Range);
}

/// Through the calling CPU's cache.
pub(crate) struct OfCpu(Arc<Space>);

/// Through the peer.
pub(crate) struct OfPeer(Arc<LinuxLike<Threads>>);

/// No allocator: a stack of page numbers.
pub(crate) struct Stack(Vec<u64>);

/// Nothing.
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

    #[inline]
    fn take(&mut self, count: u64) -> Option<IovaRange> {
        self.0.alloc(&pages(count)).ok()
    }

    #[inline]
    fn give(&mut self, range: IovaRange) {
        let _ = black_box(self.0.free(range));
    }
}

impl Taker for OfPeer {
    type Range = (u64, u64);

    #[inline]
    fn take(&mut self, count: u64) -> Option<(u64, u64)> {
        self.0.alloc(count).map(|first| (first, count))
    }

    #[inline]
    fn give(&mut self, (first, count): (u64, u64)) {
        self.0.free(first, count);
    }
}

impl Taker for Stack {
    type Range = u64;

    #[inline]
    fn take(&mut self, _count: u64) -> Option<u64> {
        self.0.pop()
    }

    #[inline]
    fn give(&mut self, range: u64) {
        self.0.push(range);
    }
}

fn space() -> Result<Arc<Space>, Failure> {
    // As far as a device with 48 bits reaches, but for the first page.
    let all =
        IovaRange::new(Iova::new(PAGE), Iova::new((1 << 48) - 1)).ok_or(Failure::Addresses)?;
    let space = IovaSpace::new(cpus(), all, PageSize::SIZE_4K, IovaOptions::default());
    Ok(Arc::new(space.map_err(|_| Failure::Addresses)?))
}

/// Makes takers that share what they take from.
pub(crate) type Source<T> = Box<dyn FnMut() -> T>;

pub(crate) fn of_cpu() -> Result<Source<OfCpu>, Failure> {
    let space = space()?;
    Ok(Box::new(move || OfCpu(Arc::clone(&space))))
}

pub(crate) fn of_peer() -> Result<Source<OfPeer>, Failure> {
    let space = Arc::new(LinuxLike::new(cpus()));
    Ok(Box::new(move || OfPeer(Arc::clone(&space))))
}

pub(crate) fn of_stack() -> Result<Source<Stack>, Failure> {
    Ok(Box::new(|| Stack((0..16).collect())))
}

pub(crate) fn of_nothing() -> Result<Source<Nothing>, Failure> {
    Ok(Box::new(|| Nothing))
}

fn pairs(taker: &mut impl Taker, pairs: u64) -> Result<(), Failure> {
    for _ in 0..pairs {
        let range = taker.take(black_box(1)).ok_or(Failure::Addresses)?;
        taker.give(black_box(range));
    }
    Ok(())
}

/// One page taken and given back by one thread.
pub(crate) struct Pairs<T>(T);

impl<T: Taker> Pairs<T> {
    pub(crate) fn new(mut source: Source<T>) -> Self {
        Self(source())
    }
}

impl<T: Taker> Workload for Pairs<T> {
    fn units(&self) -> u64 {
        PAIRS
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        pairs(&mut self.0, PAIRS)
    }
}

/// The same by two threads at once, each for itself.
pub(crate) struct TwoThreads {
    /// Passes asked for; all ones ends the threads.
    asked: Arc<AtomicU64>,
    /// Passes done, by all threads.
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl TwoThreads {
    pub(crate) fn new<T: Taker + Send + 'static>(mut source: Source<T>) -> Self {
        let (asked, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let threads = (0..2).map(|cpu| {
            let mut taker = source();
            let (asked, done) = (Arc::clone(&asked), Arc::clone(&done));
            std::thread::spawn(move || {
                CPU.set(cpu);
                let mut passes = 0;
                loop {
                    match asked.load(Ordering::Acquire) {
                        u64::MAX => break,
                        now if now == passes => std::thread::yield_now(),
                        now => {
                            passes = now;
                            // A failure shows as a pass that is never done.
                            if pairs(&mut taker, PAIRS_EACH).is_ok() {
                                done.fetch_add(1, Ordering::Release);
                            }
                        }
                    }
                }
            })
        });
        let threads = threads.collect();
        Self {
            asked,
            done,
            threads,
        }
    }
}

impl Workload for TwoThreads {
    fn units(&self) -> u64 {
        PAIRS_EACH
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        let passes = self.asked.load(Ordering::Relaxed) + 1;
        self.asked.store(passes, Ordering::Release);
        while self.done.load(Ordering::Acquire) < 2 * passes {
            if self.threads.iter().any(JoinHandle::is_finished) {
                return Err(Failure::Addresses);
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for TwoThreads {
    fn drop(&mut self) {
        self.asked.store(u64::MAX, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// One range of 64 to 512 pages given back and another taken while 4,096 are out.
pub(crate) struct Large<T: Taker> {
    taker: T,
    out: Vec<T::Range>,
    random: fastrand::Rng,
    next: (usize, u64),
}

impl<T: Taker> Large<T> {
    pub(crate) fn new(mut source: Source<T>) -> Result<Self, Failure> {
        let mut taker = source();
        let mut random = fastrand::Rng::with_seed(11);
        let mut out = Vec::new();
        for _ in 0..OUT {
            out.push(taker.take(random.u64(64..=512)).ok_or(Failure::Addresses)?);
        }
        Ok(Self {
            taker,
            out,
            random,
            next: (0, 64),
        })
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
