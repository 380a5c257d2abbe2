//! The replay's own allocator of device addresses: a binary buddy over one window, highest first.
//!
//! Each block is a power of two of granules, aligned to its size, as Linux lays its mappings out.
//! Allocation and release take a few words per order (bitmaps with summaries). A block comes back
//! only together with a [`Quiesced`], so an address cannot be reused while a cache may hold it.
//! Not for many threads: a replay has one.

use portolan::addr::{Iova, PageSize};
use portolan::inval::Quiesced;

/// A block of device addresses that is in use; returned with [`Space::free`].
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// Index of the first granule.
    first: u64,
    order: u8,
    granule: PageSize,
}

impl Block {
    /// First address.
    pub fn start(&self) -> Iova {
        Iova::new(self.first << self.granule.lg2())
    }
}

/// A window of device addresses from zero to a power of two.
///
/// Of the free blocks that fit the smallest is split, the highest of its size; the lower half of the
/// window is used once the upper one has no room.
#[derive(Debug)]
pub struct Space {
    granule: PageSize,
    upper: Buddy,
    lower: Buddy,
    /// First granule of the upper half.
    middle: u64,
}

impl Space {
    /// The window below `2^top_lg2`; its first granule is never handed out.
    pub fn new(granule: PageSize, top_lg2: u32) -> Self {
        let half_order = top_lg2.saturating_sub(granule.lg2() + 1);
        let mut upper = Buddy::new(half_order);
        upper.set(half_order as usize, 0);
        let mut lower = Buddy::new(half_order);
        // All of it less granule 0 is one block of each order.
        for order in 0..half_order as usize {
            lower.set(order, 1);
        }
        Self {
            granule,
            upper,
            lower,
            middle: 1 << half_order,
        }
    }

    /// A block of at least `granules` granules, or `None` if no window of that size is free.
    pub fn alloc(&mut self, granules: u64) -> Option<Block> {
        let order = granules
            .max(1)
            .checked_next_power_of_two()?
            .trailing_zeros() as usize;
        let first = match self.upper.take(order) {
            Some(index) => self.middle + ((index as u64) << order),
            None => (self.lower.take(order)? as u64) << order,
        };
        Some(Block {
            first,
            order: order as u8,
            granule: self.granule,
        })
    }

    /// Takes a block back; `_quiet` shows that no cache holds its translations any more.
    pub fn free(&mut self, block: Block, _quiet: &Quiesced) {
        self.put(block);
    }

    /// Takes back a block that was never mapped.
    pub fn put_unused(&mut self, block: Block) {
        self.put(block);
    }

    fn put(&mut self, block: Block) {
        let (half, first) = match block.first.checked_sub(self.middle) {
            Some(first) => (&mut self.upper, first),
            None => (&mut self.lower, block.first),
        };
        half.put(block.order.into(), (first >> block.order) as usize);
    }
}

/// Free blocks by order; a block's index counts blocks of its order.
#[derive(Debug)]
struct Buddy {
    free: Vec<Bits>,
}

impl Buddy {
    /// Nothing free in `2^top` granules.
    fn new(top: u32) -> Self {
        let free = (0..=top)
            .map(|order| Bits::new(1 << (top - order)))
            .collect();
        Self { free }
    }

    fn set(&mut self, order: usize, index: usize) {
        if let Some(bits) = self.free.get_mut(order) {
            bits.set(index);
        }
    }

    fn take(&mut self, order: usize) -> Option<usize> {
        let mut sizes = self.free.get(order..)?.iter().enumerate();
        let (above, mut index) = sizes.find_map(|(above, bits)| Some((above, bits.last()?)))?;
        let from = order + above;
        self.free[from].clear(index);
        for split in (order..from).rev() {
            index *= 2;
            self.free[split].set(index);
            index += 1;
        }
        Some(index)
    }

    fn put(&mut self, mut order: usize, mut index: usize) {
        while order + 1 < self.free.len() && self.free[order].contains(index ^ 1) {
            self.free[order].clear(index ^ 1);
            index /= 2;
            order += 1;
        }
        self.set(order, index);
    }
}

/// A set of small numbers that finds its largest member quickly: words, and a bit for each
/// non-zero word in the layer above.
#[derive(Debug)]
struct Bits {
    layers: Vec<Vec<u64>>,
}

impl Bits {
    fn new(members: usize) -> Self {
        let mut layers = Vec::new();
        let mut words = members.div_ceil(64).max(1);
        loop {
            layers.push(vec![0; words]);
            if words == 1 {
                return Self { layers };
            }
            words = words.div_ceil(64);
        }
    }

    fn contains(&self, member: usize) -> bool {
        self.layers[0]
            .get(member / 64)
            .is_some_and(|word| word >> (member % 64) & 1 == 1)
    }

    fn set(&mut self, mut member: usize) {
        for layer in &mut self.layers {
            let Some(word) = layer.get_mut(member / 64) else {
                return;
            };
            let was = *word;
            *word |= 1 << (member % 64);
            if was != 0 {
                return;
            }
            member /= 64;
        }
    }

    fn clear(&mut self, mut member: usize) {
        for layer in &mut self.layers {
            let Some(word) = layer.get_mut(member / 64) else {
                return;
            };
            *word &= !(1 << (member % 64));
            if *word != 0 {
                return;
            }
            member /= 64;
        }
    }

    fn last(&self) -> Option<usize> {
        let mut member = 0;
        for layer in self.layers.iter().rev() {
            let word = *layer.get(member)?;
            member = member * 64 + word.checked_ilog2()? as usize;
        }
        Some(member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: u64 = 1 << 32;

    #[test]
    fn highest_first_and_aligned() {
        let mut space = Space::new(PageSize::SIZE_4K, 32);
        let one = space.alloc(1).unwrap();
        assert_eq!(one.start().get(), TOP - 0x1000);
        let three = space.alloc(3).unwrap();
        assert_eq!(three.start().get(), TOP - 0x8000);
        let two = space.alloc(2).unwrap();
        assert_eq!(two.start().get(), TOP - 0x4000);
        space.put(one);
        space.put(two);
        space.put(three);
        // All is merged again: the upper half is free as a whole.
        assert_eq!(space.alloc(1 << 19).unwrap().start().get(), TOP / 2);
    }

    #[test]
    fn never_hands_out_zero_and_says_when_full() {
        let mut space = Space::new(PageSize::SIZE_4K, 16);
        let mut got = Vec::new();
        while let Some(block) = space.alloc(1) {
            got.push(block.start().get() >> 12);
        }
        assert_eq!(got[..8], [15, 14, 13, 12, 11, 10, 9, 8]);
        got.sort_unstable();
        assert_eq!(got, (1..16).collect::<Vec<_>>());
        assert!(space.alloc(u64::MAX).is_none());
        assert!(space.alloc(1 << 40).is_none());
    }

    #[test]
    fn no_two_live_blocks_overlap() {
        let mut space = Space::new(PageSize::SIZE_4K, 22);
        let mut owner = vec![false; 1024];
        let mut live: Vec<Block> = Vec::new();
        let seed = 0x5eed;
        let mut state = seed;
        for step in 0..20_000u32 {
            state = u64::wrapping_mul(state, 6364136223846793005).wrapping_add(1);
            let pick = (state >> 33) as usize;
            if pick & 1 == 0 && !live.is_empty() {
                let block = live.swap_remove(pick / 2 % live.len());
                for page in block.first..block.first + (1 << block.order) {
                    owner[page as usize] = false;
                }
                space.put(block);
            } else if let Some(block) = space.alloc(1 + (pick as u64 / 2) % 33) {
                assert_eq!(block.first % (1 << block.order), 0);
                for page in block.first..block.first + (1 << block.order) {
                    assert!(!owner[page as usize], "seed {seed:#x} step {step}");
                    owner[page as usize] = true;
                }
                live.push(block);
            }
        }
    }
}
