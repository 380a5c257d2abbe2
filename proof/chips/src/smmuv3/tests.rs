//! Hand-encoded structures and commands.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{Mmio, TableMem};

use super::*;
use crate::inject::{Drain, Pace, RegisterFaults, Violation};
use crate::memory::{ModelMemory, Visibility};
use portolan_sim::clock::Tick;

const K4: PageSize = PageSize::SIZE_4K;
pub(super) const STRTAB: u64 = 0x10_0000;
const CMDQ: u64 = 0x10_1000;
pub(super) const EVENTQ: u64 = 0x10_2000;
pub(super) const CD: u64 = 0x10_3000;
/// Levels of a stage-1 table of 39 bits.
const L1: u64 = 0x10_4000;
const L2: u64 = 0x10_5000;
pub(super) const L3: u64 = 0x10_6000;
const MESSAGE: u64 = 0x10_7000;
/// A stage-2 table of 40 bits: two roots side by side.
const S2: u64 = 0x10_8000;
pub(super) const SPARE: u64 = 0x10_a000;
pub(super) const SID: u32 = 5;
pub(super) const VA: u64 = 0x40_3000;
pub(super) const PA: u64 = 0x9_0000_3000;
/// Page, access flag, shareable, unprivileged, not global.
pub(super) const PAGE: u64 = 3 | 1 << 6 | 3 << 8 | 1 << 10 | 1 << 11;

/// Makes an SMMU with more features than the narrowest chip.
fn able() -> SmmuSetup {
    SmmuSetup { identification: SmmuIdentification::able(), ..SmmuSetup::default() }
}

pub(super) struct Bench {
    pub(super) smmu: SmmuRegisters,
    tail: std::cell::Cell<u32>,
}

impl Bench {
    pub(super) fn new(setup: SmmuSetup) -> Self {
        let memory = ModelMemory::new(PhysAddr::new(STRTAB), 64, Visibility::AtOnce);
        let bench = Self {
            smmu: SmmuRegisters::new(setup, Arc::new(memory)),
            tail: std::cell::Cell::new(0),
        };
        bench.table();
        let smmu = &bench.smmu;
        smmu.write64(0x80, STRTAB);
        smmu.write32(0x88, 6);
        smmu.write64(0x90, CMDQ | 3);
        smmu.write64(0xa0, EVENTQ | 1);
        smmu.write32(0x20, 0b1100);
        assert_eq!(smmu.read32(0x24), 0b1100);
        bench.commands(&[[4, 31], [0x30, 0], [0x46, 0]]);
        bench
    }

    pub(super) fn on(setup: SmmuSetup) -> Self {
        let bench = Self::new(setup);
        bench.smmu.write32(0x2c, 2);
        bench.smmu.write32(0x20, 0b1101);
        bench
    }

    pub(super) fn set(&self, at: u64, raw: u64) {
        let page = self.smmu.memory.table(PhysAddr::new(at & !0xfff), K4);
        page[(at & 0xfff) as usize / 8].store(raw, Ordering::Release);
    }

    pub(super) fn get(&self, at: u64) -> u64 {
        let page = self.smmu.memory.table(PhysAddr::new(at & !0xfff), K4);
        page[(at & 0xfff) as usize / 8].load(Ordering::Acquire)
    }

    /// A stage-1 table with one page, its context descriptor and its stream table entry.
    fn table(&self) {
        self.set(L1, L2 | 3);
        self.set(L2 + 2 * 8, L3 | 3);
        self.set(L3 + 3 * 8, PA | PAGE);
        // T0SZ 25, no TTB1, 48 bits, AArch64, records, aborts, private ASID 7.
        self.set(CD, 25 | 1 << 30 | 1 << 31 | 5 << 32 | 1 << 41 | 3 << 45 | 1 << 47 | 7 << 48);
        self.set(CD + 8, L1);
        self.entry(1 | 5 << 1 | CD);
    }

    pub(super) fn entry(&self, first: u64) {
        self.set(STRTAB + u64::from(SID) * 64, first);
    }

    pub(super) fn commands(&self, commands: &[[u64; 2]]) {
        for [w0, w1] in commands {
            let tail = self.tail.get();
            let at = CMDQ + u64::from(tail & 7) * 16;
            self.set(at, *w0);
            self.set(at + 8, *w1);
            self.tail.set((tail + 1) & 0xf);
            self.smmu.write32(0x98, self.tail.get());
        }
    }

    pub(super) fn read(&self, iova: u64) -> Result<u64, u32> {
        self.dma(None, iova, AccessKind::Read)
    }

    fn dma(&self, pasid: Option<u32>, iova: u64, access: AccessKind) -> Result<u64, u32> {
        let pasid = pasid.map(Pasid::new);
        self.smmu
            .dma(StreamId::new(SID), pasid, Iova::new(iova), access, 4)
            .map(|pieces| pieces[0].pa.get())
            .map_err(|fault| fault.code)
    }
}

#[test]
fn a_page_is_reached_and_its_absence_recorded() {
    let bench = Bench::on(able());
    assert_eq!(bench.read(VA + 0x123), Ok(PA + 0x123));
    assert_eq!(bench.read(VA + 0x1000), Err(0x10));
    assert_eq!(bench.get(EVENTQ), 0x10 | u64::from(SID) << 32);
    // A read, of the input address, at stage 1.
    assert_eq!(bench.get(EVENTQ + 8), 1 << 35 | 2 << 40);
    assert_eq!(bench.get(EVENTQ + 16), VA + 0x1000);
    assert_eq!(bench.smmu.read32(0x1_00a8), 1);
    assert_eq!(bench.smmu.violations(), []);
    // Two fit; the third sets the overflow flag, once.
    for _ in 0..3 {
        assert_eq!(bench.read(VA + 0x1000), Err(0x10));
    }
    assert_eq!(bench.smmu.read32(0x1_00a8), 1 << 31 | 2);
    assert_eq!(bench.smmu.counts().lost_events, 2);
    bench.smmu.write32(0x1_00ac, 1 << 31 | 2);
    assert_eq!(bench.read(VA + 0x1000), Err(0x10));
    assert_eq!(bench.smmu.read32(0x1_00a8), 1 << 31 | 3);
}

#[test]
fn a_translation_stays_until_its_invalidation_is_awaited() {
    let bench = Bench::on(able());
    assert_eq!(bench.read(VA), Ok(PA));
    bench.set(L3 + 3 * 8, 0);
    let va = |asid: u64| 0x12 | asid << 48;
    bench.commands(&[[va(8), VA | 1], [0x46, 0]]);
    assert_eq!(bench.read(VA), Ok(PA));
    bench.commands(&[[va(7), VA | 1]]);
    assert_eq!(bench.read(VA), Ok(PA));
    bench.commands(&[[0x46 | 1 << 12 | 0x77 << 32, MESSAGE + 4]]);
    assert_eq!(bench.get(MESSAGE), 0x77 << 32);
    assert_eq!(bench.read(VA), Err(0x10));
    // A table that leaves needs more than its leaves.
    bench.set(L3 + 3 * 8, PA | PAGE);
    assert_eq!(bench.read(VA), Ok(PA));
    bench.set(L2 + 2 * 8, 0);
    bench.commands(&[[va(7), VA | 1], [0x46, 0]]);
    assert_eq!(bench.read(VA), Ok(PA));
    bench.commands(&[[va(7), VA], [0x46, 0]]);
    assert_eq!(bench.read(VA), Err(0x10));
    let commands = bench.smmu.counts().commands;
    assert_eq!(commands[&CommandKind::TlbiNhVa], 4);
}

#[test]
fn ranges_and_levels_are_taken_at_their_word() {
    let bench = Bench::on(able());
    for page in 0..16 {
        bench.set(L3 + page * 8, PA | PAGE);
        assert_eq!(bench.read(0x40_0000 + page * 0x1000), Ok(PA));
        bench.set(L3 + page * 8, 0);
    }
    // Three times two pages from page 4, 4 KiB granule, leaves of the last level.
    let range = [0x12 | 2 << 12 | 1 << 20 | 7 << 48, 0x40_4001 | 1 << 10 | 3 << 8];
    bench.commands(&[range, [0x46, 0]]);
    for page in 0..16 {
        let gone = (4..10).contains(&page);
        assert_eq!(bench.read(0x40_0000 + page * 0x1000).is_err(), gone, "{page}");
    }
    // Another level than the leaf's drops nothing; no number, no scale and no level is no command.
    bench.commands(&[[0x12 | 7 << 48, 0x40_0001 | 1 << 10 | 2 << 8], [0x46, 0]]);
    assert_eq!(bench.read(0x40_0000), Ok(PA));
    bench.commands(&[[0x12 | 7 << 48, 0x40_0001 | 1 << 10]]);
    assert_eq!(bench.smmu.read32(0x60), 1);
    assert_eq!(bench.smmu.read32(0x9c) >> 24, 1);
    // Software replaces the command and acknowledges.
    bench.set(CMDQ + u64::from((bench.tail.get() - 1) & 7) * 16, 0x11 | 7 << 48);
    bench.smmu.write32(0x64, 1);
    bench.commands(&[[0x46, 0]]);
    assert_eq!(bench.smmu.read32(0x9c), bench.tail.get());
    assert_eq!(bench.read(0x40_0000), Err(0x10));
}

/// A block of 2 MiB at 6 MiB, which has been read.
fn with_block() -> Bench {
    let bench = Bench::on(able());
    bench.set(L2 + 3 * 8, 0x8000_0000 | PAGE & !2);
    assert_eq!(bench.read(0x61_2000), Ok(0x8001_2000));
    bench.set(L2 + 3 * 8, 0);
    bench
}

#[test]
fn a_block_goes_by_any_of_its_addresses() {
    let bench = with_block();
    // Another block's.
    bench.commands(&[[0x12 | 7 << 48, 0x80_0001], [0x46, 0]]);
    assert_eq!(bench.read(0x61_2000), Ok(0x8001_2000));
    bench.commands(&[[0x12 | 7 << 48, 0x7f_f001], [0x46, 0]]);
    assert_eq!(bench.read(0x61_2000), Err(0x10));
}

#[test]
fn pages_in_place_of_a_cached_block_are_noted_at_the_sync() {
    for (entry, noted) in [(L3 | 3, 1), (0, 0)] {
        let bench = Bench::on(able());
        bench.set(L2 + 3 * 8, 0x8000_0000 | PAGE & !2);
        assert_eq!(bench.read(0x60_3000), Ok(0x8000_3000));
        // The device continues while the block's invalidation is awaited.
        bench.set(L2 + 3 * 8, entry);
        bench.commands(&[[0x12 | 7 << 48, 0x60_0000], [0x46, 0]]);
        let iova = Iova::new(0x60_3000);
        let conflict = Violation::SizesConflict { iova };
        assert_eq!(bench.smmu.violations(), vec![conflict; noted]);
    }
}

#[test]
fn hints_that_are_not_the_block_s_leave_it() {
    let (va, leaf) = (0x12 | 7 << 48, 1);
    let (k4, k16) = (1 << 10, 2 << 10);
    let (two_pages, third, second) = (1 << 12, 3 << 8, 2 << 8);
    for (command, gone) in [
        // Two pages in the block: of the third level, of another granule, of no level.
        ([va | two_pages, 0x61_2000 | leaf | k4 | third], false),
        ([va | two_pages, 0x61_0000 | leaf | k16], false),
        ([va | two_pages, 0x61_2000 | leaf | k4], true),
        // A leaf of the second level where there could be none, and where there is.
        ([va, 0x61_2000 | leaf | k4 | second], false),
        ([va, 0x60_0000 | leaf | k4 | second], true),
    ] {
        let bench = with_block();
        bench.commands(&[command, [0x46, 0]]);
        assert_eq!(bench.read(0x61_2000).is_err(), gone, "{command:x?}");
    }
}

#[test]
fn pointers_at_tables_go_by_their_granule() {
    for (granule, gone) in [(2 << 10, false), (1 << 10, true)] {
        let bench = Bench::on(able());
        assert_eq!(bench.read(VA), Ok(PA));
        bench.set(L2 + 2 * 8, 0);
        bench.set(L3 + 4 * 8, PA | PAGE);
        bench.commands(&[[0x12 | 7 << 48 | 1 << 12, VA & !0x3fff | granule], [0x46, 0]]);
        assert_eq!(bench.read(VA + 0x1000).is_err(), gone);
    }
}

#[test]
fn without_a_sync_between_them_both_stages_come_back_combined() {
    let block = 1 | 1 << 6 | 1 << 7 | 1 << 10;
    let (second, both, sync) = ([0x2a | 9 << 32, 0x9_0000_0000], [0x10 | 9 << 32, 0], [0x46, 0]);
    for (commands, reached) in [
        (vec![second, both, sync], true),
        (vec![both, second, sync], true),
        (vec![both, sync, second, sync], true),
        (vec![second, sync, both, sync], false),
        (vec![[0x28 | 9 << 32, 0], sync], false),
    ] {
        let bench = Bench::on(able());
        let ste = STRTAB + u64::from(SID) * 64;
        bench.set(ste + 16, 9 | 24 << 32 | 1 << 38 | 5 << 48 | 1 << 51 | 1 << 58);
        bench.set(ste + 24, S2);
        bench.set(S2, block);
        bench.set(S2 + 36 * 8, 0x9_0000_0000 | block);
        bench.entry(1 | 7 << 1 | CD);
        assert_eq!(bench.read(VA), Ok(PA));
        bench.set(S2 + 36 * 8, 0);
        let before = bench.smmu.counts();
        bench.commands(&commands);
        let after = bench.smmu.counts();
        assert_eq!(after.walk_steps, before.walk_steps);
        assert_eq!(bench.read(VA).is_ok(), reached, "{commands:x?}");
    }
}

#[test]
fn translations_come_back_by_a_stale_stream_table_entry() {
    let (entry, space, sync) = ([0x03 | u64::from(SID) << 32, 1], [0x11 | 7 << 48, 0], [0x46, 0]);
    for (commands, kept) in [
        (vec![entry, space, sync], true),
        (vec![space, entry, sync], true),
        (vec![entry, sync, space, sync], false),
    ] {
        let bench = Bench::on(able());
        assert_eq!(bench.read(VA), Ok(PA));
        // Away, with the translations invalidated, and back when the page is another's.
        bench.entry(1);
        bench.commands(&commands);
        assert_eq!(bench.read(VA), Err(0));
        bench.set(L3 + 3 * 8, 0);
        bench.entry(1 | 5 << 1 | CD);
        bench.commands(&[entry, sync]);
        assert_eq!(bench.read(VA).is_ok(), kept, "{commands:x?}");
    }
}

#[test]
fn global_entries_outlive_their_address_space() {
    let bench = Bench::on(able());
    bench.set(L3 + 3 * 8, PA | PAGE & !(1 << 11));
    assert_eq!(bench.read(VA), Ok(PA));
    bench.set(L3 + 3 * 8, 0);
    bench.commands(&[[0x11 | 7 << 48, 0], [0x46, 0]]);
    assert_eq!(bench.read(VA), Ok(PA));
    bench.commands(&[[0x10, 0], [0x46, 0]]);
    assert_eq!(bench.read(VA), Err(0x10));
}

#[test]
fn configuration_stays_until_told() {
    let bench = Bench::on(able());
    assert_eq!(bench.read(VA), Ok(PA));
    bench.entry(1 | 4 << 1);
    assert_eq!(bench.read(VA), Ok(PA));
    bench.commands(&[[0x03 | u64::from(SID) << 32, 1], [0x46, 0]]);
    assert_eq!(bench.read(VA), Ok(VA));
    // Entries that are not valid stay as well.
    bench.entry(0);
    bench.commands(&[[0x03 | u64::from(SID) << 32, 1], [0x46, 0]]);
    assert_eq!(bench.read(VA), Err(4));
    bench.entry(1);
    assert_eq!(bench.read(VA), Err(4));
    bench.commands(&[[0x03 | u64::from(SID) << 32, 1], [0x46, 0]]);
    assert_eq!(bench.read(VA), Err(0));
    // Context descriptors have a separate command.
    bench.entry(1 | 5 << 1 | CD);
    bench.commands(&[[0x03 | u64::from(SID) << 32, 1], [0x46, 0]]);
    assert_eq!(bench.read(VA), Ok(PA));
    bench.set(CD, 0);
    bench.commands(&[[0x11 | 7 << 48, 0], [0x46, 0]]);
    assert_eq!(bench.read(VA), Ok(PA));
    bench.commands(&[[0x05 | u64::from(SID) << 32, 1], [0x46, 0]]);
    assert_eq!(bench.read(VA), Err(0x0a));
    assert_eq!(bench.smmu.violations(), []);
}

#[test]
fn two_levels_and_substreams() {
    let bench = Bench::new(able());
    let smmu = &bench.smmu;
    smmu.write32(0x88, 10 | 6 << 6 | 1 << 16);
    smmu.write64(0x80, SPARE);
    bench.set(SPARE, STRTAB | 4);
    smmu.write32(0x2c, 2);
    smmu.write32(0x20, 0b1101);
    // Four substreams, linear, and the first descriptor for accesses without one.
    bench.entry(1 | 5 << 1 | CD | 2 << 59);
    bench.set(STRTAB + u64::from(SID) * 64 + 8, 2);
    for word in 0..8 {
        bench.set(CD + 3 * 64 + word * 8, bench.get(CD + word * 8));
    }
    assert_eq!(bench.read(VA), Ok(PA));
    assert_eq!(bench.dma(Some(3), VA, AccessKind::Write), Ok(PA));
    assert_eq!(bench.dma(Some(0), VA, AccessKind::Read), Err(6));
    assert_eq!(bench.dma(Some(4), VA, AccessKind::Read), Err(8));
    assert_eq!(bench.dma(Some(2), VA, AccessKind::Read), Err(0x0a));
    let far = |sid| {
        let stream = StreamId::new(sid);
        let fault = smmu.dma(stream, None, Iova::new(VA), AccessKind::Read, 1);
        fault.map_err(|fault| fault.code)
    };
    // Beyond the span of eight, in a span that is not there, beyond the table.
    assert_eq!((far(8), far(64), far(1024)), (Err(2), Err(2), Err(2)));
    assert_eq!(far(7), Err(4));
}

#[test]
fn the_second_stage_alone_and_under_the_first() {
    let bench = Bench::on(able());
    let ste = STRTAB + u64::from(SID) * 64;
    // VMID 9, 40 bits from level 1, 4 KiB, 48 bits out, AArch64, records.
    bench.set(ste + 16, 9 | 24 << 32 | 1 << 38 | 5 << 48 | 1 << 51 | 1 << 58);
    bench.set(ste + 24, S2);
    // Blocks of 1 GiB: the first where it is, and one in the second root; both read and write.
    let block = 1 | 1 << 6 | 1 << 7 | 1 << 10;
    bench.set(S2, block);
    bench.set(S2 + 0x1000 + 8, 0x40_0000_0000 | block);
    bench.entry(1 | 6 << 1);
    assert_eq!(bench.read(0x80_4000_5000), Ok(0x40_0000_5000));
    bench.set(S2 + 0x1000 + 8, 0);
    bench.commands(&[[0x2a | 9 << 32, 0x80_4000_5001], [0x46, 0]]);
    assert_eq!(bench.read(0x80_4000_5000), Err(0x10));
    assert_eq!(bench.get(EVENTQ + 8), 1 << 35 | 1 << 39 | 2 << 40);
    // Nested: the first stage's tables and its output go through the second.
    bench.entry(1 | 7 << 1 | CD);
    bench.commands(&[[0x03 | u64::from(SID) << 32, 1], [0x46, 0]]);
    assert_eq!(bench.read(VA), Err(0x10));
    bench.set(S2 + 36 * 8, 0x9_0000_0000 | block);
    assert_eq!(bench.read(VA), Ok(PA));
    // Both together outlive an invalidation of the second alone.
    bench.set(S2 + 36 * 8, 0);
    bench.commands(&[[0x2a | 9 << 32, PA], [0x46, 0]]);
    assert_eq!(bench.read(VA), Ok(PA));
    bench.commands(&[[0x28 | 9 << 32, 0], [0x46, 0]]);
    assert_eq!(bench.read(VA), Err(0x10));
}

#[test]
fn a_slow_queue_a_stuck_one_and_none() {
    let setup = SmmuSetup { pace: Pace::After(500), ..able() };
    let bench = Bench::new(setup);
    assert_eq!(bench.smmu.read32(0x9c), 0);
    bench.smmu.clock().advance_ns(500);
    bench.smmu.tick();
    assert_eq!(bench.smmu.read32(0x9c), 3);
    bench.smmu.inject(RegisterFaults { drain: Drain::Never, ..RegisterFaults::default() });
    bench.commands(&[[0x46, 0]]);
    bench.smmu.clock().advance_ns(5000);
    assert_eq!(bench.smmu.read32(0x9c), 3);
    let from = bench.smmu.accesses() + 2;
    bench.smmu.inject(RegisterFaults {
        gone_from: Some(from),
        refuse: Some((4, 2)),
        ..RegisterFaults::default()
    });
    assert_eq!(bench.smmu.read32(0x9c), 3 | 2 << 24);
    assert_eq!(bench.smmu.read32(0x9c), u32::MAX);
    assert_eq!(bench.smmu.read64(0x80), u64::MAX);
}

#[test]
fn too_many_commands_without_a_sync_lock_a_queue_up() {
    let (prefetch, sync) = ([1, 0], [0x46, 0]);
    // Three commands have gone before, the last of them a sync.
    for (most, consumed) in [(None, 7), (Some(3), 7), (Some(2), 6)] {
        let bench = Bench::new(SmmuSetup { most_unsynced: most, ..able() });
        bench.commands(&[prefetch, prefetch, prefetch, sync]);
        assert_eq!(bench.smmu.consumed(), consumed, "{most:?}");
    }
}

#[test]
fn what_must_not_be_done_is_noted() {
    let memory = ModelMemory::new(PhysAddr::new(STRTAB), 4, Visibility::AtOnce);
    let smmu = SmmuRegisters::new(able(), Arc::new(memory));
    smmu.write32(0x20, 0b1001);
    smmu.write32(0x90, 3);
    smmu.write32(0x98, 9);
    smmu.write32(0x3, 9);
    assert_eq!(
        smmu.violations(),
        [
            Violation::EnabledUnclean,
            Violation::WrittenInUse { offset: 0x90 },
            Violation::QueueOverrun { tail: 9 },
            Violation::BadAccess { offset: 3 },
        ]
    );
    // A queue where no memory is aborts.
    assert_eq!(smmu.read32(0x9c), 2 << 24);
    for word in (0..4096).chain(0x1_00a0..0x1_00d0) {
        smmu.write32(word * 4, 0xdead_beef);
        let _ = smmu.read32(word * 4);
    }
    let stream = StreamId::new(u32::MAX);
    let everywhere = Iova::new(u64::MAX - 5);
    let _ = smmu.dma(stream, None, everywhere, AccessKind::Write, u64::MAX >> 40);
}
