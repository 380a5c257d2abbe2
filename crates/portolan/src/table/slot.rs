//! Mapping where the leaf table exists: one page, or pages of one table. Nothing is set aside,
//! since the state of one entry decides.

use super::format::{Entry, Format};
use super::pieces::{Piece, PieceCursor};
use super::{Access, PageTable, Walk, words};
use crate::addr::{Iova, IovaRange, PhysAddr, PhysRange};
use crate::inval::Gather;
use crate::platform::{ProtocolStep, TableMem, Word};

/// Place of the entry of a page that was mapped.
pub(crate) struct WrittenEntry {
    pub(super) table: PhysAddr,
    pub(super) index: usize,
}

/// Place of the entries of pages that were mapped.
pub(super) struct WrittenPart {
    pub(super) table: PhysAddr,
    pub(super) index: usize,
    pub(super) range: IovaRange,
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Writes the entry of one page whose leaf table exists: the commonest case. `None`: nothing has changed, and
    /// the way of lists does it or says why not. In line despite its length, as all of this way: the calls would
    /// cost a fifth of it.
    #[inline(always)]
    pub(crate) fn map_page(
        &self,
        iova: Iova,
        pa: PhysAddr,
        access: Access,
    ) -> Option<WrittenEntry> {
        let template = self.format.template(access, 0).ok()?;
        let odd = (iova.get() | pa.get()) & (F::GRANULE.bytes() - 1) != 0;
        let outside =
            iova.get() >> self.input_lg2 != 0 || pa.get() >> self.format.output_lg2() != 0;
        if odd || outside {
            return None;
        }
        let (_, table) = self.leaf_table_at(iova)?;
        let index = self.index(iova, 0);
        let word = self.words(table).get(index).filter(|word| word.load() == 0)?;
        let range = IovaRange::page(iova, F::GRANULE);
        self.tell(ProtocolStep::Find { table, range });
        word.store(F::leaf(template, pa));
        self.tell(ProtocolStep::Write { table, range });
        Some(WrittenEntry { table, index })
    }

    /// Writes the entries of `pieces`, each of which lies in one page, from `iova` on, where all are in a part of one
    /// leaf table that exists. `None`, as for [`PageTable::map_page`].
    #[inline]
    pub(super) fn map_pages(
        &self,
        iova: Iova,
        pieces: &[PhysRange],
        access: Access,
    ) -> Option<WrittenPart> {
        let (inside, index, count) = (F::GRANULE.bytes() - 1, self.index(iova, 0), pieces.len());
        let whole = 1 << F::INDEX_LG2;
        let fits = count < whole && index + count <= whole;
        if !fits || iova.get() & inside != 0 || iova.get() >> self.input_lg2 != 0 {
            return None;
        }
        // The loop only gathers bits: most lists have no piece that is at fault.
        let (bits, spread) = pieces.iter().fold((0, 0), |(bits, spread), piece| {
            let (start, last) = (piece.start().get(), piece.last().get());
            (bits | last, spread | (start ^ last))
        });
        if bits >> self.format.output_lg2() != 0 || spread > inside {
            return None;
        }
        let template = self.format.template(access, 0).ok()?;
        let (_, table) = self.leaf_table_at(iova)?;
        let words = self.words(table).get(index..index + count)?;
        if words::bits_of(words) != 0 {
            return None;
        }
        let range = IovaRange::from_len(iova, (count as u64) << F::GRANULE.lg2())?;
        self.tell(ProtocolStep::Find { table, range });
        for (word, piece) in words.iter().zip(pieces) {
            word.store(F::leaf(template, piece.start().align_down(F::GRANULE)));
        }
        self.join_clusters(words, index, 0);
        self.tell(ProtocolStep::Write { table, range });
        Some(WrittenPart { table, index, range })
    }

    /// The common case: pages within one leaf table that exists. `false`: nothing has
    /// changed, as for [`PageTable::map_page`].
    #[inline]
    pub(super) fn map_in_slot<I: Iterator<Item: Piece> + Clone>(
        &self,
        range: IovaRange,
        mut pieces: PieceCursor<I>,
        template: u64,
        gather: &mut Gather,
    ) -> bool {
        let count = range.pages(F::GRANULE) as usize;
        let Some((entry, table)) = self.leaf_table_at(range.start()) else {
            return false;
        };
        let index = self.index(range.start(), 0);
        let free = |words: &&[F::Word]| Self::first_live(words, range.start()).is_none();
        let Some(words) = self.words(table).get(index..index + count).filter(free) else {
            return false;
        };
        self.tell(ProtocolStep::Find { table, range });
        self.fill(words, template, &mut pieces);
        self.join_clusters(words, index, 0);
        self.tell(ProtocolStep::Write { table, range });
        if count == 1 << F::INDEX_LG2 {
            Self::mark(entry, true);
        }
        self.owe_lines(gather, table, index, count);
        self.owe_map(gather, range, F::GRANULE);
        true
    }

    /// Writes the entries of a leaf table.
    #[inline]
    pub(super) fn fill<I: Iterator<Item: Piece> + Clone>(
        &self,
        words: &[F::Word],
        template: u64,
        pieces: &mut PieceCursor<I>,
    ) {
        let one = |word: &F::Word, pa| word.store(F::leaf(template, pa));
        pieces.fill(words, one, |words, pa| match F::LEAF_STEP {
            0 => {
                for (word, page) in words.iter().zip(0u64..) {
                    one(word, PhysAddr::new(pa.get() + (page << F::GRANULE.lg2())));
                }
            }
            step => words::write_run(words, F::leaf(template, pa), step),
        });
    }

    /// The leaf table for `iova`, if there is one, and the entry that points at it.
    #[inline(always)]
    fn leaf_table_at(&self, iova: Iova) -> Option<(&F::Word, PhysAddr)> {
        let Walk::At(entry, _) = self.walk_inline(iova, 1) else {
            return None;
        };
        match F::classify(entry.load(), 1) {
            Entry::Table(table) => Some((entry, table)),
            _ => None,
        }
    }

    /// Sets or takes back the mark of `entry` that all entries of its leaf table are in use. Set it is
    /// by a caller that owns all that the table spans; bits that the hardware sets stay.
    #[cold]
    pub(super) fn mark(entry: &F::Word, filled: bool) {
        let mut raw = entry.load();
        while let Entry::Table(_) = F::classify(raw, 1) {
            let marked = if filled { raw | F::FILLED } else { raw & !F::FILLED };
            match entry.compare_exchange(raw, marked) {
                Ok(_) => return,
                Err(now) => raw = now,
            }
        }
    }
}
