//! The register file: chapter "Memory-mapped register interface".

use portolan::platform::Mmio;

use super::monitor::Monitor;
use super::{RiscvIdentification, RiscvRegisters, State};
use crate::inject::{Drain, Violation};

/// Words of a message: two of its address, its data and its mask.
type Message = [u32; 4];

/// The contents of the registers.
#[derive(Debug, Default)]
pub(super) struct Registers {
    capabilities: u64,
    fctl: u32,
    pub ddtp: u64,
    pub cqb: u64,
    pub cqh: u32,
    pub cqt: u32,
    pub fqb: u64,
    pub fqh: u32,
    pub fqt: u32,
    pub cqcsr: u32,
    pub fqcsr: u32,
    pub pqb: u64,
    pub pqh: u32,
    pub pqt: u32,
    pub pqcsr: u32,
    pub ipsr: u32,
    pub monitor: Monitor,
    icvec: u64,
    /// Address, data and mask of each message.
    messages: [Message; 16],
}

/// Bits of control registers of queues.
pub(super) mod queue {
    pub const ENABLE: u32 = 1;
    pub const INTERRUPT: u32 = 1 << 1;
    pub const MEMORY_FAULT: u32 = 1 << 8;
    pub const OVERFLOW: u32 = 1 << 9;
    pub const TIME_OUT: u32 = 1 << 9;
    pub const ILLEGAL: u32 = 1 << 10;
    pub const ON: u32 = 1 << 16;
    pub const BUSY: u32 = 1 << 17;
    /// Bits that a write clears.
    pub const ERRORS: u32 = 0xf << 8;
}

/// Bits of `ipsr`.
pub(super) mod pending {
    pub const FAULTS: u32 = 1 << 1;
    pub const REQUESTS: u32 = 1 << 3;
}

/// Cause of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterruptCause {
    Faults,
    Requests,
}

/// Values of `ddtp.iommu_mode`.
pub(super) mod mode {
    pub const OFF: u64 = 0;
    pub const BARE: u64 = 1;
    pub const ONE_LEVEL: u64 = 2;
    pub const THREE_LEVELS: u64 = 4;
}

const WIRED: u32 = 1 << 1;
const PAGE: u64 = 0xfff_ffff_ffff << 10;
/// `ddtp.busy`.
const CHANGING: u64 = 1 << 4;

impl Registers {
    pub(super) fn reset(id: &RiscvIdentification) -> Self {
        Self {
            capabilities: id.capabilities,
            fctl: if id.interrupts() == 1 { WIRED } else { 0 },
            ..Self::default()
        }
    }

    pub(super) fn mode(&self) -> u64 {
        self.ddtp & 0xf
    }

    /// Number of the directory's levels, if the unit uses one.
    pub(super) fn levels(&self) -> Option<u32> {
        let levels = mode::ONE_LEVEL..=mode::THREE_LEVELS;
        levels.contains(&self.mode()).then(|| self.mode() as u32 - 1)
    }

    /// The message for the cause of that bit of `ipsr`, if it is one and is not masked.
    pub(super) fn message(&self, bit: u32) -> Option<(u64, u32)> {
        let vector = (self.icvec >> (4 * bit) & 0xf) as usize;
        let [low, high, data, mask] = self.messages[vector];
        let address = u64::from(high) << 32 | u64::from(low);
        (self.fctl & WIRED == 0 && mask & 1 == 0).then_some((address, data))
    }

    /// `capabilities.ATS`.
    fn has_requests(&self) -> bool {
        self.capabilities >> 25 & 1 == 1
    }

    fn word(&self, offset: usize) -> Option<u32> {
        let half = |register: u64, first: usize| (register >> (8 * (offset - first))) as u32;
        Some(match offset {
            0 | 4 => half(self.capabilities, 0),
            8 => self.fctl,
            16 | 20 => half(self.ddtp, 16),
            24 | 28 => half(self.cqb, 24),
            32 => self.cqh,
            36 => self.cqt,
            40 | 44 => half(self.fqb, 40),
            48 => self.fqh,
            52 => self.fqt,
            56 | 60 if self.has_requests() => half(self.pqb, 56),
            64 if self.has_requests() => self.pqh,
            68 if self.has_requests() => self.pqt,
            72 => self.cqcsr,
            76 => self.fqcsr,
            80 => self.pqcsr,
            84 => self.ipsr,
            760 | 764 => half(self.icvec, 760),
            768..1024 => self.messages[(offset - 768) / 16][offset % 16 / 4],
            _ => return None,
        })
    }
}

/// The registers of the counters.
fn is_monitor(offset: usize) -> bool {
    (88..600).contains(&offset)
}

/// Registers of 64 bits, by the offset of either half.
fn is_wide(offset: usize) -> bool {
    matches!(offset & !7, 0 | 16 | 24 | 40 | 56 | 760)
        || (96..600).contains(&offset)
        || (768..1024).contains(&offset) && offset & 8 == 0
}

fn with_half(register: u64, offset: usize, value: u32) -> u64 {
    let mut word = register;
    crate::unit::set_half(&mut word, offset, value);
    word
}

/// Value that a base register of a queue keeps, of entries whose number has an exponent up to `most_lg2`.
fn base(value: u64, most_lg2: u32) -> u64 {
    value & PAGE | (value & 0x1f).min(u64::from(most_lg2) - 1)
}

impl RiscvRegisters {
    fn read(&self, state: &mut State, offset: usize) -> u32 {
        if is_monitor(offset) && self.setup.identification.has_monitor() {
            return self.read_monitor(state, offset);
        }
        let word = state.own.registers.word(offset);
        word.unwrap_or_else(|| {
            state.violations.push(Violation::BadAccess { offset });
            0
        })
    }

    fn write(&self, state: &mut State, offset: usize, value: u32) {
        let id = &self.setup.identification;
        let follows = state.faults.control;
        let registers = &mut state.own.registers;
        if is_used(registers, offset, value) {
            state.violations.push(Violation::WrittenInUse { offset });
            return;
        }
        match offset {
            // Registers of the unit's own.
            0 | 4 | 32 | 52 | 68 => {}
            8 if id.interrupts() == 2 => registers.fctl = value & WIRED,
            8 => {}
            16 | 20 => set_directory(registers, id, offset, value, follows),
            24 | 28 => {
                registers.cqb = base(with_half(registers.cqb, offset, value), id.queue_lg2);
                registers.cqt = 1;
            }
            36 => {
                let slots = 2u32 << (registers.cqb & 0x1f);
                registers.cqt = value & (slots - 1);
                if value >= slots {
                    let tail = value.into();
                    state.violations.push(Violation::QueueOverrun { tail });
                }
                self.wait_for(state, self.setup.pace);
            }
            40 | 44 => {
                registers.fqb = base(with_half(registers.fqb, offset, value), id.queue_lg2);
                registers.fqh = 1;
            }
            48 => registers.fqh = value & ((2 << (registers.fqb & 0x1f)) - 1),
            56 | 60 if id.has_ats() => {
                registers.pqb = base(with_half(registers.pqb, offset, value), id.queue_lg2);
                registers.pqh = 1;
            }
            64 if id.has_ats() => {
                registers.pqh = value & ((2 << (registers.pqb & 0x1f)) - 1);
            }
            72 if turn(&mut registers.cqcsr, value, follows) => registers.cqh = 0,
            76 if turn(&mut registers.fqcsr, value, follows) => registers.fqt = 0,
            72 | 76 => {}
            80 if id.has_ats() && turn(&mut registers.pqcsr, value, follows) => registers.pqt = 0,
            80 => {}
            84 => {
                registers.ipsr &= !value;
                let errors = queue::MEMORY_FAULT | queue::OVERFLOW;
                let causes = [
                    (registers.fqcsr, InterruptCause::Faults),
                    (registers.pqcsr, InterruptCause::Requests),
                ];
                for (_, cause) in causes.into_iter().filter(|(csr, _)| csr & errors != 0) {
                    self.pend(state, cause);
                }
            }
            _ if is_monitor(offset) && id.has_monitor() => {
                self.write_monitor(state, offset, value);
            }
            760 => registers.icvec = u64::from(value & 0xffff),
            764 => {}
            768..1024 if id.interrupts() == 1 => {}
            768..1024 => {
                let message = &mut registers.messages[(offset - 768) / 16];
                message[offset % 16 / 4] = kept_of_message(offset, value);
            }
            _ => state.violations.push(Violation::BadAccess { offset }),
        }
        self.go_on(state);
    }
}

/// Tells if a register must not be written now.
fn is_used(registers: &Registers, offset: usize, value: u32) -> bool {
    let commands_on = registers.cqcsr & (queue::ON | queue::BUSY) != 0;
    let faults_on = registers.fqcsr & (queue::ON | queue::BUSY) != 0;
    let requests_on = registers.pqcsr & (queue::ON | queue::BUSY) != 0;
    match offset {
        8 => commands_on || faults_on || requests_on || registers.mode() != mode::OFF,
        16 | 20 => !changes(registers, offset, value),
        24 | 28 => commands_on,
        40 | 44 => faults_on,
        72 => registers.cqcsr & queue::BUSY != 0,
        76 => registers.fqcsr & queue::BUSY != 0,
        56 | 60 => requests_on,
        80 => registers.pqcsr & queue::BUSY != 0,
        _ => false,
    }
}

/// Tells if a driver may write this half of `ddtp`: no address changes while a directory is in use or being left, a
/// directory is not exchanged for another, and no change follows another.
fn changes(registers: &Registers, offset: usize, value: u32) -> bool {
    let (old, new) = (registers.ddtp, with_half(registers.ddtp, offset, value));
    let used = registers.levels().is_some();
    let same = (old ^ new) & PAGE == 0;
    let next = new & 0xf;
    let follows = match next {
        mode::OFF => true,
        mode::BARE => registers.mode() <= mode::BARE,
        _ => !used || next == registers.mode(),
    };
    old & CHANGING == 0 && follows && (same || !used)
}

/// Writes half of `ddtp`; a mode that the unit does not have is not taken.
fn set_directory(
    registers: &mut Registers,
    id: &RiscvIdentification,
    offset: usize,
    value: u32,
    follows: Drain,
) {
    let new = with_half(registers.ddtp, offset, value);
    if offset == 16 && follows == Drain::Never {
        registers.ddtp |= CHANGING;
        return;
    }
    let has = match new & 0xf {
        mode::OFF | mode::BARE => true,
        deep @ mode::ONE_LEVEL..=mode::THREE_LEVELS => id.levels >> (deep - 1) & 1 == 1,
        _ => false,
    };
    let mode = if has { new & 0xf } else { registers.mode() };
    registers.ddtp = new & PAGE | mode;
}

/// Writes the control register of a queue; returns `true` if that turns it on.
fn turn(register: &mut u32, value: u32, follows: Drain) -> bool {
    let kept = queue::ENABLE | queue::INTERRUPT;
    let turned = (*register ^ value) & queue::ENABLE != 0;
    let left = *register & (queue::ERRORS | queue::ON) & !(value & queue::ERRORS);
    *register = left | value & kept;
    if turned && follows == Drain::Never {
        *register |= queue::BUSY;
        return false;
    }
    if turned && value & queue::ENABLE != 0 {
        *register = *register & !queue::ERRORS | queue::ON;
        return true;
    }
    if turned {
        *register &= !queue::ON;
    }
    false
}

/// Value that a word of a message keeps.
fn kept_of_message(offset: usize, value: u32) -> u32 {
    match offset % 16 {
        0 => value & !3,
        4 => value & 0x00ff_ffff,
        8 => value,
        _ => value & 1,
    }
}

impl Mmio for RiscvRegisters {
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

    fn read64(&self, offset: usize) -> u64 {
        let mut state = self.lock();
        if self.arrive(&mut state, offset, 8).is_none() {
            return u64::MAX;
        }
        if !is_wide(offset) {
            state.violations.push(Violation::BadAccess { offset });
            return 0;
        }
        let [low, high] = [offset, offset + 4].map(|at| self.read(&mut state, at));
        u64::from(high) << 32 | u64::from(low)
    }

    fn write64(&self, offset: usize, value: u64) {
        let mut state = self.lock();
        if self.arrive(&mut state, offset, 8).is_none() {
            return;
        }
        if !is_wide(offset) {
            state.violations.push(Violation::BadAccess { offset });
            return;
        }
        // The high half first, if it is two accesses ("Memory-mapped register interface").
        self.write(&mut state, offset + 4, (value >> 32) as u32);
        self.disturb(&mut state);
        self.write(&mut state, offset, value as u32);
    }
}
