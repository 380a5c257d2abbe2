//! Plain loops: what the same stores cost without a page table around them.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::PhysRange;

use crate::rig::Evictor;
use crate::{Cache, Failure, Workload};

const ENTRIES: usize = 512;

fn zeroed(words: usize) -> Vec<AtomicU64> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

/// From a scatter list to entries, one store a page.
pub(crate) struct StoreList {
    list: Vec<PhysRange>,
    words: Vec<AtomicU64>,
    evictor: Evictor,
}

impl StoreList {
    pub(crate) fn new(list: Vec<PhysRange>, cache: Cache) -> Self {
        let words = zeroed(list.len());
        let evictor = Evictor::new(cache);
        Self {
            list,
            words,
            evictor,
        }
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
        black_box(&self.words);
        Ok(())
    }
}

/// Consecutive addresses to entries, one store a page.
pub(crate) struct StoreRun {
    words: Vec<AtomicU64>,
}

impl StoreRun {
    pub(crate) fn new(pages: usize) -> Self {
        Self {
            words: zeroed(pages),
        }
    }
}

impl Workload for StoreRun {
    fn units(&self) -> u64 {
        self.words.len() as u64
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mut entry = black_box(0x703);
        for word in &self.words {
            word.store(entry, Ordering::Release);
            entry += 0x1000;
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
        Self {
            arena,
            levels,
            places,
            stride,
        }
    }
}

impl Workload for WalkStore {
    fn units(&self) -> u64 {
        self.places as u64
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
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
