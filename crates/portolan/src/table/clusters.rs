//! Clusters: leaves of level 0 in a row that are one larger page, each of which says so.
//!
//! RISC-V Instruction Set Manual, Volume II, chapter on Svnapot: hardware may take each of them for all of the
//! page, or for any part of it. So they become one while they translate alike, which changes nothing; and none of
//! them is changed before all of them stand by themselves and the hardware has forgotten the page, as a block
//! that is split ([`PageTable::split`]).

use super::format::Format;
use super::{PageTable, TableUnmapError, Walk};
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr};
use crate::platform::{TableMem, Word};

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Leaves of a cluster.
    const CLUSTER: usize = 1 << F::CLUSTER_LG2;

    /// The page that a cluster is.
    const fn cluster() -> PageSize {
        PageSize::of_lg2(F::GRANULE.lg2() + F::CLUSTER_LG2)
    }

    /// The largest page that a leaf of level 0 can be; the granule is the smallest.
    #[inline]
    pub(super) fn largest_small_leaf(&self) -> PageSize {
        let clusters = F::CLUSTER_LG2 != 0 && self.sizes.contains(Self::cluster());
        match clusters {
            true => Self::cluster(),
            false => F::GRANULE,
        }
    }

    /// Joins leaves that were just written, entries of a leaf table from `index` on, to clusters
    /// where they can be. The caller that writes them owns the addresses that they translate.
    #[inline]
    pub(super) fn join_clusters(&self, words: &[F::Word], index: usize) {
        if words.len() < Self::CLUSTER || self.largest_small_leaf() == F::GRANULE {
            return;
        }
        let before = index.wrapping_neg() % Self::CLUSTER;
        let words = words.get(before..).unwrap_or(&[]);
        for cluster in words.chunks_exact(Self::CLUSTER) {
            let Some(joined) = cluster.first().and_then(|first| F::joined(first.load())) else {
                continue;
            };
            let mut all = cluster.iter().zip(0u64..);
            if all.all(|(word, part)| word.load() == F::parted(joined, part)) {
                cluster.iter().for_each(|word| word.store(joined));
            }
        }
    }

    /// The page around `iova` that the leaf `raw` of level 0 is a part of, if it is of a cluster.
    #[inline]
    fn cluster_around(raw: u64, iova: Iova) -> Option<IovaRange> {
        let lg2 = F::leaf_lg2(raw, 0);
        (lg2 > F::GRANULE.lg2()).then(|| IovaRange::page(iova, PageSize::of_lg2(lg2)))
    }

    /// Refuses to cut a cluster: `words` translate `range`.
    #[inline]
    pub(super) fn check_clusters(
        words: &[F::Word],
        range: IovaRange,
    ) -> Result<(), TableUnmapError> {
        if F::CLUSTER_LG2 == 0 {
            return Ok(());
        }
        let ends = [(words.first(), range.start()), (words.last(), range.last())];
        for (word, iova) in ends {
            let block = word.and_then(|word| Self::cluster_around(word.load(), iova));
            if let Some(block) = block.filter(|block| !range.covers(*block)) {
                return Err(TableUnmapError::NeedsSplit { block });
            }
        }
        Ok(())
    }

    /// Makes the leaves of the cluster that holds `at` stand by themselves, and returns the
    /// cluster. No other caller maps, unmaps or splits there.
    pub(super) fn part_cluster(&self, at: Iova) -> Option<IovaRange> {
        if F::CLUSTER_LG2 == 0 {
            return None;
        }
        let Walk::At(word, table) = self.walk(at, 0) else {
            return None;
        };
        let raw = word.load();
        let cluster = Self::cluster_around(raw, at)?;
        let first = self.index(cluster.start(), 0);
        let words = self.words(table).get(first..first + Self::CLUSTER)?;
        for (word, part) in words.iter().zip(0u64..) {
            word.store(F::parted(raw, part));
        }
        // Another debt may cover a part of the cluster and be paid first.
        self.publish_all(table, first, Self::CLUSTER);
        Some(cluster)
    }

    /// Physical address of `iova` by the leaf `raw` of `level`, and the page that it is of.
    #[inline]
    pub(super) fn leads(raw: u64, level: u32, leaf: PhysAddr, iova: Iova) -> (PhysAddr, PageSize) {
        let size = PageSize::of_lg2(F::leaf_lg2(raw, level));
        let offset = iova.get() & (size.bytes() - 1);
        (PhysAddr::new(leaf.get() + offset), size)
    }
}
