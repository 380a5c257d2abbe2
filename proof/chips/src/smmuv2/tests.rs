//! The model by hand: registers in, accesses out.

use std::sync::Arc;

use super::*;
use crate::inject::{Drain, RegisterFaults};
use crate::memory::{ModelMemory, Visibility};
use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{Mmio, TableMem};
use portolan_sim::clock::Tick;

/// Pages of each half are 64, of 4 KiB.
const BANK: usize = (64 + 5) << 12;
const SPACE1: usize = 1 << 12;
const STREAM: StreamId = StreamId::new(0x20);
const PAGE: Iova = Iova::new(0x7000);
const TARGET: u64 = 0x8001_0000;
/// Read and written by devices, accessed, this address space's own.
const LEAF: u64 = TARGET | 1 << 11 | 1 << 10 | 1 << 6 | 3;

struct Bench {
    unit: SmmuV2Registers,
    leaf: PhysAddr,
}

/// Stage 1 of 39 bits in bank 5 for stream 0x20, with one page.
fn bench(setup: SmmuV2Setup) -> Bench {
    let at = PhysAddr::new(0x8000_0000);
    let memory = Arc::new(ModelMemory::new(at, 256, Visibility::AtOnce));
    let tables = [(); 3].map(|()| memory.alloc(PageSize::SIZE_4K).unwrap().get());
    let write = |at: u64, value| memory.write_u64(PhysAddr::new(at), value).unwrap();
    write(tables[0], tables[1] | 3);
    write(tables[1], tables[2] | 3);
    let leaf = tables[2] + 7 * 8;
    write(leaf, LEAF);
    let unit = SmmuV2Registers::new(setup, memory);
    unit.write32(SPACE1 + 4 * 5, 1 << 16);
    unit.write32(SPACE1 + 0x800 + 4 * 5, 1);
    unit.write32(BANK + 0x30, 1 << 23 | 25);
    unit.write32(BANK + 0x10, 1 << 4 | 5);
    unit.write64(BANK + 0x20, 6 << 48 | tables[0]);
    unit.write32(BANK, 1 | 1 << 8);
    unit.write32(0xc00, 5);
    unit.write32(0x800, 1 << 31 | 0x20);
    unit.write32(0x68, 1);
    unit.write32(0x70, 1);
    unit.tick();
    unit.write32(0, 1 << 10);
    let leaf = PhysAddr::new(leaf);
    Bench { unit, leaf }
}

/// Both stages, 48 match registers, 64 pages of 4 KiB in each half, 32 context banks, 4 of them with stage 2 only;
/// all granules, 48 bits.
const HAND: SmmuV2Identification = SmmuV2Identification {
    idr: [
        0b11 << 29 | 1 << 27 | 1 << 14 | 15 << 9 | 48,
        5 << 28 | 4 << 16 | 32,
        0b111 << 12 | 0x555,
    ],
    revision: 0x21,
    stream_bits: 0x7fff,
};

fn able() -> SmmuV2Setup {
    SmmuV2Setup { identification: HAND, ..SmmuV2Setup::default() }
}

impl Bench {
    fn read(&self, iova: Iova) -> Result<u64, u32> {
        let pieces = self.unit.dma(STREAM, iova, AccessKind::Read, 4);
        pieces.map(|all| all[0].pa.get()).map_err(|fault| fault.code)
    }

    fn unmap(&self) {
        self.unit.memory().write_u64(self.leaf, 0).unwrap();
    }
}

#[test]
fn translates_and_faults_by_hand() {
    let bench = bench(able());
    assert_eq!(bench.read(Iova::new(0x7abc)), Ok(TARGET + 0xabc));
    assert_eq!(bench.read(Iova::new(0x9000)), Err(2));
    assert_eq!(bench.unit.read32(BANK + 0x58), 2);
    assert_eq!(bench.unit.read64(BANK + 0x60), 0x9000);
    assert_eq!(bench.unit.read32(SPACE1 + 0x400 + 4 * 5), 0x20);
    // A second one, and cleared both.
    assert_eq!(bench.read(Iova::new(0xa000)), Err(2));
    assert_eq!(bench.unit.read32(BANK + 0x58), 1 << 31 | 2);
    bench.unit.write32(BANK + 0x58, 1 << 31 | 2);
    assert_eq!(bench.unit.read32(BANK + 0x58), 0);
    let other = bench.unit.dma(StreamId::new(0x21), PAGE, AccessKind::Write, 4);
    assert_eq!(other.map_err(|fault| fault.code), Err(2));
    assert_eq!(bench.unit.read32(0x48), 2);
    assert_eq!((bench.unit.read32(0x50), bench.unit.read32(0x54)), (2, 0x21));
    assert_eq!(bench.unit.violations(), []);
}

#[test]
fn keeps_what_it_knows_until_the_sync() {
    let bench = bench(able());
    assert_eq!(bench.read(PAGE), Ok(TARGET));
    bench.unmap();
    assert_eq!(bench.read(PAGE), Ok(TARGET));
    // Another page; another address space; the right one without a sync.
    for value in [6 << 48 | 8, 7 << 48 | 7, 6 << 48 | 7] {
        bench.unit.write64(BANK + 0x620, value);
        assert_eq!(bench.read(PAGE), Ok(TARGET));
    }
    bench.unit.inject(RegisterFaults { drain: Drain::Never, ..RegisterFaults::default() });
    bench.unit.write32(BANK + 0x7f0, 0);
    bench.unit.clock().advance_ns(1 << 40);
    assert_eq!(bench.unit.read32(BANK + 0x7f4), 1);
    assert_eq!(bench.read(PAGE), Ok(TARGET));
    bench.unit.inject(RegisterFaults::default());
    assert_eq!(bench.unit.read32(BANK + 0x7f4), 0);
    assert_eq!(bench.read(PAGE), Err(2));
    assert_eq!(bench.unit.counts().of("TLBIVAL"), 3);
}

#[test]
fn syncs_take_their_time() {
    let bench = bench(able());
    let unit = SmmuV2Registers::new(
        SmmuV2Setup { sync_ns: 100, safe_ns: 900, ..able() },
        bench.unit.memory().clone(),
    );
    let active = |after| {
        unit.write32(BANK + 0x7f0, 0);
        unit.clock().advance_ns(after);
        unit.read32(BANK + 0x7f4)
    };
    assert_eq!(active(999), 1);
    assert_eq!(active(1_000), 0);
    unit.turn_off_wait_for_safe();
    assert_eq!(active(99), 1);
    assert_eq!(active(100), 0);
}

#[test]
fn stalled_accesses_wait_for_an_answer() {
    let bench = bench(able());
    bench.unmap();
    bench.unit.write32(BANK, 1 | 1 << 7 | 1 << 8);
    assert_eq!(bench.read(PAGE), Err(SmmuV2Registers::STALLED));
    assert_eq!(bench.unit.read32(BANK + 0x58), 1 << 30 | 2);
    bench.unit.write32(BANK + 0x58, 2);
    bench.unit.memory().write_u64(bench.leaf, LEAF).unwrap();
    bench.unit.write32(BANK + 0x08, 0);
    let pa = PhysAddr::new(TARGET);
    let iova = PAGE;
    assert_eq!(bench.unit.take_resumed(), [Ok(Piece { iova, pa, bytes: 4 })]);
    assert_eq!(bench.unit.read32(BANK + 0x58), 0);
    assert_eq!(bench.unit.counts().stray_responses, 0);
    bench.unit.write32(BANK + 0x08, 0);
    assert_eq!(bench.unit.counts().stray_responses, 1);
}

#[test]
fn firmware_bends_what_it_watches() {
    let bench = bench(SmmuV2Setup { identification: HAND, ..SmmuV2Setup::qualcomm(0) });
    let s2cr = |value| {
        bench.unit.write32(0xc10, value);
        bench.unit.read32(0xc10) >> 16 & 3
    };
    assert_eq!((s2cr(0), s2cr(2 << 16), s2cr(1 << 16)), (0, 0, 2));
}

#[test]
fn streams_that_match_twice() {
    let bench = bench(able());
    bench.unit.write32(0x804, 1 << 31 | 0x1f << 16 | 0x20);
    assert_eq!(bench.unit.violations().len(), 1);
    assert_eq!(bench.read(PAGE), Err(4));
}

#[test]
fn an_invalidation_of_any_asid_leaves_other_pages() {
    let bench = bench(able());
    assert_eq!(bench.read(PAGE), Ok(TARGET));
    bench.unmap();
    for (value, gone) in [(8, false), (7, true)] {
        // TLBIVAAL, and the sync.
        bench.unit.write64(BANK + 0x628, value);
        bench.unit.write32(BANK + 0x7f0, 0);
        bench.unit.tick();
        assert_eq!(bench.read(PAGE).is_err(), gone);
    }
}

#[test]
fn leaves_come_back_by_pointers_that_go_later() {
    // Both pages' table has left; the sync covers the leaf and the table in either order.
    let (leaf, all) = ((BANK + 0x620, 6 << 48 | 7), (BANK + 0x600, 6 << 48 | 7));
    for (writes, gone) in [(vec![leaf, all], true), (vec![all, leaf], true), (vec![leaf], false)] {
        let bench = bench(able());
        assert_eq!(bench.read(PAGE), Ok(TARGET));
        let middle = PhysAddr::new((bench.leaf.get() & !0xfff) - 0x1000);
        bench.unit.memory().write_u64(middle, 0).unwrap();
        for (register, value) in writes {
            bench.unit.write64(register, value);
        }
        bench.unit.write32(BANK + 0x7f0, 0);
        bench.unit.tick();
        assert_eq!(bench.read(PAGE).is_err(), gone);
    }
}

/// A store of zero to a command that firmware traps, and one of anything else.
#[test]
fn some_firmware_loses_commands_that_are_written_as_zero() {
    for (setup, value, reached) in [
        (SmmuV2Setup::qualcomm(0), 0, Ok(TARGET)),
        (SmmuV2Setup::qualcomm(0), 1, Err(2)),
        (SmmuV2Setup::default(), 0, Err(2)),
    ] {
        let bench = bench(SmmuV2Setup { identification: HAND, ..setup });
        assert_eq!(bench.read(PAGE), Ok(TARGET));
        bench.unmap();
        bench.unit.write32(0x68, value);
        bench.unit.write32(0x70, u32::MAX);
        bench.unit.tick();
        assert_eq!(bench.read(PAGE), reached);
    }
}
