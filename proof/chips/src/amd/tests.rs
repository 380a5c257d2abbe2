//! Hand-encoded entries and commands.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{Mmio, TableMem};

use super::*;
use crate::chips;
use crate::inject::{Drain, Pace, RegisterFaults, Violation};
use crate::machine::{Manner, Withheld};
use crate::memory::{ModelMemory, Visibility};
use portolan_sim::clock::Tick;

const K4: PageSize = PageSize::SIZE_4K;
const TABLE: u64 = 0x10_0000;
const QUEUE: u64 = 0x10_1000;
const LOG: u64 = 0x10_2000;
const STORE: u64 = 0x10_3000;
/// Tables of three levels.
const L3: u64 = 0x10_4000;
const L2: u64 = 0x10_5000;
const L1: u64 = 0x10_6000;
const DEVICE: u64 = 0x28;
const DOMAIN: u64 = 7;
const IOVA: u64 = 0x40_3000;
const PA: u64 = 0x1_2345_6000;
/// Present, readable and writable.
const BOTH: u64 = 1 | 3 << 61;
const ON: u64 = 1 | 1 << 2 | 1 << 12;

const WAIT: [u64; 2] = [1 << 60, 0];
const FLUSH: [u64; 2] = [1 << 60 | 4, 0];
const ENTRY: [u64; 2] = [2 << 60 | DEVICE, 0];

fn pages(word: u64) -> [u64; 2] {
    [3 << 60 | DOMAIN << 32, word]
}

struct Bench {
    amd: AmdRegisters,
    tail: Cell<u64>,
}

impl Bench {
    fn of(setup: AmdSetup) -> Self {
        let memory = ModelMemory::new(PhysAddr::new(TABLE), 64, Visibility::AtOnce);
        let amd = AmdRegisters::new(setup, Arc::new(memory));
        let tail = Cell::new(0);
        let bench = Self { amd, tail };
        bench.set(L3, L2 | 2 << 9 | BOTH);
        bench.set(L2 + 2 * 8, L1 | 1 << 9 | BOTH);
        bench.set(L1 + 3 * 8, PA | BOTH);
        bench.entry(L3 | 3 << 9 | 3 << 61 | 3, DOMAIN);
        for (offset, value) in [(0, TABLE), (8, QUEUE | 8 << 56), (0x10, LOG | 8 << 56)] {
            bench.amd.write64(offset, value);
        }
        bench.amd.write64(0x18, ON);
        assert_eq!(bench.amd.read64(0x2020), 3 << 3);
        bench
    }

    fn new(identification: AmdIdentification) -> Self {
        Self::of(AmdSetup { identification, ..AmdSetup::default() })
    }

    fn word(&self, at: u64) -> &std::sync::atomic::AtomicU64 {
        let page = self.amd.memory.table(PhysAddr::new(at & !0xfff), K4);
        &page[(at & 0xfff) as usize / 8]
    }

    fn set(&self, at: u64, raw: u64) {
        self.word(at).store(raw, Ordering::Release);
    }

    fn get(&self, at: u64) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    fn entry(&self, low: u64, second: u64) {
        self.set(TABLE + DEVICE * 32, low);
        self.set(TABLE + DEVICE * 32 + 8, second);
    }

    fn queue(&self, commands: &[[u64; 2]]) {
        for [low, high] in commands {
            let tail = self.tail.get();
            self.set(QUEUE + tail, *low);
            self.set(QUEUE + tail + 8, *high);
            self.tail.set((tail + 16) % 0x1000);
        }
        self.amd.write64(0x2008, self.tail.get());
    }

    fn read(&self, iova: u64) -> Result<u64, u32> {
        self.dma(iova, AccessKind::Read)
    }

    fn dma(&self, iova: u64, access: AccessKind) -> Result<u64, u32> {
        let stream = StreamId::new(DEVICE as u32);
        self.amd
            .dma(stream, Iova::new(iova), access, 4)
            .map(|pieces| pieces[0].pa.get())
            .map_err(|fault| fault.code)
    }

    fn event(&self, n: u64) -> [u64; 2] {
        [self.get(LOG + n * 16), self.get(LOG + n * 16 + 8)]
    }
}

#[test]
fn a_page_is_reached_and_what_is_refused_is_logged() {
    let bench = Bench::new(AmdIdentification::default());
    assert_eq!(bench.read(IOVA + 0x123), Ok(PA + 0x123));
    assert_eq!(bench.read(IOVA + 0x1000), Err(2));
    assert_eq!(bench.event(0), [2 << 60 | 7 << 32 | 0x28, IOVA + 0x1000]);
    bench.set(L1 + 4 * 8, PA | 1 | 1 << 61);
    assert_eq!(bench.dma(IOVA + 0x1004, AccessKind::Write), Err(2));
    let forbidden = 2 << 60 | 7 << 52 | 7 << 32 | 0x28;
    assert_eq!(bench.event(1), [forbidden, IOVA + 0x1004]);
    // A leaf with reserved bits, a table where no memory is, beyond the tables' width.
    bench.set(L1 + 5 * 8, PA | BOTH | 1 << 52);
    assert_eq!(bench.read(IOVA + 0x2000), Err(2));
    assert_eq!(bench.event(2)[0], 2 << 60 | 9 << 52 | 7 << 32 | 0x28);
    bench.set(L2 + 3 * 8, 1 << 40 | 1 << 9 | BOTH);
    assert_eq!(bench.read(0x60_1000), Err(4));
    assert_eq!(bench.event(3), [4 << 60 | 7 << 32 | 0x28, 1 << 40 | 8]);
    assert_eq!(bench.read(1 << 39), Err(2));
    assert_eq!(bench.amd.read64(0x2018), 5 * 16);
    assert_eq!(bench.amd.read64(0x2020) & 2, 2);
    assert_eq!(bench.amd.violations(), []);
}

#[test]
fn entries_say_who_passes() {
    let both = 3 << 61;
    for (low, second, wanted) in [
        (0, 0, Ok(IOVA)),
        // No translation: as IR says.
        (both | 3, DOMAIN, Ok(IOVA)),
        (3, DOMAIN, Err(2)),
        (1, DOMAIN, Err(2)),
        (L3 | 3 << 9 | 1 << 62 | 3, DOMAIN, Err(2)),
        // Levels that there are not, and reserved bits.
        (L3 | 7 << 9 | both | 3, DOMAIN, Err(1)),
        (L3 | 3 << 9 | both | 3 | 4, DOMAIN, Err(1)),
        (L3 | 3 << 9 | both | 3 | 1 << 55, DOMAIN, Err(1)),
    ] {
        let bench = Bench::new(AmdIdentification::default());
        bench.entry(low, second);
        assert_eq!(bench.read(IOVA), wanted, "{low:x}");
    }
    let bench = Bench::new(AmdIdentification::default());
    let stranger = StreamId::new(0x80);
    let fault = bench.amd.dma(stranger, Iova::new(0), AccessKind::Read, 4);
    assert_eq!(fault.map_err(|fault| fault.code), Err(1));
    bench.amd.write64(0x18, ON & !1);
    assert_eq!(bench.read(IOVA), Ok(IOVA));
}

#[test]
fn the_exclusion_range_is_not_translated() {
    let bench = Bench::new(AmdIdentification::default());
    bench.amd.write64(0x28, IOVA + 0x1000);
    for (base, second, wanted) in [
        (IOVA | 3, DOMAIN, Ok(IOVA + 0x1008)),
        (IOVA | 1, DOMAIN, Err(2)),
        (IOVA | 1, DOMAIN | 1 << 39, Ok(IOVA + 0x1008)),
        (IOVA, DOMAIN | 1 << 39, Err(2)),
    ] {
        bench.amd.write64(0x20, base);
        bench.entry(L3 | 3 << 9 | 3 << 61 | 3, second);
        bench.queue(&[ENTRY, WAIT]);
        assert_eq!(bench.read(IOVA + 0x1008), wanted);
    }
}

#[test]
fn a_translation_stays_until_its_invalidation_is_awaited() {
    let bench = Bench::new(AmdIdentification::default());
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.set(L1 + 3 * 8, 0);
    bench.queue(&[[3 << 60 | 8 << 32, IOVA], ENTRY, WAIT]);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.queue(&[pages(IOVA)]);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.queue(&[[1 << 60 | STORE | 8 | 3, 0x1_0000_0077]]);
    assert_eq!(bench.get(STORE + 8), 0x1_0000_0077);
    assert_eq!(bench.amd.read64(0x2020) & 4, 4);
    assert_eq!(bench.read(IOVA), Err(2));
    // A table that leaves needs more than its leaves.
    bench.set(L1 + 3 * 8, PA | BOTH);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.set(L2 + 2 * 8, 0);
    bench.queue(&[pages(IOVA), WAIT]);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.queue(&[pages(IOVA | 2), WAIT]);
    assert_eq!(bench.read(IOVA), Err(2));
    let counts = bench.amd.counts();
    assert_eq!(counts.commands[&CommandKind::InvalidateIommuPages], 4);
    assert_eq!(bench.amd.read64(0x2000), bench.tail.get());
}

#[test]
fn a_large_page_goes_only_with_a_range_of_its_size() {
    for (command, gone) in [
        (pages(0x61_2000), false),
        (pages(0x60_0000 | 2), false),
        // One MiB, two, four at another place, and four here.
        (pages(0x67_f000 | 3), false),
        (pages(0x6f_f000 | 1), true),
        (pages(0x9f_f000 | 1), false),
        (pages(0x5f_f000 | 1), true),
        (pages(0x7fff_ffff_ffff_f001), true),
        ([3 << 60 | 8 << 32, 0x7fff_ffff_ffff_f003], false),
        ([8 << 60, 0], true),
    ] {
        let bench = Bench::new(chips::RAVEN_RIDGE.identification);
        bench.set(L2 + 3 * 8, 0x8000_0000 | BOTH);
        assert_eq!(bench.read(0x61_2000), Ok(0x8001_2000));
        bench.set(L2 + 3 * 8, 0);
        bench.queue(&[command, WAIT]);
        assert_eq!(bench.read(0x61_2000).is_err(), gone, "{command:x?}");
    }
}

#[test]
fn entries_stay_until_told_and_absence_only_where_the_unit_says_so() {
    for caching in [false, true] {
        let plain = AmdIdentification::default();
        let bench = Bench::new(if caching { plain.caching_absence() } else { plain });
        assert_eq!(bench.read(IOVA), Ok(PA));
        bench.entry(3, 0);
        bench.queue(&[[2 << 60 | 0x29, 0], pages(0x7fff_ffff_ffff_f003), WAIT]);
        assert_eq!(bench.read(IOVA), Ok(PA));
        bench.queue(&[ENTRY, WAIT]);
        assert_eq!(bench.read(IOVA), Err(2));
        bench.entry(L3 | 3 << 9 | 3 << 61 | 3, DOMAIN);
        assert_eq!(bench.read(IOVA), Err(2), "an entry that blocks is kept");
        bench.queue(&[ENTRY, WAIT]);
        assert_eq!(bench.read(IOVA + 0x1000), Err(2));
        bench.set(L1 + 4 * 8, PA | BOTH);
        assert_eq!(bench.read(IOVA + 0x1000).is_err(), caching);
        bench.queue(&[pages(IOVA + 0x1000), WAIT]);
        assert_eq!(bench.read(IOVA + 0x1000), Ok(PA));
    }
}

#[test]
fn commands_have_no_order_but_around_a_wait_that_flushes() {
    let all = pages(0x7fff_ffff_ffff_f003);
    for (commands, kept) in [
        (vec![ENTRY, all, WAIT], true),
        (vec![all, ENTRY, WAIT], true),
        (vec![ENTRY, WAIT, all, WAIT], true),
        (vec![ENTRY, FLUSH, all, WAIT], false),
    ] {
        let bench = Bench::new(AmdIdentification::default());
        assert_eq!(bench.read(IOVA), Ok(PA));
        bench.entry(3, 0);
        // Through the old entry the page is read again before that is forgotten.
        bench.queue(&commands);
        assert_eq!(bench.read(IOVA), Err(2));
        bench.set(L1 + 3 * 8, 0);
        bench.entry(L3 | 3 << 9 | 3 << 61 | 3, DOMAIN);
        bench.queue(&[ENTRY, WAIT]);
        assert_eq!(bench.read(IOVA).is_ok(), kept, "{commands:x?}");
        assert_eq!(bench.amd.read64(0x2000), bench.tail.get());
    }
}

#[test]
fn a_bad_command_stops_the_unit_until_fetching_is_turned_on_again() {
    let bare = AmdIdentification {
        capability: [0x0003_000f, 1, 0, 0, 0x0018_2800],
        features: 0,
        features2: 0,
        counters: 0,
    };
    // INVALIDATE_IOMMU_ALL, and nothing of page requests.
    let with = AmdIdentification { features: 1 << 6, ..chips::RAVEN_RIDGE.identification };
    for (id, command) in [
        (with, [0, 0]),
        (with, [9 << 60, 0]),
        (with, [2 << 60 | 1 << 16, 0]),
        (with, [8 << 60, 1]),
        (with, pages(4)),
        (with, [6 << 60, 0]),
        (with, [7 << 60, 0]),
        (bare, [8 << 60, 0]),
        (bare, [4 << 60, 0]),
    ] {
        let bench = Bench::new(id);
        bench.queue(&[WAIT, command, [1 << 60 | STORE | 1, 5]]);
        assert_eq!(bench.amd.read64(0x2020), 1 << 3 | 2, "{command:x?}");
        assert_eq!(bench.amd.read64(0x2000), 16);
        assert_eq!(bench.event(0), [5 << 60, QUEUE + 16]);
        bench.set(QUEUE + 16, WAIT[0]);
        bench.set(QUEUE + 24, WAIT[1]);
        bench.amd.write64(0x18, ON);
        assert_eq!(bench.get(STORE), 0);
        bench.amd.write64(0x18, ON & !(1 << 12));
        bench.amd.write64(0x18, ON);
        assert_eq!(bench.get(STORE), 5);
    }
}

#[test]
fn a_full_log_stops_until_it_is_turned_on_again() {
    let bench = Bench::new(AmdIdentification::default());
    for _ in 0..256 {
        assert_eq!(bench.read(IOVA + 0x1000), Err(2));
    }
    assert_eq!(bench.amd.read64(0x2020), 1 << 4 | 3);
    assert_eq!(bench.amd.counts().lost_events, 1);
    bench.amd.write64(0x2010, 0xff0);
    bench.amd.write64(0x2020, 3);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.amd.write64(0x18, ON & !4);
    bench.amd.write64(0x18, ON);
    assert_eq!(bench.read(IOVA + 0x1000), Err(2));
    assert_eq!(bench.amd.read64(0x2018), 0);
    assert_eq!(bench.amd.events().len(), 257);
}

#[test]
fn records_and_commands_may_be_late() {
    let bench = Bench::of(AmdSetup {
        pace: Pace::After(100),
        records: Pace::After(50),
        ..AmdSetup::default()
    });
    let later = |ns| {
        bench.amd.clock().advance_ns(ns);
        bench.amd.tick();
    };
    assert_eq!(bench.read(IOVA + 0x1000), Err(2));
    assert_eq!((bench.amd.read64(0x2018), bench.event(0)), (16, [0, 0]));
    later(50);
    assert_ne!(bench.event(0), [0, 0]);
    bench.queue(&[[1 << 60 | STORE | 1, 5], [1 << 60 | STORE | 1, 6]]);
    later(99);
    assert_eq!(bench.get(STORE), 0);
    bench.amd.inject(RegisterFaults { drain: Drain::OneEach(10), ..RegisterFaults::default() });
    later(1);
    assert_eq!(bench.get(STORE), 5);
    later(10);
    assert_eq!(bench.get(STORE), 6);
}

#[test]
fn what_a_driver_must_not_do_is_noted() {
    let bench = Bench::new(AmdIdentification::default());
    for offset in [0x08, 0x10, 0x2000, 0x2018] {
        bench.amd.write64(offset, 0);
    }
    let in_use = |offset| Violation::WrittenInUse { offset };
    let noted = [0x08, 0x10, 0x2000, 0x2018].map(in_use);
    assert_eq!(bench.amd.violations(), noted);
    bench.amd.write64(0x2008, 0x1000);
    let tail = 0x1000;
    assert!(bench.amd.violations().contains(&Violation::QueueOverrun { tail }));
    assert_eq!(bench.amd.read32(0x1c), 0);
    bench.amd.write32(0x18, 1);
    assert_eq!((bench.amd.read64(0x18), bench.amd.read64(0x2020)), (1, 0));
    bench.amd.read64(0x40);
    let offset = 0x40;
    assert!(bench.amd.violations().contains(&Violation::BadAccess { offset }));
}

#[test]
fn a_device_keeps_what_it_may_ask_for_until_it_is_told() {
    let bench = Bench::new(AmdIdentification::default());
    let ask = || {
        let (stream, iova) = (StreamId::new(DEVICE as u32), Iova::new(IOVA + 4));
        let found = bench.amd.ats_access(stream, None, iova, AccessKind::Read);
        found.map(PhysAddr::get)
    };
    assert_eq!(ask(), None);
    bench.entry(L3 | 3 << 9 | 3 << 61 | 3, DOMAIN | 1 << 32);
    bench.queue(&[ENTRY, WAIT]);
    assert_eq!(ask(), Some(PA + 4));
    bench.set(L1 + 3 * 8, 0);
    bench.queue(&[pages(0x7fff_ffff_ffff_f003), WAIT]);
    assert_eq!(ask(), Some(PA + 4));
    bench.queue(&[[4 << 60 | DEVICE, IOVA & !0xfff | 1], WAIT]);
    assert_eq!(ask(), None);
}

/// The exclusion range.
const EXCLUSION: usize = 0x20;
const LIMIT: usize = 0x28;

fn new_machine() -> AmdMachine {
    let base = PhysAddr::new(0x10_0000);
    let memory = ModelMemory::new(base, 16, Visibility::AtOnce);
    AmdMachine::new(AmdSetup::default(), memory)
}

/// Tells if an address is reached that neither content of the exclusion range lets pass.
fn is_seen_in_halves(manner: Manner) -> bool {
    (0..2).any(|reads| {
        let bench = Bench::new(AmdIdentification::default());
        bench.entry(L3 | 3 << 9 | 3 << 61 | 3, DOMAIN);
        bench.queue(&[ENTRY, WAIT]);
        let unit = &bench.amd;
        unit.behave(manner);
        unit.write64(LIMIT, 1 << 32);
        unit.write64(EXCLUSION, 1 << 32 | 0b11);
        let (device, below) = (StreamId::new(DEVICE as u32), Iova::new(0x8000_0000));
        unit.observe(device, None, below, AccessKind::Read);
        assert_eq!(unit.observed(), [[None]]);
        let _: u64 = (0..reads).map(|_| unit.read64(LIMIT)).sum();
        unit.write64(EXCLUSION, 0);
        let reached = Some(PhysAddr::new(below.get()));
        unit.observed().concat().contains(&reached)
    })
}

#[test]
fn a_wide_register_is_seen_in_halves_on_a_hostile_machine() {
    assert!(is_seen_in_halves(Manner::Hostile));
    assert!(!is_seen_in_halves(Manner::Obliging));
}

#[test]
fn a_register_is_kept_from_the_driver() {
    for (how, read, aborted) in
        [(Withheld::Locked, 0, 0), (Withheld::Ones, u64::MAX, 0), (Withheld::Aborts, u64::MAX, 2)]
    {
        let machine = new_machine();
        machine.withhold(LIMIT, how);
        machine.write64(LIMIT, 0x1000);
        assert_eq!(machine.read64(LIMIT), read, "{how:?}");
        assert_eq!(machine.reg(LIMIT), 0);
        assert_eq!(machine.aborted(), aborted);
        machine.write64(EXCLUSION, 0x1000);
        assert_eq!(machine.read64(EXCLUSION), 0x1000);
    }
}
