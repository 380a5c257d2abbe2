//! Each chip's own words, the first flush that is one too many, and the state when things end.

use crate::promise::tests::described;
use crate::promise::tests::promised;
use portolan::addr::PhysRange;
use portolan::inval::{InvalidationQueue, TablesLeft};
use portolan::iommu::{Awaited, ReservedKind, ReservedRegion};
use portolan::platform::{OutOfTableMemory, TableMem, UnitParts};

use super::super::TegraTables;
use super::*;
use crate::reservations::Reserved;

#[test]
fn each_chip_has_its_caches_set_up_by_its_own_words() {
    // Lines of the translation buffer, turns, requests under way: the last two on newer chips only.
    let words = [
        (Chip::Tegra30, 0x2000_0010, 0x2000_003f),
        (Chip::Tegra114, 0x2000_0020, 0x2000_003f),
        (Chip::Tegra124, 0x3000_0020, 0x2800_003f),
        (Chip::Tegra210, 0x3000_0030, 0x2800_003f),
    ];
    for (chip, buffer, tables) in words {
        assert_eq!((chip.tlb_config(), chip.ptc_config()), (buffer, tables));
        let (regs, smmu) = unit(chip, LOW);
        assert_eq!((regs.get(0x14), regs.get(0x18)), (buffer, tables));
        assert_eq!(smmu.chip(), chip);
    }
}

#[test]
fn a_swgroup_is_found_by_its_stream_and_by_each_of_its_clients() {
    for chip in Chip::ALL {
        for group in chip.swgroups() {
            assert_eq!(chip.swgroup(group.stream), Some(group));
            for client in group.clients {
                assert_eq!(chip.swgroup_of_client(*client), Some(group));
            }
        }
        assert_eq!(chip.swgroup(stream(u32::MAX)), None);
    }
}

#[test]
fn what_firmware_reserves_for_a_swgroup_is_told() {
    let range = IovaRange::from_len(Iova::new(0x8000_0000), 0x1000).unwrap();
    let kind = ReservedKind::Direct(RW);
    let frames = ReservedRegion { range, kind };
    let mut config = Config::of(Chip::Tegra210);
    let reserved = Reserved::one(stream(23), frames);
    config.reserved.believe(described());
    config.reserved.add(reserved).unwrap();
    let tables: Tables = Arc::new(SlabTables::new(HIGH, PageSize::SIZE_4K, 8));
    let smmu =
        TegraSmmu::enable(Regs::new(), tables, UnitParts::new(Arc::new(Ticks::default())), config);
    let smmu = smmu.unwrap();
    let of = |n| {
        let mut found = Vec::new();
        smmu.reserved(stream(n), &mut |region| found.push(region));
        found
    };
    assert_eq!((of(23), of(6)), (alloc::vec![frames], alloc::vec![]));
}

/// A map of so many pages from page 256 on, whose leaf table is there.
fn change(regs: &Regs, smmu: &Smmu, pages: u64, work: &dyn Fn(&dyn Fn())) {
    let domain = smmu.domain().unwrap();
    let map = |page: u64, pages: u64| {
        let mut owed = Gather::new();
        let (iova, pa) = (Iova::new(page << 12), PhysAddr::new(0x9000_0000));
        domain.map(iova, promised(pa, pages << 12), RW, &mut owed).unwrap();
        owed
    };
    sync(&domain, map(0, 1));
    let owed = map(256, pages);
    regs.take();
    let owed = core::cell::Cell::new(Some(owed));
    work(&|| sync(&domain, owed.take().unwrap()));
}

#[test]
fn a_section_is_an_entry_of_the_directory_and_is_forgotten_whole() {
    let regs = Regs::new();
    let memory = Arc::new(SlabTables::new(HIGH, PageSize::SIZE_4K, 64));
    let config = Config::of(Chip::Tegra210);
    let smmu = TegraSmmu::enable(
        regs.clone(),
        memory.clone(),
        UnitParts::new(Arc::<Ticks>::default()),
        config,
    );
    let smmu = smmu.expect("a unit");
    regs.take();
    let domain = smmu.domain().unwrap();
    let (iova, pa) = (Iova::new(0x4040_0000), PhysAddr::new(0x2_9000_0000));
    let mut owed = Gather::new();
    domain.map(iova, promised(pa, 4 << 20), RW, &mut owed).unwrap();
    regs.take();
    sync(&domain, owed);
    let directory = domain.table().root();
    let entry = || {
        let words = memory.table(directory, PageSize::SIZE_4K);
        words[0x101].load(Ordering::Relaxed)
    };
    assert_eq!((directory.get(), entry()), (0x2_8000_1000, 0xe029_0000));
    let whole = [(0x9b8, 2), (0x34, 0x8000_1401), (0x30, 0x8104_0402)];
    assert_eq!(regs.take(), whole);
    // Split, it is forgotten before a page of it goes: 64 lines of the new table, then all 4 MiB.
    let page = IovaRange::page(Iova::new(0x4040_5000), PageSize::SIZE_4K);
    domain.split(page.start(), &mut Gather::new()).unwrap();
    assert_eq!((regs.take(), entry()), (alloc::vec![(0x34, 0), (0x30, 0x8104_0402)], 0xf028_0002));
    let mut owed = Gather::new();
    domain.unmap(page, &mut owed).unwrap();
    sync(&domain, owed);
    let group = [(0x9b8, 2), (0x34, 0x8000_2001), (0x30, 0x8104_0407)];
    assert_eq!(regs.take(), group);
}

#[test]
fn lines_are_flushed_one_by_one_up_to_a_number_and_all_at_once_beyond() {
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    // Entries of four bytes in lines of 64: sixteen lines, and one more.
    change(&regs, &smmu, 256, &|sync| {
        sync();
        let seen = regs.take();
        let first = seen[1].1;
        let lines = (0..16).flat_map(|n| [(0x9b8, 2), (0x34, first + n * 0x40)]);
        assert_eq!(seen[..32], lines.collect::<Vec<_>>());
        assert_eq!(first & 0xfff, 0x401, "the 256th entry, and the bit for an address");
    });
    change(&regs, &smmu, 257, &|sync| {
        sync();
        assert_eq!(regs.take()[0], (0x34, 0));
    });
}

#[test]
fn a_plan_is_complete_when_it_returns_and_an_empty_one_touches_nothing() {
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    let read_back = |work: &dyn Fn()| {
        let before = smmu.counts();
        work();
        smmu.counts().since(&before).of(WriteKind::ReadBack)
    };
    change(&regs, &smmu, 1, &|sync| assert_eq!(read_back(sync), 1));
    regs.take();
    let nothing = || smmu.queue().pay(&mut core::iter::empty(), TablesLeft::ByDepth).unwrap();
    assert_eq!(read_back(&nothing), 0);
    assert_eq!(regs.take(), []);
}

#[test]
fn a_unit_that_does_not_turn_translation_on_is_not_waited_for_forever() {
    let regs = Regs::new();
    regs.loses.store(0x10, Ordering::Relaxed);
    let tables: Tables = Arc::new(SlabTables::new(HIGH, PageSize::SIZE_4K, 8));
    let config = Config::of(Chip::Tegra210);
    let smmu = TegraSmmu::enable(regs, tables, UnitParts::new(Arc::new(Ticks::default())), config);
    let awaited = Awaited::Control;
    assert!(matches!(smmu.err(), Some(IommuError::TimedOut { awaited: of, .. }) if of == awaited));
}

#[test]
fn a_unit_that_is_dropped_blocks_its_streams_and_domains_free_their_tables() {
    let tables: Tables = Arc::new(SlabTables::new(HIGH, PageSize::SIZE_4K, 64));
    let regs = Regs::new();
    let config = Config::of(Chip::Tegra210);
    let smmu: Smmu =
        TegraSmmu::enable(regs.clone(), tables.clone(), UnitParts::new(Arc::default()), config)
            .unwrap();
    let before = tables.live();
    let domain = Arc::new(smmu.domain().unwrap());
    let mut owed = Gather::new();
    let (iova, pa) = (Iova::new(0x1000), PhysAddr::new(0x9000_0000));
    domain.map(iova, promised(pa, 4096), RW, &mut owed).unwrap();
    sync(&*domain, owed);
    smmu.attach(stream(23), &domain).unwrap();
    assert_eq!(tables.live(), before + 2);
    regs.take();
    drop(smmu);
    assert_eq!(regs.take(), [(0x280, 0x8000_0000)]);
    drop(domain);
    assert_eq!(tables.live(), before);
    assert_eq!(regs.get(0x10), 1, "translation stays on");
}

#[test]
fn a_unit_that_was_let_go_of_is_off_and_left_alone() {
    let tables: Tables = Arc::new(SlabTables::new(HIGH, PageSize::SIZE_4K, 64));
    let regs = Regs::new();
    let config = Config::of(Chip::Tegra210);
    let smmu: Smmu =
        TegraSmmu::enable(regs.clone(), tables.clone(), UnitParts::new(Arc::default()), config)
            .unwrap();
    let domain = smmu.domain().unwrap();
    smmu.release(all_memory()).unwrap();
    assert_eq!(regs.get(0x10), 0);
    regs.take();
    // It is another owner's now.
    drop(domain);
    assert_eq!((regs.take(), tables.live()), (alloc::vec![], 0));
}

/// Memory that counts barriers.
struct Barriers(SlabTables<AtomicU32>, AtomicUsize);

impl TableMem<AtomicU32> for Barriers {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.0.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.0.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU32] {
        self.0.table(table, size)
    }

    fn clean_barrier(&self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }

    fn clean(&self, _: PhysRange) {}

    fn invalidate(&self, _: PhysRange) {}
}

#[test]
fn lines_that_are_written_back_are_awaited() {
    let slab = SlabTables::new(LOW, PageSize::SIZE_4K, 4);
    let memory = Arc::new(Barriers(slab, AtomicUsize::new(0)));
    let noted = Arc::default();
    let tables =
        TegraTables::<UnitParts<Regs, Arc<Barriers>, Ticks>>::new(memory.clone(), noted, 32);
    tables.clean(PhysRange::page(LOW, PageSize::SIZE_4K));
    assert_eq!(memory.1.load(Ordering::Relaxed), 1);
}
