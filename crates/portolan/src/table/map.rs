//! Mapping: check and reserve everything first, then make the writes that cannot fail.

use super::chain::Reserve;
use super::format::{Entry, Format, span_lg2};
use super::pieces::{Merged, Piece, PieceCursor, Shape};
use super::slot::{WrittenEntry, WrittenPart};
use super::{Access, PageTable, Segment, TableMapError, Walk, words};
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use crate::inval::Gather;
use crate::platform::{ProtocolStep, TableMem, Word};

/// Highest number of levels of any format, and so the size of arrays by level.
const MAX_LEVELS: usize = 6;

/// One mapping under way.
struct MapRequest {
    range: IovaRange,
    /// Leaf entries without address, by level; 0 where the format has no leaf.
    templates: [u64; MAX_LEVELS],
    /// The highest level whose leaf the longest run could fill.
    top_leaf: u32,
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Maps `bytes` bytes of memory from `pa` at `iova`.
    ///
    /// *Context.* Interrupt, on the terms of [`PageTable::map_sg`].
    ///
    /// # Errors
    /// See [`TableMapError`]; the table is as it was.
    #[inline]
    pub fn map(
        &self,
        iova: Iova,
        pa: PhysAddr,
        bytes: u64,
        access: Access,
        gather: &mut Gather,
    ) -> Result<IovaRange, TableMapError> {
        self.map_sg(iova, core::iter::once(Segment { pa, bytes }), access, gather)
    }

    /// Maps a scatter list at consecutive addresses from `iova`, with the largest pages that
    /// alignment and length of its physically contiguous runs allow. Adds the debt of a map to
    /// `gather`.
    ///
    /// *Locking.* None; no other CPU may map or unmap in the same range meanwhile.
    ///
    /// *Context.* Interrupt, if the table memory's `alloc` may be called there; the time it takes
    /// grows with the list.
    ///
    /// *Ordering.* Entries are written with release ordering: a device that is told of the mapping
    /// afterwards finds it, once the debt is paid where the hardware asks for that.
    ///
    /// # Errors
    /// See [`TableMapError`]; the table is as it was.
    #[inline]
    pub fn map_sg<I>(
        &self,
        iova: Iova,
        segments: I,
        access: Access,
        gather: &mut Gather,
    ) -> Result<IovaRange, TableMapError>
    where
        I: Iterator<Item = Segment> + Clone,
    {
        self.map_list(iova, segments, access, gather)
    }

    /// As [`PageTable::map_sg`], of the whole granules around each of `pieces`.
    ///
    /// *Context.* Interrupt, on the terms of [`PageTable::map_sg`].
    ///
    /// # Errors
    /// See [`TableMapError`]; the table is as it was.
    #[inline]
    pub fn map_around(
        &self,
        iova: Iova,
        pieces: &[PhysRange],
        access: Access,
        gather: &mut Gather,
    ) -> Result<IovaRange, TableMapError> {
        gather.claim(self.id)?;
        if let [only] = pieces {
            if let Some(range) = self.map_only(iova, *only, access, gather) {
                return Ok(range);
            }
        } else if let Some(part) = self.map_pages(iova, pieces, access) {
            let WrittenPart { table, index, range } = part;
            self.owe_lines(gather, table, index, pieces.len());
            self.owe_map(gather, range, F::GRANULE);
            return Ok(range);
        }
        self.map_list(iova, pieces.iter().copied(), access, gather)
    }

    /// As [`PageTable::map_sg`], of pieces of any kind.
    ///
    /// *Context.* Interrupt, on the terms of [`PageTable::map_sg`].
    #[inline]
    fn map_list<I>(
        &self,
        iova: Iova,
        pieces: I,
        access: Access,
        gather: &mut Gather,
    ) -> Result<IovaRange, TableMapError>
    where
        I: Iterator<Item: Piece> + Clone,
    {
        gather.claim(self.id)?;
        let mut few = pieces.clone();
        if let (Some(only), None) = (few.next(), few.next()) {
            if let Some(range) = self.map_only(iova, only, access, gather) {
                return Ok(range);
            }
        }
        let too_long = TableMapError::IovaOutOfRange { iova };
        let output_lg2 = self.format.output_lg2();
        let shape = Shape::of(pieces.clone(), F::GRANULE, Self::span(1), output_lg2, too_long)?;
        if !iova.is_aligned(F::GRANULE) {
            return Err(TableMapError::UnalignedIova { iova });
        }
        let input = 1u64 << self.input_lg2;
        if shape.bytes == 0 {
            return Err(TableMapError::Empty { iova });
        }
        if iova.get() >= input || shape.bytes > input - iova.get() {
            return Err(too_long);
        }
        let range = IovaRange::from_len(iova, shape.bytes).ok_or(too_long)?;
        let slot = Self::span(1);
        if shape.longest < slot.bytes() && IovaRange::page(iova, slot).covers(range) {
            let template = self.format.template(access, 0)?;
            let pieces = PieceCursor::shaped(pieces.clone(), F::GRANULE, &shape);
            if self.map_in_slot(range, pieces, template, gather) {
                return Ok(range);
            }
        }
        let request = self.request(range, access, shape.longest)?;
        if request.top_leaf == 0 {
            let pieces = PieceCursor::shaped(pieces, F::GRANULE, &shape);
            self.map_pieces(&request, pieces, gather)?;
        } else {
            self.map_pieces(
                &request,
                PieceCursor::new(Merged::new(pieces, F::GRANULE, &shape), F::GRANULE),
                gather,
            )?;
        }
        Ok(range)
    }

    /// Maps a list of one piece, if that is one page in a leaf table that exists.
    #[inline(always)]
    fn map_only(
        &self,
        iova: Iova,
        only: impl Piece,
        access: Access,
        gather: &mut Gather,
    ) -> Option<IovaRange> {
        let WrittenEntry { table, index } = self.map_page(iova, only.page(F::GRANULE)?, access)?;
        let range = IovaRange::page(iova, F::GRANULE);
        self.owe_lines(gather, table, index, 1);
        self.owe_map(gather, range, F::GRANULE);
        Some(range)
    }

    fn request(
        &self,
        range: IovaRange,
        access: Access,
        longest: u64,
    ) -> Result<MapRequest, TableMapError> {
        let mut templates = [0; MAX_LEVELS];
        let mut top_leaf = 0;
        let sizes = self.sizes;
        for level in 0..self.levels.min(MAX_LEVELS as u32) {
            let size = Self::span(level);
            if sizes.contains(size) {
                templates[level as usize] = self.format.template(access, level)?;
                if longest >= size.bytes() {
                    top_leaf = level;
                }
            }
        }
        Ok(MapRequest { range, templates, top_leaf })
    }

    /// The first address whose entry among `words` is not empty.
    #[inline]
    pub(super) fn first_live(words: &[F::Word], start: Iova) -> Option<Iova> {
        // Most often there is none: the loop decides nothing for each word.
        let some = words::bits_of(words) != 0;
        let live = some.then(|| words.iter().position(|word| word.load() != 0))??;
        start.checked_add((live as u64) << F::GRANULE.lg2())
    }

    fn map_pieces<I>(
        &self,
        request: &MapRequest,
        pieces: PieceCursor<I>,
        gather: &mut Gather,
    ) -> Result<(), TableMapError>
    where
        I: Iterator<Item: Piece> + Clone,
    {
        let missing = self.reserve(request, pieces.clone(), gather)?;
        let mut reserve = Reserve::of(self, missing.pages, missing.unfilled)?;
        self.commit(request, pieces, &mut reserve, gather);
        Ok(())
    }

    /// Tells if a leaf of `level` fits at `iova`.
    fn fits(request: &MapRequest, level: u32, iova: Iova, pa: PhysAddr, left: u64) -> bool {
        let size = Self::span(level);
        request.templates[level as usize] != 0
            && left >= size.bytes()
            && iova.is_aligned(size)
            && pa.is_aligned(size)
    }

    /// The highest level of leaf that fits at `iova`, and the level of the first entry on the way
    /// that is in its place.
    fn leaf_level(&self, request: &MapRequest, iova: Iova, pa: PhysAddr, left: u64) -> u32 {
        let mut level = request.top_leaf;
        while level > 0 {
            if Self::fits(request, level, iova, pa, left) {
                let free = match self.walk(iova, level) {
                    Walk::At(word, _) => F::classify(word.load(), level) == Entry::Empty,
                    Walk::Stopped { .. } => true,
                };
                if free {
                    return level;
                }
            }
            level -= 1;
        }
        0
    }

    /// The part of the request from `iova` on within one leaf table.
    fn slot(request: &MapRequest, iova: Iova) -> IovaRange {
        let last = IovaRange::page(iova, Self::span(1)).last().min(request.range.last());
        IovaRange::new(iova, last).unwrap_or(request.range)
    }

    /// Takes the empty tables out that are in the place of the largest leaf which fits at `iova`.
    fn make_room(
        &self,
        request: &MapRequest,
        iova: Iova,
        pa: PhysAddr,
        left: u64,
        gather: &mut Gather,
    ) {
        let mut levels = (1..=request.top_leaf).rev();
        if let Some(level) = levels.find(|&level| Self::fits(request, level, iova, pa, left)) {
            self.prune_below(iova, level, gather);
        }
    }

    /// First pass: checks that all is free, and counts the tables that are missing.
    fn reserve<I: Iterator<Item: Piece> + Clone>(
        &self,
        request: &MapRequest,
        mut pieces: PieceCursor<I>,
        gather: &mut Gather,
    ) -> Result<MissingTables, TableMapError> {
        let mut missing = MissingTables::default();
        let mut at = Some(request.range.start());
        while let Some(iova) = at.filter(|&iova| iova <= request.range.last()) {
            let mut level = 0;
            if request.top_leaf > 0 {
                let (pa, left) = pieces.here();
                if gather.is_paid_before_use() {
                    self.make_room(request, iova, pa, left, gather);
                }
                level = self.leaf_level(request, iova, pa, left);
            }
            let covers = if level > 0 {
                self.reserve_block(iova, level, &mut missing)?;
                IovaRange::page(iova, Self::span(level))
            } else {
                let slot = Self::slot(request, iova);
                self.reserve_slot(slot, &mut missing)?;
                slot
            };
            if request.top_leaf > 0 {
                pieces.skip(covers.len_minus_one() + 1);
            }
            at = covers.last().checked_add(1);
        }
        Ok(missing)
    }

    fn reserve_block(
        &self,
        iova: Iova,
        level: u32,
        missing: &mut MissingTables,
    ) -> Result<(), TableMapError> {
        match self.walk(iova, level) {
            Walk::At(..) => Ok(()),
            Walk::Stopped { level: stopped, raw } => {
                if F::classify(raw, stopped) != Entry::Empty {
                    return Err(TableMapError::AlreadyMapped { iova });
                }
                missing.add::<F>(iova, level, stopped);
                Ok(())
            }
        }
    }

    fn reserve_slot(
        &self,
        slot: IovaRange,
        missing: &mut MissingTables,
    ) -> Result<(), TableMapError> {
        let iova = slot.start();
        let count = slot.pages(F::GRANULE) as usize;
        let (level, raw) = match self.walk_inline(iova, 1) {
            Walk::At(entry, _) => (1, entry.load()),
            Walk::Stopped { level, raw } => (level, raw),
        };
        match F::classify(raw, level) {
            Entry::Empty => {
                missing.add::<F>(iova, 1, level);
                missing.add_leaf_table(count == 1 << F::INDEX_LG2);
                Ok(())
            }
            Entry::Table(table) => {
                let index = self.index(iova, 0);
                let words = self.words(table).get(index..index + count).unwrap_or(&[]);
                match Self::first_live(words, iova) {
                    Some(iova) => Err(TableMapError::AlreadyMapped { iova }),
                    None => Ok(()),
                }
            }
            Entry::Leaf(_) | Entry::Broken(_) => Err(self.already_mapped(slot)),
        }
    }

    /// Second pass: writes. Nothing here can fail: every table that was missing is reserved, and no
    /// other takes one out in which the caller owns addresses.
    fn commit<I: Iterator<Item: Piece> + Clone>(
        &self,
        request: &MapRequest,
        mut pieces: PieceCursor<I>,
        reserve: &mut Reserve<'_, F, M>,
        gather: &mut Gather,
    ) {
        let mut at = Some(request.range.start());
        let mut leaf = Self::span(request.top_leaf);
        while let Some(iova) = at.filter(|&iova| iova <= request.range.last()) {
            let mut level = 0;
            if request.top_leaf > 0 {
                let (pa, left) = pieces.here();
                level = self.leaf_level(request, iova, pa, left);
                if level > 0 {
                    let raw = F::leaf(request.templates[level as usize], pa);
                    if let Some((word, table)) = self.reach(iova, level, reserve) {
                        let range = IovaRange::page(iova, Self::span(level));
                        self.tell(ProtocolStep::Find { table, range });
                        word.store(raw);
                        self.tell(ProtocolStep::Write { table, range });
                        self.owe_lines(gather, table, self.index(iova, level), 1);
                    }
                    pieces.skip(Self::span(level).bytes());
                    at = IovaRange::page(iova, Self::span(level)).last().checked_add(1);
                }
            }
            if level == 0 {
                let slot = Self::slot(request, iova);
                self.commit_slot(request.templates[0], slot, &mut pieces, reserve, gather);
                at = slot.last().checked_add(1);
            }
            leaf = leaf.min(Self::span(level));
        }
        if F::CLUSTER_LG2 > 0 && request.top_leaf > 0 {
            self.join_blocks(request.range, gather);
        }
        self.owe_map(gather, request.range, leaf);
    }

    fn commit_slot<I: Iterator<Item: Piece> + Clone>(
        &self,
        template: u64,
        slot: IovaRange,
        pieces: &mut PieceCursor<I>,
        reserve: &mut Reserve<'_, F, M>,
        gather: &mut Gather,
    ) {
        let Some((entry, parent)) = self.reach(slot.start(), 1, reserve) else {
            return;
        };
        let count = slot.pages(F::GRANULE) as usize;
        // The caller owns all that such a table spans: no other writes the entry.
        let whole = count == 1 << F::INDEX_LG2;
        if whole && entry.load() == 0 {
            if let Some(page) = reserve.pop_unfilled() {
                self.fill(self.words(page), template, pieces);
                self.join_clusters(self.words(page), 0, 0);
                if self.noted.lines {
                    self.publish_all(page, 0, 1 << F::INDEX_LG2);
                }
                entry.store(F::table(page, 1) | F::FILLED);
                self.tell(ProtocolStep::Link { table: page, spans: slot });
                self.tell(ProtocolStep::Find { table: page, range: slot });
                self.tell(ProtocolStep::Write { table: page, range: slot });
                self.publish(parent, self.index(slot.start(), 1));
                return;
            }
        }
        let Some(table) = self.leaf_table(entry, parent, slot.start(), reserve) else {
            return;
        };
        let index = self.index(slot.start(), 0);
        let words = self.words(table).get(index..index + count).unwrap_or(&[]);
        self.tell(ProtocolStep::Find { table, range: slot });
        self.fill(words, template, pieces);
        self.join_clusters(words, index, 0);
        self.tell(ProtocolStep::Write { table, range: slot });
        self.owe_lines(gather, table, index, count);
        if whole {
            Self::mark(entry, true);
        }
    }

    /// The entry for `iova` in the table of `level`; installs tables on the way from the reserve.
    fn reach(
        &self,
        iova: Iova,
        level: u32,
        reserve: &mut Reserve<'_, F, M>,
    ) -> Option<(&F::Word, PhysAddr)> {
        let mut table = self.root;
        let mut at = self.levels - 1;
        while at > level {
            let index = self.index(iova, at);
            let word = self.words(table).get(index)?;
            let raw = word.load();
            table = match F::classify(raw, at) {
                Entry::Table(next) => next,
                _ => {
                    let page = reserve.pop()?;
                    match word.compare_exchange(raw, F::table(page, at)) {
                        Ok(_) => {
                            let spans = IovaRange::page(iova, Self::span(at));
                            self.tell(ProtocolStep::Link { table: page, spans });
                            self.publish(table, index);
                            page
                        }
                        Err(now) => {
                            reserve.put_back(page);
                            match F::classify(now, at) {
                                Entry::Table(next) => next,
                                _ => continue,
                            }
                        }
                    }
                }
            };
            at -= 1;
        }
        let word = self.words(table).get(self.index(iova, level))?;
        Some((word, table))
    }

    /// The leaf table behind `entry`: the one that is there, or a new one.
    fn leaf_table(
        &self,
        entry: &F::Word,
        parent: PhysAddr,
        iova: Iova,
        reserve: &mut Reserve<'_, F, M>,
    ) -> Option<PhysAddr> {
        let mut raw = entry.load();
        loop {
            match F::classify(raw, 1) {
                Entry::Table(table) => return Some(table),
                Entry::Empty => {}
                Entry::Leaf(_) | Entry::Broken(_) => return None,
            }
            let page = reserve.pop()?;
            match entry.compare_exchange(raw, F::table(page, 1)) {
                Ok(_) => {
                    let spans = IovaRange::page(iova, Self::span(1));
                    self.tell(ProtocolStep::Link { table: page, spans });
                    self.publish(parent, self.index(iova, 1));
                    return Some(page);
                }
                Err(now) => {
                    raw = now;
                    reserve.put_back(page);
                }
            }
        }
    }
}

/// Counts missing tables, each once.
#[derive(Default)]
struct MissingTables {
    /// Tables that begin empty.
    pages: u64,
    /// Leaf tables all of whose entries are written before they are linked.
    unfilled: u64,
    /// By level of table: the last address that a counted table spans.
    spanned: [Option<Iova>; MAX_LEVELS],
}

impl MissingTables {
    /// Notes that a leaf table is missing, all of which may be written before it is linked.
    fn add_leaf_table(&mut self, filled_first: bool) {
        match filled_first {
            true => self.unfilled += 1,
            false => self.pages += 1,
        }
    }

    /// Notes that at `iova` tables of the levels from `lowest` to below `stopped` are missing.
    fn add<F: Format>(&mut self, iova: Iova, lowest: u32, stopped: u32) {
        for level in lowest..stopped {
            let Some(spanned) = self.spanned.get_mut(level as usize) else {
                return;
            };
            if spanned.is_none_or(|last| iova > last) {
                self.pages += 1;
                let span = PageSize::of_lg2(span_lg2::<F>(level + 1));
                *spanned = Some(IovaRange::page(iova, span).last());
            }
        }
    }
}
