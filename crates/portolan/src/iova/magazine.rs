//! Magazines of free blocks, the two of each kind that a CPU has, with a run of blocks that were never
//! out, and the depot behind them.
//!
//! After Bonwick and Adams, "Magazines and Vmem" (USENIX 2001): a CPU takes from and puts into its
//! loaded magazine, exchanges it with the previous one when it is empty or full, and only then
//! exchanges a whole magazine with the depot. A CPU that allocates and frees around the edge of a
//! magazine therefore stays away from the depot.
//!
//! *Context.* Interrupt: a few words are moved, and magazines that are left over go back to the
//! caller, which frees them outside of locks. `try_new` is for atomic code: it takes heap memory.

use super::class::{KINDS, Kind};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

/// Number of blocks of each of the two magazines at which a request with a limit looks.
const LOOKS: usize = 8;

/// Blocks that a magazine holds at most.
pub(super) const ROUNDS: usize = 127;

/// First addresses of free blocks of one kind; `None` stands for no magazine.
#[derive(Debug, Default)]
pub(super) struct Magazine(Option<Box<[Rounds; 1]>>);

/// Memory of a magazine, with the link of the list that it is in.
#[derive(Debug)]
struct Rounds {
    /// The magazine below it in a depot.
    next: Magazine,
    len: usize,
    /// Blocks that it takes, at most [`ROUNDS`].
    most: usize,
    blocks: [u64; ROUNDS],
}

impl Magazine {
    /// An empty one for `rounds` blocks, of which it has place for [`ROUNDS`]; `None` without memory.
    pub fn try_new(rounds: usize) -> Option<Self> {
        let mut one = Vec::new();
        one.try_reserve_exact(1).ok()?;
        let most = rounds.min(ROUNDS);
        one.push(Rounds { next: Self(None), len: 0, most, blocks: [0; ROUNDS] });
        one.into_boxed_slice().try_into().ok().map(|made| Self(Some(made)))
    }

    #[inline]
    fn rounds(&self) -> Option<&Rounds> {
        self.0.as_deref().map(|[rounds]| rounds)
    }

    #[inline]
    fn rounds_mut(&mut self) -> Option<&mut Rounds> {
        self.0.as_deref_mut().map(|[rounds]| rounds)
    }

    pub fn len(&self) -> usize {
        self.rounds().map_or(0, |rounds| rounds.len)
    }

    /// The blocks here.
    pub fn blocks(&self) -> &[u64] {
        self.rounds().and_then(|rounds| rounds.blocks.get(..rounds.len)).unwrap_or_default()
    }

    /// The blocks here, to be put in another order.
    pub fn blocks_mut(&mut self) -> &mut [u64] {
        let held = self.rounds_mut().and_then(|rounds| rounds.blocks.get_mut(..rounds.len));
        held.unwrap_or_default()
    }

    /// Forgets the blocks here.
    pub fn clear(&mut self) {
        if let Some(rounds) = self.rounds_mut() {
            rounds.len = 0;
        }
    }

    fn has_room(&self) -> bool {
        self.rounds().is_some_and(|rounds| rounds.len < rounds.most)
    }

    /// A block whose first address is at most `highest`, among the few on top.
    #[inline]
    fn take(&mut self, highest: u64) -> Option<u64> {
        let rounds = self.rounds_mut()?;
        let last = rounds.len.wrapping_sub(1);
        let &top = rounds.blocks.get(last)?;
        if top <= highest {
            rounds.len = last;
            return Some(top);
        }
        rounds.take_near(highest)
    }

    /// Tells if this stands for none.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The block on top.
    #[inline]
    fn top(&self) -> Option<u64> {
        let rounds = self.rounds()?;
        rounds.blocks.get(rounds.len.wrapping_sub(1)).copied()
    }

    /// Adds blocks as long as there is room and none comes twice in a row; returns their number.
    #[inline]
    fn put_all(&mut self, starts: impl Iterator<Item = u64>) -> usize {
        let mut top = self.top();
        let Some(rounds) = self.rounds_mut() else {
            return 0;
        };
        let room = rounds.blocks.get_mut(rounds.len..rounds.most).unwrap_or_default();
        let mut put = 0;
        for (place, start) in room.iter_mut().zip(starts) {
            if top == Some(start) {
                break;
            }
            (*place, top) = (start, Some(start));
            put += 1;
        }
        rounds.len += put;
        put
    }

    /// Adds a block if there is room.
    #[inline]
    pub fn put(&mut self, start: u64) -> bool {
        let Some(rounds) = self.rounds_mut().filter(|rounds| rounds.len < rounds.most) else {
            return false;
        };
        let Some(place) = rounds.blocks.get_mut(rounds.len) else {
            return false;
        };
        *place = start;
        rounds.len += 1;
        true
    }
}

impl Rounds {
    #[cold]
    #[inline(never)]
    fn take_near(&mut self, highest: u64) -> Option<u64> {
        let held = self.blocks.get_mut(..self.len)?;
        let near = held.iter().enumerate().rev().take(LOOKS);
        let at = near.filter(|&(_, &start)| start <= highest).map(|(at, _)| at).max()?;
        let last = held.len().checked_sub(1)?;
        held.swap(at, last);
        self.len = last;
        held.get(last).copied()
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

/// Blocks next to each other that have not been out since the ranges gave them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FreshRun {
    first: u64,
    blocks: u32,
    /// Bytes of a block, as a power of two.
    lg2: u32,
}

impl FreshRun {
    /// `blocks` of 2^`lg2` bytes from `first` on.
    pub fn new(first: u64, blocks: u32, lg2: u32) -> Self {
        Self { first, blocks, lg2 }
    }

    pub fn len(self) -> usize {
        self.blocks as usize
    }

    /// The lowest block, if that is at most `highest`: neighbours in time are neighbours in place.
    #[inline]
    pub fn take(&mut self, highest: u64) -> Option<u64> {
        let start = self.first;
        if self.blocks == 0 || start > highest {
            return None;
        }
        self.blocks -= 1;
        // Nothing follows the last block of 64 bits.
        self.first = start.wrapping_add(1 << self.lg2);
        Some(start)
    }

    /// First addresses of the blocks.
    pub fn starts(self) -> impl Iterator<Item = u64> + Clone {
        (0..u64::from(self.blocks)).map(move |at| self.first + (at << self.lg2))
    }
}

/// Free blocks of a CPU of one kind.
#[derive(Debug, Default)]
pub(super) struct Magazines {
    loaded: Magazine,
    previous: Magazine,
    /// Taken from once both magazines are empty.
    fresh: FreshRun,
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

    #[inline(never)]
    fn take_other(&mut self, highest: u64) -> Option<u64> {
        if self.previous.len() > 0 {
            mem::swap(&mut self.loaded, &mut self.previous);
        }
        self.loaded.take(highest).or_else(|| self.fresh.take(highest))
    }

    /// Puts a block back.
    #[inline]
    pub fn put(&mut self, start: u64) -> Put {
        if self.loaded.top() == Some(start) {
            return Put::Twice;
        }
        if !self.loaded.put(start) && !self.put_other(start) {
            return Put::Full;
        }
        self.taken += 1;
        Put::Done
    }

    /// Puts the first of some blocks back, as many as the loaded magazine takes, and returns their number.
    #[inline]
    pub fn put_all(&mut self, starts: impl Iterator<Item = u64>) -> usize {
        let put = self.loaded.put_all(starts);
        self.taken += put as u64;
        put
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

    /// Brings in blocks from the ranges, unless some are left; returns those that go back.
    pub fn freshen(&mut self, run: FreshRun) -> FreshRun {
        match self.fresh.blocks {
            0 => mem::replace(&mut self.fresh, run),
            _ => run,
        }
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

    /// Takes out both magazines, and the blocks that have not been out.
    pub fn clear(&mut self) -> ([Magazine; 2], FreshRun) {
        let both = [mem::take(&mut self.loaded), mem::take(&mut self.previous)];
        (both, mem::take(&mut self.fresh))
    }

    /// Blocks here.
    pub fn len(&self) -> usize {
        self.loaded.len() + self.previous.len() + self.fresh.len()
    }

    #[cfg(test)]
    pub fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        let both = self.loaded.blocks().iter().chain(self.previous.blocks()).copied();
        both.chain(self.fresh.starts())
    }
}

/// Magazines in a list that goes through their own memory: it grows and shrinks without any.
#[derive(Debug, Default)]
struct Stack {
    top: Magazine,
    len: usize,
}

impl Stack {
    /// Adds a magazine; one that stands for none is dropped.
    fn push(&mut self, mut magazine: Magazine) {
        let Some(rounds) = magazine.rounds_mut() else {
            return;
        };
        rounds.next = mem::take(&mut self.top);
        self.top = magazine;
        self.len += 1;
    }

    fn pop(&mut self) -> Option<Magazine> {
        let mut magazine = mem::take(&mut self.top);
        self.top = mem::take(&mut magazine.rounds_mut()?.next);
        self.len -= 1;
        Some(magazine)
    }
}

impl Drop for Stack {
    /// Frees one after the other: a list that drops its rest as its part needs a stack as long.
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// Magazines of one kind that no CPU has.
#[derive(Debug)]
pub(super) struct Depot {
    /// With blocks.
    full: Stack,
    /// Magazines without blocks; releases take them from here, and allocate none.
    empty: Stack,
    /// Blocks of a magazine.
    rounds: usize,
    /// Empty ones that stay when the depot is trimmed, beside those that blocks still out will fill.
    spare: usize,
    /// Blocks of the kind that the ranges have given out, in caches as well.
    out: u64,
    /// The fewest full ones since the last trim.
    fewest: usize,
    /// Blocks in the full ones.
    blocks: u64,
    /// Magazines brought and fetched.
    pub exchanges: u64,
}

impl Depot {
    /// A depot of magazines for `rounds` blocks, of which `spare` empty ones stay.
    pub fn new(rounds: usize, spare: usize) -> Self {
        let (full, empty) = (Stack::default(), Stack::default());
        Self { full, empty, rounds, spare, out: 0, fewest: 0, blocks: 0, exchanges: 0 }
    }

    /// A magazine with blocks.
    pub fn fetch(&mut self) -> Option<Magazine> {
        let magazine = self.pop_full()?;
        self.fewest = self.fewest.min(self.full.len);
        self.exchanges += 1;
        Some(magazine)
    }

    fn pop_full(&mut self) -> Option<Magazine> {
        let magazine = self.full.pop()?;
        self.blocks -= magazine.len() as u64;
        Some(magazine)
    }

    /// An empty magazine.
    pub fn fetch_empty(&mut self) -> Option<Magazine> {
        self.empty.pop()
    }

    /// Counts blocks that the ranges give out.
    pub fn note_out(&mut self, blocks: u64) {
        self.out = self.out.saturating_add(blocks);
    }

    /// Counts blocks that the ranges take back.
    pub fn note_back(&mut self, blocks: u64) {
        self.out = self.out.saturating_sub(blocks);
    }

    /// Magazines that are missing here for all that may come back, at most as many as `blocks` fill.
    pub fn missing(&self, blocks: u64) -> u64 {
        let held = self.holds(self.full.len + self.empty.len);
        let rounds = (self.rounds as u64).max(1);
        self.out.saturating_sub(held).min(blocks).div_ceil(rounds)
    }

    /// Tells if one is missing.
    pub fn wants_empty(&self) -> bool {
        self.missing(1) > 0
    }

    /// Blocks that so many magazines hold.
    fn holds(&self, magazines: usize) -> u64 {
        (magazines as u64).saturating_mul(self.rounds as u64)
    }

    /// An empty magazine of which there are enough.
    pub fn surplus(&mut self) -> Option<Magazine> {
        let kept = self.full.len + self.empty.len.checked_sub(1)?;
        let enough = self.empty.len > self.spare && self.holds(kept) >= self.out;
        enough.then(|| self.empty.pop())?
    }

    /// Keeps a magazine.
    pub fn keep(&mut self, magazine: Magazine) {
        if magazine.len() > 0 {
            self.exchanges += 1;
            self.blocks += magazine.len() as u64;
            self.full.push(magazine);
        } else {
            self.empty.push(magazine);
        }
    }

    /// A full magazine, of more than `kept`, that has not been needed since the last call of
    /// [`Depot::mark`].
    pub fn idle(&mut self, kept: usize) -> Option<Magazine> {
        if self.full.len <= kept {
            return None;
        }
        self.fewest = self.fewest.checked_sub(1)?;
        self.pop_full()
    }

    /// Begins another period of watching the need.
    pub fn mark(&mut self) {
        self.fewest = self.full.len;
    }

    /// Magazines with blocks.
    pub fn magazines(&self) -> usize {
        self.full.len
    }

    /// Blocks here.
    pub fn len(&self) -> u64 {
        self.blocks
    }

    #[cfg(test)]
    pub fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        let held = core::iter::successors(Some(&self.full.top), |magazine| {
            let rounds: &Rounds = magazine.rounds()?;
            Some(&rounds.next)
        });
        held.flat_map(|magazine| magazine.blocks().iter().copied())
    }
}

#[cfg(test)]
mod tests;
