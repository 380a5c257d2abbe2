//! Stocks of free blocks of one size: a CPU's two magazines, and the depot that all CPUs share.

use alloc::vec::Vec;

/// Blocks in a full magazine.
pub(super) const ROUNDS: usize = 64;

/// First pages of free blocks, the one freed last on top.
#[derive(Debug, Default)]
pub(super) struct Magazine(Vec<u64>);

impl Magazine {
    /// Whether there is room for one more. Takes memory the first time.
    #[inline]
    fn has_room(&mut self) -> bool {
        if self.0.len() < self.0.capacity() {
            return true;
        }
        self.0.capacity() == 0 && self.0.try_reserve_exact(ROUNDS).is_ok()
    }

    /// The blocks.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = u64> {
        self.0.drain(..)
    }

    fn is_full(&self) -> bool {
        self.0.len() == self.0.capacity() && !self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A CPU's stock of one size.
///
/// With two magazines, a CPU that takes and gives in turn goes to the depot at most once in
/// [`ROUNDS`] operations, whatever the pattern.
#[derive(Debug, Default)]
pub(super) struct Stock {
    loaded: Magazine,
    other: Magazine,
}

impl Stock {
    /// A block.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u64> {
        if let Some(block) = self.loaded.0.pop() {
            return Some(block);
        }
        core::mem::swap(&mut self.loaded, &mut self.other);
        self.loaded.0.pop()
    }

    /// Keeps a block, unless both magazines are full or there is no memory for them.
    #[inline]
    pub(super) fn give(&mut self, block: u64) -> bool {
        if self.loaded.has_room() {
            self.loaded.0.push(block);
            return true;
        }
        if self.other.0.is_empty() {
            core::mem::swap(&mut self.loaded, &mut self.other);
        }
        if self.loaded.has_room() {
            self.loaded.0.push(block);
            return true;
        }
        false
    }

    /// Puts `full` in the place of the empty magazine.
    pub(super) fn load(&mut self, full: Magazine) -> Magazine {
        core::mem::replace(&mut self.loaded, full)
    }

    /// Takes a full magazine out, if both are, for an empty one.
    pub(super) fn unload(&mut self, empty: Magazine) -> Result<Magazine, Magazine> {
        if self.other.is_full() {
            Ok(core::mem::replace(&mut self.other, empty))
        } else {
            Err(empty)
        }
    }

    /// All blocks.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = u64> {
        self.loaded.drain().chain(self.other.drain())
    }

    pub(super) fn len(&self) -> usize {
        self.loaded.len() + self.other.len()
    }
}

/// Full magazines, and empty ones to be filled.
#[derive(Debug, Default)]
pub(super) struct Depot {
    full: Vec<Magazine>,
    empty: Vec<Magazine>,
}

impl Depot {
    /// Room for `most` full magazines; fewer if memory does not allow more.
    pub(super) fn new(most: usize) -> Self {
        let mut depot = Self::default();
        // Without room the depot keeps nothing, and blocks go back to where they come from.
        let _ = depot.full.try_reserve_exact(most);
        let _ = depot.empty.try_reserve_exact(most);
        depot
    }

    pub(super) fn take_full(&mut self) -> Option<Magazine> {
        self.full.pop()
    }

    pub(super) fn take_empty(&mut self) -> Magazine {
        self.empty.pop().unwrap_or_default()
    }

    /// Keeps a full magazine if there is room.
    pub(super) fn give_full(&mut self, magazine: Magazine) -> Result<(), Magazine> {
        if self.full.len() == self.full.capacity() {
            return Err(magazine);
        }
        self.full.push(magazine);
        Ok(())
    }

    /// Keeps an empty magazine, or frees it.
    pub(super) fn give_empty(&mut self, magazine: Magazine) {
        if magazine.0.capacity() != 0 && self.empty.len() < self.empty.capacity() {
            self.empty.push(magazine);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.full.iter().map(Magazine::len).sum()
    }
}
