//! The driver over registers that remember their writes, with values worked out by hand.

mod edges;
mod failing;
mod model;

use crate::promise::tests::{all_memory, promised};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::{Gather, Preference, Quirks};
use portolan::iommu::{
    Attach, AttachError, Domain, FaultAccess, FaultEvent, FaultReason, FaultRecord, Iommu,
    IommuError,
};
use portolan::platform::{Mmio, SlabTables, UnitParts};
use portolan::table::Access;
use portolan_chips::fixture::Ticks;
use spin::Mutex;

use super::{Chip, Config, TegraSmmu, WriteKind};
use portolan_spec::tegra_smmu::reg;

const RW: Access = Access::READ.union(Access::WRITE);
/// Above 4 GiB, so that lines have upper bits.
const HIGH: PhysAddr = PhysAddr::new(0x2_8000_0000);
const LOW: PhysAddr = PhysAddr::new(0x8000_0000);

/// Registers that hold their written values, flushes apart, and a list of all writes.
struct Regs {
    values: Mutex<Vec<u32>>,
    log: Mutex<Vec<(usize, u32)>>,
    /// Reads as all ones from now on.
    gone: AtomicU32,
    /// Offset of the next write that gets lost.
    loses: AtomicUsize,
}

impl Regs {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            values: Mutex::new(alloc::vec![0; reg::WINDOW_BYTES / 4]),
            log: Mutex::default(),
            gone: AtomicU32::new(0),
            loses: AtomicUsize::new(usize::MAX),
        })
    }

    fn take(&self) -> Vec<(usize, u32)> {
        core::mem::take(&mut self.log.lock())
    }

    fn set(&self, offset: usize, value: u32) {
        self.values.lock()[offset / 4] = value;
    }

    fn get(&self, offset: usize) -> u32 {
        self.values.lock()[offset / 4]
    }
}

impl Mmio for Regs {
    fn read32(&self, offset: usize) -> u32 {
        match self.gone.load(Ordering::Relaxed) {
            0 => self.get(offset),
            _ => u32::MAX,
        }
    }

    fn write32(&self, offset: usize, value: u32) {
        self.log.lock().push((offset, value));
        let lost = (offset, usize::MAX);
        let (order, other) = (Ordering::Relaxed, Ordering::Relaxed);
        let lost = self.loses.compare_exchange(lost.0, lost.1, order, other);
        if lost.is_err() {
            self.set(offset, value);
        }
    }
}

type Tables = Arc<SlabTables<AtomicU32>>;
type Smmu = TegraSmmu<UnitParts<Arc<Regs>, Tables, Arc<Ticks>>>;

fn unit(chip: Chip, memory: PhysAddr) -> (Arc<Regs>, Smmu) {
    let regs = Regs::new();
    let tables = Arc::new(SlabTables::new(memory, PageSize::SIZE_4K, 64));
    let smmu =
        TegraSmmu::enable(regs.clone(), tables, UnitParts::new(Arc::default()), Config::of(chip));
    let smmu = smmu.expect("a unit");
    regs.take();
    (regs, smmu)
}

fn stream(n: u32) -> StreamId {
    StreamId::new(n)
}

fn sync(domain: &impl Domain, mut owed: Gather) {
    domain.sync(&mut owed).map_err(IommuError::from).unwrap();
}

#[test]
fn tables_of_swgroups_are_consistent() {
    for chip in Chip::ALL {
        let groups = chip.swgroups();
        for (n, group) in groups.iter().enumerate() {
            assert!(group.register < reg::WINDOW_BYTES && group.register % 4 == 0, "{group:?}");
            assert!(!group.clients.is_empty(), "{group:?}");
            for other in &groups[n + 1..] {
                assert_ne!(group.register, other.register, "{group:?} {other:?}");
                assert_ne!(group.stream, other.stream, "{group:?} {other:?}");
                let shared = group.clients.iter().any(|c| other.clients.contains(c));
                assert!(!shared, "{group:?} {other:?}");
            }
        }
        // The page-table cache itself is a client that is never translated.
        assert_eq!(chip.enables(0) & 1, 0);
    }
    assert_eq!(reg::enables(0x72), 0x234);
    assert_eq!(reg::enables(0x86), 0xb98);
}

#[test]
fn taking_over_blocks_everything() {
    let regs = Regs::new();
    let tables: Tables = Arc::new(SlabTables::new(HIGH, PageSize::SIZE_4K, 8));
    let config = Config::of(Chip::Tegra210);
    let smmu =
        TegraSmmu::enable(regs.clone(), tables, UnitParts::new(Arc::new(Ticks::default())), config)
            .unwrap();
    let log = regs.take();
    // Probe, caches, the empty directory of address space 0.
    let begin = [
        (0x1c, 127),
        (0x1c, 0),
        (0x18, 0x2800_003f),
        (0x14, 0x3000_0030),
        (0x1c, 0),
        (0x20, 0xe028_0000),
    ];
    assert_eq!(log[..6], begin);
    assert!(log.contains(&(0x280, 0x8000_0000)), "the camera is blocked");
    // Client 0x72 is bit 18 of the fourth register; the GPU's bits 24 and 25 stay as they are.
    assert_eq!(regs.get(0x234) >> 18 & 1, 1);
    assert_eq!(regs.get(0x230) >> 24 & 3, 0);
    let end = &log[log.len() - 3..];
    assert_eq!(end, [(0x34, 0), (0x30, 0), (0x10, 1)]);
    assert_eq!(smmu.counts().of(WriteKind::SwgroupAsid), 29);
    assert_eq!(smmu.counts().of(WriteKind::ReadBack), 3);
}

#[test]
fn one_page_is_flushed_by_line_and_group() {
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    let domain = smmu.domain().unwrap();
    // The second page of the slab, address space 1.
    assert_eq!(regs.take(), [(0x1c, 1), (0x20, 0xe028_0001)]);
    let (iova, pa) = (Iova::new(0x1234_5000), PhysAddr::new(0x9000_0000));
    let mut owed = Gather::new();
    domain.map(iova, promised(pa, 4096), RW, &mut owed).unwrap();
    assert_eq!(regs.take(), []);
    sync(&domain, owed);
    // Entry 0x345 of the third page, entry 0x48 of the second, lines of 64 bytes; address space 1,
    // the 16 KiB at 0x1234_4000.
    let map =
        [(0x9b8, 2), (0x34, 0x8000_1101), (0x9b8, 2), (0x34, 0x8000_2d01), (0x30, 0x8101_2347)];
    assert_eq!(regs.take(), map);
    // The directory's entry is not flushed again.
    let mut owed = Gather::new();
    let range = IovaRange::page(iova, PageSize::SIZE_4K);
    domain.unmap(range, &mut owed).unwrap();
    sync(&domain, owed);
    let unmap = [(0x9b8, 2), (0x34, 0x8000_2d01), (0x30, 0x8101_2347)];
    assert_eq!(regs.take(), unmap);
}

#[test]
fn what_is_read_back_does_not_count_as_written() {
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    let before = smmu.counts();
    smmu.block(stream(23)).unwrap();
    smmu.attach(stream(23), &Arc::new(smmu.domain().unwrap())).unwrap();
    let these = smmu.counts().since(&before);
    assert!(these.of(WriteKind::ReadBack) > 0);
    assert_eq!(these.writes(), regs.take().len() as u64);
}

#[test]
fn a_whole_table_is_one_section_and_the_whole_page_table_cache() {
    let (regs, smmu) = unit(Chip::Tegra30, LOW);
    let domain = smmu.domain().unwrap();
    let (iova, pa) = (Iova::new(0x4040_0000), PhysAddr::new(0x9000_1000));
    let mut owed = Gather::new();
    domain.map(iova, promised(pa, 4 << 20), RW, &mut owed).unwrap();
    sync(&domain, owed);
    regs.take();
    let mut owed = Gather::new();
    let range = IovaRange::from_len(iova, 4 << 20).unwrap();
    domain.unmap(range, &mut owed).unwrap();
    sync(&domain, owed);
    // Of four address spaces the number is in bits 30 and 29.
    assert_eq!(regs.take(), [(0x34, 0), (0x30, 0xa004_0402)]);
    // By context it is the address space.
    let quirks = Quirks { preference: Preference::ByContext, ..Quirks::default() };
    let other = smmu.domain_with(quirks).unwrap();
    let mut owed = Gather::new();
    other.map(iova, promised(pa, 4096), RW, &mut owed).unwrap();
    regs.take();
    sync(&other, owed);
    assert_eq!(regs.take(), [(0x34, 0), (0x30, 0xc000_0000)]);
}

#[test]
fn lines_without_room_in_a_debt_are_flushed_all_the_same() {
    let (regs, smmu) = unit(Chip::Tegra114, LOW);
    let domain = smmu.domain().unwrap();
    let mut owed = Gather::new();
    let page = |n: u64| Iova::new(0x1000_0000 + n * 0x1_0000);
    for n in 0..6 {
        let pa = PhysAddr::new(0x9000_0000 + n * 4096);
        domain.map(page(n), promised(pa, 4096), RW, &mut owed).unwrap();
    }
    sync(&domain, owed);
    let lines = |log: &[(usize, u32)]| -> Vec<u32> {
        let mut all: Vec<u32> =
            log.iter().filter(|(at, _)| *at == reg::PTC_FLUSH).map(|(_, value)| *value).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let log = regs.take();
    // One entry in each of six lines, and the directory's.
    let table = (1..7).map(|n| 0x8000_2001 + (n - 1) * 0x40);
    let wanted: Vec<u32> = core::iter::once(0x8000_1101).chain(table).collect();
    assert_eq!(lines(&log), wanted);
    // No upper bits on this chip.
    assert!(log.iter().all(|(at, _)| *at != reg::PTC_FLUSH_HI));
}

#[test]
fn streams_move_by_one_write() {
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    let first = Arc::new(smmu.domain().unwrap());
    let second = Arc::new(smmu.domain().unwrap());
    regs.take();
    let camera = stream(23);
    smmu.attach(camera, &first).unwrap();
    smmu.attach(camera, &second).unwrap();
    smmu.block(camera).unwrap();
    let moves = [(0x280, 0x8000_0001), (0x280, 0x8000_0002), (0x280, 0x8000_0000)];
    assert_eq!(regs.take(), moves);
    let enables = regs.get(0x234);
    smmu.pass_through(camera, all_memory()).unwrap();
    let passed = [(0x234, enables & !(1 << 18)), (0x280, 0x8000_0000)];
    assert_eq!(regs.take(), passed);
    smmu.attach(camera, &first).unwrap();
    let back = [(0x280, 0x8000_0001), (0x234, enables)];
    assert_eq!(regs.take(), back);
    let nobody = stream(10);
    let refused = Err(AttachError::NoSuchStream { stream: nobody });
    assert_eq!(smmu.attach(nobody, &first), refused);
    assert!(smmu.block(stream(u32::MAX)).is_err());
    // The GPU decides by itself.
    let unsupported = Err(AttachError::Iommu(IommuError::Unsupported));
    assert_eq!(smmu.pass_through(stream(17), all_memory()), unsupported);
}

#[test]
fn an_address_space_is_used_again_once_it_is_quiet() {
    let (regs, smmu) = unit(Chip::Tegra30, LOW);
    let all: Vec<_> = (0..3).map(|_| smmu.domain().unwrap()).collect();
    assert_eq!(smmu.domain().err(), Some(IommuError::OutOfContexts));
    regs.take();
    drop(all);
    // Space 1: the empty directory, both caches.
    let end = [(0x1c, 1), (0x20, 0xe008_0000), (0x34, 0), (0x30, 0xa000_0000)];
    assert_eq!(regs.take()[..4], end);
    assert!(smmu.domain().is_ok());
}

#[test]
fn faults_are_read_one_at_a_time() {
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    let domain = Arc::new(smmu.domain().unwrap());
    assert_eq!(smmu.next_fault(), Ok(None));
    let fault = |status: u32| {
        regs.set(0x00, 1 << 10 | 1 << 9);
        regs.set(0x08, status);
        regs.set(0x0c, 0xffff_ffff);
        let event = smmu.next_fault().unwrap();
        assert_eq!(regs.get(0), 1 << 10, "acknowledged");
        regs.set(0, 0);
        event
    };
    let record = |reason, access| {
        Some(FaultEvent::Fault(FaultRecord {
            stream: stream(6),
            pasid: None,
            iova: Some(Iova::new(0xffff_ffff)),
            access: Some(access),
            reason,
        }))
    };
    // Client 0x36 writes where nothing is; it is blocked.
    let blocked = record(FaultReason::Blocked, FaultAccess::Write);
    assert_eq!(fault(0x6001_0036), blocked);
    smmu.attach(stream(6), &domain).unwrap();
    let missing = record(FaultReason::NotMapped, FaultAccess::Write);
    assert_eq!(fault(0x6001_0036), missing);
    let forbidden = record(FaultReason::Permission, FaultAccess::Read);
    assert_eq!(fault(0x6400_0016), forbidden);
    // Two bits of the address are with the status.
    let Some(FaultEvent::Fault(far)) = fault(0x6421_0036) else {
        panic!("a fault");
    };
    assert_eq!(far.iova, Some(Iova::new(0x2_ffff_ffff)));
    // A processor is behind no swgroup.
    assert_eq!(fault(0x6000_0027), Some(FaultEvent::Lost));
}

#[test]
fn what_is_gone_says_so_and_keeps_its_memory() {
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    let domain = Arc::new(smmu.domain().unwrap());
    let mut owed = Gather::new();
    let (iova, pa) = (Iova::new(0x1000), PhysAddr::new(0x9000_0000));
    domain.map(iova, promised(pa, 4096), RW, &mut owed).unwrap();
    regs.gone.store(1, Ordering::Relaxed);
    let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
    assert_eq!(error, IommuError::Gone);
    assert_eq!(smmu.next_fault(), Err(IommuError::Gone));
    let attached = smmu.attach(stream(23), &domain);
    assert_eq!(attached, Err(AttachError::Iommu(IommuError::Gone)));
    regs.gone.store(0, Ordering::Relaxed);
    regs.take();
    // All lines are forgotten now, those too whose flush was lost.
    sync(&*domain, owed);
    assert_eq!(regs.take()[0], (0x34, 0));
    smmu.attach(stream(23), &domain).unwrap();
}

#[test]
fn nonsense_is_refused() {
    let try_it = |spoil: fn(&Regs)| {
        let regs = Regs::new();
        spoil(&regs);
        let tables: Tables = Arc::new(SlabTables::new(HIGH, PageSize::SIZE_4K, 8));
        let config = Config::of(Chip::Tegra210);
        let smmu = TegraSmmu::enable(
            regs,
            tables.clone(),
            UnitParts::new(Arc::new(Ticks::default())),
            config,
        );
        (smmu.err(), tables.live())
    };
    let gone = |regs: &Regs| regs.gone.store(1, Ordering::Relaxed);
    assert_eq!(try_it(gone), (Some(IommuError::Gone), 0));
    // Memory that the chip does not reach.
    let regs = Regs::new();
    let tables: Tables = Arc::new(SlabTables::new(HIGH, PageSize::SIZE_4K, 8));
    let config = Config::of(Chip::Tegra30);
    let smmu =
        TegraSmmu::enable(regs, tables.clone(), UnitParts::new(Arc::new(Ticks::default())), config);
    assert!(matches!(smmu.err(), Some(IommuError::Memory(_))));
    assert_eq!(tables.live(), 0);
}
