//! Buffers of a device with many others live: a random one is unmapped and a new one mapped, many times.

use std::hint::black_box;
use std::sync::Arc;

use fastrand::Rng;
use portolan::addr::{PhysAddr, PhysRange};
use portolan::dma::{Constraints, DmaRange, Policy};
use portolan::inval::Walker;

use crate::raw::unowned;
use crate::rig::{MEMORY, PAGE, access};
use crate::space::{Space, space};
use crate::threads::Threads;
use crate::workload::{Failure, Workload};

/// Buffers that are replaced in one pass.
const REPLACED: usize = 2048;
/// Buffers of mixed sizes that are live beside those of a page, and how often one of them is replaced before
/// anything is measured.
const MIXED: usize = 1024;
const MIXED_REPLACED: usize = 50_000;
/// The longest of them, in pages.
const MIXED_PAGES: u64 = 64;

/// Device whose buffers are mapped and unmapped.
pub(crate) trait Buffered {
    /// A mapped buffer.
    type Mapped;

    /// Maps a buffer of `pages` pages.
    fn map(&self, pa: u64, pages: u64) -> Result<Self::Mapped, Failure>;

    /// Takes a buffer back.
    fn unmap(&self, mapped: Self::Mapped) -> Result<(), Failure>;

    /// Fails if the code has warned.
    fn check(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Our space.
pub(crate) struct OurBuffers {
    space: Space,
    constraints: Constraints,
}

impl OurBuffers {
    pub(crate) fn new(policy: Policy) -> Result<Self, Failure> {
        let space = space(&Arc::new(Threads), policy, Walker::Coherent)?;
        Ok(Self { space, constraints: Constraints::trusted() })
    }
}

impl Buffered for OurBuffers {
    type Mapped = DmaRange;

    #[inline]
    fn map(&self, pa: u64, pages: u64) -> Result<DmaRange, Failure> {
        let memory = PhysRange::from_len(PhysAddr::new(pa), pages * PAGE);
        let memory = unowned(memory.ok_or(Failure::Addresses)?);
        let mapped = self.space.map_range(memory, access(), black_box(&self.constraints));
        let (range, iova) = mapped.map_err(|_| Failure::Addresses)?;
        black_box(iova);
        Ok(range)
    }

    #[inline]
    fn unmap(&self, mapped: DmaRange) -> Result<(), Failure> {
        self.space.unmap_range(mapped).map_err(|_| Failure::NotPrepared)
    }
}

/// Buffers that are live when the measurement begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// Buffers of a page that were mapped one after the other.
    Fresh,
    /// The same, after many others of mixed sizes have come and gone and some have stayed.
    Aged,
}

/// Live buffers, of which random ones are replaced.
pub(crate) struct Live<B: Buffered> {
    device: B,
    live: Vec<Option<B::Mapped>>,
    /// Others of mixed sizes, which stay.
    mixed: Vec<Option<B::Mapped>>,
    random: Rng,
    /// Those that are replaced next.
    next: Vec<usize>,
}

impl<B: Buffered> Live<B> {
    /// With `count` buffers; a pass replaces many of them.
    pub(crate) fn new(device: B, count: usize, before: Before) -> Result<Self, Failure> {
        let random = Rng::with_seed(13);
        let (live, mixed) = (Vec::with_capacity(count), Vec::new());
        let mut this = Self { device, live, mixed, random, next: vec![0; REPLACED] };
        for _ in 0..count {
            this.live.push(Some(this.device.map(MEMORY.get(), 1)?));
        }
        if before == Before::Aged {
            this.age()?;
        }
        Ok(this)
    }

    /// The same; a pass replaces one buffer, so that each is timed.
    pub(crate) fn one_by_one(device: B, count: usize) -> Result<Self, Failure> {
        let mut this = Self::new(device, count, Before::Fresh)?;
        this.next.truncate(1);
        Ok(this)
    }

    fn age(&mut self) -> Result<(), Failure> {
        self.mixed.resize_with(MIXED, || None);
        for _ in 0..MIXED_REPLACED {
            let (at, other) = (self.random.usize(..MIXED), self.random.usize(..self.live.len()));
            if let Some(old) = self.mixed[at].take() {
                self.device.unmap(old)?;
            }
            let pages = self.random.u64(1..=MIXED_PAGES);
            self.mixed[at] = Some(self.device.map(MEMORY.get(), pages)?);
            self.replace(other)?;
        }
        Ok(())
    }

    #[inline]
    fn replace(&mut self, at: usize) -> Result<(), Failure> {
        let old = self.live[at].take().ok_or(Failure::NotPrepared)?;
        self.device.unmap(old)?;
        let pa = black_box(MEMORY.get() + (at as u64 * PAGE));
        self.live[at] = Some(self.device.map(pa, 1)?);
        Ok(())
    }
}

impl<B: Buffered> Workload for Live<B> {
    fn units(&self) -> u64 {
        self.next.len() as u64
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        let count = self.live.len();
        for next in &mut self.next {
            *next = self.random.usize(..count);
        }
        self.device.check()
    }

    fn run(&mut self) -> Result<(), Failure> {
        for i in 0..self.next.len() {
            self.replace(self.next[i])?;
        }
        Ok(())
    }
}

/// Pages that are mapped at once, many times more than caches of addresses hold.
const BURST: u64 = 100_000;

/// Unmaps one of many pages, in random order; when none is left, as many are mapped again.
pub(crate) struct Bursts<B: Buffered> {
    device: B,
    mapped: Vec<B::Mapped>,
    random: Rng,
}

impl<B: Buffered> Bursts<B> {
    pub(crate) fn new(device: B) -> Self {
        Self { device, mapped: Vec::new(), random: Rng::with_seed(14) }
    }
}

impl<B: Buffered> Workload for Bursts<B> {
    fn units(&self) -> u64 {
        1
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        if self.mapped.is_empty() {
            for page in 0..BURST {
                self.mapped.push(self.device.map(MEMORY.get() + page * PAGE, 1)?);
            }
            self.random.shuffle(&mut self.mapped);
            self.device.check()?;
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mapped = self.mapped.pop().ok_or(Failure::NotPrepared)?;
        self.device.unmap(black_box(mapped))
    }
}

impl<B: Buffered> Drop for Live<B> {
    fn drop(&mut self) {
        for mapped in self.live.drain(..).chain(self.mixed.drain(..)).flatten() {
            let _ = self.device.unmap(mapped);
        }
    }
}
