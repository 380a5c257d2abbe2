//! Mapping where the leaf table exists: one page, or pages of one table. Nothing is set aside,
//! since the state of one entry decides.

use super::enter::Enter;
use super::format::Format;
use super::pieces::{Piece, PieceCursor};
use super::{Access, PageTable, Walk};
use crate::addr::{Iova, IovaRange, PhysAddr};
use crate::inval::Gather;
use crate::platform::{TableMem, Word};

/// A leaf table whose live count includes entries to come.
struct EnteredSlot<'t, W> {
    /// The entry that points at it.
    entry: &'t W,
    table: PhysAddr,
    /// Number of entries that were live before.
    before: u32,
}

/// Place of the entry of a page that was mapped.
pub(crate) struct WrittenEntry {
    pub(super) table: PhysAddr,
    pub(super) index: usize,
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
        let range = IovaRange::page(iova, F::GRANULE);
        let EnteredSlot { entry, table, before } = self.enter_slot(range, 1)?;
        let index = self.index(iova, 0);
        let free = |word: &&F::Word| (before == 0 && Self::counted()) || word.load() == 0;
        let Some(word) = self.words(table).get(index).filter(free) else {
            self.leave(entry, 1);
            return None;
        };
        word.store(F::leaf(template, pa));
        Some(WrittenEntry { table, index })
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
        let count = range.pages(F::GRANULE) as u32;
        let Some(EnteredSlot { entry, table, before }) = self.enter_slot(range, count) else {
            return false;
        };
        let index = self.index(range.start(), 0);
        let free = |words: &&[F::Word]| {
            (before == 0 && Self::counted()) || Self::first_live(words, range.start()).is_none()
        };
        let words = self.words(table).get(index..index + count as usize).filter(free);
        let Some(words) = words else {
            self.leave(entry, count);
            return false;
        };
        self.fill(words, template, &mut pieces);
        self.join_clusters(words, index);
        self.owe_lines(gather, table, index, count as usize);
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
            step => {
                let mut leaf = F::leaf(template, pa);
                // Of constant length, so that a branch is taken for each eighth entry.
                let mut eights = words.chunks_exact(8);
                for eight in &mut eights {
                    for (word, page) in eight.iter().zip(0u64..) {
                        word.store(leaf.wrapping_add(page * step));
                    }
                    leaf = leaf.wrapping_add(8 * step);
                }
                for (word, page) in eights.remainder().iter().zip(0u64..) {
                    word.store(leaf.wrapping_add(page * step));
                }
            }
        });
    }

    /// Announces the `count` entries of `range` in its leaf table. `None` if there is no such table, or
    /// no room for them.
    #[inline(always)]
    fn enter_slot(&self, range: IovaRange, count: u32) -> Option<EnteredSlot<'_, F::Word>> {
        let Walk::At(entry, parent) = self.walk(range.start(), 1) else {
            return None;
        };
        match self.enter(entry, count) {
            Enter::Entered { table, before } => Some(EnteredSlot { entry, table, before }),
            Enter::NoTable => {
                let table = self.take_back(entry, parent, range.start(), count)?;
                Some(EnteredSlot { entry, table, before: 0 })
            }
            Enter::Taken => None,
        }
    }
}
