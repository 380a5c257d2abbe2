//! Hand-encoded contexts, tables and commands.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{Mmio, TableMem};

use super::*;
use crate::inject::{RegisterFaults, Violation};
use crate::memory::{ModelMemory, Visibility};

const K4: PageSize = PageSize::SIZE_4K;
/// The directory's root, and a page of contexts below it.
const ROOT: u64 = 0x10_0000;
const CONTEXTS: u64 = 0x10_1000;
const QUEUE: u64 = 0x10_2000;
const FAULTS: u64 = 0x10_3000;
const STORE: u64 = 0x10_7000;
/// Tables of three levels, whose root may be of 16 KiB.
const L3: u64 = 0x10_8000;
const L2: u64 = 0x10_c000;
pub(super) const L1: u64 = 0x10_d000;
/// A device whose context of base format is in the second page.
pub(super) const DEVICE: u64 = 0x1a8;
pub(super) const IOVA: u64 = 0x40_3000;
pub(super) const PA: u64 = 0x1_2345_6000;
/// Valid, readable, writable, a user's, accessed, dirty.
const BOTH: u64 = 0xd7;
/// Sv39 from [`L3`], and its tag: 7.
pub(super) const FIRST: [u64; 4] = [1, 0, 7 << 12, 8 << 60 | L3 >> 12];
/// Words of the same context with Sv39x4.
const SECOND: [u64; 4] = [1, 8 << 60 | 7 << 44 | L3 >> 12, 0, 0];

pub(super) const FENCE: [u64; 2] = [0x3002, 0];
pub(super) const CONTEXT: [u64; 2] = [3 | 1 << 33 | DEVICE << 40, 0];
const ALL_CONTEXTS: [u64; 2] = [3, 0];
/// Invalidations of tag 7: all of it, and one page.
const VMA: [u64; 2] = [1 | 1 << 32 | 7 << 12, 0];
pub(super) const VMA_PAGE: [u64; 2] = [1 | 1 << 10 | 1 << 32 | 7 << 12, IOVA >> 2];
const GVMA: [u64; 2] = [0x81 | 1 << 33 | 7 << 44, 0];
const GVMA_PAGE: [u64; 2] = [0x81 | 1 << 10 | 1 << 33 | 7 << 44, IOVA >> 2];

/// A page's number in an entry that points at it.
fn number(at: u64) -> u64 {
    at >> 12 << 10
}

pub(super) struct Bench {
    pub(super) unit: RiscvRegisters,
    tail: Cell<u64>,
}

impl Bench {
    pub(super) fn new(identification: RiscvIdentification, context: [u64; 4]) -> Self {
        let memory = ModelMemory::new(PhysAddr::new(ROOT), 64, Visibility::AtOnce);
        let setup = RiscvSetup { identification, ..RiscvSetup::default() };
        let unit = RiscvRegisters::new(setup, Arc::new(memory));
        let tail = Cell::new(0);
        let bench = Self { unit, tail };
        bench.set(L3, number(L2) | 1);
        bench.set(L2 + 2 * 8, number(L1) | 1);
        bench.set(L1 + 3 * 8, number(PA) | BOTH);
        // The third page of contexts has those of 128 devices from 0x180 on.
        bench.set(ROOT + 3 * 8, number(CONTEXTS) | 1);
        bench.context(context);
        // 256 commands, 128 records; the directory has two levels.
        bench.unit.write64(24, number(QUEUE) | 7);
        bench.unit.write32(36, 0);
        bench.unit.write64(40, number(FAULTS) | 6);
        bench.unit.write32(48, 0);
        bench.unit.write32(72, 1);
        bench.unit.write32(76, 1);
        bench.unit.write64(16, number(ROOT) | 3);
        assert_eq!(bench.unit.read64(16), number(ROOT) | 3);
        assert_eq!([72, 76].map(|at| bench.unit.read32(at)), [0x1_0001; 2]);
        bench
    }

    pub(super) fn plain(context: [u64; 4]) -> Self {
        Self::new(RiscvIdentification::able(), context)
    }

    fn word(&self, at: u64) -> &std::sync::atomic::AtomicU64 {
        let page = self.unit.memory.table(PhysAddr::new(at & !0xfff), K4);
        &page[(at & 0xfff) as usize / 8]
    }

    pub(super) fn set(&self, at: u64, raw: u64) {
        self.word(at).store(raw, Ordering::Release);
    }

    pub(super) fn get(&self, at: u64) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    pub(super) fn context(&self, words: [u64; 4]) {
        for (n, word) in (0..).zip(words) {
            self.set(CONTEXTS + (DEVICE & 0x7f) * 32 + n * 8, word);
        }
    }

    pub(super) fn queue(&self, commands: &[[u64; 2]]) {
        for [low, high] in commands {
            let tail = self.tail.get();
            self.set(QUEUE + tail * 16, *low);
            self.set(QUEUE + tail * 16 + 8, *high);
            self.tail.set((tail + 1) % 256);
        }
        self.unit.write32(36, self.tail.get() as u32);
    }

    pub(super) fn read(&self, iova: u64) -> Result<u64, u32> {
        self.dma(DEVICE, iova, AccessKind::Read)
    }

    fn dma(&self, device: u64, iova: u64, access: AccessKind) -> Result<u64, u32> {
        let stream = StreamId::new(device as u32);
        self.unit
            .dma(stream, None, Iova::new(iova), access, 4)
            .map(|pieces| pieces[0].pa.get())
            .map_err(|fault| fault.code)
    }

    fn record(&self, n: u64) -> [u64; 4] {
        [0, 8, 16, 24].map(|at| self.get(FAULTS + n * 32 + at))
    }
}

#[test]
fn a_page_is_reached_and_what_is_refused_is_recorded() {
    let bench = Bench::plain(FIRST);
    assert_eq!(bench.read(IOVA + 0x123), Ok(PA + 0x123));
    assert_eq!(bench.read(IOVA + 0x1000), Err(13));
    let who = DEVICE << 40;
    assert_eq!(bench.record(0), [who | 2 << 34 | 13, 0, IOVA + 0x1000, 0]);
    assert_eq!(bench.dma(DEVICE, 0, AccessKind::Write), Err(15));
    assert_eq!(bench.record(1), [who | 3 << 34 | 15, 0, 0, 0]);
    assert_eq!(bench.unit.read32(52), 2);
    // Without a context; beyond the directory; malformed.
    assert_eq!(bench.dma(DEVICE + 1, IOVA, AccessKind::Read), Err(258));
    assert_eq!(bench.dma(0, IOVA, AccessKind::Read), Err(258));
    assert_eq!(bench.dma(1 << 16, IOVA, AccessKind::Read), Err(260));
    bench.context([1, 0, 0, 7 << 60]);
    bench.queue(&[CONTEXT, FENCE]);
    assert_eq!(bench.read(IOVA), Err(259));
    assert_eq!(bench.unit.violations(), []);
}

#[test]
fn a_second_stage_names_the_guests_address() {
    let bench = Bench::plain(SECOND);
    assert_eq!(bench.read(IOVA + 0x123), Ok(PA + 0x123));
    // The root has 2048 entries: this is the one of 512.
    let far = IOVA + (512 << 30);
    assert_eq!(bench.read(far), Err(21));
    assert_eq!(bench.record(0)[2..], [far, far]);
    bench.set(L3 + 512 * 8, number(L2) | 1);
    assert_eq!(bench.read(far), Ok(PA));
}

#[test]
fn what_is_kept_goes_with_the_command_for_it_behind_a_fence() {
    for (context, page, tag, fault) in [(FIRST, VMA_PAGE, VMA, 13), (SECOND, GVMA_PAGE, GVMA, 21)] {
        let bench = Bench::plain(context);
        assert_eq!(bench.read(IOVA), Ok(PA));
        bench.set(L1 + 3 * 8, 0);
        assert_eq!(bench.read(IOVA), Ok(PA));
        bench.queue(&[page]);
        assert_eq!(bench.read(IOVA), Ok(PA));
        bench.queue(&[FENCE]);
        assert_eq!(bench.read(IOVA), Err(fault));
        // An address names the leaf: the pointer at its table stays.
        bench.set(L1 + 3 * 8, number(PA) | BOTH);
        bench.set(L2 + 2 * 8, 0);
        bench.queue(&[page, FENCE]);
        assert_eq!(bench.read(IOVA), Ok(PA));
        bench.queue(&[tag, FENCE]);
        assert_eq!(bench.read(IOVA), Err(fault));
    }
}

#[test]
fn an_address_names_what_is_above_the_leaf_with_the_extension() {
    let identification = RiscvIdentification {
        capabilities: RiscvIdentification::able().capabilities | 3 << 42,
        ..RiscvIdentification::able()
    };
    let bench = Bench::new(identification, FIRST);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.set(L2 + 2 * 8, 0);
    let above = [VMA_PAGE[0] | 1 << 34, VMA_PAGE[1]];
    bench.queue(&[above, FENCE]);
    assert_eq!(bench.read(IOVA), Err(13));
    // Of four pages, the last of which this is: bit 9, and a one below the zero.
    bench.set(L2 + 2 * 8, number(L1) | 1);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.set(L1 + 3 * 8, 0);
    let range = |address: u64| [VMA_PAGE[0], (address >> 2) | 1 << 9];
    bench.queue(&[range(0x40_0000), FENCE]);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.queue(&[range(0x40_1000), FENCE]);
    assert_eq!(bench.read(IOVA), Err(13));
}

#[test]
fn contexts_and_what_leads_to_them_are_kept() {
    let bench = Bench::plain([1, 0, 0, 0]);
    assert_eq!(bench.read(IOVA), Ok(IOVA));
    bench.context([0; 4]);
    assert_eq!(bench.read(IOVA), Ok(IOVA));
    bench.queue(&[CONTEXT]);
    assert_eq!(bench.read(IOVA), Ok(IOVA));
    bench.queue(&[FENCE]);
    assert_eq!(bench.read(IOVA), Err(258));
    // An entry that does not count is not kept.
    bench.context([1, 0, 0, 0]);
    assert_eq!(bench.read(IOVA), Ok(IOVA));
    // A device's command leaves the entries that lead to its context.
    bench.set(ROOT + 3 * 8, 0);
    bench.queue(&[CONTEXT, FENCE]);
    assert_eq!(bench.read(IOVA), Ok(IOVA));
    bench.queue(&[ALL_CONTEXTS, FENCE]);
    assert_eq!(bench.read(IOVA), Err(258));
}

#[test]
fn a_fence_stores_and_an_illegal_command_stops_the_unit() {
    let bench = Bench::plain(FIRST);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.set(L1 + 3 * 8, 0);
    let store = |data: u64| [0x3402 | data << 32, STORE >> 2];
    bench.queue(&[store(5)]);
    assert_eq!(bench.get(STORE), 5);
    // PSCV is not allowed in GVMA; commands under way before it are lost.
    let illegal = [GVMA[0] | 1 << 32, 0];
    bench.queue(&[VMA, illegal, store(6)]);
    assert_eq!(bench.unit.read32(72), 0x1_0401);
    assert_eq!(bench.unit.read32(32), 2);
    bench.set(QUEUE + 2 * 16, FENCE[0]);
    bench.set(QUEUE + 2 * 16 + 8, FENCE[1]);
    bench.unit.write32(72, 1 | 1 << 10);
    assert_eq!((bench.get(STORE), bench.unit.read32(72)), (6, 0x1_0001));
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.queue(&[VMA, FENCE]);
    assert_eq!(bench.read(IOVA), Err(13));
    // A fence that stores where no memory is.
    bench.queue(&[[0x3402, 0x1000 >> 2]]);
    assert_eq!(bench.unit.read32(72), 0x1_0101);
}

#[test]
fn what_a_unit_does_not_have_is_illegal() {
    // Entries above the leaves, ranges, another function, ATS.
    for words in [
        [VMA_PAGE[0] | 1 << 34, VMA_PAGE[1]],
        [VMA_PAGE[0], VMA_PAGE[1] | 1 << 9],
        [2 | 1 << 7, 0],
        [4, 0],
        // A device that is wider than the directory.
        [3 | 1 << 33 | 1 << 56, 0],
    ] {
        let bench = Bench::plain(FIRST);
        bench.queue(&[words]);
        assert_eq!(bench.unit.read32(72), 0x1_0401, "{words:x?}");
    }
}

#[test]
fn a_full_queue_of_faults_stops_recording() {
    let bench = Bench::plain([0; 4]);
    for _ in 0..130 {
        assert_eq!(bench.read(IOVA), Err(258));
    }
    assert_eq!(bench.unit.read32(76), 0x1_0201);
    assert_eq!(bench.unit.read32(52), 127);
    assert_eq!(bench.unit.counts().lost_faults, 3);
    bench.unit.write32(48, 127);
    bench.unit.write32(76, 1 | 1 << 9);
    assert_eq!(bench.read(IOVA), Err(258));
    assert_eq!(bench.unit.read32(52), 0);
    assert_eq!(bench.unit.violations(), []);
}

#[test]
fn what_must_not_be_written_is_noted() {
    let bench = Bench::plain(FIRST);
    for (offset, value) in [(24, 1), (40, 1), (8, 2), (16, 2), (20, 1)] {
        bench.unit.write32(offset, value);
    }
    let in_use = |offset| Violation::WrittenInUse { offset };
    assert_eq!(bench.unit.violations(), [24, 40, 8, 16, 20].map(in_use));
    let bench = Bench::plain(FIRST);
    // From a directory only to nothing; from there to everything.
    bench.unit.write32(16, (number(ROOT) | 1) as u32);
    assert_eq!(bench.unit.violations(), [in_use(16)]);
    bench.unit.write32(16, number(ROOT) as u32);
    assert_eq!(bench.read(IOVA), Err(256));
    bench.unit.write32(16, number(ROOT) as u32 | 1);
    assert_eq!(bench.read(IOVA), Ok(IOVA));
    bench.unit.write32(36, 256);
    let _ = bench.unit.read64(8);
    let tail = 256;
    let offset = 8;
    let more = [Violation::QueueOverrun { tail }, Violation::BadAccess { offset }];
    assert_eq!(bench.unit.violations()[1..], more);
}

#[test]
fn a_unit_that_is_told_to_refuse_does() {
    let bench = Bench::plain(FIRST);
    bench.unit.inject(RegisterFaults { refuse: Some((2, 1 << 8)), ..RegisterFaults::NONE });
    bench.queue(&[VMA, FENCE]);
    assert_eq!(bench.unit.read32(72), 0x1_0101);
    assert_eq!(bench.unit.read32(32), 1);
}
