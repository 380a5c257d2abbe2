//! Blocks of any power of two from one region: a buddy allocator that keeps its records apart.
//!
//! A block of `2^order` units has a bit in its order's map while it is free; two free halves of one
//! block are never both there. The records are words that the caller brings, and the region's bytes
//! are never touched, so that this is safe code for any region.
//!
//! *Context.* Interrupt: finding a block looks at a few words of each order, however large the region is.

use core::alloc::Layout;

use portolan::addr::{PhysAddr, PhysRange};

#[cfg(test)]
mod tests;

/// Bytes of the smallest block, as an exponent.
const UNIT_LG2: u32 = 6;
/// Orders, at most: blocks of up to 64 GiB.
const ORDERS: usize = 31;

/// Levels of a map, at most: 64 to the power of six bits.
const LEVELS: usize = 6;

/// One order's map: a bit for each free block; above it one for each word of those that is not zero; and
/// so on, up to one word.
#[derive(Clone, Copy, Debug, Default)]
struct Map {
    /// Index of its first word.
    first: usize,
    /// Words of the lowest level.
    words: usize,
}

impl Map {
    /// Index of the first word of each level, and its number of words, from the blocks up.
    fn levels(self) -> impl Iterator<Item = (usize, usize)> {
        let lowest = Some((self.first, self.words)).filter(|(_, words)| *words != 0);
        core::iter::successors(lowest, |(first, words)| {
            (*words > 1).then(|| (first + words, words.div_ceil(64)))
        })
    }

    /// Words of all levels.
    fn all_words(self) -> usize {
        self.levels().map(|(_, words)| words).sum()
    }
}

/// A region and its records.
#[derive(Debug)]
pub struct Arena<'w> {
    records: &'w mut [u64],
    maps: [Map; ORDERS],
    orders: usize,
    /// The region's start, rounded down to its largest block: blocks are counted from here.
    base: u64,
    memory: PhysRange,
}

/// Division of a region into orders and units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    orders: usize,
    base: u64,
    /// Units from `base` to the region's end.
    units: u64,
}

impl Shape {
    fn of(memory: PhysRange) -> Self {
        let bytes = memory.len_minus_one().saturating_add(1);
        let largest = bytes.ilog2().max(UNIT_LG2);
        let orders = ((largest - UNIT_LG2) as usize + 1).min(ORDERS);
        let block = 1u64 << (UNIT_LG2 as usize + orders - 1);
        let base = memory.start().get() & !(block - 1);
        let units = (memory.last().get() - base).saturating_add(1) >> UNIT_LG2;
        Self { orders, base, units }
    }

    /// The map of `order`, whose words begin at `first`.
    fn map(&self, order: usize, first: usize) -> Map {
        let words = (self.units >> order).div_ceil(64) as usize;
        Map { first, words }
    }
}

impl<'w> Arena<'w> {
    /// Number of words of records that an arena of `memory` needs.
    pub fn records(memory: PhysRange) -> usize {
        let shape = Shape::of(memory);
        let words = |order| shape.map(order, 0).all_words();
        (0..shape.orders).map(words).sum()
    }

    /// An arena of `memory`, all of it free; `None` if `records` are fewer words than
    /// [`Arena::records`] says.
    pub fn new(memory: PhysRange, records: &'w mut [u64]) -> Option<Self> {
        let shape = Shape::of(memory);
        let mut maps = [Map::default(); ORDERS];
        let mut first = 0;
        for (order, map) in maps.iter_mut().take(shape.orders).enumerate() {
            *map = shape.map(order, first);
            first += map.all_words();
        }
        records.get_mut(..first)?.fill(0);
        let mut arena = Self { records, maps, orders: shape.orders, base: shape.base, memory };
        arena.free_all(shape);
        Some(arena)
    }

    /// Enters the largest blocks that lie in the region.
    fn free_all(&mut self, shape: Shape) {
        let above = self.memory.start().get() - self.base;
        let mut at = above.div_ceil(1 << UNIT_LG2);
        while at < shape.units {
            let fits = (shape.units - at).ilog2() as usize;
            let aligned = at.trailing_zeros() as usize;
            let order = fits.min(aligned).min(self.orders - 1);
            self.set(order, at >> order);
            at += 1 << order;
        }
    }

    /// The memory of the arena.
    pub fn memory(&self) -> PhysRange {
        self.memory
    }

    /// Memory for `layout`; `None` if no block is free that is large enough.
    pub fn alloc(&mut self, layout: Layout) -> Option<PhysAddr> {
        let wanted = order_of(layout)?;
        let (mut order, mut block) = (wanted..self.orders).find_map(|order| {
            let block = self.take_any(order)?;
            Some((order, block))
        })?;
        while order > wanted {
            order -= 1;
            block <<= 1;
            // The upper half stays free.
            self.set(order, block + 1);
        }
        Some(PhysAddr::new(self.base + (block << order << UNIT_LG2)))
    }

    /// Takes the block at `at` for `layout`, if all of it is free; returns if it was. [`Arena::free`] takes it back.
    pub fn take(&mut self, at: PhysAddr, layout: Layout) -> bool {
        let Some((wanted, block)) = self.block(at, layout) else {
            return false;
        };
        let free =
            (wanted..self.orders).find(|order| self.clear(*order, block >> (order - wanted)));
        let Some(order) = free else {
            return false;
        };
        // The other halves of what it was a part of stay free.
        for order in wanted..order {
            self.set(order, (block >> (order - wanted)) ^ 1);
        }
        true
    }

    /// Order and number of the block for `layout` at `at`; `None` if there is no such block.
    fn block(&self, at: PhysAddr, layout: Layout) -> Option<(usize, u64)> {
        let order = order_of(layout).filter(|order| *order < self.orders)?;
        let bytes = 1u64 << (UNIT_LG2 as usize + order);
        let inside = PhysRange::from_len(at, bytes).is_some_and(|all| self.memory.covers(all));
        let above = at.get().wrapping_sub(self.base);
        (inside && above & (bytes - 1) == 0).then_some((order, above >> UNIT_LG2 >> order))
    }

    /// Takes back a block that [`Arena::alloc`] returned for `layout`, once: a block that comes back
    /// twice can be handed out twice. An address outside of the region, or at which no such block begins,
    /// is left alone.
    pub fn free(&mut self, at: PhysAddr, layout: Layout) {
        let Some((mut order, mut block)) = self.block(at, layout) else {
            return;
        };
        while order + 1 < self.orders && self.clear(order, block ^ 1) {
            block >>= 1;
            order += 1;
        }
        self.set(order, block);
    }

    /// Takes the lowest free block of `order`.
    fn take_any(&mut self, order: usize) -> Option<u64> {
        let map = *self.maps.get(order)?;
        let mut levels = [0; LEVELS];
        let mut count = 0;
        for (place, (first, _)) in levels.iter_mut().zip(map.levels()) {
            *place = first;
            count += 1;
        }
        let mut at = 0;
        for first in levels.iter().take(count).rev() {
            let word = *self.records.get(first + at)?;
            if word == 0 {
                return None;
            }
            at = at * 64 + word.trailing_zeros() as usize;
        }
        self.clear(order, at as u64).then_some(at as u64)
    }

    fn set(&mut self, order: usize, block: u64) {
        let map = self.maps.get(order).copied().unwrap_or_default();
        let mut at = block as usize;
        for (first, words) in map.levels() {
            let Some(word) = self.records.get_mut(first + at / 64).filter(|_| at / 64 < words)
            else {
                return;
            };
            let before = *word;
            *word |= 1 << (at % 64);
            if before != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// Takes `block` if it is free; returns if it was.
    fn clear(&mut self, order: usize, block: u64) -> bool {
        let map = self.maps.get(order).copied().unwrap_or_default();
        let mut at = block as usize;
        let mut was_free = false;
        for (first, words) in map.levels() {
            let Some(word) = self.records.get_mut(first + at / 64).filter(|_| at / 64 < words)
            else {
                return was_free;
            };
            let bit = 1 << (at % 64);
            if *word & bit == 0 {
                return was_free;
            }
            *word &= !bit;
            was_free = true;
            if *word != 0 {
                break;
            }
            at /= 64;
        }
        was_free
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> u64 {
        let maps = self.maps.iter().take(self.orders).enumerate();
        maps.map(|(order, map)| {
            let words = self.records.get(map.first..map.first + map.words);
            let words = words.unwrap_or_default().iter();
            let blocks: u64 = words.map(|word| u64::from(word.count_ones())).sum();
            blocks << (order + UNIT_LG2 as usize)
        })
        .sum()
    }
}

/// The order of the blocks that hold a `layout`; `None` if it is larger than any memory.
fn order_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(1 << UNIT_LG2);
    let bytes = bytes.checked_next_power_of_two()?;
    Some((bytes.ilog2() - UNIT_LG2) as usize)
}
