//! Looking: one translation, or a cursor over the mappings.
//!
//! *Context.* Interrupt; a walk over many leaves takes as long as there are.

use super::format::{Entry, Format, span_lg2};
use super::{Access, PageTable, TableMapError};
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr};
use crate::platform::{TableMem, Word};

/// Translation of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The address behind the IOMMU.
    pub pa: PhysAddr,
    /// The size of the leaf.
    pub size: PageSize,
    /// Access that the leaf allows.
    pub access: Access,
}

/// One leaf, as far as it lies in the range that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRun {
    /// Device addresses.
    pub range: IovaRange,
    /// Physical address of the first of them.
    pub pa: PhysAddr,
    /// The size of the leaf.
    pub size: PageSize,
    /// Access that the leaf allows.
    pub access: Access,
}

/// The leaves in a range, in order of address.
#[derive(Debug)]
pub struct Mappings<'t, F: Format, M: TableMem<F::Word>> {
    table: &'t PageTable<F, M>,
    at: Option<Iova>,
    last: Iova,
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Translation of `iova`, if it is mapped. Changes that other CPUs make meanwhile are seen or
    /// not.
    ///
    /// *Context.* Interrupt.
    #[inline]
    pub fn translate(&self, iova: Iova) -> Option<Translation> {
        let _walking = self.begin_walk();
        let (raw, level) = self.entry_at(iova).ok()?;
        let Entry::Leaf(pa) = F::classify(raw, level) else {
            return None;
        };
        let (pa, size) = Self::leads(raw, level, pa, iova);
        Some(Translation { pa, size, access: self.format.access(raw, level) })
    }

    /// The leaves in `range`, in order of address. Changes that other CPUs make meanwhile are seen
    /// or not.
    ///
    /// *Context.* Interrupt: each step is one walk.
    pub fn mappings(&self, range: IovaRange) -> Mappings<'_, F, M> {
        let inside = range.intersection(self.input_range());
        Mappings {
            table: self,
            at: inside.map(IovaRange::start),
            last: inside.map_or(range.last(), IovaRange::last),
        }
    }

    /// The error for a map of `range`, in which something is mapped.
    #[cold]
    pub(super) fn already_mapped(&self, range: IovaRange) -> TableMapError {
        let first = self.mappings(range).next();
        let iova = first.map_or(range.start(), |run| run.range.start());
        TableMapError::AlreadyMapped { iova }
    }

    /// The leaf for `iova`: its value and level; or the level of the entry that leads nowhere. The
    /// caller has begun a walk.
    pub(super) fn entry_at(&self, iova: Iova) -> Result<(u64, u32), u32> {
        let mut table = self.root;
        let mut level = self.levels - 1;
        if iova.get() >> self.input_lg2 != 0 {
            return Err(level);
        }
        loop {
            let word = self.words(table).get(self.index(iova, level)).ok_or(level)?;
            let raw = word.load();
            match F::classify(raw, level) {
                Entry::Leaf(_) => return Ok((raw, level)),
                Entry::Table(next) if level > 0 => table = next,
                _ => return Err(level),
            }
            level -= 1;
        }
    }
}

impl<F: Format, M: TableMem<F::Word>> Iterator for Mappings<'_, F, M> {
    type Item = MappedRun;

    fn next(&mut self) -> Option<MappedRun> {
        while let Some(iova) = self.at.filter(|&iova| iova <= self.last) {
            let found = {
                let _walking = self.table.begin_walk();
                self.table.entry_at(iova)
            };
            let lg2 = match found {
                Ok((raw, level)) => F::leaf_lg2(raw, level),
                Err(level) => span_lg2::<F>(level),
            };
            let spanned = IovaRange::page(iova, PageSize::of_lg2(lg2));
            self.at = spanned.last().checked_add(1);
            let Ok((raw, level)) = found else {
                continue;
            };
            let Entry::Leaf(pa) = F::classify(raw, level) else {
                continue;
            };
            let range = IovaRange::new(iova, spanned.last().min(self.last))?;
            let (pa, size) = PageTable::<F, M>::leads(raw, level, pa, iova);
            let access = self.table.format.access(raw, level);
            return Some(MappedRun { range, pa, size, access });
        }
        None
    }
}
