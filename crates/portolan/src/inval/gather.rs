//! The debt of one or more operations on one table, and the proof that it was paid.
//!
//! A gather lives on the stack and never allocates: spans that do not fit are merged with their
//! nearest neighbour, which can only invalidate more than was asked.
//!
//! *Context.* Interrupt: values on the stack, no heap.

use arrayvec::ArrayVec;

use thiserror::Error;

use super::{Depth, Flushed};
use crate::addr::{IovaRange, PageSize, PhysAddr, PhysRange, TableId};

/// Spans kept apart before neighbours are merged.
const SPANS: usize = 4;
/// Runs of cache lines kept before they are cleaned on the spot.
const LINES: usize = 4;

/// Addresses whose translations are owed an invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Addresses to invalidate.
    pub range: IovaRange,
    /// The smallest leaf among them.
    pub leaf: PageSize,
    /// The largest page that a cache may hold one of them in.
    pub largest: PageSize,
    /// Depth of the invalidation: walk caches are concerned if a table left the tree.
    pub depth: Depth,
}

impl Span {
    /// Tells if nothing lies between the two spans.
    #[inline]
    fn touches(&self, other: &Self) -> bool {
        let (one, two) = (self.range, other.range);
        one.start().get() <= two.last().get().saturating_add(1)
            && two.start().get() <= one.last().get().saturating_add(1)
    }

    /// Becomes one that holds both.
    #[inline]
    fn grow(&mut self, other: &Self) {
        self.range = self.range.hull(other.range);
        self.leaf = self.leaf.min(other.leaf);
        self.largest = self.largest.max(other.largest);
        if other.depth == Depth::AllLevels {
            self.depth = Depth::AllLevels;
        }
    }

    /// Bytes between the two spans; 0 if they touch or overlap.
    fn gap(self, other: Self) -> u64 {
        let (low, high) =
            if self.range.start() <= other.range.start() { (self, other) } else { (other, self) };
        high.range.start().get().saturating_sub(low.range.last().get().saturating_add(1))
    }
}

/// A few spans, merged where they touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spans(ArrayVec<Span, SPANS>);

impl Spans {
    #[inline]
    pub(crate) fn as_slice(&self) -> &[Span] {
        &self.0
    }

    /// Adds one. In line for the first, which most often is the only one.
    #[inline(always)]
    pub(crate) fn add(&mut self, Span { range, leaf, largest, depth }: Span) {
        match self.0.is_empty() {
            true => self.0.push(Span { range, leaf, largest, depth }),
            false => self.add_next(range, leaf, largest, depth),
        }
    }

    /// Adds another. Its parts come in registers: a span in memory would be written in bytes and read in
    /// words, for which a CPU waits.
    #[inline(never)]
    fn add_next(&mut self, range: IovaRange, leaf: PageSize, largest: PageSize, depth: Depth) {
        let span = Span { range, leaf, largest, depth };
        if let Some(last) = self.0.last_mut().filter(|last| last.touches(&span)) {
            last.grow(&span);
        } else if self.0.try_push(span).is_err() {
            self.merge_nearest(span);
        }
    }

    #[cold]
    fn merge_nearest(&mut self, span: Span) {
        let last = self.0.len() - 1;
        let mut nearest = (last, self.0[last].gap(span));
        for (at, kept) in self.0[..last].iter().enumerate() {
            let gap = kept.gap(span);
            if gap < nearest.1 {
                nearest = (at, gap);
            }
        }
        // The next one is most often its neighbour, and is looked for in the last place.
        if nearest.0 != last {
            self.0.swap(nearest.0, last);
        }
        self.0[last].grow(&span);
    }
}

/// Table pages that left the tree, linked through a word of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableChain {
    pub(crate) ends: Option<(PhysAddr, PhysAddr)>,
    pub(crate) pages: usize,
}

/// A debt, or the proof that one was paid, is of another table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("what is owed for table {} was handed to table {}", of.get(), here.get())]
pub struct WrongTable {
    /// The table that it is of.
    pub of: TableId,
    /// The table that it was handed to.
    pub here: TableId,
}

/// Invalidations that one or more operations on one table owe the hardware.
///
/// Map and unmap add to it; [`plan`](super::plan()) reads it;
/// [`PageTable::sync`](crate::table::PageTable::sync) pays it. The
/// first table that adds to a gather is the only one that can: a gather names the table it is of.
/// Dropping one leaks the table pages it holds and leaves stale translations in place.
///
/// ```
/// use portolan::addr::IovaRange;
/// use portolan::inval::Gather;
/// use portolan::platform::TableMem;
/// use portolan::table::{Format, PageTable, TableUnmapError};
///
/// /// Unmaps many ranges for one invalidation.
/// fn clear<F: Format, M: TableMem<F::Word>>(
///     table: &PageTable<F, M>,
///     ranges: &[IovaRange],
/// ) -> Result<Gather, TableUnmapError> {
///     let mut owed = Gather::new();
///     for &range in ranges {
///         table.unmap(range, &mut owed)?;
///     }
///     Ok(owed) // to be paid by `PageTable::sync`
/// }
/// ```
///
/// *Context.* Interrupt: a value on the stack, no heap.
#[derive(Debug, Default)]
#[must_use = "what is owed has to be synced"]
pub struct Gather {
    of: Option<TableId>,
    paid: Paid,
    mapped: Spans,
    unmapped: Spans,
    lines: ArrayVec<PhysRange, LINES>,
    cleaned_early: Cleaned,
    pub(crate) tables: TableChain,
}

/// Time at which the debt of a map is paid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Paid {
    /// If it owes something, perhaps.
    #[default]
    Sometime,
    /// Before a device is told of the mapping.
    BeforeUse,
}

/// Record of lines that were cleaned before the plan, so that a barrier is owed for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cleaned {
    #[default]
    Nothing,
    Some,
}

impl Gather {
    /// Nothing owed.
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing owed, by a caller that pays before a device uses the mapping, at any cost. A map may then
    /// put a block where an empty table was left, which walk caches have to forget first; with another
    /// debt it puts small pages there.
    #[inline]
    pub fn paid_before_use() -> Self {
        let mut owed = Self::new();
        owed.pay_before_use();
        owed
    }

    /// Has it paid before a device uses the mapping. In its place: a debt is long to move.
    #[inline]
    pub(crate) fn pay_before_use(&mut self) {
        self.paid = Paid::BeforeUse;
    }

    /// Tells if it is paid before a device uses the mapping.
    #[inline]
    pub(crate) fn is_paid_before_use(&self) -> bool {
        self.paid == Paid::BeforeUse
    }

    /// The table that it is of, once something was added.
    #[inline]
    pub fn table(&self) -> Option<TableId> {
        self.of
    }

    /// Makes it a gather of `table`.
    ///
    /// # Errors
    /// If it is one of another table.
    #[inline]
    pub fn claim(&mut self, table: TableId) -> Result<(), WrongTable> {
        match self.of {
            Some(of) => check(of, table),
            None => {
                self.of = Some(table);
                Ok(())
            }
        }
    }

    /// Checks that `table` may pay it: it is of that table, or of none.
    ///
    /// # Errors
    /// If it is of another table.
    #[inline]
    pub fn check(&self, table: TableId) -> Result<(), WrongTable> {
        self.of.map_or(Ok(()), |of| check(of, table))
    }

    /// Tells if nothing is owed.
    pub fn is_empty(&self) -> bool {
        self.mapped.as_slice().is_empty()
            && self.unmapped.as_slice().is_empty()
            && self.lines.is_empty()
            && self.cleaned_early == Cleaned::Nothing
            && !self.holds_tables()
    }

    /// Mapped spans.
    #[inline]
    pub fn mapped(&self) -> &[Span] {
        self.mapped.as_slice()
    }

    /// Unmapped spans.
    #[inline]
    pub fn unmapped(&self) -> &[Span] {
        self.unmapped.as_slice()
    }

    /// Cache lines of table memory to write back if the walker does not snoop.
    #[inline]
    pub fn lines(&self) -> &[PhysRange] {
        &self.lines
    }

    /// Tells if table pages wait for this debt to be paid.
    #[inline]
    pub fn holds_tables(&self) -> bool {
        self.tables.pages != 0
    }

    /// Number of table pages that wait for this debt to be paid.
    pub fn table_pages(&self) -> usize {
        self.tables.pages
    }

    /// Tells if lines of table memory were written.
    #[inline]
    pub(crate) fn holds_lines(&self) -> bool {
        !self.lines.is_empty() || self.cleaned_early == Cleaned::Some
    }

    /// Owes the invalidations of a map of `range` for `table`: for domains that are not page tables,
    /// whose own records have the details. The range may grow.
    ///
    /// # Errors
    /// If it is of another table.
    pub fn owe_map(
        &mut self,
        table: TableId,
        range: IovaRange,
        granule: PageSize,
    ) -> Result<(), WrongTable> {
        self.claim(table)?;
        self.add_mapped(range, granule);
        Ok(())
    }

    /// Owes the invalidations of an unmap of `range`; as [`Gather::owe_map`].
    ///
    /// # Errors
    /// If it is of another table.
    pub fn owe_unmap(
        &mut self,
        table: TableId,
        range: IovaRange,
        granule: PageSize,
    ) -> Result<(), WrongTable> {
        self.claim(table)?;
        self.add_unmapped(range, granule, Depth::LeafOnly);
        Ok(())
    }

    /// Moves the ranges of `from` here, both of `table`, which is no page table.
    ///
    /// # Errors
    /// If one of them is of another table; both are as they were.
    pub fn absorb_spans(&mut self, table: TableId, from: &mut Self) -> Result<(), WrongTable> {
        from.check(table)?;
        self.claim(table)?;
        self.add_spans(from);
        *from = Self::new();
        Ok(())
    }

    /// Empties a debt of `table`, which is no page table, once it was paid, and returns the proof.
    ///
    /// *Caller's duties.* All of it was carried out: no device uses translations that it named.
    ///
    /// # Errors
    /// If it is of another table.
    pub fn paid(&mut self, table: TableId) -> Result<Flushed, WrongTable> {
        self.check(table)?;
        *self = Self::new();
        Ok(Flushed::new())
    }

    #[cfg(test)]
    pub(crate) fn cleaned_early(&self) -> Cleaned {
        self.cleaned_early
    }

    #[inline]
    pub(crate) fn add_mapped(&mut self, range: IovaRange, leaf: PageSize) {
        self.mapped.add(Span { range, leaf, largest: leaf, depth: Depth::AllLevels });
    }

    #[inline]
    pub(crate) fn add_unmapped(&mut self, range: IovaRange, leaf: PageSize, depth: Depth) {
        self.add_unmapped_mixed(range, leaf, leaf, depth);
    }

    /// Adds addresses that were mapped in pages from `leaf` to `largest`.
    #[inline]
    pub(crate) fn add_unmapped_mixed(
        &mut self,
        range: IovaRange,
        leaf: PageSize,
        largest: PageSize,
        depth: Depth,
    ) {
        self.unmapped.add(Span { range, leaf, largest, depth });
    }

    /// Adds lines to clean; hands them back if there is no room, to be cleaned at once.
    #[inline]
    pub(crate) fn add_lines(&mut self, bytes: PhysRange) -> Option<PhysRange> {
        match self.lines.is_empty() {
            true => {
                self.lines.push(bytes);
                None
            }
            false => self.add_lines_behind(bytes),
        }
    }

    fn add_lines_behind(&mut self, bytes: PhysRange) -> Option<PhysRange> {
        if let Some(last) = self.lines.last_mut() {
            let touches = last.last().get().saturating_add(1) >= bytes.start().get()
                && bytes.last().get().saturating_add(1) >= last.start().get();
            if touches {
                *last = last.hull(bytes);
                return None;
            }
        }
        match self.lines.try_push(bytes) {
            Ok(()) => None,
            Err(full) => {
                self.cleaned_early = Cleaned::Some;
                Some(full.element())
            }
        }
    }

    /// Takes over the other's spans; its tables are the caller's to move.
    pub(crate) fn add_spans(&mut self, other: &Self) {
        for &span in other.mapped() {
            self.mapped.add(span);
        }
        for &span in other.unmapped() {
            self.unmapped.add(span);
        }
        if other.cleaned_early == Cleaned::Some {
            self.cleaned_early = Cleaned::Some;
        }
    }

    /// Takes the proof out of a gather of `table` that was paid, and leaves it empty.
    #[inline]
    pub(crate) fn take_quiesced(&mut self, table: TableId) -> Quiesced {
        let quiesced = Quiesced { of: table, tables: self.tables };
        self.clear();
        quiesced
    }

    /// Owes nothing any more, and holds no table pages.
    #[inline]
    pub(crate) fn clear(&mut self) {
        // Lists are replaced, which takes no look at their lengths.
        self.of = None;
        self.mapped.0 = ArrayVec::new();
        self.unmapped.0 = ArrayVec::new();
        self.lines = ArrayVec::new();
        self.cleaned_early = Cleaned::Nothing;
        self.tables = TableChain::default();
    }
}

#[inline]
fn check(of: TableId, here: TableId) -> Result<(), WrongTable> {
    match of == here {
        true => Ok(()),
        false => Err(WrongTable { of, here }),
    }
}

/// Proof that a debt of one table has been paid: the key that gives table pages back to their
/// memory.
///
/// *Context.* Interrupt: a value.
#[derive(Debug)]
#[must_use = "the table pages it holds come back through the table's `reclaim`"]
pub struct Quiesced {
    of: TableId,
    pub(crate) tables: TableChain,
}

impl Quiesced {
    /// The table whose debt was paid.
    pub fn table(&self) -> TableId {
        self.of
    }

    /// Checks that it is a proof for `table`.
    ///
    /// # Errors
    /// If it is one for another.
    #[inline]
    pub fn check(&self, table: TableId) -> Result<(), WrongTable> {
        check(self.of, table)
    }

    /// Number of table pages that can come back.
    pub fn table_pages(&self) -> usize {
        self.tables.pages
    }
}

#[cfg(test)]
mod tests;
