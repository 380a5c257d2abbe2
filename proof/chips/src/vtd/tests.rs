//! Hand-encoded structures and descriptors.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::platform::{Mmio, TableMem};

use super::*;
use crate::inject::{Drain, Pace, RegisterFaults, Violation};
use crate::machine::Manner;
use crate::memory::{ModelMemory, Visibility};
use portolan_sim::clock::Tick;
use portolan_sim::tables::Lag;

const K4: PageSize = PageSize::SIZE_4K;
const ROOT: u64 = 0x10_0000;
pub(super) const CONTEXTS: u64 = 0x10_1000;
const QUEUE: u64 = 0x10_2000;
/// A second stage of three levels.
const S3: u64 = 0x10_3000;
const S2: u64 = 0x10_4000;
const S1: u64 = 0x10_5000;
const STATUS: u64 = 0x10_6000;
const DIRECTORY: u64 = 0x10_7000;
const PASIDS: u64 = 0x10_8000;
/// A first stage of four levels.
pub(super) const F: [u64; 4] = [0x10_9000, 0x10_a000, 0x10_b000, 0x10_c000];
/// Bus 1, device 2, function 1.
pub(super) const SOURCE: u32 = 0x111;
pub(super) const DOMAIN: u64 = 7;
pub(super) const IOVA: u64 = 0x40_3000;
const PA: u64 = 0x1_2345_6000;

/// Tables of three and four levels, 48 bits, large pages, invalidation of up to 2^18 pages, four fault records; a
/// queue, and snooping.
pub(super) const HAND: VtdIdentification = VtdIdentification {
    version: 0x10,
    cap: 6 | 0b0110 << 8 | 47 << 16 | 0x22 << 24 | 0b11 << 34 | 1 << 39 | 3 << 40 | 18 << 48,
    ecap: 0b11 | 1 << 6 | 0x2c << 8,
};

pub(super) struct Bench {
    pub(super) vtd: VtdRegisters,
    tail: Cell<u64>,
    entry: Cell<u64>,
}

impl Bench {
    fn new(identification: VtdIdentification, visibility: Visibility, mode: u64) -> Self {
        let setup = VtdSetup { identification, ..VtdSetup::default() };
        Self::of(setup, visibility, mode)
    }

    fn of(setup: VtdSetup, visibility: Visibility, mode: u64) -> Self {
        let memory = ModelMemory::new(PhysAddr::new(ROOT), 64, visibility);
        let vtd = VtdRegisters::new(setup, Arc::new(memory));
        let entry = if mode == 0 { 16 } else { 32 };
        let bench = Self { vtd, tail: Cell::new(0), entry: Cell::new(entry) };
        bench.set(S3, S2 | 3);
        bench.set(S2 + 2 * 8, S1 | 3);
        bench.set(S1 + 3 * 8, PA | 3);
        bench.set(ROOT + 16, CONTEXTS | 1);
        bench.vtd.memory.write_back_all();
        bench.vtd.write64(0x20, ROOT | mode << 10);
        bench.vtd.write32(0x18, 1 << 30);
        assert_eq!(bench.vtd.read32(0x1c), 1 << 30);
        bench
    }

    fn legacy(identification: VtdIdentification) -> Self {
        let bench = Self::new(identification, Visibility::AtOnce, 0);
        bench.context(S3 | 1, 1 | DOMAIN << 8);
        bench.on();
        bench
    }

    /// Queue on, caches clean, translation on.
    fn on(&self) {
        let wide = self.entry.get() / 32;
        self.vtd.write64(0x90, QUEUE | wide << 11);
        self.vtd.write32(0x18, 1 << 26);
        self.queue(&[[0x11, 0], [0x12, 0], WAIT]);
        self.vtd.write32(0x18, 1 << 26 | 1 << 31);
        assert_eq!(self.vtd.violations(), []);
    }

    pub(super) fn set(&self, at: u64, raw: u64) {
        let page = self.vtd.memory.table(PhysAddr::new(at & !0xfff), K4);
        page[(at & 0xfff) as usize / 8].store(raw, Ordering::Release);
    }

    pub(super) fn get(&self, at: u64) -> u64 {
        let page = self.vtd.memory.table(PhysAddr::new(at & !0xfff), K4);
        page[(at & 0xfff) as usize / 8].load(Ordering::Acquire)
    }

    fn context(&self, low: u64, high: u64) {
        let at = CONTEXTS + u64::from(SOURCE & 0xff) * 16;
        self.set(at, low);
        self.set(at + 8, high);
    }

    pub(super) fn queue(&self, descriptors: &[[u64; 2]]) {
        for [low, high] in descriptors {
            let (tail, entry) = (self.tail.get(), self.entry.get());
            for (i, word) in [*low, *high, 0, 0].iter().take(entry as usize / 8).enumerate() {
                self.set(QUEUE + tail + 8 * i as u64, *word);
            }
            self.tail.set((tail + entry) % 0x1000);
        }
        self.vtd.write64(0x88, self.tail.get());
    }

    fn read(&self, iova: u64) -> Result<u64, u32> {
        self.dma(None, iova, AccessKind::Read)
    }

    fn dma(&self, pasid: Option<u32>, iova: u64, access: AccessKind) -> Result<u64, u32> {
        let pasid = pasid.map(Pasid::new);
        self.vtd
            .dma(StreamId::new(SOURCE), pasid, Iova::new(iova), access, 4)
            .map(|pieces| pieces[0].pa.get())
            .map_err(|fault| fault.code)
    }
}

pub(super) const WAIT: [u64; 2] = [5, 0];

#[test]
fn a_page_is_reached_and_its_absence_recorded() {
    let bench = Bench::legacy(HAND);
    let vtd = &bench.vtd;
    assert_eq!(bench.read(IOVA + 0x123), Ok(PA + 0x123));
    assert_eq!(bench.read(IOVA + 0x1000), Err(6));
    assert_eq!(bench.dma(None, IOVA + 0x1000, AccessKind::Write), Err(5));
    assert_eq!(bench.read(1 << 39), Err(4));
    assert_eq!(bench.dma(Some(1), IOVA, AccessKind::Read), Err(0x0d));
    let (first, read) = (vtd.read64(0x220), vtd.read64(0x228));
    assert_eq!((first, read), (IOVA + 0x1000, 1 << 63 | 1 << 62 | 6 << 32 | 0x111));
    assert_eq!(vtd.read64(0x238), 1 << 63 | 5 << 32 | 0x111);
    assert_eq!(vtd.read32(0x34), 0b10);
    // No room for a fifth, until the overflow is cleared and records are free.
    assert_eq!(bench.read(IOVA + 0x2000), Err(6));
    assert_eq!(vtd.read32(0x34), 0b11);
    for record in 0..4 {
        vtd.write32(0x220 + 16 * record + 12, 1 << 31);
    }
    assert_eq!(vtd.read32(0x34), 0b01);
    assert_eq!(bench.read(IOVA + 0x2000), Err(6));
    vtd.write32(0x34, 1);
    assert_eq!(bench.read(IOVA + 0x3000), Err(6));
    assert_eq!((vtd.read64(0x220), vtd.read32(0x34)), (IOVA + 0x3000, 0b10));
    assert_eq!(vtd.counts().lost_faults, 2);
    assert_eq!(vtd.violations(), []);
}

#[test]
fn a_translation_stays_until_its_invalidation_is_awaited() {
    let bench = Bench::legacy(HAND);
    let page = |domain: u64, low: u64| [0x32 | domain << 16, IOVA & !0x1fff | 1 | low];
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.set(S1 + 3 * 8, 0);
    bench.queue(&[page(8, 1 << 6), WAIT]);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.queue(&[page(DOMAIN, 1 << 6)]);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.queue(&[[0x25 | 0x77 << 32, STATUS + 4]]);
    assert_eq!(bench.get(STATUS), 0x77 << 32);
    assert_eq!(bench.read(IOVA), Err(6));
    // A table that leaves needs more than its leaves.
    bench.set(S1 + 3 * 8, PA | 3);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.set(S2 + 2 * 8, 0);
    bench.queue(&[page(DOMAIN, 1 << 6), WAIT]);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.queue(&[page(DOMAIN, 0), WAIT]);
    assert_eq!(bench.read(IOVA), Err(6));
    let counts = bench.vtd.counts();
    assert_eq!(counts.descriptors[&DescriptorKind::Iotlb], 1 + 4);
    assert_eq!(bench.vtd.read64(0x80), bench.tail.get());
}

#[test]
fn a_large_page_goes_only_with_a_mask_of_its_size() {
    let leaves = 1 << 6;
    for (command, gone) in [
        ([0x32 | DOMAIN << 16, 0x60_0000], false),
        ([0x32 | DOMAIN << 16, 0x61_2000 | leaves], false),
        ([0x32 | DOMAIN << 16, 0x60_0000 | 8], false),
        ([0x32 | DOMAIN << 16, 0x60_0000 | 9 | leaves], true),
        ([0x32 | DOMAIN << 16, 0x40_0000 | 10], true),
        ([0x22 | DOMAIN << 16, 0], true),
        ([0x12, 0], true),
    ] {
        let bench = Bench::legacy(HAND);
        bench.set(S2 + 3 * 8, 0x8000_0000 | 0x83);
        assert_eq!(bench.read(0x61_2000), Ok(0x8001_2000));
        bench.set(S2 + 3 * 8, 0);
        bench.queue(&[command, WAIT]);
        assert_eq!(bench.read(0x61_2000).is_err(), gone, "{command:x?}");
    }
    // Through the registers as well.
    let bench = Bench::legacy(HAND);
    bench.set(S2 + 3 * 8, 0x8000_0000 | 0x83);
    assert_eq!(bench.read(0x61_2000), Ok(0x8001_2000));
    bench.set(S2 + 3 * 8, 0);
    for (mask, gone) in [(8, false), (9, true)] {
        bench.vtd.write64(0x2c0, 0x60_0000 | mask);
        bench.vtd.write64(0x2c8, 1 << 63 | 3 << 60 | DOMAIN << 32);
        assert_eq!(bench.read(0x61_2000).is_err(), gone);
    }
}

#[test]
fn a_first_stage_s_large_page_goes_only_with_a_mask_of_its_size() {
    for (pasid, mask, gone) in [(6, 8, false), (6, 9, true), (7, 0, false), (7, 9, true)] {
        let bench = scalable();
        // A page of 2 MiB; for PASID 7 over pages of 4 KiB, of which one is cached.
        bench.set(F[1] + 2 * 8, 0x40_0000 | 0x87);
        bench.set(S2, 0x83);
        let read = || bench.dma(Some(pasid), IOVA, AccessKind::Read);
        assert!(read().is_ok());
        bench.set(F[1] + 2 * 8, 0);
        let at = IOVA >> (12 + mask) << (12 + mask);
        bench.queue(&[[0x36 | DOMAIN << 16 | u64::from(pasid) << 32, at | mask], WAIT]);
        assert_eq!(read().is_err(), gone, "{pasid} {mask}");
    }
}

#[test]
fn context_entries_go_before_what_follows_them_and_not_before_what_stands_ahead() {
    let device = [0x31 | DOMAIN << 16 | u64::from(SOURCE) << 32, 0];
    let domain = [0x22 | DOMAIN << 16, 0];
    let (fence, no_fence) = ([5 | 1 << 6, 0], WAIT);
    for (commands, kept) in [
        (vec![device, domain, WAIT], false),
        (vec![domain, device, WAIT], true),
        (vec![domain, fence, device, WAIT], true),
        (vec![device, fence, domain, WAIT], false),
        (vec![device, no_fence, domain, WAIT], false),
    ] {
        let bench = Bench::legacy(HAND);
        assert_eq!(bench.read(IOVA), Ok(PA));
        bench.context(0, 0);
        bench.queue(&commands);
        assert_eq!(bench.read(IOVA), Err(2));
        bench.set(S1 + 3 * 8, 0);
        bench.context(S3 | 1, 1 | DOMAIN << 8);
        bench.queue(&[device, WAIT]);
        assert_eq!(bench.read(IOVA).is_ok(), kept, "{commands:x?}");
    }
}

#[test]
fn what_is_behind_a_wait_without_a_fence_may_come_first() {
    for (fence, kept) in [(1, false), (0, true)] {
        let bench = scalable();
        bench.set(S2, 0x83);
        let read = || bench.dma(Some(7), IOVA, AccessKind::Read);
        assert_eq!(read(), Ok(PA));
        bench.set(S1 + 3 * 8, 0);
        // The first stage's invalidation overtakes the second's, and a device comes in between.
        let wait = [5 | fence << 6, 0];
        bench.queue(&[[0x32 | DOMAIN << 16, IOVA], wait, [0x26 | DOMAIN << 16 | 7 << 32, 0], WAIT]);
        assert_eq!(read().is_ok(), kept, "{fence}");
        bench.queue(&[[0x26 | DOMAIN << 16 | 7 << 32, 0], WAIT]);
        assert_eq!(read(), Err(0x79));
        let counts = bench.vtd.counts();
        assert_eq!(counts.descriptors[&DescriptorKind::PasidIotlb], 2);
        assert_eq!(bench.vtd.read64(0x80), bench.tail.get());
    }
}

#[test]
fn contexts_stay_until_told_and_absence_only_in_caching_mode() {
    for caching in [false, true] {
        let identification = if caching { HAND.caching_mode() } else { HAND };
        let bench = Bench::legacy(identification);
        let device = |domain: u64| [0x31 | domain << 16 | u64::from(SOURCE) << 32, 0];
        assert_eq!(bench.read(IOVA), Ok(PA));
        bench.context(0, 0);
        assert_eq!(bench.read(IOVA), Ok(PA));
        bench.queue(&[device(8), WAIT]);
        assert_eq!(bench.read(IOVA), Ok(PA));
        bench.queue(&[device(DOMAIN), WAIT]);
        assert_eq!(bench.read(IOVA), Err(2));
        bench.context(S3 | 1, 1 | DOMAIN << 8);
        assert_eq!(bench.read(IOVA).is_err(), caching);
        // Absence belongs to domain 0.
        bench.queue(&[device(0), WAIT]);
        assert_eq!(bench.read(IOVA), Ok(PA));
        assert_eq!(bench.read(IOVA + 0x1000), Err(6));
        bench.set(S1 + 4 * 8, PA | 1);
        assert_eq!(bench.read(IOVA + 0x1000).is_err(), caching);
        bench.queue(&[[0x22 | DOMAIN << 16, 0], WAIT]);
        assert_eq!(bench.read(IOVA + 0x1000), Ok(PA));
        assert_eq!(bench.dma(None, IOVA + 0x1000, AccessKind::Write), Err(5));
    }
}

#[test]
fn what_is_malformed_is_refused() {
    let bench = Bench::new(HAND, Visibility::AtOnce, 0);
    bench.on();
    let with = |low, high| {
        bench.context(low, high);
        bench.queue(&[[0x11, 0], [0x12, 0], WAIT]);
        bench.read(IOVA)
    };
    assert_eq!(with(S3 | 1 | 1 << 4, 1 | DOMAIN << 8), Err(0x0b));
    assert_eq!(with(S3 | 1, 3 | DOMAIN << 8), Err(3));
    assert_eq!(with(S3 | 1 | 3 << 2, 1 | DOMAIN << 8), Err(3));
    assert_eq!(with(1 << 40 | 1, 1 | DOMAIN << 8), Err(7));
    assert_eq!(with(1 | 2 << 2, 2 | DOMAIN << 8), Ok(IOVA));
    bench.set(ROOT + 16, CONTEXTS | 3);
    assert_eq!(with(S3 | 1, 1 | DOMAIN << 8), Err(0x0a));
    bench.set(ROOT + 16, 0);
    assert_eq!(with(S3 | 1, 1 | DOMAIN << 8), Err(1));
    // The entry can suppress the record.
    let before = bench.vtd.faults().len();
    bench.set(ROOT + 16, CONTEXTS | 1);
    assert_eq!(with(2, 0), Err(2));
    assert_eq!(bench.vtd.faults().len(), before);
}

#[test]
fn registers_invalidate_without_a_queue() {
    let bench = Bench::new(HAND.without_queue(), Visibility::AtOnce, 0);
    let vtd = &bench.vtd;
    bench.context(S3 | 1, 1 | DOMAIN << 8);
    vtd.write64(0x28, 1 << 63 | 1 << 61);
    assert_eq!(vtd.read64(0x28), 1 << 61 | 1 << 59);
    vtd.write64(0x2c8, 1 << 63 | 1 << 60);
    assert_eq!(vtd.read64(0x2c8), 1 << 60 | 1 << 57);
    vtd.write32(0x18, 1 << 31);
    assert_eq!(bench.read(IOVA), Ok(PA));
    bench.set(S1 + 3 * 8, 0);
    vtd.write64(0x2c0, IOVA);
    vtd.write64(0x2c8, 1 << 63 | 3 << 60 | DOMAIN << 32);
    assert_eq!(vtd.read64(0x2c8) >> 57, 0b11 << 3 | 3);
    assert_eq!(bench.read(IOVA), Err(6));
    // A mask that the unit does not have is not carried out.
    vtd.write64(0x2c0, 19);
    vtd.write64(0x2c8, 1 << 63 | 3 << 60 | DOMAIN << 32);
    assert_eq!(vtd.read64(0x2c8) >> 57, 0b11 << 3);
    assert_eq!(vtd.counts().through_registers, (1, 2));
    assert_eq!(vtd.violations(), []);
}

#[test]
fn writes_are_late_where_the_unit_does_not_snoop() {
    let late = Visibility::Late(Lag::CacheLines);
    let bench = Bench::new(HAND.not_coherent(), late, 0);
    bench.context(S3 | 1, 1 | DOMAIN << 8);
    bench.on();
    assert_eq!(bench.read(IOVA), Err(2));
    let page = PhysRange::page(PhysAddr::new(CONTEXTS), K4);
    TableMem::clean(&*bench.vtd.memory, page);
    assert_eq!(bench.read(IOVA), Ok(PA));

    let late = Visibility::Late(Lag::WriteBuffer);
    let bench = Bench::new(HAND.write_buffer(), late, 0);
    bench.context(S3 | 1, 1 | DOMAIN << 8);
    bench.on();
    assert_eq!(bench.read(IOVA), Err(2));
    bench.vtd.write32(0x18, 1 << 31 | 1 << 26 | 1 << 27);
    assert_eq!(bench.vtd.read32(0x1c) >> 27 & 1, 0);
    assert_eq!(bench.read(IOVA), Ok(PA));
    assert_eq!(bench.vtd.counts().write_buffer_flushes, 1);
}

fn scalable() -> Bench {
    scalable_of(HAND.scalable(), 0)
}

/// Makes a scalable unit with more bits in the context entry.
pub(super) fn scalable_of(identification: VtdIdentification, more: u64) -> Bench {
    let bench = Bench::new(identification, Visibility::AtOnce, 1);
    // Device 2 is in the lower half; requests without a PASID have PASID 5.
    let at = CONTEXTS + u64::from(SOURCE & 0x7f) * 32;
    bench.set(at, DIRECTORY | 1 | 1 << 3 | more);
    bench.set(at + 8, 5);
    bench.set(DIRECTORY, PASIDS | 1);
    // PASID 5: second stage of three levels. PASID 6: first stage. PASID 7: one over the other.
    for pasid in 5..8 {
        let entry = PASIDS + pasid * 64;
        bench.set(entry, S3 | 1 << 2 | [2, 1, 3][pasid as usize - 5] << 6 | 1);
        bench.set(entry + 8, DOMAIN);
        bench.set(entry + 16, F[3]);
    }
    for level in 1..4 {
        let index = if level == 1 { 2 } else { 0 };
        bench.set(F[level] + index * 8, F[level - 1] | 7);
    }
    bench.set(F[0] + 3 * 8, IOVA | 7);
    bench.on();
    bench
}

#[test]
fn scalable_mode_has_both_stages() {
    let bench = scalable();
    let pasid = |pasid| bench.dma(Some(pasid), IOVA, AccessKind::Read);
    assert_eq!((bench.read(IOVA), pasid(5)), (Ok(PA), Ok(PA)));
    assert_eq!(pasid(6), Ok(IOVA));
    // The first stage's own tables have to be mapped by the second.
    assert_eq!(pasid(7), Err(0x79));
    bench.set(S2, 0x83);
    assert_eq!(pasid(7), Ok(PA));
    assert_eq!((pasid(8), pasid(64)), (Err(0x59), Err(0x51)));
    assert_eq!(pasid(1 << 13), Err(0x46));
    let high = |iova| bench.dma(Some(6), iova, AccessKind::Read);
    assert_eq!((high(1 << 47), high(IOVA + 0x1000)), (Err(0x80), Err(0x71)));
    // Each PASID's first stage is invalidated on its own; combined translations stay when
    // only the second is.
    bench.set(F[0] + 3 * 8, 0);
    bench.set(S1 + 3 * 8, 0);
    bench.queue(&[[0x26 | DOMAIN << 16 | 6 << 32, 0], [0x32 | DOMAIN << 16, IOVA], WAIT]);
    assert_eq!((pasid(5), pasid(6), pasid(7)), (Err(0x79), Err(0x71), Ok(PA)));
    bench.queue(&[[0x36 | DOMAIN << 16 | 7 << 32, IOVA], WAIT]);
    assert_eq!(pasid(7), Err(0x71));
    // PASID entries stay until told.
    bench.set(PASIDS + 5 * 64, 4 << 6 | 1);
    assert_eq!(bench.read(IOVA), Err(0x79));
    bench.queue(&[[0x17 | DOMAIN << 16 | 5 << 32, 0], WAIT]);
    assert_eq!(bench.read(IOVA), Ok(IOVA));
    assert_eq!(bench.vtd.violations(), []);
}

#[test]
fn queue_errors_stop_the_queue_until_cleared() {
    let bench = Bench::legacy(HAND);
    let vtd = &bench.vtd;
    let bad = bench.tail.get();
    bench.queue(&[[0x0f, 0], WAIT]);
    assert_eq!((vtd.read32(0x34), vtd.read64(0xb0)), (1 << 4, 3));
    assert_eq!(vtd.read64(0x80), bad);
    bench.set(QUEUE + bad, 5);
    vtd.write32(0x34, 1 << 4);
    assert_eq!(vtd.read64(0x80), bench.tail.get());
    // A time-out aborts the waits that are queued.
    vtd.inject(RegisterFaults {
        refuse: Some((vtd.counts().descriptors.values().sum::<u64>() + 2, 1 << 6)),
        ..RegisterFaults::default()
    });
    bench.queue(&[[0x12, 0], [0x25 | 1 << 32, STATUS]]);
    assert_eq!(vtd.read32(0x34), 1 << 6);
    vtd.write32(0x34, 1 << 6);
    assert_eq!((vtd.read64(0x80), bench.get(STATUS)), (bench.tail.get(), 0));
    bench.queue(&[[0x25 | 2 << 32, STATUS]]);
    assert_eq!(bench.get(STATUS), 2);
    vtd.write64(0x88, 0x1000);
    assert_eq!((vtd.read32(0x34), vtd.read64(0xb0)), (1 << 4, 1));
    assert_eq!(vtd.violations(), [Violation::QueueOverrun { tail: 0x1000 }]);
}

#[test]
fn a_slow_unit_a_stuck_one_and_none() {
    let setup = VtdSetup { pace: Pace::After(500), ..VtdSetup::default() };
    let bench = Bench::of(setup, Visibility::AtOnce, 0);
    let vtd = &bench.vtd;
    vtd.write64(0x90, QUEUE);
    vtd.write32(0x18, 1 << 26);
    bench.queue(&[[0x25 | 3 << 32, STATUS]]);
    assert_eq!(bench.get(STATUS), 0);
    vtd.clock().advance_ns(500);
    vtd.tick();
    assert_eq!(bench.get(STATUS), 3);
    let stuck = Drain::Never;
    vtd.inject(RegisterFaults { drain: stuck, control: stuck, ..RegisterFaults::default() });
    bench.queue(&[[0x25 | 4 << 32, STATUS]]);
    vtd.write32(0x18, 1 << 31 | 1 << 26);
    vtd.clock().advance_ns(5000);
    vtd.tick();
    assert_eq!((bench.get(STATUS), vtd.read32(0x1c) >> 31), (3, 0));
    let from = vtd.accesses() + 1;
    vtd.inject(RegisterFaults { gone_from: Some(from), ..RegisterFaults::default() });
    assert_eq!((vtd.read32(0x1c), vtd.read64(0x10)), (u32::MAX, u64::MAX));
}

#[test]
fn nothing_that_is_written_is_fatal() {
    for mode in [0, 1] {
        let bench = Bench::new(HAND.scalable(), Visibility::AtOnce, mode);
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..20_000 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let offset = ((seed >> 20) as usize % 0x400) & !3;
            bench.vtd.write32(offset, seed as u32);
            let _ = bench.vtd.read32(offset);
            let _ = bench.dma(Some(seed as u32 >> 12), seed, AccessKind::Write);
            bench.set(ROOT + (seed >> 40 & 0xffff & !7), seed);
        }
    }
}

#[test]
fn on_a_hostile_machine_devices_go_on_at_every_access() {
    for (manner, goes_on) in [(Manner::Obliging, false), (Manner::Hostile, true)] {
        let bench = Bench::legacy(HAND);
        bench.vtd.behave(manner);
        assert_eq!(bench.read(IOVA), Ok(PA));
        bench.queue(&[[0x12, 0], WAIT]);
        let _ = bench.vtd.read32(0x1c);
        assert_eq!(bench.vtd.cached_translations() > 0, goes_on);
    }
}

#[test]
fn a_device_that_is_observed_meets_what_is_cached_and_empty_caches() {
    let bench = Bench::legacy(HAND);
    let (stream, at) = (StreamId::new(SOURCE), Iova::new(IOVA));
    bench.vtd.observe(stream, None, at, AccessKind::Read);
    let [old, new] = [PA, PA + 0x1000].map(|pa| Some(PhysAddr::new(pa)));
    assert_eq!(bench.vtd.observed(), [[old]]);
    bench.set(S1 + 3 * 8, (PA + 0x1000) | 3);
    assert_eq!(bench.vtd.observed(), [[old, new]]);
}
