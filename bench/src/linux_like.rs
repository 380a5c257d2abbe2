//! The design of Linux 6.12's IOVA allocator, rewritten here from its description: a peer.
//!
//! Six sizes, of 1 to 32 pages; for each size and CPU a spinlock around two magazines of 127, for
//! each size a depot behind a lock; below it one ordered map of what is out behind one lock,
//! searched from the last place downwards one range after the other, and once more from the top.
//! Blocks are aligned to their size. What is left out: the timer that trims depots, the second
//! starting place for 32-bit devices (every request here has 64 bits), and interrupts.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use portolan::platform::{Cpus, Lock};

/// Blocks in a magazine.
const ROUNDS: usize = 127;
/// Sizes with magazines.
const SIZES: usize = 6;
/// Magazines of a depot.
const DEPOT: usize = 32;

#[derive(Default)]
struct CpuCache {
    loaded: Vec<u64>,
    previous: Vec<u64>,
}

/// What is out, by first page.
struct Tree {
    out: BTreeMap<u64, u64>,
    /// First page of the range where the next search begins.
    start: u64,
}

/// The page beyond the space, where an anchor lies that is never freed.
const ANCHOR: u64 = 1 << 36;

#[repr(align(64))]
struct Line<T>(T);

type Locked<C, T> = <C as Cpus>::Lock<T>;

/// An allocator of page numbers for a space of 48 bits.
pub struct LinuxLike<C: Cpus> {
    cpus: C,
    caches: [Vec<Line<Locked<C, CpuCache>>>; SIZES],
    depots: [Locked<C, Vec<Vec<u64>>>; SIZES],
    tree: Locked<C, Tree>,
    flushes: AtomicU64,
}

fn full_size() -> Vec<u64> {
    Vec::with_capacity(ROUNDS)
}

impl<C: Cpus> LinuxLike<C> {
    /// All is free.
    pub fn new(cpus: C) -> Self {
        let cache = || CpuCache {
            loaded: full_size(),
            previous: full_size(),
        };
        let count = cpus.count();
        let tree = Tree {
            out: BTreeMap::from([(ANCHOR, ANCHOR)]),
            start: ANCHOR,
        };
        Self {
            caches: [(); SIZES].map(|()| (0..count).map(|_| Line(Lock::new(cache()))).collect()),
            depots: [(); SIZES].map(|()| Lock::new(Vec::new())),
            tree: Lock::new(tree),
            flushes: AtomicU64::new(0),
            cpus,
        }
    }

    /// The first of `pages` pages, rounded up to a power of two where magazines have that size.
    #[inline]
    pub fn alloc(&self, pages: u64) -> Option<u64> {
        let order = pages.next_power_of_two().trailing_zeros() as usize;
        let mut size = pages;
        if order < SIZES {
            size = 1 << order;
            let cpu = self.cpus.current().get() as usize;
            let found = self.caches[order][cpu].0.with(|cache| {
                if cache.loaded.is_empty() {
                    if !cache.previous.is_empty() {
                        std::mem::swap(&mut cache.loaded, &mut cache.previous);
                    } else if let Some(full) = self.depots[order].with(Vec::pop) {
                        cache.loaded = full;
                    }
                }
                cache.loaded.pop()
            });
            if found.is_some() {
                return found;
            }
        }
        self.tree
            .with(|tree| tree.alloc(size))
            .or_else(|| self.flush_and_alloc(size))
    }

    /// Takes back what [`LinuxLike::alloc`] gave for `pages`.
    #[inline]
    pub fn free(&self, first: u64, pages: u64) {
        let order = pages.next_power_of_two().trailing_zeros() as usize;
        if order >= SIZES {
            self.tree.with(|tree| tree.free(first));
            return;
        }
        let cpu = self.cpus.current().get() as usize;
        self.caches[order][cpu].0.with(|cache| {
            if cache.loaded.len() == ROUNDS {
                if cache.previous.len() < ROUNDS {
                    std::mem::swap(&mut cache.loaded, &mut cache.previous);
                } else {
                    let full = std::mem::replace(&mut cache.loaded, full_size());
                    self.depots[order].with(|depot| {
                        if depot.len() < DEPOT {
                            depot.push(full);
                        } else {
                            self.tree
                                .with(|tree| full.iter().for_each(|&first| tree.free(first)));
                        }
                    });
                }
            }
            cache.loaded.push(first);
        });
    }

    #[cold]
    fn flush_and_alloc(&self, size: u64) -> Option<u64> {
        self.flushes
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        for order in 0..SIZES {
            let mut all: Vec<u64> = Vec::new();
            for cache in &self.caches[order] {
                cache.0.with(|cache| {
                    all.append(&mut cache.loaded);
                    all.append(&mut cache.previous);
                });
            }
            self.depots[order].with(|depot| all.extend(depot.drain(..).flatten()));
            self.tree
                .with(|tree| all.iter().for_each(|&first| tree.free(first)));
        }
        self.tree.with(|tree| tree.alloc(size))
    }
}

impl Tree {
    /// Searches downwards from the last place, and if need be once more from the top to there.
    fn alloc(&mut self, size: u64) -> Option<u64> {
        let align = !(size.next_power_of_two() - 1);
        let again = self.out.get(&self.start).map_or(0, |last| last + 1);
        let found = self.search(self.start, 1, size, align);
        let first = found.or_else(|| self.search(ANCHOR, again, size, align))?;
        self.out.insert(first, first + size - 1);
        self.start = first;
        Some(first)
    }

    /// The highest place below the range that begins at `from`, and not below `floor`.
    fn search(&self, from: u64, floor: u64, size: u64, align: u64) -> Option<u64> {
        let mut high = ANCHOR;
        let mut below = self.out.range(..=from).rev().peekable();
        while let Some((&first, _)) = below.next() {
            high = high.min(first);
            let place = high.checked_sub(size)? & align;
            if place < floor {
                return None;
            }
            match below.peek() {
                Some(&(_, &last)) if place <= last => {}
                _ => return Some(place),
            }
        }
        None
    }

    fn free(&mut self, first: u64) {
        self.out.remove(&first);
        if first >= self.start {
            let next = self.out.range(first..).next();
            self.start = next.map_or(ANCHOR, |(&first, _)| first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::cpus;

    #[test]
    fn nothing_is_given_out_twice() {
        let space = LinuxLike::new(cpus());
        let mut held = BTreeMap::new();
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            if held.len() < 300 && random.bool() {
                let pages = random.u64(1..=100);
                let first = space.alloc(pages).unwrap();
                let before: Option<(&u64, &u64)> = held.range(..first + pages).next_back();
                assert!(before.is_none_or(|(&start, &pages)| start + pages <= first));
                held.insert(first, pages);
            } else if let Some(&first) = held.keys().nth(random.usize(0..held.len().max(1))) {
                let pages = held.remove(&first).unwrap();
                space.free(first, pages);
            }
        }
    }
}
