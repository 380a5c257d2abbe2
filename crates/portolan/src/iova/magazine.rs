//! Magazines of free blocks, the two of each kind that a CPU has, and the depot behind
//! them.
//!
//! After Bonwick and Adams, "Magazines and Vmem" (USENIX 2001): a CPU takes from and puts into its
//! loaded magazine, exchanges it with the previous one when it is empty or full, and only then
//! exchanges a whole magazine with the depot. A CPU that allocates and frees around the edge of a
//! magazine therefore stays away from the depot.
//!
//! *Context.* Interrupt: a few words are moved, and magazines that are left over go back to the
//! caller, which frees them outside of locks. `try_new` is for atomic code: it takes heap memory.

use super::class::{KINDS, Kind};
use alloc::vec::Vec;
use core::mem;

/// Number of blocks of each of the two magazines at which a request with a limit looks.
const LOOKS: usize = 8;

/// First addresses of free blocks of one kind. One without capacity stands for none.
#[derive(Debug, Default)]
pub(super) struct Magazine(Vec<u64>);

impl Magazine {
    /// An empty one for `rounds` blocks; `None` without memory.
    pub fn try_new(rounds: usize) -> Option<Self> {
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(rounds).ok()?;
        Some(Self(blocks))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn pop(&mut self) -> Option<u64> {
        self.0.pop()
    }

    fn has_room(&self) -> bool {
        self.0.len() < self.0.capacity()
    }

    /// A block whose first address is at most `highest`, among the few on top.
    #[inline]
    fn take(&mut self, highest: u64) -> Option<u64> {
        let &top = self.0.last()?;
        if top <= highest {
            return self.0.pop();
        }
        self.take_near(highest)
    }

    #[cold]
    #[inline(never)]
    fn take_near(&mut self, highest: u64) -> Option<u64> {
        let near = self.0.iter().enumerate().rev().take(LOOKS);
        let found = near.filter(|&(_, &start)| start <= highest).map(|(at, _)| at);
        found.max().map(|at| self.0.swap_remove(at))
    }

    /// Tells if this stands for none.
    pub fn is_none(&self) -> bool {
        self.0.capacity() == 0
    }

    /// Adds a block if there is room.
    #[inline]
    pub fn put(&mut self, start: u64) -> bool {
        let room = self.has_room();
        if room {
            self.0.push(start);
        }
        room
    }
}

/// Cache of a CPU.
#[derive(Debug, Default)]
pub(super) struct CpuCache([Magazines; KINDS]);

impl CpuCache {
    /// Its blocks of one kind.
    #[inline]
    pub fn of(&mut self, kind: Kind) -> &mut Magazines {
        &mut self.0[kind.index()]
    }
}

/// Magazines of a CPU for one kind.
#[derive(Debug, Default)]
pub(super) struct Magazines {
    loaded: Magazine,
    previous: Magazine,
    /// Blocks given out from here.
    pub given: u64,
    /// Blocks taken back here.
    pub taken: u64,
}

/// Result of putting a block on magazines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It lies there.
    Done,
    /// There is no room.
    Full,
    /// It lies there already.
    Twice,
}

impl Magazines {
    /// A block whose first address is at most `highest`.
    #[inline]
    pub fn take(&mut self, highest: u64) -> Option<u64> {
        let found = match self.loaded.take(highest) {
            None => self.take_other(highest)?,
            Some(found) => found,
        };
        self.given += 1;
        Some(found)
    }

    #[cold]
    #[inline(never)]
    fn take_other(&mut self, highest: u64) -> Option<u64> {
        mem::swap(&mut self.loaded, &mut self.previous);
        self.loaded.take(highest)
    }

    /// Puts a block back.
    #[inline]
    pub fn put(&mut self, start: u64) -> Put {
        if self.loaded.0.last() == Some(&start) {
            return Put::Twice;
        }
        if !self.loaded.put(start) && !self.put_other(start) {
            return Put::Full;
        }
        self.taken += 1;
        Put::Done
    }

    #[cold]
    #[inline(never)]
    fn put_other(&mut self, start: u64) -> bool {
        let room = self.previous.has_room();
        if room {
            mem::swap(&mut self.loaded, &mut self.previous);
        }
        room && self.loaded.put(start)
    }

    /// Brings in a magazine with blocks; returns one that goes to the depot.
    pub fn load(&mut self, magazine: Magazine) -> Magazine {
        let place = if self.loaded.len() == 0 {
            &mut self.loaded
        } else if self.previous.len() == 0 {
            &mut self.previous
        } else {
            return magazine;
        };
        mem::replace(place, magazine)
    }

    /// Puts a block back with the help of an empty magazine; returns the magazine that goes to the
    /// depot.
    pub fn put_into(&mut self, empty: Magazine, start: u64) -> (Magazine, Put) {
        match self.put(start) {
            Put::Full => {
                let out = mem::replace(&mut self.previous, mem::replace(&mut self.loaded, empty));
                (out, self.put(start))
            }
            other => (empty, other),
        }
    }

    /// Takes out both magazines.
    pub fn clear(&mut self) -> [Magazine; 2] {
        [mem::take(&mut self.loaded), mem::take(&mut self.previous)]
    }

    /// Blocks here.
    pub fn len(&self) -> usize {
        self.loaded.len() + self.previous.len()
    }

    #[cfg(test)]
    pub fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.loaded.0.iter().chain(&self.previous.0).copied()
    }
}

/// Magazines of one kind that no CPU has.
#[derive(Debug)]
pub(super) struct Depot {
    /// With blocks; room for all that may come is reserved at the start.
    full: Vec<Magazine>,
    /// Magazines without blocks; releases take them from here, and allocate none.
    empty: Vec<Magazine>,
    /// Empty ones that stay when the depot is trimmed.
    spare: usize,
    /// From so many full ones on no CPU is given an empty one.
    limit: usize,
    /// The fewest full ones since the last trim.
    fewest: usize,
    /// Magazines brought and fetched.
    pub exchanges: u64,
}

/// An empty magazine for a CPU whose own are full.
#[derive(Debug)]
pub(super) enum Empty {
    /// Here it is.
    Ready(Magazine),
    /// There is none.
    None,
    /// The depot has enough of full ones.
    Enough,
}

impl Depot {
    /// A depot that stops giving out empty magazines at `limit` full ones, with room for one more
    /// of each of `cpus` CPUs; `None` without memory.
    pub fn try_new(limit: usize, cpus: usize) -> Option<Self> {
        let (mut full, mut empty) = (Vec::new(), Vec::new());
        full.try_reserve_exact(limit.checked_add(cpus)?).ok()?;
        // Beside the full ones when they have been emptied, two of each CPU's, and those that CPUs
        // made at once because they found none: a handler that brings one must not have to free it.
        let most = cpus.checked_mul(4)?.checked_add(limit)?;
        empty.try_reserve_exact(most).ok()?;
        Some(Self { full, empty, spare: cpus, limit, fewest: 0, exchanges: 0 })
    }

    /// A magazine with blocks.
    pub fn fetch(&mut self) -> Option<Magazine> {
        let magazine = self.full.pop()?;
        self.fewest = self.fewest.min(self.full.len());
        self.exchanges += 1;
        Some(magazine)
    }

    /// Offers an empty magazine.
    pub fn offer(&mut self) -> Empty {
        if self.full.len() >= self.limit {
            return Empty::Enough;
        }
        self.empty.pop().map_or(Empty::None, Empty::Ready)
    }

    /// Tells if another empty magazine will be wanted when as many blocks come back as go out now.
    pub fn wants_empty(&self) -> bool {
        self.full.len() + self.empty.len() < self.limit
    }

    /// An empty magazine of which there are enough.
    pub fn surplus(&mut self) -> Option<Magazine> {
        (self.empty.len() > self.spare).then(|| self.empty.pop())?
    }

    /// Keeps a magazine, and hands it back if there is no room for it.
    pub fn keep(&mut self, magazine: Magazine) -> Option<Magazine> {
        let list = if magazine.len() > 0 {
            self.exchanges += 1;
            &mut self.full
        } else {
            &mut self.empty
        };
        if list.len() < list.capacity() {
            list.push(magazine);
            return None;
        }
        Some(magazine)
    }

    /// A full magazine that has not been needed since the last call of [`Depot::mark`].
    pub fn idle(&mut self) -> Option<Magazine> {
        self.fewest = self.fewest.checked_sub(1)?;
        self.full.pop()
    }

    /// Begins another period of watching the need.
    pub fn mark(&mut self) {
        self.fewest = self.full.len();
    }

    /// Magazines with blocks.
    pub fn magazines(&self) -> usize {
        self.full.len()
    }

    /// Blocks here.
    pub fn len(&self) -> usize {
        self.full.iter().map(Magazine::len).sum()
    }

    #[cfg(test)]
    pub fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.full.iter().flat_map(|magazine| magazine.0.iter().copied())
    }
}

#[cfg(test)]
mod tests;
