//! The library's tables, gathers and plans against the model, format by format.

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::{
    Caching, Capabilities, Gather, InvalidationQueue, Quirks, RangeForm, TablesLeft, WalkFlush,
    Walker,
};
use portolan::platform::{SlabTables, TableMem};
use portolan::table::format::{
    Armv8Config, Armv8Stage1, Armv8Stage2, DirtyTracking, Format, SplitRule, Tegra, TegraMemory,
    VtdFirstLevels, VtdFirstStage, VtdLevels, VtdSecondStage,
};
use portolan::table::{Access, PageTable};
use portolan_sim::decode::{AccessKind, TableFormat, TableReader, TableRoot, WalkMemory};
use portolan_sim::device::Device;
use portolan_sim::iommu::{Iommu, Setup, StreamConfig};
use portolan_sim::tables::{Lag, NonCoherentTables};

const CONTEXT: InvalTag = InvalTag::new(7);
const STREAM: StreamId = StreamId::new(1);
const TABLES: PhysAddr = PhysAddr::new(0x1000_0000);
const MEMORY: u64 = 0x8000_0000;
const START: u64 = 0x4000_0000;

/// Maps, touches, unmaps and syncs, and checks the addresses that the device can and cannot reach at each point.
fn life<F: Format, M: TableMem<F::Word>, W: WalkMemory>(
    format: F,
    layout: TableFormat,
    memory: M,
    walker: W,
    caps: Capabilities,
    quirks: Quirks,
) {
    let granule = F::GRANULE.bytes();
    let table = PageTable::new(format, memory).unwrap();
    let root = TableRoot { root: table.root(), format: layout };
    let iommu = Iommu::new(Setup::adversarial(caps), walker);
    iommu.attach(STREAM, StreamConfig::Translate { context: CONTEXT, table: root });
    let mut device = Device::new(&iommu, STREAM, 64);
    let pay = |mut gather: Gather| {
        let quiet =
            table.sync(&iommu, CONTEXT, &caps, &quirks, &mut gather).expect("the model refused");
        table.reclaim(quiet).expect("a proof of this table");
    };
    let leaf_table = granule << F::INDEX_LG2;
    let start = START.next_multiple_of(leaf_table);
    for round in 0..3u64 {
        let at = Iova::new(start + round * granule);
        let far = Iova::new(start + 4 * leaf_table);
        assert!(device.read(at, 8).is_err(), "{layout:?}");
        let pa = PhysAddr::new(MEMORY + round * granule);
        let bytes = leaf_table + 3 * granule;
        reach(&table, &iommu, &mut device, (at, pa, bytes), far, &pay);
        leave(&table, &mut device, (at, bytes), far, &pay);
        device.forget();
    }
}

/// Maps pages into one leaf table and the next, and a block where the format has one, and reaches
/// all of it, and no more.
fn reach<F: Format, M: TableMem<F::Word>, W: WalkMemory>(
    table: &PageTable<F, M>,
    iommu: &Iommu<W>,
    device: &mut Device<'_, W>,
    (at, pa, bytes): (Iova, PhysAddr, u64),
    far: Iova,
    pay: &impl Fn(Gather),
) {
    let (read, both) = (Access::READ, Access::READ | Access::WRITE);
    let (granule, leaf_table) = (F::GRANULE.bytes(), F::GRANULE.bytes() << F::INDEX_LG2);
    let mut gather = Gather::new();
    table.map(at, pa, bytes, both, &mut gather).unwrap();
    let block = PhysAddr::new(MEMORY);
    table.map(far, block, leaf_table, read, &mut gather).unwrap();
    pay(gather);
    let last = Iova::new(at.get() + bytes - 8);
    assert_eq!(device.write(at, 8).unwrap()[0].pa, pa);
    let end = device.write(last, 8).unwrap()[0].pa;
    assert_eq!(end.get(), pa.get() + bytes - 8);
    assert_eq!(device.read(far, granule).unwrap()[0].pa.get(), MEMORY);
    assert!(iommu.translate(STREAM, far, AccessKind::Write).is_err());
    let stale = device.try_stale(|place| table.translate(place.iova).is_some());
    assert!(stale.is_empty());
}

/// Unmaps: reached until synced, and not after.
fn leave<F: Format, M: TableMem<F::Word>, W: WalkMemory>(
    table: &PageTable<F, M>,
    device: &mut Device<'_, W>,
    (at, bytes): (Iova, u64),
    far: Iova,
    pay: &impl Fn(Gather),
) {
    let leaf_table = F::GRANULE.bytes() << F::INDEX_LG2;
    let mut gather = Gather::new();
    let range = IovaRange::from_len(at, bytes).unwrap();
    table.unmap(range, &mut gather).unwrap();
    let cached = !device.try_stale(|_| false).is_empty();
    assert!(cached, "nothing was cached");
    pay(gather);
    let stale = device.try_stale(|place| table.translate(place.iova).is_some());
    assert_eq!(stale, []);
    let mut gather = Gather::new();
    let range = IovaRange::from_len(far, leaf_table).unwrap();
    table.unmap(range, &mut gather).unwrap();
    pay(gather);
    assert_eq!(device.try_stale(|_| false), []);
}

fn capabilities(granule: PageSize) -> Vec<(Capabilities, Quirks)> {
    let able = Setup::able(granule);
    let by_context = Quirks { walk_flush: WalkFlush::ByContext, ..Quirks::default() };
    let scaled = RangeForm::NumScale { max_num: 32, max_scale: 31 };
    let all = [
        (able, Quirks::default()),
        (Capabilities { range: RangeForm::Absent, ..able }, by_context),
        (Capabilities { range: scaled, ..able }, Quirks::default()),
        (Capabilities { caching: Caching::NotPresentToo, ..able }, Quirks::default()),
    ];
    all.to_vec()
}

fn lives<F: Format + Copy>(format: F, layout: TableFormat) {
    for (caps, quirks) in capabilities(F::GRANULE) {
        let slab = SlabTables::<F::Word>::new(TABLES, F::GRANULE, 64);
        life(format, layout, &slab, TableReader::new(&slab, F::GRANULE), caps, quirks);
        let tables = NonCoherentTables::<F::Word>::new(TABLES, F::GRANULE, 64, Lag::CacheLines);
        let caps = Capabilities { walker: Walker::NonCoherent, ..caps };
        life(format, layout, &tables, tables.walker(), caps, quirks);
    }
}

fn arm(input_lg2: u32, output_lg2: u32) -> Armv8Config {
    let split = SplitRule::BreakBeforeMake;
    Armv8Config { input_lg2, output_lg2, split, dirty: DirtyTracking::Off }
}

#[test]
fn armv8() {
    let s1 = |granule, input, output| TableFormat::armv8_stage1(granule, input, output).unwrap();
    let s2 = |granule, input, output| TableFormat::armv8_stage2(granule, input, output).unwrap();
    let (k4, k16, k64) = (PageSize::SIZE_4K, PageSize::SIZE_16K, PageSize::SIZE_64K);
    lives(Armv8Stage1::<12>::new(arm(39, 48)).unwrap(), s1(k4, 39, 48));
    lives(Armv8Stage1::<12>::new(arm(48, 48)).unwrap(), s1(k4, 48, 48));
    lives(Armv8Stage1::<14>::new(arm(47, 48)).unwrap(), s1(k16, 47, 48));
    lives(Armv8Stage1::<16>::new(arm(52, 52)).unwrap(), s1(k64, 52, 52));
    lives(Armv8Stage2::<12>::new(arm(40, 40)).unwrap(), s2(k4, 40, 40));
    lives(Armv8Stage2::<14>::new(arm(48, 48)).unwrap(), s2(k16, 48, 48));
    lives(Armv8Stage2::<16>::new(arm(42, 52)).unwrap(), s2(k64, 42, 52));
}

#[test]
fn vtd() {
    let dirty = DirtyTracking::Off;
    let levels = [(3, VtdLevels::Three), (4, VtdLevels::Four), (5, VtdLevels::Five)];
    for (count, levels) in levels {
        let layout = TableFormat::vtd_second_stage(count).unwrap();
        lives(VtdSecondStage { levels, output_lg2: 52, dirty }, layout);
    }
    for (count, levels) in [(4, VtdFirstLevels::Four), (5, VtdFirstLevels::Five)] {
        let layout = TableFormat::vtd_first_stage(count).unwrap();
        lives(VtdFirstStage { levels, output_lg2: 52, dirty }, layout);
    }
}

#[test]
fn tegra() {
    for (bits, memory) in [(32, TegraMemory::Bits32), (34, TegraMemory::Bits34)] {
        lives(Tegra { memory }, TableFormat::tegra(bits).unwrap());
    }
}

#[test]
fn an_injected_failure_hands_the_debt_back() {
    let slab = SlabTables::new(TABLES, PageSize::SIZE_4K, 8);
    let format = Armv8Stage1::<12>::new(arm(39, 48)).unwrap();
    let table = PageTable::new(format, &slab).unwrap();
    let caps = Setup::able(PageSize::SIZE_4K);
    let iommu = Iommu::new(Setup::adversarial(caps), TableReader::new(&slab, PageSize::SIZE_4K));
    iommu.inject(portolan_sim::iommu::Injection { stall_sync: Some(1), ..Default::default() });
    let mut gather = Gather::new();
    let at = Iova::new(START);
    table.map(at, PhysAddr::new(MEMORY), 4096, Access::READ, &mut gather).unwrap();
    let range = IovaRange::page(at, PageSize::SIZE_4K);
    table.unmap(range, &mut gather).unwrap();
    let quirks = Quirks::default();
    table.sync(&iommu, CONTEXT, &caps, &quirks, &mut gather).unwrap_err();
    let quiet = table.sync(&iommu, CONTEXT, &caps, &quirks, &mut gather).unwrap();
    table.reclaim(quiet).expect("a proof of this table");
    assert!(iommu.pay(&mut std::iter::empty(), TablesLeft::ByDepth).is_ok());
    assert_eq!(iommu.counters().syncs, 1);
}
