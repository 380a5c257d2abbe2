//! Splitting blocks, so that a part of one can be unmapped.
//!
//! Arm Architecture Reference Manual (DDI 0487), section D8.17.1: a live block may only be replaced
//! by a table through an invalid entry and an invalidation, unless the hardware offers
//! break-before-make level 2 (SMMU_IDR3.BBML). Intel VT-d, section 6.5.2.3, and AMD-Vi let software
//! replace it in one write.
//!
//! Whichever it is, the IOTLB may go on holding the whole block until it is invalidated, and an
//! invalidation of fewer addresses than the block has need not drop it. So the split owes the
//! invalidation of the whole block, and no part is unmapped before that has been synced.

use super::chain::Reserve;
use super::format::{Entry, Format, SplitRule};
use super::{PageTable, SplitError, Walk, words};
use crate::addr::{Iova, IovaRange, PhysAddr, TableId};
use crate::inval::{Depth, Gather, Quiesced, WrongTable};
use crate::platform::{ProtocolStep, TableMem, Word};
use thiserror::Error;

/// Number of times that the hardware may mark a leaf while it is split: as accessed and as written,
/// and that twice, where the marks are read meanwhile and begun anew.
const MARKS: u32 = 4;

/// A block that was split and whose invalidation is owed.
///
/// Where break-before-make is the rule, nothing in the block is translated until the split is
/// completed. Dropping one loses nothing: [`PageTable::split`] of the same block begins again
/// where it was left.
///
/// *Context.* Interrupt: a value.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "where break-before-make is the rule, the block stays unmapped until it is completed"]
pub struct PendingSplit {
    of: TableId,
    block: IovaRange,
    level: u32,
    /// The table that replaces the block; `None` if it has replaced it already.
    broken: Option<PhysAddr>,
}

impl PendingSplit {
    /// The addresses of the block.
    pub fn block(&self) -> IovaRange {
        self.block
    }
}

/// A split that was not completed, because the proof is of another table: all comes back.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("the split was not completed: {error}")]
pub struct SplitNotCompleted {
    /// Tables that were mixed up.
    pub error: WrongTable,
    /// The split.
    pub pending: PendingSplit,
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Splits the block that holds `at` into the next smaller pages, with the same translations.
    /// `gather` owes the invalidation of the whole block; once that has been synced,
    /// [`PageTable::complete_split`] ends the split.
    ///
    /// Where break-before-make is the rule, the block's entry is invalid until then, and DMA to the
    /// block faults; splitting a block that is in this state gives its pending split again.
    ///
    /// *Locking.* None; no other CPU may map, unmap or split in the block until the split is
    /// completed.
    ///
    /// *Context.* Interrupt, if the table memory's `alloc` may be called there.
    ///
    /// # Errors
    /// See [`SplitError`]; the table is as it was.
    pub fn split(&self, at: Iova, gather: &mut Gather) -> Result<PendingSplit, SplitError> {
        gather.claim(self.id)?;
        if at.get() >> self.input_lg2 != 0 {
            return Err(SplitError::NoBlock { iova: at });
        }
        let Some((word, parent, level, raw)) = self.block_at(at) else {
            return self.split_cluster(at, 0, gather);
        };
        let block = IovaRange::page(at, Self::span(level));
        let broken = match F::classify(raw, level) {
            Entry::Broken(table) => Some(table),
            _ if F::leaf_lg2(raw, level) > Self::span(level).lg2() => {
                return self.split_cluster(at, level, gather);
            }
            _ => self.replace_block(word, parent, level, raw, at, gather)?,
        };
        gather.add_unmapped_mixed(block, F::GRANULE, Self::span(level), Depth::LeafOnly);
        Ok(PendingSplit { of: self.id, block, level, broken })
    }

    /// As [`PageTable::split`], of a cluster.
    fn split_cluster(
        &self,
        at: Iova,
        level: u32,
        gather: &mut Gather,
    ) -> Result<PendingSplit, SplitError> {
        let (block, size) = self.part_cluster(at, level).ok_or(SplitError::NoBlock { iova: at })?;
        gather.add_unmapped_mixed(block, Self::span(level), size, Depth::LeafOnly);
        Ok(PendingSplit { of: self.id, block, level, broken: None })
    }

    /// Writes a table in place of the block `raw` of `level` in the table `parent`, or makes the
    /// entry invalid, with that table remembered.
    fn replace_block(
        &self,
        word: &F::Word,
        parent: PhysAddr,
        level: u32,
        mut raw: u64,
        at: Iova,
        gather: &mut Gather,
    ) -> Result<Option<PhysAddr>, SplitError> {
        let mut reserve = Reserve::of(self, 1, 0)?;
        let contended = SplitError::Contended { iova: at };
        let table = reserve.pop().ok_or(contended)?;
        let direct = self.format.split_rule() == SplitRule::Direct;
        let mut marked = 0;
        loop {
            self.fill_split(table, raw, level);
            let entry = if direct {
                // A walker that does not snoop must find the table filled as soon as it finds it.
                self.clean_table(table);
                Self::full_table(table, level)
            } else {
                F::broken(table)
            };
            let Err(now) = word.compare_exchange(raw, entry) else {
                break;
            };
            // The hardware marks a leaf that a device uses: that is the same block.
            let same = F::classify(now, level) == F::classify(raw, level);
            if !same || marked == MARKS {
                reserve.put_back(self.wiped(table));
                return Err(contended);
            }
            marked += 1;
            raw = now;
        }
        let index = self.index(at, level);
        if direct {
            let spans = IovaRange::page(at, Self::span(level));
            self.tell(ProtocolStep::Split { table, spans });
            // Another debt may cover a part of the block and be paid first.
            self.publish(parent, index);
            return Ok(None);
        }
        self.owe_lines(gather, parent, index, 1);
        self.owe_lines(gather, table, 0, 1 << F::INDEX_LG2);
        Ok(Some(table))
    }

    /// The entry of `level` that points at a table with no free entry.
    fn full_table(table: PhysAddr, level: u32) -> u64 {
        let filled = if level == 1 { F::FILLED } else { 0 };
        F::table(table, level) | filled
    }

    /// Ends a split whose debt has been paid: the block is smaller pages now, with the same
    /// translations as before. Its debt, that of a map, is added to `gather`.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// With the split, if `quiesced`, `gather` or the split are of another table.
    pub fn complete_split(
        &self,
        pending: PendingSplit,
        quiesced: &Quiesced,
        gather: &mut Gather,
    ) -> Result<(), SplitNotCompleted> {
        let of = (pending.of, self.id);
        let same = match of.0 == of.1 {
            true => quiesced.check(self.id).and_then(|()| gather.claim(self.id)),
            false => Err(WrongTable { of: of.0, here: of.1 }),
        };
        if let Err(error) = same {
            return Err(SplitNotCompleted { error, pending });
        }
        let PendingSplit { block, level, broken, .. } = pending;
        let Some(table) = broken else {
            return Ok(());
        };
        if let Walk::At(word, parent) = self.walk(block.start(), level) {
            let made = Self::full_table(table, level);
            // Not if the block was unmapped meanwhile.
            if word.compare_exchange(F::broken(table), made).is_ok() {
                self.tell(ProtocolStep::Split { table, spans: block });
                self.owe_lines(gather, parent, self.index(block.start(), level), 1);
                gather.add_mapped(block, Self::span(level - 1));
            }
        }
        Ok(())
    }

    /// The block that holds `at`, whole or broken: its word, table, level and value.
    fn block_at(&self, at: Iova) -> Option<(&F::Word, PhysAddr, u32, u64)> {
        let mut table = self.root;
        for level in (1..self.levels).rev() {
            let word = self.words(table).get(self.index(at, level))?;
            let raw = word.load();
            match F::classify(raw, level) {
                Entry::Table(next) => table = next,
                Entry::Leaf(_) | Entry::Broken(_) => return Some((word, table, level, raw)),
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
        words::clear(self.words(table));
        table
    }
}
