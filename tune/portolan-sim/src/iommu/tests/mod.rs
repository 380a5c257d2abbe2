//! The IOMMU: entries that each cache keeps, and those that each invalidation drops.

mod queue;

use std::sync::atomic::AtomicU64;

use portolan::addr::{InvalTag, Iova, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::inval::{
    Caching, Capabilities, Command, Depth, InvalidationQueue, LeafOnly, PageForm, RangeForm, Run,
    Step, TablesLeft,
};
use portolan::platform::{SlabTables, TableMem, Word};

use super::*;
use crate::decode::{Permissions, TableFormat, TableReader};
use crate::device::Device;
use crate::profile::{CacheSizes, QueueLimits};
use crate::tables::{Lag, NonCoherentTables64};

const K4: PageSize = PageSize::SIZE_4K;
const CTX: InvalTag = InvalTag::new(3);
const OTHER: InvalTag = InvalTag::new(4);
const DEV: StreamId = StreamId::new(0x20);
const DEV2: StreamId = StreamId::new(0x21);
const NEAR: u64 = 0x40_3000;
const FAR: u64 = 0x60_0000;

/// Two tables of VT-d's second stage, three levels, for two contexts.
struct Tables<M> {
    memory: M,
    roots: [PhysAddr; 2],
    leaves: [PhysAddr; 2],
}

impl<M: TableMem<AtomicU64>> Tables<M> {
    fn new(memory: M) -> Self {
        let page = || memory.alloc(K4).unwrap();
        let mut tables = Self { roots: [page(), page()], leaves: [page(), page()], memory };
        for which in 0..2 {
            let middle = tables.memory.alloc(K4).unwrap();
            tables.set(tables.roots[which], 0, middle.get() | 3);
            tables.set(middle, 2, tables.leaves[which].get() | 3);
            // A page of 2 MiB at FAR.
            tables.set(middle, 3, 0x8000_0000 | 0x83);
            tables.set(tables.leaves[which], 3, 0x1_0000_3000 | 3);
        }
        tables
    }

    fn set(&mut self, table: PhysAddr, index: usize, raw: u64) {
        Word::store(&self.memory.table(table, K4)[index], raw);
    }

    fn config(&self, which: usize) -> StreamConfig {
        let format = TableFormat::vtd_second_stage(3).unwrap();
        let table = TableRoot { root: self.roots[which], format };
        StreamConfig::Translate { context: [CTX, OTHER][which], table }
    }
}

fn slab() -> SlabTables<AtomicU64> {
    SlabTables::new(PhysAddr::new(0x10_0000), K4, 16)
}

fn roomy() -> Temper {
    let all = CacheGeometry { entries: 64, ways: 64 };
    let source = String::new();
    Temper::Realistic(CacheSizes { iotlb: all, walk: all, configuration: all, source })
}

fn setup(temper: Temper) -> Setup {
    Setup { temper, ..Setup::adversarial(Setup::able(K4)) }
}

fn tempers() -> [Temper; 2] {
    [Temper::Adversarial, roomy()]
}

fn page(iova: u64, depth: Depth) -> Step {
    let command = Command::Page { context: CTX, iova: Iova::new(iova), size: K4, depth };
    Step::Invalidate(command)
}

fn range(start: u64, lg2_pages: u8, depth: Depth) -> Step {
    let run = Run::PowerOfTwo { start: Iova::new(start), lg2_pages };
    Step::Invalidate(Command::Range { context: CTX, run, granule: K4, depth })
}

fn run<M: WalkMemory>(iommu: &Iommu<M>, steps: &[Step]) -> Result<(), QueueError> {
    iommu.pay(&mut steps.iter().copied(), TablesLeft::ByDepth)
}

fn pa<M: WalkMemory>(iommu: &Iommu<M>, stream: StreamId, iova: u64) -> Result<u64, FaultKind> {
    let found = iommu.translate(stream, Iova::new(iova), AccessKind::Read);
    found.map(|t| t.pa.get()).map_err(|fault| fault.kind)
}

/// Runs `check` on an IOMMU whose caches know NEAR and FAR in both contexts.
fn warm(temper: Temper, caps: Capabilities, check: impl FnOnce(&Iommu<Reader<'_>>)) {
    let tables = Tables::new(slab());
    let reader = TableReader::new(&tables.memory, K4);
    let iommu = Iommu::new(Setup { capabilities: caps, ..setup(temper) }, reader);
    iommu.attach(DEV, tables.config(0));
    iommu.attach(DEV2, tables.config(1));
    for stream in [DEV, DEV2] {
        assert_eq!(pa(&iommu, stream, NEAR), Ok(0x1_0000_3000));
        assert_eq!(pa(&iommu, stream, FAR + 0x1234), Ok(0x8000_1234));
    }
    assert_eq!(iommu.occupancy(), Occupancy { iotlb: 4, walk: 4, configuration: 2, pending: 0 });
    check(&iommu);
}

type Reader<'a> = TableReader<AtomicU64, &'a SlabTables<AtomicU64>>;

#[test]
fn each_invalidation_drops_its_own() {
    let context = Step::Invalidate(Command::Context { context: CTX });
    let global = Step::Invalidate(Command::Global);
    let configuration = Step::Invalidate(Command::Configuration { context: CTX });
    // The rest of 4 leaf translations, 4 pointers at tables and 2 streams.
    for (step, iotlb, walk, config) in [
        (page(NEAR, Depth::LeafOnly), 3, 4, 2),
        (page(NEAR, Depth::AllLevels), 3, 2, 2),
        // Any page of a block drops the block; nothing hangs below it but the table above.
        (page(FAR + 0x5000, Depth::LeafOnly), 3, 4, 2),
        (page(FAR + 0x5000, Depth::AllLevels), 3, 3, 2),
        (page(NEAR + 0x1000, Depth::LeafOnly), 4, 4, 2),
        (range(0x40_0000, 9, Depth::LeafOnly), 3, 4, 2),
        (range(0x40_0000, 10, Depth::LeafOnly), 2, 4, 2),
        (range(0x40_0000, 10, Depth::AllLevels), 2, 2, 2),
        (range(0x80_0000, 10, Depth::AllLevels), 4, 3, 2),
        (context, 2, 2, 2),
        (global, 0, 0, 2),
        (configuration, 4, 4, 1),
    ] {
        for temper in tempers() {
            let name = format!("{step:?} {temper:?}");
            warm(temper, Setup::able(K4), |iommu| {
                run(iommu, &[step, Step::Sync]).unwrap();
                let left = iommu.occupancy();
                let want = Occupancy { iotlb, walk, configuration: config, pending: 0 };
                assert_eq!(left, want, "{name}");
                // All of it is still mapped, so all drops are collateral.
                assert_eq!(iommu.counters().collateral, 4 - iotlb as u64, "{name}");
                assert_eq!(pa(iommu, DEV, NEAR), Ok(0x1_0000_3000), "{name}");
            });
        }
    }
}

#[test]
fn without_leaf_only_every_depth_reaches_walk_caches() {
    let caps = Capabilities { leaf_only: LeafOnly::Absent, ..Setup::able(K4) };
    warm(Temper::Adversarial, caps, |iommu| {
        run(iommu, &[page(NEAR, Depth::LeafOnly), Step::Sync]).unwrap();
        assert_eq!(iommu.occupancy().walk, 2);
    });
}

#[test]
fn an_invalidation_is_pending_until_the_sync() {
    for (temper, before) in tempers().into_iter().zip([(4, 1), (3, 0)]) {
        warm(temper, Setup::able(K4), |iommu| {
            run(iommu, &[page(NEAR, Depth::LeafOnly)]).unwrap();
            let found = iommu.occupancy();
            assert_eq!((found.iotlb, found.pending), before);
            run(iommu, &[Step::Sync]).unwrap();
            assert_eq!((iommu.occupancy().iotlb, iommu.occupancy().pending), (3, 0));
        });
    }
}

#[test]
fn a_forgotten_invalidation_leaves_the_old_page_reachable() {
    for temper in tempers() {
        let mut tables = Tables::new(slab());
        let leaf = tables.leaves[0];
        let reachable = |tables: &Tables<SlabTables<AtomicU64>>, steps: &[Step]| {
            let iommu = Iommu::new(setup(temper.clone()), TableReader::new(&tables.memory, K4));
            iommu.attach(DEV, tables.config(0));
            let mut device = Device::new(&iommu, DEV, 8);
            device.write(Iova::new(NEAR + 0xff0), 0x10).unwrap();
            Word::store(&tables.memory.table(leaf, K4)[3], 0);
            run(&iommu, steps).unwrap();
            let stale = device.try_stale(|_| false);
            Word::store(&tables.memory.table(leaf, K4)[3], 0x1_0000_3000 | 3);
            stale.len()
        };
        assert_eq!(reachable(&tables, &[]), 1);
        assert_eq!(reachable(&tables, &[Step::Sync]), 1);
        assert_eq!(reachable(&tables, &[page(NEAR + 0x1000, Depth::AllLevels), Step::Sync]), 1);
        assert_eq!(reachable(&tables, &[page(NEAR, Depth::LeafOnly), Step::Sync]), 0);
        tables.set(leaf, 3, 0);
    }
}

#[test]
fn a_table_that_left_the_tree_is_still_walked_from_the_walk_cache() {
    let mut tables = Tables::new(slab());
    let middle = PhysAddr::new(Word::load(&tables.memory.table(tables.roots[0], K4)[0]) & !0xfff);
    tables.set(tables.leaves[0], 4, 0x2_0000_4000 | 3);
    let iommu = Iommu::new(setup(Temper::Adversarial), TableReader::new(&tables.memory, K4));
    iommu.attach(DEV, tables.config(0));
    pa(&iommu, DEV, NEAR).unwrap();
    Word::store(&tables.memory.table(middle, K4)[2], 0);
    run(&iommu, &[page(NEAR, Depth::LeafOnly), Step::Sync]).unwrap();
    assert_eq!(pa(&iommu, DEV, NEAR + 0x1000), Ok(0x2_0000_4000));
    assert_eq!(iommu.counters().walk_cache_hits, 1);
    run(&iommu, &[range(0x40_0000, 9, Depth::AllLevels), Step::Sync]).unwrap();
    assert_eq!(pa(&iommu, DEV, NEAR + 0x1000), Err(FaultKind::NoTranslation { level: 1 }));
}

#[test]
fn absence_is_cached_only_by_hardware_that_does_so() {
    for (caching, cached) in [(Caching::PresentOnly, false), (Caching::NotPresentToo, true)] {
        let mut tables = Tables::new(slab());
        let leaf = tables.leaves[0];
        let middle =
            PhysAddr::new(Word::load(&tables.memory.table(tables.roots[0], K4)[0]) & !0xfff);
        let caps = Capabilities { caching, ..Setup::able(K4) };
        let with = Setup { capabilities: caps, ..setup(Temper::Adversarial) };
        let config = tables.config(0);
        let spare = tables.memory.alloc(K4).unwrap();
        tables.set(spare, 0, 0x3_0000_0000 | 3);
        let iommu = Iommu::new(with, TableReader::new(&tables.memory, K4));
        let blocked = pa(&iommu, DEV, NEAR);
        assert_eq!(blocked, Err(FaultKind::NoContext));
        iommu.attach(DEV, config);
        assert_eq!(pa(&iommu, DEV, NEAR).is_err(), cached);
        run(&iommu, &[Step::Invalidate(Command::Configuration { context: CTX }), Step::Sync])
            .unwrap();
        // A page mapped into a table that is there.
        assert!(pa(&iommu, DEV, NEAR + 0x1000).is_err());
        Word::store(&tables.memory.table(leaf, K4)[4], 0x2_0000_4000 | 3);
        assert_eq!(pa(&iommu, DEV, NEAR + 0x1000).is_err(), cached);
        run(&iommu, &[page(NEAR + 0x1000, Depth::LeafOnly), Step::Sync]).unwrap();
        assert_eq!(pa(&iommu, DEV, NEAR + 0x1000), Ok(0x2_0000_4000));
        // A new table: leaf-only does not reach the entry for its absence.
        assert!(pa(&iommu, DEV, 0).is_err());
        Word::store(&tables.memory.table(middle, K4)[0], spare.get() | 3);
        run(&iommu, &[page(0, Depth::LeafOnly), Step::Sync]).unwrap();
        assert_eq!(pa(&iommu, DEV, 0).is_err(), cached);
        run(&iommu, &[page(0, Depth::AllLevels), Step::Sync]).unwrap();
        assert_eq!(pa(&iommu, DEV, 0), Ok(0x3_0000_0000));
    }
}

#[test]
fn configuration_is_cached_until_invalidated() {
    for temper in tempers() {
        warm(temper, Setup::able(K4), |iommu| {
            iommu.attach(DEV, StreamConfig::Blocked);
            iommu.detach(DEV2);
            assert!(pa(iommu, DEV, NEAR).is_ok() && pa(iommu, DEV2, NEAR).is_ok());
            let of = |context| Step::Invalidate(Command::Configuration { context });
            run(iommu, &[of(CTX), Step::Sync]).unwrap();
            assert_eq!(pa(iommu, DEV, NEAR), Err(FaultKind::Blocked));
            assert!(pa(iommu, DEV2, NEAR).is_ok());
            run(iommu, &[of(OTHER), Step::Sync]).unwrap();
            assert_eq!(pa(iommu, DEV2, NEAR), Err(FaultKind::NoContext));
            iommu.attach(DEV2, StreamConfig::Bypass);
            assert_eq!(pa(iommu, DEV2, 0x1234), Ok(0x1234));
            assert_eq!(iommu.counters().config_misses, 5);
        });
    }
}

#[test]
fn permissions_hold_for_cached_entries_too() {
    let mut tables = Tables::new(slab());
    tables.set(tables.leaves[0], 5, 0x5000 | 1);
    let iommu = Iommu::new(setup(Temper::Adversarial), TableReader::new(&tables.memory, K4));
    iommu.attach(DEV, tables.config(0));
    let iova = Iova::new(0x40_5000);
    for _ in 0..2 {
        assert!(iommu.translate(DEV, iova, AccessKind::Read).is_ok());
        let fault = iommu.translate(DEV, iova, AccessKind::Write).unwrap_err();
        let kind = FaultKind::Permission;
        assert_eq!(fault, Fault { stream: DEV, iova, access: AccessKind::Write, kind });
    }
    assert_eq!(iommu.counters().faults, 2);
    assert!(!Permissions::READ.allow(AccessKind::Write));
}

#[test]
fn a_small_iotlb_forgets_and_walks_again() {
    let one = CacheGeometry { entries: 1, ways: 1 };
    let all = CacheGeometry { entries: 8, ways: 8 };
    let source = String::new();
    let sizes = CacheSizes { iotlb: one, walk: all, configuration: all, source };
    warm_with(Temper::Realistic(sizes), |iommu| {
        iommu.take_counters();
        for _ in 0..3 {
            pa(iommu, DEV, NEAR).unwrap();
            pa(iommu, DEV, FAR).unwrap();
        }
        let counters = iommu.counters();
        assert_eq!((counters.iotlb_hits, counters.iotlb_misses), (0, 6));
        assert_eq!((counters.walk_cache_hits, counters.walk_steps), (6, 6));
    });
}

fn warm_with(temper: Temper, check: impl FnOnce(&Iommu<Reader<'_>>)) {
    let tables = Tables::new(slab());
    let iommu = Iommu::new(setup(temper), TableReader::new(&tables.memory, K4));
    iommu.attach(DEV, tables.config(0));
    pa(&iommu, DEV, NEAR).unwrap();
    pa(&iommu, DEV, FAR).unwrap();
    check(&iommu);
}

#[test]
fn a_walker_that_does_not_snoop_sees_what_was_cleaned() {
    for lag in [Lag::CacheLines, Lag::WriteBuffer] {
        let memory = NonCoherentTables64::new(PhysAddr::new(0x10_0000), K4, 16, lag);
        let mut tables = Tables::new(memory);
        tables.memory.write_back_all();
        let leaf = tables.leaves[0];
        assert_eq!(leaf, PhysAddr::new(0x10_2000));
        tables.set(leaf, 4, 0x9000 | 3);
        let iommu = Iommu::new(setup(Temper::Adversarial), tables.memory.walker());
        iommu.attach(DEV, tables.config(0));
        assert!(pa(&iommu, DEV, NEAR + 0x1000).is_err());
        let line = PhysRange::page(PhysAddr::new(0x10_2018), LINE);
        match lag {
            Lag::CacheLines => tables.memory.clean(line),
            Lag::WriteBuffer => run(&iommu, &[Step::FlushWriteBuffer]).unwrap(),
        }
        assert_eq!(pa(&iommu, DEV, NEAR + 0x1000), Ok(0x9000));
    }
}

const LINE: PageSize = crate::tables::LINE;

#[test]
fn a_transfer_is_split_at_pages() {
    warm(Temper::Adversarial, Setup::able(K4), |iommu| {
        iommu.take_counters();
        let mut device = Device::new(iommu, DEV, 2);
        let pieces = device.read(Iova::new(FAR + 0xff0), 0x1020).unwrap();
        let places: Vec<_> = pieces.iter().map(|piece| piece.pa.get()).collect();
        assert_eq!(places, [0x8000_0ff0, 0x8000_1000, 0x8000_2000]);
        let counters = iommu.counters();
        assert_eq!((counters.dma_accesses, counters.dma_bytes), (3, 0x1020));
        // It remembers as many places as it was given room for.
        assert_eq!(device.reached().count(), 2);
        let fault = device.write(Iova::new(NEAR), 0x2000).unwrap_err();
        assert_eq!(fault.iova, Iova::new(NEAR + 0x1000));
        assert_eq!(device.reached().last().map(|place| place.pa.get()), Some(0x1_0000_3000));
        iommu.attach(StreamId::new(9), StreamConfig::Bypass);
        let mut top = Device::new(iommu, StreamId::new(9), 0);
        let fault = top.read(Iova::new(u64::MAX), 2).unwrap_err();
        assert_eq!(fault.kind, FaultKind::PastTheTop);
        assert_eq!(top.reached().count(), 0);
    });
}

#[test]
fn a_retry_tells_what_is_still_mapped() {
    warm(Temper::Adversarial, Setup::able(K4), |iommu| {
        let mut device = Device::new(iommu, DEV, 8);
        device.write(Iova::new(NEAR), 8).unwrap();
        device.read(Iova::new(FAR), 8).unwrap();
        let stale = device.try_stale(|place| place.iova == Iova::new(FAR));
        assert_eq!(stale.len(), 1);
        assert_eq!(stale[0].iova, Iova::new(NEAR));
        iommu.attach(DEV, StreamConfig::Blocked);
        run(iommu, &[Step::Invalidate(Command::Configuration { context: CTX }), Step::Sync])
            .unwrap();
        iommu.detach(DEV);
        assert!(device.try_stale(|_| false).is_empty());
        assert_eq!(device.reached().count(), 0);
    });
}

#[test]
fn equal_calls_give_equal_runs() {
    let once = || {
        let tables = Tables::new(slab());
        let small = CacheGeometry { entries: 4, ways: 2 };
        let source = String::new();
        let sizes = CacheSizes { iotlb: small, walk: small, configuration: small, source };
        let with = setup(Temper::Realistic(sizes));
        let iommu = Iommu::new(with, TableReader::new(&tables.memory, K4));
        iommu.attach(DEV, tables.config(0));
        iommu.attach(DEV2, tables.config(1));
        let mut x = 1u64;
        let mut seen = Vec::new();
        for _ in 0..5000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let stream = if x >> 63 == 0 { DEV } else { DEV2 };
            let iova = if x >> 62 & 1 == 0 { NEAR } else { FAR + ((x >> 40) & 0x1f_ffff) };
            seen.push(pa(&iommu, stream, iova));
            if x >> 56 & 7 == 0 {
                let steps = [page(iova & !0xfff, Depth::AllLevels), Step::Sync];
                run(&iommu, &steps).unwrap();
            }
        }
        (seen, iommu.counters(), iommu.occupancy())
    };
    assert_eq!(once(), once());
}
