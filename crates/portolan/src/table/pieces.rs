//! A place in a scatter list, kept from page to page.

use super::{MapError, Segment};
use crate::addr::{PageSize, PhysAddr};

/// What a look over the whole list tells before anything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Total length.
    pub(super) bytes: u64,
    /// Longest physically contiguous run, neighbours merged.
    pub(super) longest: u64,
}

impl Shape {
    /// Checks every segment against the granule and the output width.
    ///
    /// The loop only gathers the bits of all addresses and lengths; where one is in doubt, a slower
    /// second look says which segment is at fault, if any.
    #[inline]
    pub(super) fn of(
        segments: impl Iterator<Item = Segment> + Clone,
        granule: PageSize,
        output_lg2: u32,
        too_long: MapError,
    ) -> Result<Self, MapError> {
        let (mut bytes, mut bits) = (0u64, 0u64);
        let (mut run, mut longest, mut next) = (0u64, 0u64, 0u64);
        for segment in segments.clone() {
            let (pa, len) = (segment.pa.get(), segment.bytes);
            let end = pa.wrapping_add(len);
            bits |= pa | len | end;
            let Some(sum) = bytes.checked_add(len) else {
                return Self::of_each(segments, granule, output_lg2, too_long);
            };
            bytes = sum;
            run = if pa == next {
                run.wrapping_add(len)
            } else {
                len
            };
            longest = longest.max(run);
            next = end;
        }
        if bits & (granule.bytes() - 1) != 0 || bits >> output_lg2 != 0 {
            return Self::of_each(segments, granule, output_lg2, too_long);
        }
        Ok(Self { bytes, longest })
    }

    /// As [`Shape::of`], segment by segment.
    #[cold]
    #[inline(never)]
    fn of_each(
        segments: impl Iterator<Item = Segment>,
        granule: PageSize,
        output_lg2: u32,
        too_long: MapError,
    ) -> Result<Self, MapError> {
        let mut bytes = 0u64;
        let (mut run, mut longest, mut next) = (0u64, 0u64, 0u64);
        let top = 1u64 << output_lg2;
        for segment in segments {
            let (pa, len) = (segment.pa.get(), segment.bytes);
            if (pa | len) & (granule.bytes() - 1) != 0 {
                return Err(MapError::UnalignedMemory {
                    pa: segment.pa,
                    bytes: len,
                });
            }
            if pa >= top || len > top - pa {
                return Err(MapError::MemoryOutOfRange {
                    pa: segment.pa,
                    bytes: len,
                });
            }
            bytes = bytes.checked_add(len).ok_or(too_long)?;
            run = if pa == next { run + len } else { len };
            longest = longest.max(run);
            next = pa + len;
        }
        Ok(Self { bytes, longest })
    }
}

/// Pieces of a list in order, with the place inside the current one.
#[derive(Clone, Debug)]
pub(super) struct Pieces<I> {
    rest: I,
    pa: u64,
    left: u64,
}

impl<I: Iterator<Item = Segment>> Pieces<I> {
    pub(super) fn new(rest: I) -> Self {
        Self {
            rest,
            pa: 0,
            left: 0,
        }
    }

    /// The current place: an address, and the bytes from it on in the same piece (0 at the end).
    #[inline]
    pub(super) fn here(&mut self) -> (PhysAddr, u64) {
        while self.left == 0 {
            let Some(segment) = self.rest.next() else {
                return (PhysAddr::new(0), 0);
            };
            self.pa = segment.pa.get();
            self.left = segment.bytes;
        }
        (PhysAddr::new(self.pa), self.left)
    }

    /// Moves on by `bytes` within the current piece.
    #[inline]
    pub(super) fn advance(&mut self, bytes: u64) {
        self.pa += bytes;
        self.left -= bytes.min(self.left);
    }

    /// Moves on by `bytes` over as many pieces as it takes.
    pub(super) fn skip(&mut self, mut bytes: u64) {
        while bytes > 0 {
            let (_, left) = self.here();
            if left == 0 {
                return;
            }
            let step = left.min(bytes);
            self.advance(step);
            bytes -= step;
        }
    }

    /// Hands the next `words.len()` pages to `write`, each with its word.
    #[inline]
    pub(super) fn fill<W>(
        &mut self,
        words: &[W],
        page: PageSize,
        mut write: impl FnMut(&W, PhysAddr),
    ) {
        let size = page.bytes();
        let (mut pa, mut left) = (self.pa, self.left);
        let mut words = words;
        loop {
            // What is left of the current piece.
            let pages = (left >> page.lg2()).min(words.len() as u64);
            let (now, later) = words.split_at(pages as usize);
            for word in now {
                write(word, PhysAddr::new(pa));
                pa += size;
            }
            left -= pages * size;
            words = later;
            // Pieces of one page each need no place kept.
            loop {
                let Some((word, later)) = words.split_first() else {
                    (self.pa, self.left) = (pa, left);
                    return;
                };
                let Some(segment) = self.rest.next() else {
                    (self.pa, self.left) = (pa, 0);
                    return;
                };
                if segment.bytes != size {
                    (pa, left) = (segment.pa.get(), segment.bytes);
                    break;
                }
                write(word, segment.pa);
                words = later;
            }
        }
    }
}

/// A list with physical neighbours merged, so that the largest page can be chosen.
#[derive(Clone, Debug)]
pub(super) struct Merged<I> {
    rest: I,
    next: Option<Segment>,
}

impl<I: Iterator<Item = Segment>> Merged<I> {
    pub(super) fn new(mut rest: I) -> Self {
        let next = rest.next();
        Self { rest, next }
    }
}

impl<I: Iterator<Item = Segment>> Iterator for Merged<I> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let mut run = self.next.take()?;
        loop {
            self.next = self.rest.next();
            match self.next {
                Some(more) if more.pa.get() == run.pa.get() + run.bytes => run.bytes += more.bytes,
                _ => return Some(run),
            }
        }
    }
}
