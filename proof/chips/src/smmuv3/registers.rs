//! The register file: section 6.3.

use portolan::platform::Mmio;

use super::{Pages, SmmuIdentification, SmmuRegisters, State};
use crate::inject::{Drain, Violation};
use crate::unit::{Invalidated, set_half};

/// The contents of the registers.
#[derive(Debug)]
pub(super) struct Registers {
    pub idr: [u32; 6],
    pub iidr: u32,
    pub aidr: u32,
    pub cr0: u32,
    pub cr0ack: u32,
    pub cr1: u32,
    pub cr2: u32,
    pub gbpa: u32,
    pub irq_ctrl: u32,
    pub irq_ctrlack: u32,
    pub gerror: u32,
    pub gerrorn: u32,
    pub strtab_base: u64,
    pub strtab_base_cfg: u32,
    pub cmdq_base: u64,
    pub cmdq_prod: u32,
    pub cmdq_cons: u32,
    pub eventq_base: u64,
    pub eventq_prod: u32,
    pub eventq_cons: u32,
    pub priq_base: u64,
    pub priq_prod: u32,
    pub priq_cons: u32,
    /// Message addresses and data of the interrupts, by offset: kept, not used.
    pub messages: [u32; 0x40],
    /// Number of times that each line was raised.
    pub signals: SmmuSignals,
}

/// Number of times that a unit has raised each of its lines (3.18): as a queue ceased to be empty, or as an error
/// became active, while `IRQ_CTRL` lets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmmuSignals {
    /// Offset for the event queue.
    pub events: u64,
    /// Offset for the page-request queue.
    pub requests: u64,
    /// Offset for global errors.
    pub errors: u64,
}

/// Bits of `IRQ_CTRL`.
pub(super) mod irq {
    pub const ERRORS: u32 = 1;
    pub const REQUESTS: u32 = 1 << 1;
    pub const EVENTS: u32 = 1 << 2;
}

pub(super) const CMDQ_ERROR: u32 = 1 << 0;

const ENABLE: u32 = 1 << 0;
/// `CR0.ATSCHK`.
const ATS_CHECK: u32 = 1 << 4;
const CMDQ_ENABLE: u32 = 1 << 3;
const CR0_BITS: u32 = 0b1_1111 | 0b111 << 6;
impl Registers {
    pub(super) fn reset(id: &SmmuIdentification) -> Self {
        Self {
            idr: id.idr,
            iidr: id.iidr,
            aidr: id.aidr,
            cr0: 0,
            cr0ack: 0,
            cr1: 0,
            cr2: 0,
            gbpa: 0,
            irq_ctrl: 0,
            irq_ctrlack: 0,
            gerror: 0,
            gerrorn: 0,
            strtab_base: 0,
            strtab_base_cfg: 0,
            cmdq_base: 0,
            cmdq_prod: 0,
            cmdq_cons: 0,
            eventq_base: 0,
            eventq_prod: 0,
            eventq_cons: 0,
            priq_base: 0,
            priq_prod: 0,
            priq_cons: 0,
            messages: [0; 0x40],
            signals: SmmuSignals::default(),
        }
    }

    /// An interrupt by a wire, of the bit `enable` of `IRQ_CTRL`.
    pub(super) fn signal(&mut self, enable: u32) {
        let on = u64::from(self.irq_ctrl & enable != 0);
        match enable {
            irq::ERRORS => self.signals.errors += on,
            irq::REQUESTS => self.signals.requests += on,
            _ => self.signals.events += on,
        }
    }

    /// Makes an error active, unless it is.
    pub(super) fn raise(&mut self, error: u32) {
        if (self.gerror ^ self.gerrorn) & error == 0 {
            self.gerror ^= error;
            self.signal(irq::ERRORS);
        }
    }

    /// Tells if an error is active.
    pub(super) fn is_raised(&self, error: u32) -> bool {
        (self.gerror ^ self.gerrorn) & error != 0
    }

    pub(super) fn enabled(&self) -> bool {
        self.cr0 & ENABLE != 0
    }

    /// Tells if translated accesses are checked against the stream's entry.
    pub(super) fn checks_translated(&self) -> bool {
        self.cr0 & ATS_CHECK != 0
    }

    pub(super) fn commands_enabled(&self) -> bool {
        self.cr0 & CMDQ_ENABLE != 0
    }

    fn read(&self, offset: usize) -> Option<u32> {
        let low = |value: u64| value as u32;
        let high = |value: u64| (value >> 32) as u32;
        Some(match offset {
            0x00..=0x14 => *self.idr.get(offset / 4)?,
            0x18 => self.iidr,
            0x1c => self.aidr,
            0x20 => self.cr0,
            0x24 => self.cr0ack,
            0x28 => self.cr1,
            0x2c => self.cr2,
            0x40 => 0,
            0x44 => self.gbpa,
            0x48 => 0,
            0x50 => self.irq_ctrl,
            0x54 => self.irq_ctrlack,
            0x60 => self.gerror,
            0x64 => self.gerrorn,
            0x80 => low(self.strtab_base),
            0x84 => high(self.strtab_base),
            0x88 => self.strtab_base_cfg,
            0x90 => low(self.cmdq_base),
            0x94 => high(self.cmdq_base),
            0x98 => self.cmdq_prod,
            0x9c => self.cmdq_cons,
            0xa0 => low(self.eventq_base),
            0xa4 => high(self.eventq_base),
            0xc0 => low(self.priq_base),
            0xc4 => high(self.priq_base),
            // The queue pointers are on the second page; the first page's places for them are
            // aliases on some implementations only.
            0x1_00a8 => self.eventq_prod,
            0x1_00ac => self.eventq_cons,
            0x1_00c8 => self.priq_prod,
            0x1_00cc => self.priq_cons,
            0x68..=0x74 | 0xb0..=0xbc | 0xd0..=0xdc => *self.messages.get(offset / 4)?,
            _ => return None,
        })
    }
}

impl SmmuRegisters {
    /// Offset of a register on a unit with two pages; beyond both if the register does not exist.
    fn place(&self, offset: usize) -> usize {
        match (self.setup.pages, offset) {
            (Pages::OnlyFirst, 0xa8 | 0xac | 0xc8 | 0xcc) => offset + 0x1_0000,
            (Pages::OnlyFirst, 0x1_0000..) => usize::MAX,
            _ => offset,
        }
    }

    fn write(&self, state: &mut State, offset: usize, value: u32) {
        let enabled = state.own.registers.enabled();
        let queue = state.own.registers.commands_enabled();
        let events = state.own.registers.cr0 & 1 << 2 != 0;
        let in_use = match offset {
            0x80..=0x88 | 0x2c => enabled,
            0x90..=0x94 => queue,
            0x28 => enabled || queue || events,
            0xa0..=0xa4 | 0x1_00a8 => events,
            // Addresses of interrupt messages cannot change while the interrupt is enabled.
            0x68..=0x74 => state.own.registers.irq_ctrl & irq::ERRORS != 0,
            0xb0..=0xbc => state.own.registers.irq_ctrl & irq::EVENTS != 0,
            0xd0..=0xdc => state.own.registers.irq_ctrl & irq::REQUESTS != 0,
            _ => false,
        };
        if in_use {
            state.violations.push(Violation::WrittenInUse { offset });
            return;
        }
        let registers = &mut state.own.registers;
        match offset {
            0x20 => self.write_cr0(state, value & CR0_BITS),
            0x28 => registers.cr1 = value,
            0x2c => registers.cr2 = value,
            // Only a write with the update bit takes effect, and the bit reads as zero once it has.
            0x44 if value >> 31 == 1 => registers.gbpa = value & !(1 << 31),
            0x50 => {
                registers.irq_ctrl = value & 0b111;
                if state.faults.control == Drain::Runs {
                    registers.irq_ctrlack = value & 0b111;
                }
            }
            0x64 => registers.gerrorn = value,
            0x80 | 0x84 => set_half(&mut registers.strtab_base, offset, value),
            0x88 => registers.strtab_base_cfg = value,
            0x90 | 0x94 => set_half(&mut registers.cmdq_base, offset, value),
            0x98 => self.write_cmdq_prod(state, value),
            0x9c => {
                if queue {
                    state.violations.push(Violation::WrittenInUse { offset });
                } else {
                    registers.cmdq_cons = value;
                }
            }
            0xa0 | 0xa4 => set_half(&mut registers.eventq_base, offset, value),
            0xc0 | 0xc4 => set_half(&mut registers.priq_base, offset, value),
            0x1_00a8 => registers.eventq_prod = value,
            0x1_00ac => {
                registers.eventq_cons = value;
                self.record_stalls(state);
            }
            0x1_00c8 => registers.priq_prod = value,
            0x1_00cc => registers.priq_cons = value,
            0x68..=0x74 | 0xb0..=0xbc | 0xd0..=0xdc => {
                if let Some(message) = registers.messages.get_mut(offset / 4) {
                    *message = value;
                }
            }
            0x44 => {}
            _ => state.violations.push(Violation::BadAccess { offset }),
        }
        self.go_on(state);
    }

    fn write_cr0(&self, state: &mut State, value: u32) {
        let turned_on = value & !state.own.registers.cr0;
        let clean = (Invalidated::Done, Invalidated::Done);
        if turned_on & ENABLE != 0 && state.cleaned != clean {
            state.violations.push(Violation::EnabledUnclean);
        }
        state.own.registers.cr0 = value;
        if turned_on & CMDQ_ENABLE != 0 {
            self.look_for_overrun(state);
        }
        if state.faults.control == Drain::Runs {
            state.own.registers.cr0ack = value;
        }
    }

    fn write_cmdq_prod(&self, state: &mut State, value: u32) {
        state.own.registers.cmdq_prod = value;
        // A queue that is off is set up in any order.
        if state.own.registers.commands_enabled() {
            self.look_for_overrun(state);
        }
        self.wait_for(state, self.setup.pace);
    }

    /// Notes where the command queue has more in it than fits, or an index beyond its positions.
    fn look_for_overrun(&self, state: &mut State) {
        let most = self.setup.identification.field(1, 21, 5);
        let registers = &mut state.own.registers;
        let lg2 = ((registers.cmdq_base & 0x1f) as u32).min(most);
        let positions = (2u32 << lg2) - 1;
        let tail = registers.cmdq_prod;
        registers.cmdq_prod = tail & positions;
        let filled = tail.wrapping_sub(registers.cmdq_cons) & positions;
        if tail & !positions != 0 || filled > 1 << lg2 {
            let tail = tail.into();
            state.violations.push(Violation::QueueOverrun { tail });
        }
    }
}

impl Mmio for SmmuRegisters {
    fn read32(&self, offset: usize) -> u32 {
        let mut state = self.lock();
        if self.arrive(&mut state, offset, 4).is_none() {
            return u32::MAX;
        }
        if let Some(value) = self.read_beside(&state, offset) {
            return value;
        }
        match state.own.registers.read(self.place(offset)) {
            Some(value) => value,
            None => {
                state.violations.push(Violation::BadAccess { offset });
                0
            }
        }
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut state = self.lock();
        if self.arrive(&mut state, offset, 4).is_some()
            && !self.write_beside(&mut state, offset, value)
        {
            self.write(&mut state, self.place(offset), value);
        }
    }
}
