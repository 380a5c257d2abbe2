//! The register file: section 11.4.

use portolan::platform::Mmio;

use super::descriptors::VtdInvalidation;
use super::faults::{OVERFLOW, PENDING};
use super::forget::invalidate;
use super::requests::PageQueue;
use super::{State, VtdIdentification, VtdRegisters};
use crate::inject::{Drain, Violation};
use crate::unit::{Invalidated, half, set_half};
use portolan_sim::decode::WalkMemory;

/// The contents of the registers.
#[derive(Debug)]
pub(super) struct Registers {
    pub version: u32,
    pub cap: u64,
    pub ecap: u64,
    pub gsts: u32,
    /// Value that the driver wrote.
    pub rtaddr: u64,
    /// Root in use since the last set-root command.
    pub root: u64,
    /// Value that the driver wrote.
    pub irta: u64,
    /// Table in use since the last set-interrupt-table command.
    pub interrupt_table: u64,
    pub ccmd: u64,
    pub fsts: u32,
    pub iqh: u64,
    pub iqt: u64,
    pub iqa: u64,
    pub ics: u32,
    pub iqercd: u64,
    pub iva: u64,
    pub iotlb: u64,
    pub page_queue: PageQueue,
    pub records: Vec<[u64; 2]>,
    pub next_record: usize,
    pub first_pending: u32,
    /// Control, data and addresses of the unit's own interrupts, and other registers that are kept and not used, by
    /// offset.
    pub kept: [u32; 0x40],
    /// Messages that the unit has sent itself: address and data.
    pub sent: Vec<(u64, u32)>,
}

/// Offsets of the control registers of the unit's own interrupts: of faults, of completions, of page requests. Data
/// and both halves of the address are behind each.
pub(super) const FAULTS: usize = 0x38;
const COMPLETIONS: usize = 0xa0;
pub(super) const PAGE_REQUESTS: usize = 0xe0;
/// The message is masked; one is held back.
const MASKED: u32 = 1 << 31;
const HELD_BACK: u32 = 1 << 30;

const TE: u32 = 1 << 31;
const SRTP: u32 = 1 << 30;
const WBF: u32 = 1 << 27;
const QIE: u32 = 1 << 26;
const IRE: u32 = 1 << 25;
const SIRTP: u32 = 1 << 24;
/// Commands that keep a state; the others are executed once.
const LASTING: u32 = TE | 1 << 28 | QIE | IRE | 1 << 23;
/// `FSTS.IQE`.
pub(super) const QUEUE_ERROR: u32 = 1 << 4;
/// `FSTS.ITE`.
pub(super) const TIME_OUT: u32 = 1 << 6;
/// `FSTS.IQE`, `ICE` and `ITE`: nothing is fetched while one is set.
pub(super) const QUEUE_ERRORS: u32 = QUEUE_ERROR | 1 << 5 | TIME_OUT;

impl Registers {
    pub(super) fn reset(id: &VtdIdentification) -> Self {
        Self {
            version: id.version,
            cap: id.cap,
            ecap: id.ecap,
            gsts: 0,
            rtaddr: 0,
            root: 0,
            irta: 0,
            interrupt_table: 0,
            ccmd: 0,
            fsts: 0,
            iqh: 0,
            iqt: 0,
            iqa: 0,
            ics: 0,
            iqercd: 0,
            iva: 0,
            iotlb: 0,
            page_queue: PageQueue::default(),
            records: vec![[0; 2]; id.records()],
            next_record: 0,
            first_pending: 0,
            kept: {
                let mut kept = [0; 0x40];
                for control in [FAULTS, COMPLETIONS, PAGE_REQUESTS] {
                    kept[control / 4] = MASKED;
                }
                kept
            },
            sent: Vec::new(),
        }
    }

    /// Sends the message of an interrupt of the unit's own, or holds it back while that is masked.
    pub(super) fn signal(&mut self, control: usize) {
        let at = control / 4;
        if self.kept[at] & MASKED != 0 {
            self.kept[at] |= HELD_BACK;
            return;
        }
        let [data, low, high] = [1, 2, 3].map(|word| self.kept[at + word]);
        let address = u64::from(high) << 32 | u64::from(low);
        self.sent.push((address, data));
    }

    /// Changes the state behind the fault status. The first fault in it interrupts (7.3).
    pub(super) fn faulted(&mut self, change: impl FnOnce(&mut Self)) {
        let quiet = self.fsts() == 0;
        change(self);
        if quiet && self.fsts() != 0 {
            self.signal(FAULTS);
        }
    }

    /// Sets bits of the page-request status. The first request interrupts.
    pub(super) fn requested(&mut self, bits: u32) {
        let pending = bits & 1 & !self.page_queue.status;
        self.page_queue.status |= bits;
        if pending != 0 {
            self.signal(PAGE_REQUESTS);
        }
    }

    /// Writes a control register, which unmasks an interrupt that was held back.
    fn control(&mut self, control: usize, value: u32) {
        let held_back = self.kept[control / 4] & HELD_BACK;
        self.kept[control / 4] = value & MASKED | held_back;
        if value & MASKED == 0 && held_back != 0 {
            self.kept[control / 4] = 0;
            self.signal(control);
        }
    }

    /// Drops held-back interrupts whose cause was dealt with.
    fn served(&mut self) {
        let quiet = [(FAULTS, self.fsts() == 0), (PAGE_REQUESTS, self.page_queue.status & 1 == 0)];
        for (control, _) in quiet.into_iter().filter(|(_, quiet)| *quiet) {
            self.kept[control / 4] &= !HELD_BACK;
        }
    }

    pub(super) fn translates(&self) -> bool {
        self.gsts & TE != 0
    }

    pub(super) fn queue_enabled(&self) -> bool {
        self.gsts & QIE != 0
    }

    fn fsts(&self) -> u32 {
        let pending = self.records.iter().any(|record| record[1] & PENDING != 0);
        let (pending, index) = if pending { (1 << 1, self.first_pending << 8) } else { (0, 0) };
        self.fsts | pending | index
    }

    /// Keeps a record; returns the number of records that found no room.
    pub(super) fn keep(&mut self, words: [u64; 2]) -> u64 {
        let next = self.next_record;
        let overflown = self.fsts & OVERFLOW != 0;
        let quiet = self.records.iter().all(|record| record[1] & PENDING == 0);
        let number = self.records.len();
        match self.records.get_mut(next) {
            Some(record) if record[1] & PENDING == 0 && !overflown => {
                *record = words;
                if quiet {
                    self.first_pending = next as u32;
                }
                self.next_record = (next + 1) % number;
                0
            }
            _ => {
                self.fsts |= OVERFLOW;
                1
            }
        }
    }
}

impl VtdRegisters {
    /// Raises errors: overflow of faults and errors of the queue by their bits in `FSTS`, and bits
    /// of `PRS`.
    pub fn raise(&self, faults: u32, requests: u32) {
        let registers = &mut self.lock().own.registers;
        registers.faulted(|of| of.fsts |= faults & (OVERFLOW | QUEUE_ERRORS));
        registers.requested(requests);
    }

    /// The messages that the unit has sent itself since the last call: address and data.
    pub fn take_messages(&self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.lock().own.registers.sent)
    }

    /// Index of the fault record at an offset, and of the word in it.
    fn record_at(&self, offset: usize) -> Option<(usize, usize)> {
        let id = &self.setup.identification;
        let within = offset.checked_sub(id.records_at())?;
        let index = within / 16;
        (index < id.records()).then_some((index, within % 16 / 8))
    }

    fn read(&self, state: &mut State, offset: usize) -> u32 {
        let registers = &mut state.own.registers;
        let iotlb = self.setup.identification.invalidate_at();
        if let Some((index, word)) = self.record_at(offset) {
            return registers.records.get(index).map_or(0, |record| half(record[word], offset));
        }
        match offset {
            0x00 => registers.version,
            0x08 | 0x0c => half(registers.cap, offset),
            0x10 | 0x14 => half(registers.ecap, offset),
            0x18 => 0,
            0x1c => {
                // Held-up work is done once the unit responds again.
                if state.faults.control == Drain::Runs {
                    registers.gsts &= !WBF;
                }
                registers.gsts
            }
            0x20 | 0x24 => half(registers.rtaddr, offset),
            0x28 | 0x2c => half(registers.ccmd, offset),
            0x34 => registers.fsts(),
            0x80 | 0x84 => half(registers.iqh, offset),
            0x88 | 0x8c => half(registers.iqt, offset),
            0x90 | 0x94 => half(registers.iqa, offset),
            0x9c => registers.ics,
            0xb0 | 0xb4 => half(registers.iqercd, offset),
            0xb8 | 0xbc => half(registers.irta, offset),
            0xc0 | 0xc4 => half(registers.page_queue.head, offset),
            0xc8 | 0xcc => half(registers.page_queue.tail, offset),
            0xd0 | 0xd4 => half(registers.page_queue.address, offset),
            0xdc => registers.page_queue.status,
            _ if offset & !7 == iotlb => half(registers.iva, offset),
            _ if offset & !7 == iotlb + 8 => half(registers.iotlb, offset),
            0x38..=0x44 | 0xa0..=0xac => registers.kept[offset / 4],
            0x64..=0x7c | 0xb8..=0xfc => registers.kept[offset / 4],
            _ => {
                state.violations.push(Violation::BadAccess { offset });
                0
            }
        }
    }

    fn write(&self, state: &mut State, offset: usize, value: u32) {
        let registers = &mut state.own.registers;
        let iotlb = self.setup.identification.invalidate_at();
        let queued = registers.queue_enabled();
        if let Some((index, word)) = self.record_at(offset) {
            // One bit is cleared by writing it; all else is the unit's.
            let clears = word == 1 && offset & 4 != 0 && value >> 31 == 1;
            if let Some(record) = registers.records.get_mut(index).filter(|_| clears) {
                record[1] &= !PENDING;
            }
            registers.served();
            return;
        }
        match offset {
            0x18 => self.command(state, value),
            0x20 | 0x24 => set_half(&mut registers.rtaddr, offset, value),
            0x28 | 0x2c => {
                set_half(&mut registers.ccmd, offset, value);
                self.through_registers(state, offset, 0x2c, value);
            }
            0x34 => {
                registers.fsts &= !(value & (OVERFLOW | QUEUE_ERRORS));
                registers.served();
            }
            FAULTS | COMPLETIONS | PAGE_REQUESTS => registers.control(offset, value),
            0x88 | 0x8c => {
                set_half(&mut registers.iqt, offset, value);
                if offset == 0x88 {
                    self.wait_for(state, self.setup.pace);
                }
            }
            0x90 | 0x94 if queued => state.violations.push(Violation::WrittenInUse { offset }),
            0x90 | 0x94 => {
                set_half(&mut registers.iqa, offset, value);
                registers.iqt = 0;
                registers.iqh = 0;
            }
            0x9c => registers.ics &= !(value & 1),
            0xb8 | 0xbc => set_half(&mut registers.irta, offset, value),
            0xc0 | 0xc4 => set_half(&mut registers.page_queue.head, offset, value),
            0xc8 | 0xcc => set_half(&mut registers.page_queue.tail, offset, value),
            0xd0 | 0xd4 => set_half(&mut registers.page_queue.address, offset, value),
            0xdc => {
                registers.page_queue.acknowledge(value);
                registers.served();
            }
            _ if offset & !7 == iotlb => set_half(&mut registers.iva, offset, value),
            _ if offset & !7 == iotlb + 8 => {
                set_half(&mut registers.iotlb, offset, value);
                self.through_registers(state, offset, iotlb + 12, value);
            }
            // Protection holds at once (PMEN.PRS).
            0x64 => registers.kept[offset / 4] = value & !1 | value >> 31,
            0x38..=0x44 | 0xa0..=0xac => registers.kept[offset / 4] = value,
            0x64..=0x7c | 0xb8..=0xfc => registers.kept[offset / 4] = value,
            _ => state.violations.push(Violation::BadAccess { offset }),
        }
        self.go_on(state);
    }

    /// A request through registers begins with the upper half of its command.
    fn through_registers(&self, state: &mut State, offset: usize, upper: usize, value: u32) {
        if offset != upper || value >> 31 == 0 {
            return;
        }
        if state.own.registers.queue_enabled() {
            state.violations.push(Violation::WrittenInUse { offset });
        }
        self.wait_for(state, self.setup.pace);
    }

    fn command(&self, state: &mut State, value: u32) {
        let registers = &mut state.own.registers;
        let wanted = value & LASTING;
        let changed = (registers.gsts & LASTING) ^ wanted;
        let once = value & !LASTING;
        if changed.count_ones() + once.count_ones() > 1 {
            let offset = 0x18;
            let value = value.into();
            state.violations.push(Violation::SeveralAtOnce { offset, value });
        }
        if state.faults.control == Drain::Never {
            // One-time operations stay under way.
            registers.gsts |= once & WBF;
            registers.gsts &= !(once & (SRTP | SIRTP));
            return;
        }
        if changed & TE & wanted != 0 && state.cleaned != (Invalidated::Done, Invalidated::Done) {
            state.violations.push(Violation::EnabledUnclean);
        }
        if changed & IRE & wanted != 0 && state.own.interrupts_cleaned == Invalidated::NotYet {
            state.violations.push(Violation::EnabledUnclean);
        }
        if changed & QIE & !wanted != 0 {
            registers.iqh = 0;
        }
        registers.gsts = registers.gsts & !LASTING | wanted;
        if once & SRTP != 0 {
            registers.root = registers.rtaddr;
            registers.gsts |= SRTP;
            state.cleaned = (Invalidated::NotYet, Invalidated::NotYet);
        }
        if once & SIRTP != 0 {
            registers.interrupt_table = registers.irta;
            registers.gsts |= SIRTP;
            // `CAP.ESIRTPS`: that invalidates as well.
            state.own.interrupts_cleaned = match self.setup.identification.cap(62, 1) {
                0 => Invalidated::NotYet,
                _ => Invalidated::Done,
            };
            if state.own.interrupts_cleaned == Invalidated::Done {
                state.own.interrupts.clear();
            }
        }
        if once & WBF != 0 {
            state.counts.write_buffer_flushes += 1;
            self.memory.drain_write_buffer();
        }
        // `CAP.ESRTPS`: setting the root invalidates as well.
        if once & SRTP != 0 && self.setup.identification.cap(63, 1) != 0 {
            let all =
                [VtdInvalidation::Contexts, VtdInvalidation::Pasids, VtdInvalidation::Translations];
            for what in all {
                invalidate(state, what);
            }
        }
    }
}

impl Mmio for VtdRegisters {
    fn read32(&self, offset: usize) -> u32 {
        let mut state = self.lock();
        match self.arrive(&mut state, offset, 4) {
            Some(()) => self.read(&mut state, offset),
            None => u32::MAX,
        }
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut state = self.lock();
        if self.arrive(&mut state, offset, 4).is_some() {
            self.write(&mut state, offset, value);
        }
    }
}
