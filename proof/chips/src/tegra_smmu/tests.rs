//! Registers written by hand.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{Mmio, TableMem};

use super::*;
use crate::inject::{RegisterFaults, Violation};
use crate::memory::{ModelMemory, Visibility};
use portolan_sim::iommu::Temper;
use portolan_sim::profile::{CacheGeometry, CacheSizes};
use portolan_sim::tables::Lag;

const K4: PageSize = PageSize::SIZE_4K;
const DIRECTORY: u64 = 0x2_8000_0000;
const TABLE: u64 = 0x2_8000_1000;
const ALL: u32 = 7 << 29;

struct Bench {
    smmu: TegraRegisters,
}

impl Bench {
    fn new(setup: TegraSetup) -> Self {
        let base = PhysAddr::new(DIRECTORY);
        let memory = ModelMemory::narrow(base, 16, Visibility::Late(Lag::CacheLines));
        let smmu = TegraRegisters::new(setup, Arc::new(memory));
        let bench = Self { smmu };
        let regs = &bench.smmu;
        regs.write32(0x18, 1 << 29 | 0x3f);
        regs.write32(0x14, 1 << 29 | 48);
        regs.write32(0x34, 0);
        regs.write32(0x30, 0);
        // Address space 5 has the directory; the camera, client 0x72, is in it.
        regs.write32(0x1c, 5);
        regs.write32(0x20, (DIRECTORY >> 12) as u32 | ALL);
        regs.write32(0x280, 1 << 31 | 5);
        regs.write32(0x234, 1 << 18);
        regs.write32(0x10, 1);
        bench.set(DIRECTORY, 0x48, (TABLE >> 12) as u32 | ALL | 1 << 28);
        bench
    }

    fn on() -> Self {
        Self::new(TegraSetup::of(TegraChip::Tegra210))
    }

    /// Writes an entry, and its line back.
    fn set(&self, table: u64, index: u64, raw: u32) {
        let table = PhysAddr::new(table);
        self.smmu.memory.table(table, K4)[index as usize].store(raw, Ordering::Release);
        let entry = PhysAddr::new(table.get() + index * 4);
        let bytes = portolan::addr::PhysRange::from_len(entry, 4).unwrap();
        TableMem::clean(&*self.smmu.memory, bytes);
    }

    fn write(&self, iova: u64) -> Result<u64, u32> {
        let camera = TegraChip::Tegra210.camera();
        let done = self.smmu.dma(camera, Iova::new(iova), AccessKind::Write, 4);
        done.map(|pieces| pieces[0].pa.get()).map_err(|fault| fault.code)
    }

    fn flush(&self, flushes: &[(usize, u32)]) {
        for &(offset, value) in flushes {
            self.smmu.write32(offset, value);
        }
        self.smmu.read32(0x1c);
    }
}

/// 0x1234_5000: entry 0x48 of the directory, entry 0x345 of its table.
const IOVA: u64 = 0x1234_5000;
/// Flushes of its line of the PTC, and of its group of the TLB.
const LINE: [(usize, u32); 2] = [(0x9b8, 2), (0x34, 0x8000_1d01)];
const GROUP: (usize, u32) = (0x30, 0x8501_2347);

#[test]
fn a_page_stays_in_both_caches_until_both_are_flushed() {
    let bench = Bench::on();
    bench.set(TABLE, 0x345, 0x9_0000 | ALL);
    assert_eq!(bench.write(IOVA + 0x10), Ok(0x9000_0010));
    bench.set(TABLE, 0x345, 0);
    assert_eq!(bench.write(IOVA), Ok(0x9000_0000));
    // Neither alone is enough.
    bench.flush(&[GROUP]);
    assert_eq!(bench.write(IOVA), Ok(0x9000_0000));
    bench.flush(&LINE);
    assert_eq!(bench.write(IOVA), Ok(0x9000_0000));
    // Lines that are cached between a flush and its read stay.
    let regs = &bench.smmu;
    regs.write32(0x34, 0);
    regs.write32(0x30, 0);
    regs.read32(0x1c);
    bench.set(TABLE, 0x345, 0x9_0000 | ALL);
    regs.write32(0x30, 0);
    assert_eq!(bench.write(IOVA), Ok(0x9000_0000));
    regs.read32(0x1c);
    bench.set(TABLE, 0x345, 0);
    assert_eq!(bench.write(IOVA), Ok(0x9000_0000));
    bench.flush(&LINE);
    // Written and not yet read back.
    regs.write32(0x30, GROUP.1);
    assert_eq!(bench.write(IOVA), Ok(0x9000_0000));
    regs.read32(0x1c);
    assert_eq!(bench.write(IOVA), Err(6));
    assert_eq!(regs.violations(), []);
    // The record: page, not readable, not writable, a write, client 0x72.
    assert_eq!(regs.read32(0x00), 1 << 10);
    assert_eq!((regs.read32(0x08), regs.read32(0x0c)), (0x6001_0072, 0x1234_5000));
    assert_eq!(bench.write(IOVA + 0x1000), Err(6));
    assert_eq!(regs.read32(0x0c), 0x1234_5000);
    assert_eq!(regs.counts().lost_faults, 1);
    regs.write32(0, 1 << 10);
    assert_eq!(bench.write(IOVA + 0x1000), Err(6));
    assert_eq!(regs.read32(0x0c), 0x1234_6000);
}

#[test]
fn what_is_absent_is_remembered_too() {
    let bench = Bench::on();
    bench.set(TABLE, 0x345, 0x9_0000 | ALL);
    assert_eq!(bench.write(IOVA), Ok(0x9000_0000));
    // A neighbour in the same group and the same line.
    bench.set(TABLE, 0x346, 0x9_0001 | ALL);
    assert_eq!(bench.write(IOVA + 0x1000), Err(6));
    bench.flush(&[GROUP]);
    assert_eq!(bench.write(IOVA + 0x1000), Err(6));
    bench.flush(&[LINE[0], LINE[1], GROUP]);
    assert_eq!(bench.write(IOVA + 0x1000), Ok(0x9000_1000));
}

#[test]
fn sections_spaces_and_everything() {
    let bench = Bench::on();
    let raw = 0x9_0000 | ALL;
    let cached = |entry: u32| {
        bench.set(TABLE, 0x345, entry);
        bench.flush(&[(0x34, 0)]);
        bench.write(IOVA).is_ok()
    };
    for (flush, reaches) in [
        // The section of 4 MiB; the next; another address space; this one; all of them.
        (0x8501_2002, true),
        (0x8501_2402, false),
        (0x8400_0000, false),
        (0x8500_0000, true),
        (0x0000_0000, true),
        (0x0001_2347, true),
        (0x0001_2343, false),
    ] {
        bench.flush(&[(0x34, 0), (0x30, 0)]);
        assert!(cached(raw));
        assert!(cached(0));
        bench.flush(&[(0x30, flush)]);
        assert_eq!(bench.write(IOVA).is_err(), reaches, "{flush:#x}");
    }
    let counts = bench.smmu.counts();
    assert_eq!(counts.of(RegisterUse::TlbFlushSection), 2);
    assert_eq!(counts.of(RegisterUse::TlbFlushGroup), 2);
    assert_eq!(counts.of(RegisterUse::TlbFlushAsid), 2);
    assert_eq!(bench.smmu.violations(), []);
}

#[test]
fn permissions_sections_of_tables_and_clients_that_pass() {
    let bench = Bench::on();
    let regs = &bench.smmu;
    // Only readable.
    bench.set(TABLE, 0x345, 0x9_0000 | 1 << 31);
    assert_eq!(bench.write(IOVA), Err(6));
    assert_eq!(regs.read32(0x08), 0x6801_0072);
    // 4 MiB at once, which are forgotten at once, and by nothing less.
    bench.set(DIRECTORY, 0x49, 0x9_0000 | ALL);
    bench.flush(&[(0x34, 0)]);
    assert_eq!(bench.write(0x1240_3000), Ok(0x9000_3000));
    bench.set(DIRECTORY, 0x49, 0);
    bench.flush(&[(0x34, 0), (0x30, 0x8501_2403)]);
    assert_eq!(bench.write(0x127f_f004), Ok(0x903f_f004));
    bench.flush(&[(0x30, 0x8501_2402)]);
    assert_eq!(bench.write(0x1240_3000), Err(6));
    // Not enabled, the client passes; nor is it translated without an address space.
    regs.write32(0x234, 0);
    assert_eq!(bench.write(0x77), Ok(0x77));
    regs.write32(0x234, 1 << 18);
    regs.write32(0x280, 5);
    assert_eq!(bench.write(0x3_0000_0077), Ok(0x3_0000_0077));
    assert_eq!(bench.write(0x4_0000_0077), Err(2));
    // There is no such client.
    let nobody = regs.dma(StreamId::new(99), Iova::new(0), AccessKind::Read, 1);
    assert!(nobody.is_err());
}

#[test]
fn lines_that_were_not_written_back_are_not_seen() {
    let bench = Bench::on();
    let table = PhysAddr::new(TABLE);
    bench.smmu.memory.table(table, K4)[0x345].store(0x9_0000 | ALL, Ordering::Release);
    assert_eq!(bench.write(IOVA), Err(6));
}

#[test]
fn older_chips_and_realistic_caches() {
    let sizes = CacheSizes {
        iotlb: CacheGeometry { entries: 2, ways: 2 },
        walk: CacheGeometry { entries: 4, ways: 4 },
        configuration: CacheGeometry { entries: 1, ways: 1 },
        source: String::new(),
    };
    let setup =
        TegraSetup { temper: Temper::Realistic(sizes), ..TegraSetup::of(TegraChip::Tegra210) };
    let bench = Bench::new(setup);
    for group in 0..8 {
        bench.set(TABLE, 0x340 + group * 4, 0x9_0000 | ALL);
    }
    for group in 0..8 {
        assert_eq!(bench.write(0x1234_0000 + group * 0x4000), Ok(0x9000_0000));
    }
    assert_eq!(bench.smmu.cached()[0], 2);
    assert!(bench.smmu.counts().misses == 8 && bench.smmu.counts().line_reads < 8);
    // Four address spaces have their number two bits below the match.
    let memory = ModelMemory::narrow(PhysAddr::new(0x8000_0000), 4, Visibility::AtOnce);
    let old = TegraRegisters::new(TegraSetup::of(TegraChip::Tegra30), Arc::new(memory));
    old.write32(0x30, 0xe000_0000);
    old.write32(0x1c, 4);
    old.write32(0x9b8, 1);
    old.write32(0x10, 1);
    let bad = |offset| Violation::BadAccess { offset };
    assert_eq!(old.violations(), [bad(0x1c), bad(0x9b8), Violation::EnabledUnclean]);
    assert_eq!(old.counts().of(RegisterUse::TlbFlushAsid), 1);
    // No value written anywhere makes it panic.
    for offset in (0..0x1100).step_by(2) {
        old.write32(offset, 0xdead_beef);
        let _ = old.read32(offset);
    }
    let gone = RegisterFaults { gone_from: Some(1), ..RegisterFaults::default() };
    old.inject(gone);
    assert_eq!(old.read32(0x10), u32::MAX);
}
