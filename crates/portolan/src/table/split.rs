//! Splitting blocks: in one write, or through break-before-make.
//!
//! Arm Architecture Reference Manual (DDI 0487), section D8.17.1: a live block may only be replaced
//! by a table through an invalid entry and an invalidation, unless the hardware offers
//! break-before-make level 2 (SMMU_IDR3.BBML).

use super::chain::Reserve;
use super::format::{Entry, Format};
use super::{PageTable, SplitError, Walk};
use crate::addr::{Iova, IovaRange, PhysAddr};
use crate::inval::{Depth, Gather, Quiesced};
use crate::platform::{TableMem, Word};

/// A block between break and make: nothing in it is translated until the split is completed.
#[derive(Debug)]
#[must_use = "the block stays unmapped until the split is completed"]
pub struct PendingSplit {
    block: IovaRange,
    level: u32,
    table: PhysAddr,
}

impl PendingSplit {
    /// The addresses that are not translated meanwhile.
    pub fn block(&self) -> IovaRange {
        self.block
    }
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Breaks the block that holds `at`: its entry becomes invalid and `gather` owes the
    /// invalidation. Once that has been synced, [`PageTable::complete_split`] puts a table of the
    /// next smaller pages in its place. DMA to the block faults in between.
    ///
    /// # Errors
    /// See [`SplitError`]; the table is as it was.
    pub fn split(&self, at: Iova, gather: &mut Gather) -> Result<PendingSplit, SplitError> {
        if at.get() >> self.format.input_lg2() != 0 {
            return Err(SplitError::NoBlock { iova: at });
        }
        let Some((word, parent, level, raw)) = self.block_at(at) else {
            return Err(SplitError::NoBlock { iova: at });
        };
        let mut reserve = Reserve::of(self, 1)?;
        let none = SplitError::Contended { iova: at };
        let table = reserve.pop().ok_or(none)?;
        self.fill_split(table, raw, level);
        if word.compare_exchange(raw, F::broken(table)).is_err() {
            reserve.put_back(self.wiped(table));
            return Err(none);
        }
        self.owe_lines(gather, parent, Self::index(at, level), 1);
        self.owe_lines(gather, table, 0, 1 << F::INDEX_LG2);
        let block = IovaRange::page(at, Self::span(level));
        gather.add_unmapped(block, Self::span(level), Depth::LeafOnly);
        Ok(PendingSplit {
            block,
            level,
            table,
        })
    }

    /// Makes the table that replaces a broken block; the same translations as before.
    pub fn complete_split(&self, pending: PendingSplit, _quiesced: &Quiesced, gather: &mut Gather) {
        let PendingSplit {
            block,
            level,
            table,
        } = pending;
        if let Walk::At(word, parent) = self.walk(block.start(), level) {
            let live = if level == 1 { 1 << F::INDEX_LG2 } else { 0 };
            // Nobody else changes a broken entry.
            word.store(F::table(table, live, level));
            self.owe_lines(gather, parent, Self::index(block.start(), level), 1);
            gather.add_mapped(block, Self::span(level - 1));
        }
    }

    /// Splits every block that `inside` cuts, until it is the first address of an entry.
    pub(super) fn split_directly(&self, inside: Iova, reserve: &mut Reserve<'_, F, M>) {
        if inside.get() >> self.format.input_lg2() != 0 {
            return;
        }
        while let Some((word, parent, level, raw)) = self.block_at(inside) {
            if inside.is_aligned(Self::span(level)) {
                return;
            }
            let Some(table) = reserve.pop() else {
                return;
            };
            self.fill_split(table, raw, level);
            let live = if level == 1 { 1 << F::INDEX_LG2 } else { 0 };
            // A walker that does not snoop must find the table filled as soon as it finds it.
            self.clean_table(table);
            if word
                .compare_exchange(raw, F::table(table, live, level))
                .is_err()
            {
                reserve.put_back(self.wiped(table));
                continue;
            }
            // Another debt may cover a part of the block and be paid first.
            self.publish(parent, Self::index(inside, level));
        }
    }

    /// The block leaf that holds `at`: its word, table, level and value.
    fn block_at(&self, at: Iova) -> Option<(&F::Word, PhysAddr, u32, u64)> {
        let mut table = self.root;
        for level in (1..self.format.levels()).rev() {
            let word = self.words(table).get(Self::index(at, level))?;
            let raw = word.load();
            match F::classify(raw, level) {
                Entry::Table(next) => table = next,
                Entry::Leaf(_) => return Some((word, table, level, raw)),
                _ => return None,
            }
        }
        None
    }

    /// Writes the leaves that translate as the block `raw` of `level` does.
    fn fill_split(&self, table: PhysAddr, raw: u64, level: u32) {
        let Entry::Leaf(pa) = F::classify(raw, level) else {
            return;
        };
        let template = F::demote(raw, level);
        let step = Self::span(level - 1).bytes();
        for (word, i) in self.words(table).iter().zip(0u64..) {
            word.store(F::leaf(template, PhysAddr::new(pa.get() + i * step)));
        }
    }

    fn clean_table(&self, table: PhysAddr) {
        let page = crate::addr::PhysRange::page(table, F::GRANULE);
        self.mem.clean(page);
        self.mem.clean_barrier();
    }

    fn wiped(&self, table: PhysAddr) -> PhysAddr {
        for word in self.words(table) {
            word.store(0);
        }
        table
    }
}
