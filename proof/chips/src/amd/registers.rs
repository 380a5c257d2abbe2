//! The register file: section 3.4.

use portolan::platform::Mmio;

use super::counters::Counters;
use super::{AmdIdentification, AmdRegisters, State};
use crate::inject::{Drain, Violation};
use crate::unit::{half, set_half};

/// The contents of the registers.
#[derive(Debug, Default)]
pub(super) struct Registers {
    pub device_table: u64,
    pub command_base: u64,
    pub event_base: u64,
    pub control: u64,
    /// Base and limit.
    pub exclusion: [u64; 2],
    features: [u64; 2],
    pub event_target: u64,
    pub guest_target: u64,
    pub guest_base: u64,
    pub guest_tail_copy: u64,
    pub guest_head: u64,
    pub guest_tail: u64,
    pub request_base: u64,
    pub request_head: u64,
    pub request_tail: u64,
    pub command_head: u64,
    pub command_tail: u64,
    pub event_head: u64,
    pub event_tail: u64,
    pub status: u64,
    pub counters: Counters,
}

/// Bits of the control register.
pub(super) mod control {
    pub const ENABLE: u64 = 1;
    pub const EVENT_LOG: u64 = 1 << 2;
    pub const EVENT_INTERRUPT: u64 = 1 << 3;
    pub const COMMANDS: u64 = 1 << 12;
    pub const REQUEST_LOG: u64 = 1 << 13;
    pub const REQUESTS: u64 = 1 << 15;
    pub const AUTO_RESPONSE: u64 = 1 << 39;
    pub const GUESTS: u64 = 1 << 16;
    pub const GUEST_APIC: u64 = 1 << 17;
    /// GAMEn, of which only the value 1 is known.
    pub const POSTED: u64 = 1 << 25;
    pub const OTHER_POSTED: u64 = 6 << 25;
    pub const GUEST_LOG: u64 = 1 << 28;
    pub const GUEST_INTERRUPT: u64 = 1 << 29;
    pub const X2APIC: u64 = 1 << 50;
    pub const OWN_TARGETS: u64 = 1 << 51;
    pub const ROOTS_OVER_HOST: u64 = 1 << 58;
}

/// Bits of the status register.
pub(super) mod status {
    pub const EVENT_OVERFLOW: u64 = 1;
    pub const EVENT_INTERRUPT: u64 = 1 << 1;
    pub const WAIT_INTERRUPT: u64 = 1 << 2;
    pub const EVENT_RUN: u64 = 1 << 3;
    pub const COMMANDS_RUN: u64 = 1 << 4;
    pub const REQUEST_OVERFLOW: u64 = 1 << 5;
    pub const REQUEST_INTERRUPT: u64 = 1 << 6;
    pub const REQUEST_RUN: u64 = 1 << 7;
    pub const GUEST_RUN: u64 = 1 << 8;
    pub const GUEST_OVERFLOW: u64 = 1 << 9;
    pub const GUEST_INTERRUPT: u64 = 1 << 10;
}

/// Bits of the status register that are cleared by writing them.
const CLEARED: u64 = status::EVENT_OVERFLOW
    | status::EVENT_INTERRUPT
    | status::WAIT_INTERRUPT
    | status::REQUEST_OVERFLOW
    | status::REQUEST_INTERRUPT
    | status::GUEST_OVERFLOW
    | status::GUEST_INTERRUPT;
/// Bits of heads and tails: offsets of entries of 16 bytes, and of those of 8 bytes.
const POINTER: u64 = 0x7_fff0;
const GUEST_POINTER: u64 = 0x7_fff8;
const STATUS: usize = 0x2020;

impl Registers {
    pub(super) fn reset(id: &AmdIdentification) -> Self {
        let features = [id.features, id.features2];
        Self { features, counters: Counters::reset(id.counters), ..Self::default() }
    }

    pub(super) fn enabled(&self) -> bool {
        self.control & control::ENABLE != 0
    }

    /// Bytes of the command buffer.
    pub(super) fn command_bytes(&self) -> u64 {
        16 << (self.command_base >> 56 & 0xf)
    }

    fn at(&mut self, offset: usize) -> Option<&mut u64> {
        Some(match offset & !7 {
            0x00 => &mut self.device_table,
            0x08 => &mut self.command_base,
            0x10 => &mut self.event_base,
            0x18 => &mut self.control,
            0x20 => &mut self.exclusion[0],
            0x28 => &mut self.exclusion[1],
            0x30 => &mut self.features[0],
            0x1a0 => &mut self.features[1],
            0x38 => &mut self.request_base,
            0xe0 => &mut self.guest_base,
            0xe8 => &mut self.guest_tail_copy,
            0x170 => &mut self.event_target,
            0x180 => &mut self.guest_target,
            0x2040 => &mut self.guest_head,
            0x2048 => &mut self.guest_tail,
            0x2000 => &mut self.command_head,
            0x2008 => &mut self.command_tail,
            0x2010 => &mut self.event_head,
            0x2018 => &mut self.event_tail,
            STATUS => &mut self.status,
            0x2030 => &mut self.request_head,
            0x2038 => &mut self.request_tail,
            other => return self.counters.at(other),
        })
    }
}

impl AmdRegisters {
    fn read(&self, state: &mut State, offset: usize) -> u64 {
        match state.own.registers.at(offset) {
            Some(register) => *register,
            None => {
                state.violations.push(Violation::BadAccess { offset });
                0
            }
        }
    }

    fn write_half(&self, state: &mut State, offset: usize, value: u32) {
        let whole = offset & !7;
        // The other half of a register with bits that are cleared by writing them is not written.
        let mut word = match whole {
            STATUS => 0,
            _ => self.read(state, offset),
        };
        set_half(&mut word, offset, value);
        self.write(state, whole, word);
    }

    fn write(&self, state: &mut State, offset: usize, value: u64) {
        let registers = &mut state.own.registers;
        let runs = registers.status;
        let in_use = match offset {
            0x08 | 0x2000 => runs & status::COMMANDS_RUN != 0,
            0x10 | 0x2018 => runs & status::EVENT_RUN != 0,
            0x38 | 0x2038 => runs & status::REQUEST_RUN != 0,
            0xe0 | 0xe8 | 0x2048 => runs & status::GUEST_RUN != 0,
            _ => false,
        };
        if in_use {
            state.violations.push(Violation::WrittenInUse { offset });
            return;
        }
        match (offset, registers.at(offset)) {
            (0x18, _) => switch(state, value & !self.setup.identification.lacks()),
            // The features and the numbers of counters are the unit's.
            (0x30 | 0x1a0 | 0x4000, _) => {}
            (STATUS, Some(status)) => *status &= !(value & CLEARED),
            (0x2000..=0x2018 | 0x2030..=0x2038, Some(pointer)) => *pointer = value & POINTER,
            (0x2040 | 0x2048, Some(pointer)) => *pointer = value & GUEST_POINTER,
            (_, Some(register)) => *register = value,
            (_, None) => state.violations.push(Violation::BadAccess { offset }),
        }
        if offset == 0x2008 {
            self.wait_for(state, self.setup.pace);
        }
        self.go_on(state);
    }
}

/// Writes the control register. Parts that stopped by themselves run once they were turned off and on.
fn switch(state: &mut State, value: u64) {
    let registers = &mut state.own.registers;
    let turned = registers.control ^ value;
    registers.control = value;
    if state.faults.control == Drain::Never {
        return;
    }
    for (bit, run, overflow) in [
        (control::COMMANDS, status::COMMANDS_RUN, 0),
        (control::EVENT_LOG, status::EVENT_RUN, status::EVENT_OVERFLOW),
        (control::REQUEST_LOG, status::REQUEST_RUN, status::REQUEST_OVERFLOW),
        (control::GUEST_LOG, status::GUEST_RUN, status::GUEST_OVERFLOW),
    ] {
        let both = bit | control::ENABLE;
        if value & both != both {
            registers.status &= !run;
        } else if turned & both != 0 && registers.status & overflow == 0 {
            registers.status |= run;
        }
    }
}

impl Mmio for AmdRegisters {
    fn read32(&self, offset: usize) -> u32 {
        let mut state = self.lock();
        match self.arrive(&mut state, offset, 4) {
            Some(()) => half(self.read(&mut state, offset), offset),
            None => u32::MAX,
        }
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut state = self.lock();
        if self.arrive(&mut state, offset, 4).is_some() {
            self.write_half(&mut state, offset, value);
        }
    }

    fn read64(&self, offset: usize) -> u64 {
        let mut state = self.lock();
        match self.arrive(&mut state, offset, 8) {
            Some(()) => self.read(&mut state, offset),
            None => u64::MAX,
        }
    }

    fn write64(&self, offset: usize, value: u64) {
        let mut state = self.lock();
        if self.arrive(&mut state, offset, 8).is_some() {
            self.in_halves(
                &mut state,
                offset,
                |state| self.write(state, offset, value),
                |state, at| self.write_half(state, at, half(value, at)),
            );
        }
    }
}
