//! Leaf entries of a machine's tables that a range takes: the unit by which maps and unmaps are counted.
//!
//! Linux writes the largest leaf that begins on its boundary in both spaces and fits (`iommu_pgsize`), so a map of
//! 2 MiB may be one entry or 512. A call that unmaps does not name its memory: mappings with large leaves are
//! remembered until then. Addresses come without their domain. Of two mappings at one address the trace does not tell
//! the one that is unmapped first, and neither is counted.

use std::collections::BTreeMap;

use anyhow::Result;
use portolan::addr::PageSizes;
use portolan::table::format::Format;
use portolan_sim::decode::TableFormat;

use crate::machines::{WithFormat, with_format};

/// Mappings with large leaves that are remembered.
const MOST: usize = 1 << 16;

/// Page sizes of a machine's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pages {
    sizes: PageSizes,
    /// Bytes of a page.
    page: u64,
    /// Bytes that the pages of one table of the lowest level span.
    table: u64,
}

struct SizesOf;

impl WithFormat for SizesOf {
    type Output = PageSizes;

    fn run<F: Format>(self, format: F) -> Result<PageSizes> {
        Ok(format.page_sizes())
    }
}

impl Pages {
    /// Leaves of tables of a format.
    ///
    /// # Errors
    /// If no machine has such tables.
    pub(super) fn of(format: TableFormat) -> Result<Self> {
        Ok(Self {
            sizes: with_format(format, SizesOf)?,
            page: format.granule().bytes(),
            table: format.span(1).bytes(),
        })
    }

    /// Leaves of `bytes` at `iova`, of memory from `pa` on; nothing where that is no whole number of pages.
    fn leaves(self, iova: u64, pa: u64, bytes: u64) -> Option<u64> {
        if bytes == 0 || !(iova | pa | bytes).is_multiple_of(self.page) {
            return None;
        }
        let (mut leaves, mut smaller) = (bytes / self.page, self.page);
        let larger = self.sizes.iter().map(|size| size.bytes()).skip(1);
        for size in larger.take_while(|size| (iova ^ pa).is_multiple_of(*size)) {
            let within = within(iova, bytes, size);
            leaves -= within / smaller - within / size;
            smaller = size;
        }
        Some(leaves)
    }

    /// Leaves of a map with unknown addresses: memory in one piece that may begin on any boundary.
    pub(super) fn of_map(self, bytes: u64) -> Option<u64> {
        self.leaves(0, 0, bytes.checked_next_multiple_of(self.page)?)
    }

    /// Leaves of an unmap of which only the size is known; less than a table's range is pages.
    pub(super) fn of_unmap(self, bytes: u64) -> Option<u64> {
        (bytes > 0 && bytes < self.table).then(|| bytes.div_ceil(self.page))
    }

    /// Tells if some leaf is larger than a page.
    fn has_large(self, iova: u64, pa: u64, bytes: u64) -> bool {
        let table = self.table;
        let fits = self.sizes.bits() & table != 0 && (iova ^ pa).is_multiple_of(table);
        fits && within(iova, bytes, table) > 0
    }
}

/// Bytes of the range that are in whole pages of `size` on their boundaries.
fn within(start: u64, bytes: u64, size: u64) -> u64 {
    let end = start.saturating_add(bytes) & !(size - 1);
    let first = start.checked_next_multiple_of(size);
    first.map_or(0, |first| end.saturating_sub(first))
}

/// A mapping with large leaves.
#[derive(Debug)]
struct Run {
    end: u64,
    pa: u64,
    /// Number of leaves; `None` if something else was mapped at its address.
    leaves: Option<u64>,
}

/// Mappings with large leaves, by their address.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) pages: Pages,
    runs: BTreeMap<u64, Run>,
}

impl Mapped {
    pub(super) fn new(pages: Pages) -> Self {
        let runs = BTreeMap::new();
        Self { pages, runs }
    }

    /// Drops all mappings: lines are missing, so any of them may be gone.
    pub(super) fn forget(&mut self) {
        self.runs.clear();
    }

    /// Leaves of a map, which is remembered. The same may be told twice, by arguments and by an event.
    pub(super) fn map(&mut self, iova: u64, pa: u64, bytes: u64) -> Option<u64> {
        let end = iova.checked_add(bytes)?;
        let leaves = self.pages.leaves(iova, pa, bytes)?;
        let is_same = |run: &Run| (run.end, run.pa) == (end, pa);
        if self.runs.get(&iova).is_some_and(is_same) {
            return Some(leaves);
        }
        let before = self.take(iova, end);
        if let (Some((first, _)), Some((_, last))) = (before.last(), before.first()) {
            let (end, leaves) = (last.end, None);
            self.runs.insert(*first, Run { end, pa, leaves });
        } else if self.pages.has_large(iova, pa, bytes) {
            if self.runs.len() >= MOST {
                self.forget();
            }
            let leaves = Some(leaves);
            self.runs.insert(iova, Run { end, pa, leaves });
        }
        Some(leaves)
    }

    /// Leaves of an unmap, whose map is then forgotten.
    pub(super) fn unmap(&mut self, iova: u64, bytes: u64) -> Option<u64> {
        let end = iova.checked_add(bytes)?;
        let before = self.take(iova, end);
        if before.is_empty() {
            return self.pages.of_unmap(bytes);
        }
        let mut runs = before.iter();
        let whole = runs.all(|(start, run)| *start >= iova && run.end <= end);
        let mapped: u64 = before.iter().map(|(start, run)| run.end - start).sum();
        let leaves: Option<u64> = before.iter().map(|(_, run)| run.leaves).sum();
        leaves.filter(|_| whole && mapped == bytes)
    }

    /// Takes out the mappings in a range, the last first.
    fn take(&mut self, start: u64, end: u64) -> Vec<(u64, Run)> {
        let runs = self.runs.range(..end).rev().take_while(|(_, run)| run.end > start);
        let starts: Vec<u64> = runs.map(|(start, _)| *start).collect();
        let taken = starts.into_iter().filter_map(|start| Some((start, self.runs.remove(&start)?)));
        taken.collect()
    }
}
