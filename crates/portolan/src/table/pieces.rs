//! A place in a scatter list, kept from page to page.

use super::{Segment, TableMapError};
use crate::addr::{PageSize, PhysAddr, PhysRange};

/// Memory as a list has it: exact segments, or ranges that stand for the whole granules around them.
pub(crate) trait Piece: Copy {
    /// The granules.
    fn segment(self, granule: PageSize) -> Segment;

    /// The address, if it is one granule.
    fn page(self, granule: PageSize) -> Option<PhysAddr>;

    /// A number below the granule's size if it is one granule. The numbers of a list, joined bit by bit,
    /// say that of all of it.
    fn spread(self, granule: PageSize) -> u64;

    /// A number below the granule's size if it is the one granule at `place`. The numbers of a list,
    /// joined bit by bit, say that of all of it.
    fn apart(self, place: u64, granule: PageSize) -> u64;

    /// Bits of its addresses and length; all of those that the format's addresses may lack.
    fn bits(self) -> u64;

    /// Tells if `bits`, those of a whole list, say that something may not be aligned.
    fn may_be_odd(bits: u64, granule: PageSize) -> bool;
}

impl Piece for Segment {
    #[inline]
    fn segment(self, _granule: PageSize) -> Segment {
        self
    }

    #[inline]
    fn page(self, granule: PageSize) -> Option<PhysAddr> {
        (self.bytes == granule.bytes()).then_some(self.pa)
    }

    #[inline]
    fn spread(self, granule: PageSize) -> u64 {
        self.bytes ^ granule.bytes()
    }

    #[inline]
    fn apart(self, place: u64, granule: PageSize) -> u64 {
        let differs = (self.pa.get() ^ place) | (self.bytes ^ granule.bytes());
        // Bits inside a granule count as well.
        differs | differs << granule.lg2()
    }

    #[inline]
    fn bits(self) -> u64 {
        let pa = self.pa.get();
        pa | self.bytes | pa.wrapping_add(self.bytes)
    }

    #[inline]
    fn may_be_odd(bits: u64, granule: PageSize) -> bool {
        bits & (granule.bytes() - 1) != 0
    }
}

impl Piece for PhysRange {
    #[inline]
    fn segment(self, granule: PageSize) -> Segment {
        Segment::around(self, granule)
    }

    #[inline]
    fn page(self, granule: PageSize) -> Option<PhysAddr> {
        let (start, last) = (self.start(), self.last().get());
        let one = start.get() ^ last < granule.bytes();
        one.then(|| start.align_down(granule))
    }

    #[inline]
    fn spread(self, _granule: PageSize) -> u64 {
        self.start().get() ^ self.last().get()
    }

    #[inline]
    fn apart(self, place: u64, _granule: PageSize) -> u64 {
        (self.start().get() ^ place) | (self.last().get() ^ place)
    }

    #[inline]
    fn bits(self) -> u64 {
        self.last().get()
    }

    #[inline]
    fn may_be_odd(_bits: u64, _granule: PageSize) -> bool {
        false
    }
}

/// Kind of a whole list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListKind {
    /// Each piece is one granule, and no run fills a block.
    Singles,
    /// All pieces are one run, which begins at this address.
    OneRun(PhysAddr),
    /// Any other.
    Mixed,
}

/// Facts of a whole list, found before anything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Total length.
    pub(super) bytes: u64,
    /// Longest physically contiguous run, neighbours merged; of a list of single granules without a run
    /// that fills a block, one granule.
    pub(super) longest: u64,
    pub(super) kind: ListKind,
}

impl Shape {
    /// Checks every segment against the granule and the output width.
    ///
    /// The loop only gathers the bits of all addresses and lengths; where one is in doubt, or the sum
    /// may be too long, a slower second look says which segment is at fault, if any.
    #[inline]
    pub(super) fn of<P: Piece>(
        pieces: impl Iterator<Item = P> + Clone,
        granule: PageSize,
        block: PageSize,
        output_lg2: u32,
        too_long: TableMapError,
    ) -> Result<Self, TableMapError> {
        if let Some(shape) = Self::of_granules(pieces.clone(), granule, block, output_lg2) {
            return Ok(shape);
        }
        let (mut bytes, mut bits) = (0u64, 0u64);
        let (mut run, mut longest, mut next) = (0u64, 0u64, 0u64);
        for piece in pieces.clone() {
            let segment = piece.segment(granule);
            let pa = segment.pa.get();
            let end = pa.wrapping_add(segment.bytes);
            bits |= piece.bits();
            bytes = bytes.wrapping_add(end).wrapping_sub(pa);
            if pa != next {
                run = pa;
            }
            longest = longest.max(end.wrapping_sub(run));
            next = end;
        }
        // So many lengths of that width at most that their sum has 64 bits.
        let few = match pieces.size_hint().1 {
            Some(most) => most >> (64 - output_lg2.clamp(1, 63)) == 0,
            None => false,
        };
        if !few || P::may_be_odd(bits, granule) || bits >> output_lg2 != 0 {
            return Self::of_each(pieces, granule, output_lg2, too_long);
        }
        let mut starts = pieces.map(|piece| piece.segment(granule)).filter(|one| one.bytes != 0);
        let kind = match starts.next() {
            Some(first) if longest == bytes => ListKind::OneRun(first.pa),
            _ => ListKind::Mixed,
        };
        Ok(Self { bytes, longest, kind })
    }

    /// The shape of a list of which each piece is one granule, none is at fault, and no run fills a
    /// block, or all are one run. The loops hand nothing from one turn to the next: they only gather
    /// bits.
    #[inline]
    fn of_granules<P: Piece>(
        pieces: impl Iterator<Item = P> + Clone,
        granule: PageSize,
        block: PageSize,
        output_lg2: u32,
    ) -> Option<Self> {
        let (count, most) = pieces.size_hint();
        let few = count as u64 >> (64 - output_lg2.clamp(1, 63)) == 0;
        if most != Some(count) || count < 2 || !few {
            return None;
        }
        // Most lists of another kind say so at once.
        if pieces.clone().next()?.spread(granule) >= granule.bytes() {
            return None;
        }
        // A run that fills a block fills one of the parts of half its length that the list is cut into.
        let half = (block.bytes() / granule.bytes() / 2) as usize;
        let mut parts = pieces.clone();
        for _ in 0..count / half {
            let first = parts.next()?.segment(granule).pa.get();
            let last = parts.nth(half.checked_sub(2)?)?.segment(granule).pa.get();
            if last.wrapping_sub(first) == (half as u64 - 1) * granule.bytes() {
                return Self::of_one_run(pieces, count as u64, granule, output_lg2);
            }
        }
        let (mut bits, mut spread) = (0, 0);
        for piece in pieces {
            bits |= piece.bits();
            spread |= piece.spread(granule);
        }
        let odd = P::may_be_odd(bits, granule) || bits >> output_lg2 != 0;
        if odd || spread >= granule.bytes() {
            return None;
        }
        let (bytes, longest) = (count as u64 * granule.bytes(), granule.bytes());
        Some(Self { bytes, longest, kind: ListKind::Singles })
    }

    /// The shape of a list of `count` granules that are one run.
    #[inline]
    fn of_one_run<P: Piece>(
        pieces: impl Iterator<Item = P> + Clone,
        count: u64,
        granule: PageSize,
        output_lg2: u32,
    ) -> Option<Self> {
        let mut ends = pieces.clone();
        let first = ends.next()?.page(granule)?;
        let bytes = count.checked_mul(granule.bytes())?;
        let last = first.get().checked_add(bytes - granule.bytes())?;
        let ends_there = ends.last()?.page(granule)? == PhysAddr::new(last);
        if !ends_there || !first.is_aligned(granule) || last >> output_lg2 != 0 {
            return None;
        }
        let (mut apart, mut place) = (0, first.get());
        for piece in pieces {
            apart |= piece.apart(place, granule);
            place = place.wrapping_add(granule.bytes());
        }
        let one = apart < granule.bytes();
        one.then_some(Self { bytes, longest: bytes, kind: ListKind::OneRun(first) })
    }

    /// As [`Shape::of`], segment by segment.
    #[cold]
    #[inline(never)]
    pub(super) fn of_each(
        pieces: impl Iterator<Item: Piece>,
        granule: PageSize,
        output_lg2: u32,
        too_long: TableMapError,
    ) -> Result<Self, TableMapError> {
        let mut bytes = 0u64;
        let (mut run, mut longest, mut next) = (0u64, 0u64, 0u64);
        let top = 1u64 << output_lg2;
        for piece in pieces {
            let segment = piece.segment(granule);
            let (pa, len) = (segment.pa.get(), segment.bytes);
            if (pa | len) & (granule.bytes() - 1) != 0 {
                return Err(TableMapError::UnalignedMemory { pa: segment.pa, bytes: len });
            }
            if pa >= top || len > top - pa {
                return Err(TableMapError::MemoryOutOfRange { pa: segment.pa, bytes: len });
            }
            bytes = bytes.checked_add(len).ok_or(too_long)?;
            run = if pa == next { run + len } else { len };
            longest = longest.max(run);
            next = pa + len;
        }
        Ok(Self { bytes, longest, kind: ListKind::Mixed })
    }
}

/// Pieces of a list in order, with the place inside the current one.
#[derive(Clone, Debug)]
pub(super) struct PieceCursor<I> {
    rest: I,
    granule: PageSize,
    /// Each piece is one granule.
    singles: bool,
    pa: u64,
    left: u64,
}

impl<I: Iterator<Item: Piece> + Clone> PieceCursor<I> {
    pub(super) fn new(rest: I, granule: PageSize) -> Self {
        Self { rest, granule, singles: false, pa: 0, left: 0 }
    }

    /// For pieces of the list of which `shape` tells.
    pub(super) fn shaped(rest: I, granule: PageSize, shape: &Shape) -> Self {
        Self { singles: shape.kind == ListKind::Singles, ..Self::new(rest, granule) }
    }

    /// The current place: an address, and the bytes from it on in the same piece (0 at the end).
    #[inline]
    pub(super) fn here(&mut self) -> (PhysAddr, u64) {
        while self.left == 0 {
            let Some(piece) = self.rest.next() else {
                return (PhysAddr::new(0), 0);
            };
            let segment = piece.segment(self.granule);
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

    /// Hands the next `words.len()` pages out: contiguous ones to `run`, each other with its word to
    /// `one`.
    #[inline]
    pub(super) fn fill<W>(
        &mut self,
        words: &[W],
        one: impl Fn(&W, PhysAddr),
        run: impl Fn(&[W], PhysAddr),
    ) {
        let page = self.granule;
        if self.singles {
            // No place is kept from page to page.
            let pages = words.iter().zip(self.rest.clone());
            pages.for_each(|(word, piece)| one(word, piece.segment(page).pa));
            if let Some(before) = words.len().checked_sub(1) {
                self.rest.nth(before);
            }
            return;
        }
        let mut words = words.iter();
        loop {
            // The rest of the current piece.
            let pages = (self.left >> page.lg2()).min(words.len() as u64);
            let (now, later) = words.as_slice().split_at(pages as usize);
            run(now, PhysAddr::new(self.pa));
            self.advance(pages << page.lg2());
            words = later.iter();
            // Pieces of one page each need no place kept.
            loop {
                if words.len() == 0 {
                    return;
                }
                let Some(piece) = self.rest.next() else {
                    return;
                };
                let Some(pa) = piece.page(page) else {
                    let segment = piece.segment(page);
                    (self.pa, self.left) = (segment.pa.get(), segment.bytes);
                    break;
                };
                if let Some(word) = words.next() {
                    one(word, pa);
                }
            }
        }
    }
}

/// A list with physical neighbours merged, so that the largest page can be chosen.
#[derive(Clone, Debug)]
pub(super) struct Merged<I> {
    rest: I,
    granule: PageSize,
    next: Option<Segment>,
}

impl<I: Iterator<Item: Piece>> Merged<I> {
    /// For pieces of the list of which `shape` tells.
    pub(super) fn new(mut rest: I, granule: PageSize, shape: &Shape) -> Self {
        let next = match shape.kind {
            ListKind::OneRun(pa) => {
                rest.by_ref().for_each(drop);
                Some(Segment { pa, bytes: shape.bytes })
            }
            _ => rest.next().map(|piece| piece.segment(granule)),
        };
        Self { rest, granule, next }
    }
}

impl<I: Iterator<Item: Piece>> Iterator for Merged<I> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let Segment { pa, bytes } = self.next.take()?;
        let mut end = pa.get() + bytes;
        let granule = self.granule;
        for piece in self.rest.by_ref() {
            let piece = piece.segment(granule);
            if piece.pa.get() != end {
                self.next = Some(piece);
                break;
            }
            end += piece.bytes;
        }
        Some(Segment { pa, bytes: end - pa.get() })
    }
}
