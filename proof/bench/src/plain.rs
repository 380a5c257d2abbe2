//! Plain loops: the cost of the same stores without a page table around them.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::PhysRange;

use crate::raw::{barrier, write_back};
use crate::rig::{Evictor, PAGE, Span};
use crate::threads::Together;
use crate::workload::{Cache, Failure, Workload};

const ENTRIES: usize = 512;

fn zeroed(words: usize) -> Vec<AtomicU64> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

/// Stores entries from a scatter list, one store for each page.
pub(crate) struct StoreList {
    list: Vec<PhysRange>,
    words: Vec<AtomicU64>,
    evictor: Evictor,
    lines: Lines,
}

/// Treatment of the cache lines of entries that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lines {
    Stay,
    WrittenBack,
}

impl StoreList {
    pub(crate) fn new(list: Vec<PhysRange>, cache: Cache) -> Self {
        let words = zeroed(list.len());
        let evictor = Evictor::new(cache);
        Self { list, words, evictor, lines: Lines::Stay }
    }

    /// Writes all lines back at the end.
    pub(crate) fn written_back(list: Vec<PhysRange>) -> Self {
        Self { lines: Lines::WrittenBack, ..Self::new(list, Cache::Hot) }
    }
}

impl Workload for StoreList {
    fn units(&self) -> u64 {
        self.list.len() as u64
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        self.evictor.evict();
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        let template = black_box(0x703);
        for (word, piece) in self.words.iter().zip(&self.list) {
            word.store(template | piece.start().get(), Ordering::Release);
        }
        if self.lines == Lines::WrittenBack {
            write_back(&self.words);
            barrier();
        }
        black_box(&self.words);
        Ok(())
    }
}

/// Consecutive addresses to entries, one store a page.
pub(crate) struct StoreRun {
    words: Vec<AtomicU64>,
    units: u64,
}

impl StoreRun {
    pub(crate) fn new(pages: usize) -> Self {
        Self { words: zeroed(pages), units: pages as u64 }
    }

    /// Makes one store for each page of a span, whose pieces are the units.
    pub(crate) fn of_span(span: Span) -> Self {
        let pages = (span.count * span.bytes / PAGE) as usize;
        Self { units: span.count, ..Self::new(pages) }
    }
}

impl Workload for StoreRun {
    fn units(&self) -> u64 {
        self.units
    }

    fn run(&mut self) -> Result<(), Failure> {
        let first: u64 = black_box(0x703);
        for (word, page) in self.words.iter().zip(0u64..) {
            word.store(first + (page << 12), Ordering::Release);
        }
        black_box(&self.words);
        Ok(())
    }
}

/// Dependent loads down to an entry and one store, with no checks.
pub(crate) struct WalkStore {
    arena: Vec<AtomicU64>,
    levels: u32,
    places: usize,
    stride: usize,
}

impl WalkStore {
    /// Stores to `places` entries, `stride` apart, below a path of `levels` tables.
    pub(crate) fn new(levels: u32, places: usize, stride: usize) -> Self {
        let arena = zeroed(levels as usize * ENTRIES);
        for level in 1..levels as usize {
            arena[(level - 1) * ENTRIES].store((level * ENTRIES) as u64, Ordering::Relaxed);
        }
        Self { arena, levels, places, stride }
    }
}

impl Workload for WalkStore {
    fn units(&self) -> u64 {
        self.places as u64
    }

    fn run(&mut self) -> Result<(), Failure> {
        for place in 0..self.places {
            let index = black_box(place * self.stride) % ENTRIES;
            let mut table = 0;
            for _ in 1..self.levels {
                table = self.arena[table].load(Ordering::Acquire) as usize;
            }
            self.arena[table + index].store(0x703, Ordering::Release);
        }
        Ok(())
    }
}

/// Additions in one pass.
const ADDITIONS: u64 = 2048;
const ADDITIONS_EACH: u64 = 100_000;

/// An atomic addition to a word that no other CPU touches.
pub(crate) struct Atomic(AtomicU64);

impl Atomic {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Workload for Atomic {
    fn units(&self) -> u64 {
        ADDITIONS
    }

    fn run(&mut self) -> Result<(), Failure> {
        for _ in 0..ADDITIONS {
            black_box(self.0.fetch_add(1, Ordering::AcqRel));
        }
        Ok(())
    }
}

/// Atomic additions to one word by two threads at once.
pub(crate) fn contended() -> Together {
    let word = Arc::new(AtomicU64::new(0));
    Together::new(2, ADDITIONS_EACH, move |_| {
        let word = Arc::clone(&word);
        Ok(Box::new(move |count| {
            for _ in 0..count {
                black_box(word.fetch_add(1, Ordering::AcqRel));
            }
            Ok(())
        }))
    })
}
