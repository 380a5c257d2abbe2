//! What the operations share: the table, the scatter list, the hardware's abilities, and a queue
//! that does nothing.

use std::hint::black_box;

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::inval::{
    Caching, Capabilities, Gather, InvalidationQueue, LeafOnly, PageForm, Plan, Preference, Quirks,
    RangeForm, Step, WalkFlush, Walker, WriteBuffer, plan, sync,
};
use portolan::platform::HostTables;
use portolan::table::format::{Armv8Config, Armv8Stage1, DirtyTracking, SplitRule};
use portolan::table::{Access, PageTable};

use crate::{Cache, Failure};

pub(crate) type Table = PageTable<Armv8Stage1<12>, HostTables>;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const BLOCK: u64 = 2 << 20;
pub(crate) const BASE: Iova = Iova::new(0x12_4000_0000);
pub(crate) const MEMORY: PhysAddr = PhysAddr::new(0x8_8000_0000);
pub(crate) const CONTEXT: InvalTag = InvalTag::new(1);
pub(crate) const LIST_PAGES: u64 = 8192;
pub(crate) const SEED: u64 = 0x706f_7274_6f6c_616e;

/// SMMUv3 with range invalidation and a coherent walker.
pub(crate) const CAPS: Capabilities = Capabilities {
    granule: PageSize::SIZE_4K,
    page: PageForm::Granule,
    range: RangeForm::NumScale {
        max_num: 32,
        max_scale: 31,
    },
    leaf_only: LeafOnly::Present,
    walker: Walker::Coherent,
    caching: Caching::PresentOnly,
    write_buffer: WriteBuffer::Absent,
};

pub(crate) const QUIRKS: Quirks = Quirks {
    walk_flush: WalkFlush::ByAddress,
    preference: Preference::Fewest,
    context_above: u64::MAX,
    repeat: 1,
};

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

/// Completes every sync at once.
struct NullQueue;

impl InvalidationQueue for NullQueue {
    type Error = ();

    #[inline]
    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), ()> {
        for step in steps {
            black_box(step);
        }
        Ok(())
    }
}

pub(crate) fn table(pages: u32) -> Result<Table, Failure> {
    let format = Armv8Stage1::new(Armv8Config {
        input_lg2: 39,
        output_lg2: 44,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    })?;
    Ok(PageTable::new(
        format,
        HostTables::new(PageSize::SIZE_4K, pages),
    )?)
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

pub(crate) fn pay(table: &Table, mut owed: Gather) -> Result<(), Failure> {
    let quirks = Quirks::default();
    let of = table.tagged(CONTEXT);
    let quiet = sync(&NullQueue, of, &CAPS, &quirks, &mut owed).map_err(|_| Failure::Queue)?;
    table.reclaim(quiet).expect("a proof of this table");
    Ok(())
}

pub(crate) fn unmap_and_pay(table: &Table, range: IovaRange) -> Result<(), Failure> {
    let mut owed = Gather::new();
    table.unmap(range, &mut owed)?;
    pay(table, owed)
}

#[inline]
pub(crate) fn planned(owed: &Gather) -> Plan<'_> {
    plan(
        black_box(CONTEXT),
        black_box(&CAPS),
        black_box(&QUIRKS),
        owed,
    )
}

/// Plans what is owed and counts the commands.
#[inline]
pub(crate) fn count_commands(owed: &Gather) {
    black_box(planned(owed).counts());
}

/// Plans what is owed and takes every step.
#[inline]
pub(crate) fn take_steps(owed: &Gather) {
    let plan = planned(owed);
    for step in plan.steps() {
        black_box(&step);
    }
}
