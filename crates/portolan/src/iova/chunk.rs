//! A range in which many mappings are placed.
//!
//! After Rubin et al., "Fast & Safe IO Memory Protection" (SOSP 2024): the pages of one descriptor
//! or one batch lie next to each other, so that their translations share table entries, and one
//! invalidation of the whole range serves them all.
//!
//! *Context.* Interrupt, but [`IovaSpace::chunk`] and [`IovaSpace::free_chunk`]: those are for
//! tasks.

use alloc::vec::Vec;

use super::{FreeError, IovaError, IovaSpace, Request};
use crate::addr::{Iova, IovaRange, PageSize};
use crate::platform::Cpus;
use thiserror::Error;

/// A range of one space in which mappings are placed one behind the other.
///
/// No address is placed twice until [`Chunk::restart`]: an address that came back may still be in a
/// device's caches. Life of a chunk: [`IovaSpace::chunk`]; [`Chunk::place`] and [`Chunk::remove`];
/// one invalidation of [`Chunk::range`]; then [`IovaSpace::free_chunk`] or [`Chunk::restart`]. One
/// that is dropped keeps its addresses from use.
#[derive(Debug)]
#[must_use = "a chunk that is dropped keeps its addresses from use"]
pub struct Chunk {
    range: IovaRange,
    granule: PageSize,
    /// Granules placed so far, from the start.
    placed: u64,
    /// Granules in use.
    in_use: u64,
    /// A bit for each granule in use.
    used: Vec<u64>,
}

/// No room behind what is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{bytes} bytes do not fit into the {left} left of a chunk")]
pub struct ChunkFull {
    /// What was asked for.
    pub bytes: u64,
    /// Bytes never placed.
    pub left: u64,
}

/// Why a range was not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChunkError {
    /// It does not lie in the chunk, or not on granules.
    #[error("{start}..={last} is not of this chunk", start = range.start(), last = range.last())]
    Foreign {
        /// The range.
        range: IovaRange,
    },
    /// A part of it is not in use.
    #[error("a part of {start}..={last} is not in use", start = range.start(), last = range.last())]
    Unused {
        /// The range.
        range: IovaRange,
    },
}

/// A chunk that could not be given back, in which this much is still in use.
#[derive(Debug, Error)]
#[error("{granules} granules of a chunk are in use")]
pub struct ChunkInUse {
    /// The chunk.
    pub chunk: Chunk,
    /// Granules in use; 0 if the space refused it.
    pub granules: u64,
    /// What the space says against it.
    pub refused: Option<FreeError>,
}

impl Chunk {
    fn new(range: IovaRange, granule: PageSize) -> Option<Self> {
        let words = usize::try_from(range.pages(granule).div_ceil(64)).ok()?;
        let mut used = Vec::new();
        used.try_reserve_exact(words).ok()?;
        used.resize(words, 0);
        Some(Self {
            range,
            granule,
            placed: 0,
            in_use: 0,
            used,
        })
    }

    /// All its addresses: what one invalidation has to cover.
    pub fn range(&self) -> IovaRange {
        self.range
    }

    /// Granules in use.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// Places `bytes`, rounded up to granules, at a multiple of `align`.
    ///
    /// # Errors
    /// [`ChunkFull`], and nothing is placed; also for no bytes at all.
    pub fn place(&mut self, bytes: u64, align: PageSize) -> Result<IovaRange, ChunkFull> {
        let lg2 = self.granule.lg2();
        let total = self.range.pages(self.granule);
        let left = (total - self.placed) << lg2;
        let full = ChunkFull { bytes, left };
        let start = self.range.start().get();
        let mask = align.bytes().max(self.granule.bytes()) - 1;
        let at = start.checked_add(self.placed << lg2).ok_or(full)?;
        let at = at.checked_add(mask).ok_or(full)? & !mask;
        let first = (at - start) >> lg2;
        let granules = (bytes.checked_sub(1).ok_or(full)? >> lg2) + 1;
        if granules > total.saturating_sub(first) {
            return Err(full);
        }
        self.placed = first + granules;
        self.in_use += granules;
        self.each_word(first, granules, |word, mask| *word |= mask);
        IovaRange::from_len(Iova::new(at), granules << lg2).ok_or(full)
    }

    /// Says that a placed range, or a part of it, is no longer mapped.
    ///
    /// # Errors
    /// See [`ChunkError`]; nothing is changed.
    pub fn remove(&mut self, range: IovaRange) -> Result<(), ChunkError> {
        let mask = self.granule.bytes() - 1;
        let whole = range.start().get() & mask == 0 && range.last().get() & mask == mask;
        if !whole || !self.range.covers(range) {
            return Err(ChunkError::Foreign { range });
        }
        let lg2 = self.granule.lg2();
        let first = (range.start().get() - self.range.start().get()) >> lg2;
        let granules = range.pages(self.granule);
        let mut missing = 0;
        self.each_word(first, granules, |word, mask| missing |= mask & !*word);
        if missing != 0 {
            return Err(ChunkError::Unused { range });
        }
        self.each_word(first, granules, |word, mask| *word &= !mask);
        self.in_use -= granules;
        Ok(())
    }

    /// Begins again at the start, if nothing is in use. Only once an invalidation of the whole
    /// range has completed. Returns whether it did.
    #[must_use = "a chunk in use does not begin again"]
    pub fn restart(&mut self) -> bool {
        if self.in_use == 0 {
            self.placed = 0;
        }
        self.in_use == 0
    }

    /// Calls `f` with each word that has bits of `granules` granules from `first`, and those bits.
    fn each_word(&mut self, first: u64, granules: u64, mut f: impl FnMut(&mut u64, u64)) {
        let (mut at, end) = (first, first + granules);
        while at < end {
            let bits = (end - at).min(64 - at % 64);
            let mask = (u64::MAX >> (64 - bits)) << (at % 64);
            if let Some(word) = self.used.get_mut((at / 64) as usize) {
                f(word, mask);
            }
            at += bits;
        }
    }
}

impl<P: Cpus> IovaSpace<P> {
    /// A chunk for `request`.
    ///
    /// *Context.* Task: allocates its record.
    ///
    /// # Errors
    /// See [`IovaError`].
    pub fn chunk(&self, request: &Request) -> Result<Chunk, IovaError> {
        let range = self.alloc(request)?;
        Chunk::new(range, self.granule()).ok_or_else(|| {
            // Given out just now, so it can be taken back.
            let _ = self.free(range);
            IovaError::Memory
        })
    }

    /// Takes a chunk back. Only once an invalidation of the whole range has completed.
    ///
    /// *Context.* Task: frees its record.
    ///
    /// # Errors
    /// [`ChunkInUse`], with the chunk.
    pub fn free_chunk(&self, chunk: Chunk) -> Result<(), ChunkInUse> {
        let granules = chunk.in_use;
        let refused = match granules {
            0 => self.free(chunk.range).err(),
            _ => None,
        };
        if granules == 0 && refused.is_none() {
            return Ok(());
        }
        Err(ChunkInUse {
            chunk,
            granules,
            refused,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(start: u64, pages: u64) -> Chunk {
        let range = IovaRange::from_len(Iova::new(start), pages << 12).unwrap();
        Chunk::new(range, PageSize::SIZE_4K).unwrap()
    }

    #[test]
    fn places_are_apart_and_come_back_once() {
        let mut chunk = chunk(0x10_0000, 200);
        let mut placed = Vec::new();
        let mut next = 0x10_0000;
        for pages in [1u64, 64, 3, 70] {
            let range = chunk.place((pages << 12) - 5, PageSize::SIZE_4K).unwrap();
            assert_eq!(
                (range.start().get(), range.pages(PageSize::SIZE_4K)),
                (next, pages)
            );
            next += pages << 12;
            placed.push(range);
        }
        assert_eq!(chunk.in_use(), 138);
        let full = chunk.place(63 << 12, PageSize::SIZE_4K).unwrap_err();
        assert_eq!(full.left, 62 << 12);
        assert!(chunk.place(0, PageSize::SIZE_4K).is_err());
        assert!(!chunk.restart());
        for range in placed {
            let beyond = IovaRange::new(range.start(), Iova::new(range.last().get() + 0x10_0000));
            let beyond = beyond.unwrap();
            assert!(chunk.remove(beyond).is_err());
            chunk.remove(range).unwrap();
            assert_eq!(chunk.remove(range), Err(ChunkError::Unused { range }));
        }
        let odd = IovaRange::from_len(Iova::new(0x10_0000), 5).unwrap();
        assert_eq!(chunk.remove(odd), Err(ChunkError::Foreign { range: odd }));
        // What came back is not placed again before the invalidation.
        let range = chunk.place(0x1000, PageSize::SIZE_4K).unwrap();
        assert_eq!(range.start().get(), next);
        chunk.remove(range).unwrap();
        assert!(chunk.restart());
        let range = chunk.place(0x1000, PageSize::SIZE_4K).unwrap();
        assert_eq!(range.start().get(), 0x10_0000);
    }

    #[test]
    fn places_are_aligned() {
        let mut chunk = chunk(0x10_1000, 64);
        let range = chunk.place(0x1000, PageSize::SIZE_16K).unwrap();
        assert_eq!(range.start().get(), 0x10_4000);
        let end = chunk.place(0x1000, PageSize::SIZE_1G);
        assert!(end.is_err());
    }
}
