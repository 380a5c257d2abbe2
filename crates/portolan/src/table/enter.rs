//! Entering and leaving leaf tables that several callers share: the live count in the entry above.

use super::PageTable;
use super::format::{Entry, Format};
use crate::addr::{Iova, PhysAddr};
use crate::platform::{TableMem, Word};

/// Result of an attempt to enter a leaf table.
pub(super) enum Enter {
    /// The live count includes the new entries now; `before` is their number before that.
    Entered { table: PhysAddr, before: u32 },
    /// There is no table: empty, or one that was emptied.
    NoTable,
    /// The range cannot be free.
    Taken,
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Announces `count` entries to come in the leaf table behind `entry`.
    #[inline]
    pub(super) fn enter(&self, entry: &F::Word, count: u32) -> Enter {
        let mut raw = entry.load();
        loop {
            let table = match F::classify(raw, 1) {
                Entry::Table(table) => table,
                Entry::Empty | Entry::Unlinked(_) => return Enter::NoTable,
                Entry::Leaf(_) | Entry::Broken(_) => return Enter::Taken,
            };
            if !Self::counted() {
                return Enter::Entered { table, before: 0 };
            }
            let before = F::live(raw);
            if before + count > 1 << F::INDEX_LG2 {
                return Enter::Taken;
            }
            match entry.compare_exchange(raw, Self::with_live(raw, before + count)) {
                Ok(_) => return Enter::Entered { table, before },
                Err(now) => raw = now,
            }
        }
    }

    /// Links the emptied leaf table that `entry` remembers, if it does, with `count` entries to come.
    pub(super) fn take_back(
        &self,
        entry: &F::Word,
        parent: PhysAddr,
        iova: Iova,
        count: u32,
    ) -> Option<PhysAddr> {
        let raw = entry.load();
        let Entry::Unlinked(table) = F::classify(raw, 1) else {
            return None;
        };
        // The faster CPU decides: the ordinary way finds out.
        let linked = entry.compare_exchange(raw, F::table(table, count, 1));
        linked.ok()?;
        self.publish(parent, self.index(iova, 1));
        Some(table)
    }

    /// Takes back an announcement.
    pub(super) fn leave(&self, entry: &F::Word, count: u32) {
        if !Self::counted() {
            return;
        }
        let mut raw = entry.load();
        while let Entry::Table(_) = F::classify(raw, 1) {
            let left = F::live(raw).saturating_sub(count);
            match entry.compare_exchange(raw, Self::with_live(raw, left)) {
                Ok(_) => return,
                Err(now) => raw = now,
            }
        }
    }

    /// The table entry `raw` with another live count; bits that the hardware sets stay.
    #[inline]
    pub(super) fn with_live(raw: u64, live: u32) -> u64 {
        let none = PhysAddr::new(0);
        let mask = F::table(none, u32::MAX, 1) & !F::table(none, 0, 1);
        (raw & !mask) | (F::table(none, live, 1) & mask)
    }
}
