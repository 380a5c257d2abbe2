//! Clusters: leaves of a table in a row that are one larger page, each of which says so.
//!
//! RISC-V Instruction Set Manual, Volume II, chapter on Svnapot (sixteen leaves of level 0), and AMD IOMMU
//! Specification (48882), section 2.2.3 (next level 7: any power of two, at each level that has leaves). Hardware may
//! take each of them for all of the page, or for any part of it. So they become one while they translate alike, which
//! changes nothing; and none of them is changed before all of them stand by themselves and the hardware has forgotten
//! the page, as a block that is split ([`PageTable::split`]).

use super::format::{Entry, Format};
use super::{PageTable, TableUnmapError, Walk};
use crate::addr::{Iova, IovaRange, PageSize, PageSizes, PhysAddr};
use crate::inval::Gather;
use crate::platform::{TableMem, Word};

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// The largest page that a leaf of `level` can be; the span of its entry is the smallest.
    #[inline]
    pub(super) fn largest_leaf(&self, level: u32) -> PageSize {
        match level {
            _ if F::CLUSTER_LG2 == 0 => Self::span(level),
            0 => self.largest_small,
            _ => Self::largest_of(self.sizes, level),
        }
    }

    /// The largest of `sizes` that a leaf of `level` can be.
    pub(super) fn largest_of(sizes: PageSizes, level: u32) -> PageSize {
        let span = Self::span(level);
        let below = sizes.bits() & ((2 << (span.lg2() + F::CLUSTER_LG2)) - 1);
        PageSize::of_lg2(below.checked_ilog2().unwrap_or(0).max(span.lg2()))
    }

    /// Joins leaves that were just written, entries of a table of `level` from `index` on, to clusters
    /// where they can be. The caller that writes them owns the addresses that they translate.
    #[inline]
    pub(super) fn join_clusters(&self, words: &[F::Word], index: usize, level: u32) {
        if F::CLUSTER_LG2 > 0 && words.len() > 1 && self.largest_leaf(level) > Self::span(level) {
            self.join_some(words, index, level);
        }
    }

    #[inline(never)]
    fn join_some(&self, words: &[F::Word], index: usize, level: u32) {
        let mut at = 0;
        while let Some((first, rest)) = words.get(at..).and_then(|rest| Some((rest.first()?, rest)))
        {
            let first = first.load();
            // The largest that begins there, by the place in the table, and that ends in `words`.
            let begins = (index + at).trailing_zeros().min(F::CLUSTER_LG2);
            let mut sizes = (1..=begins).rev();
            let joined = sizes.find_map(|lg2| self.join_first(rest, first, lg2, level));
            at += joined.unwrap_or(1);
        }
    }

    /// Joins the first `1 << lg2` of `words`, which begin with `first`, if they can be a cluster; returns their
    /// number.
    fn join_first(&self, words: &[F::Word], first: u64, lg2: u32, level: u32) -> Option<usize> {
        let words = words.get(..1 << lg2)?;
        let size = PageSize::of_lg2(Self::span(level).lg2() + lg2);
        let joined = F::joined(first, size.lg2()).filter(|_| self.sizes.contains(size))?;
        let mut all = words.iter().zip(0u64..);
        if !all.all(|(word, part)| word.load() == F::parted(joined, level, part)) {
            return None;
        }
        words.iter().for_each(|word| word.store(joined));
        Some(words.len())
    }

    /// Joins leaves above level 0 in `range`, which the caller has just mapped.
    pub(super) fn join_blocks(&self, range: IovaRange, gather: &mut Gather) {
        if F::CLUSTER_LG2 == 0 || self.largest_leaf(1) == Self::span(1) {
            return;
        }
        let mut at = Some(range.start());
        while let Some(iova) = at.filter(|&iova| iova <= range.last()) {
            let level = match self.walk(iova, 0) {
                Walk::At(..) => 0,
                Walk::Stopped { level, .. } => level,
            };
            let last = IovaRange::page(iova, Self::span(level + 1)).last().min(range.last());
            let part = IovaRange::new(iova, last).unwrap_or(range);
            let leaves = match level {
                0 => 0,
                _ => self.join_row(part, level, gather),
            };
            at = match leaves {
                0 => part.last().checked_add(1),
                leaves => iova.checked_add(leaves << Self::span(level).lg2()),
            };
        }
    }

    /// Joins the leaves of one table of `level` with which `part` begins; returns their number.
    fn join_row(&self, part: IovaRange, level: u32, gather: &mut Gather) -> u64 {
        let Walk::At(_, table) = self.walk(part.start(), level) else {
            return 0;
        };
        let (index, count) =
            (self.index(part.start(), level), part.pages(Self::span(level)) as usize);
        let words = self.words(table).get(index..).unwrap_or(&[]).iter().take(count);
        let is_leaf = |word: &&F::Word| matches!(F::classify(word.load(), level), Entry::Leaf(_));
        let leaves = words.take_while(is_leaf).count();
        if let Some(row) = self.words(table).get(index..index + leaves).filter(|_| leaves > 0) {
            self.join_clusters(row, index, level);
            self.owe_lines(gather, table, index, leaves);
        }
        leaves as u64
    }

    /// The page around `iova` that the leaf `raw` of `level` is a part of, if it is of a cluster.
    #[inline]
    fn cluster_around(raw: u64, level: u32, iova: Iova) -> Option<IovaRange> {
        let lg2 = F::leaf_lg2(raw, level);
        let larger = lg2 > Self::span(level).lg2();
        larger.then(|| IovaRange::page(iova, PageSize::of_lg2(lg2)))
    }

    /// Refuses to cut a cluster of level 0: `words` translate `range`.
    #[inline]
    pub(super) fn check_clusters(
        words: &[F::Word],
        range: IovaRange,
    ) -> Result<(), TableUnmapError> {
        if F::CLUSTER_LG2 == 0 {
            return Ok(());
        }
        let ends = [(words.first(), range.start()), (words.last(), range.last())];
        ends.into_iter().try_for_each(|(word, iova)| match word {
            Some(word) => Self::check_cluster(word.load(), iova, range),
            None => Ok(()),
        })
    }

    /// Refuses to cut the cluster of level 0 that `raw`, which translates `iova`, is a part of.
    #[inline]
    pub(super) fn check_cluster(
        raw: u64,
        iova: Iova,
        range: IovaRange,
    ) -> Result<(), TableUnmapError> {
        match Self::cluster_around(raw, 0, iova) {
            Some(block) if !range.covers(block) => Err(TableUnmapError::NeedsSplit { block }),
            _ => Ok(()),
        }
    }

    /// Makes the leaves of the cluster in a table of `level` that holds `at` stand by themselves, and
    /// returns the cluster with its size. No other caller maps, unmaps or splits there.
    pub(super) fn part_cluster(&self, at: Iova, level: u32) -> Option<(IovaRange, PageSize)> {
        if F::CLUSTER_LG2 == 0 {
            return None;
        }
        let Walk::At(word, table) = self.walk(at, level) else {
            return None;
        };
        let raw = word.load();
        let size = PageSize::of_lg2(F::leaf_lg2(raw, level));
        let cluster = Self::cluster_around(raw, level, at)?;
        let first = self.index(cluster.start(), level);
        let count = cluster.pages(Self::span(level)) as usize;
        let words = self.words(table).get(first..first + count)?;
        for (word, part) in words.iter().zip(0u64..) {
            word.store(F::parted(raw, level, part));
        }
        // Another debt may cover a part of the cluster and be paid first.
        self.publish_all(table, first, count);
        Some((cluster, size))
    }

    /// Physical address of `iova` by the leaf `raw` of `level`, and the page that it is of.
    #[inline]
    pub(super) fn leads(raw: u64, level: u32, leaf: PhysAddr, iova: Iova) -> (PhysAddr, PageSize) {
        let size = PageSize::of_lg2(F::leaf_lg2(raw, level));
        let offset = iova.get() & (size.bytes() - 1);
        (PhysAddr::new(leaf.get() + offset), size)
    }
}
