//! Parts that the operations share: the table, the scatter list, the hardware's abilities, spans of addresses.

use std::hint::black_box;

use portolan::addr::{IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::inval::{Gather, Plan, Quirks, WalkFlush, plan};
use portolan::iommu::{Domain, PagedDomain};
use portolan::table::{Access, PageTable};

use crate::commands::Commands;
use crate::raw::{Tables, tables};
use crate::unit;
pub(crate) use crate::unit::{BASE, CAPS, CONTEXT, Format, INPUT_BITS, QUIRKS};
use crate::workload::{Cache, Failure};

pub(crate) type Table = PageTable<Format, Tables>;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const BLOCK: u64 = 2 << 20;
pub(crate) const MEMORY: PhysAddr = PhysAddr::new(0x8_8000_0000);
/// Single pages per pass: every second page of one leaf table.
pub(crate) const SINGLES: u64 = 256;
pub(crate) const LIST_PAGES: u64 = 8192;
pub(crate) const SEED: u64 = 0x706f_7274_6f6c_616e;

/// Quirks that invalidate by context when a table is removed, as Qualcomm's driver does.
pub(crate) const BY_CONTEXT: Quirks = Quirks { walk_flush: WalkFlush::ByContext, ..QUIRKS };

/// Operation that is timed while the same addresses are mapped and unmapped over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timed {
    /// Mapping.
    Map,
    /// Unmapping: tables freed, commands built.
    Unmap,
}

/// Ranges of contiguous addresses, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Number of pieces.
    pub(crate) count: u64,
    /// Bytes of each.
    pub(crate) bytes: u64,
    /// Bytes from a multiple of 2 MiB to the first.
    pub(crate) shift: u64,
}

impl Span {
    /// First address of each piece.
    pub(crate) fn starts(self) -> impl Iterator<Item = u64> {
        let first = BASE.get() + self.shift;
        (0..self.count).map(move |i| black_box(first + i * self.bytes.next_multiple_of(BLOCK)))
    }

    /// First address of the memory, not aligned to blocks, so that only pages are mapped.
    pub(crate) fn memory(self) -> u64 {
        MEMORY.get() + self.shift + PAGE
    }

    /// Leaf tables that all of them need.
    pub(crate) fn tables(self) -> u32 {
        (self.count * (self.bytes.div_ceil(BLOCK) + 1)) as u32
    }
}

/// Fills the caches with other data.
pub(crate) struct Evictor(Vec<u64>);

impl Evictor {
    pub(crate) fn new(cache: Cache) -> Self {
        let bytes: usize = match cache {
            Cache::Hot => 0,
            Cache::Cold => 96 << 20,
        };
        Self(vec![0; bytes / 8])
    }

    pub(crate) fn evict(&mut self) {
        for line in self.0.chunks_mut(8) {
            line[0] = line[0].wrapping_add(1);
        }
        black_box(&self.0);
    }
}

pub(crate) fn format() -> Result<Format, Failure> {
    Ok(unit::format()?)
}

pub(crate) fn table(pages: u32) -> Result<Table, Failure> {
    Ok(PageTable::new(format()?, tables(pages))?)
}

pub(crate) fn access() -> Access {
    black_box(Access::READ | Access::WRITE)
}

/// 8192 pages in random order, no two of them neighbours in memory.
pub(crate) fn scattered() -> Vec<PhysRange> {
    let mut pages: Vec<u64> = (0..LIST_PAGES).collect();
    fastrand::Rng::with_seed(SEED).shuffle(&mut pages);
    let at = |page: u64| PhysAddr::new(MEMORY.get() + page * 2 * PAGE);
    let piece = |page| PhysRange::page(at(page), PageSize::SIZE_4K);
    pages.into_iter().map(piece).collect()
}

/// 8192 pages of contiguous memory, in order, off the alignment of blocks.
pub(crate) fn contiguous() -> Vec<PhysRange> {
    let at = |page: u64| PhysAddr::new(MEMORY.get() + (page + 1) * PAGE);
    (0..LIST_PAGES).map(|page| PhysRange::page(at(page), PageSize::SIZE_4K)).collect()
}

/// `pages` as addresses and numbers of bytes.
pub(crate) fn as_pieces(pages: impl IntoIterator<Item = PhysRange>) -> Vec<(u64, u32)> {
    pages.into_iter().map(|piece| (piece.start().get(), PAGE as u32)).collect()
}

/// The first pages of [`scattered`], as addresses and numbers of bytes.
pub(crate) fn pieces(count: usize) -> Vec<(u64, u32)> {
    as_pieces(scattered().into_iter().take(count))
}

/// A table behind an identifier and a queue, as a driver has it.
pub(crate) type Paged = PagedDomain<Format, Tables, Commands>;

pub(crate) fn paged(pages: u32, quirks: Quirks) -> Result<Paged, Failure> {
    let (table, queue) = (table(pages)?, Commands::new());
    Ok(PagedDomain::new(table, CONTEXT, CAPS, quirks, queue))
}

/// Unmaps, and pays for that: commands built, tables freed.
#[inline]
pub(crate) fn unmap_and_pay(domain: &Paged, range: IovaRange) -> Result<(), Failure> {
    let mut owed = Gather::new();
    domain.unmap(range, &mut owed)?;
    domain.sync(&mut owed).map(drop).map_err(|_| Failure::Queue)
}

#[inline]
pub(crate) fn planned(owed: &Gather) -> Plan<'_> {
    plan(black_box(CONTEXT), black_box(&CAPS), black_box(&QUIRKS), owed)
}

/// Plans the owed invalidations and counts their commands.
#[inline]
pub(crate) fn count_commands(owed: &Gather) {
    black_box(planned(owed).counts());
}

/// Plans the owed invalidations and builds every command.
#[inline]
pub(crate) fn build_commands(queue: &Commands, owed: &Gather) {
    let plan = planned(owed);
    for step in plan.steps() {
        queue.build(step);
    }
}
