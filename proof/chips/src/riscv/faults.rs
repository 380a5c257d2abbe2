//! Faults and their queue: section "Fault/Event-Queue".

use portolan::addr::PhysAddr;

use super::registers::{InterruptCause, pending, queue};
use super::{RiscvRegisters, State};
use crate::inject::DmaFault;
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

/// A fault, as its record's four words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RiscvFault {
    /// The words, lowest first.
    pub words: [u64; 4],
}

impl RiscvFault {
    /// The cause of the record.
    pub fn cause(&self) -> u32 {
        (self.words[0] & 0xfff) as u32
    }

    /// The device of the record.
    pub fn device(&self) -> u32 {
        (self.words[0] >> 40) as u32
    }
}

/// Reason why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RiscvRefusal {
    /// The unit is off.
    Off,
    /// The directory cannot be read.
    NoDirectory,
    /// The device has no context.
    NoContext,
    /// The context, or an entry that leads to it, is malformed.
    Malformed,
    /// Accesses of this kind are not let through.
    Disallowed,
    /// The process directory cannot be read.
    NoProcessDirectory,
    /// The address space has no context.
    NoProcess,
    /// The process context, or an entry that leads to it, is malformed.
    BadProcess,
    /// The entry of a message cannot be read.
    NoMessageTable,
    /// The entry of a message does not count.
    NoMessage,
    /// The entry of a message is malformed.
    BadMessage,
    /// The file in which a message is to be stored cannot be accessed.
    NoMessageFile,
    /// The access to a page of messages is none: it is aborted, and not recorded.
    NoSuchMessage,
    /// Refused by first-stage tables.
    Page,
    /// Refused by second-stage tables.
    GuestPage,
    /// Tables, or memory that they lead to, cannot be accessed.
    NoMemory,
}

impl RiscvRefusal {
    /// The cause, which for some depends on the kind of access.
    fn cause(self, access: AccessKind) -> u32 {
        let by = |read, write| match access {
            AccessKind::Read => read,
            AccessKind::Write => write,
        };
        match self {
            Self::Off => 256,
            Self::NoDirectory => 257,
            Self::NoContext => 258,
            Self::Malformed => 259,
            Self::Disallowed => 260,
            Self::NoProcessDirectory => 265,
            Self::NoProcess => 266,
            Self::BadProcess => 267,
            Self::NoMessageTable => 261,
            Self::NoMessage => 262,
            Self::BadMessage => 263,
            Self::NoMessageFile => 264,
            Self::NoSuchMessage => 0,
            Self::Page => by(13, 15),
            Self::GuestPage => by(21, 23),
            Self::NoMemory => by(5, 7),
        }
    }
}

impl RiscvRegisters {
    /// Records a refusal and returns the fault for the device.
    pub(super) fn refuse(&self, state: &mut State, refusal: RiscvRefusal, of: Request) -> DmaFault {
        let cause = refusal.cause(of.access);
        if refusal == RiscvRefusal::NoSuchMessage {
            return DmaFault::of(of, cause);
        }
        state.counts.faults += 1;
        let kind = match of.access {
            AccessKind::Read => 2,
            AccessKind::Write => 3,
        };
        let pasid = of.pasid.map_or(0, |pasid| 1 << 32 | u64::from(pasid.get() & 0xf_ffff) << 12);
        let device = u64::from(of.stream.get() & 0xff_ffff) << 40;
        let guest = match refusal {
            RiscvRefusal::GuestPage => of.iova.get() & !3,
            _ => 0,
        };
        let words = [device | kind << 34 | pasid | u64::from(cause), 0, of.iova.get(), guest];
        self.record(state, words);
        DmaFault::of(of, cause)
    }

    /// Records a fault; with no room left, or no memory, recording stops.
    fn record(&self, state: &mut State, words: [u64; 4]) {
        state.own.faults.push(RiscvFault { words });
        let registers = &mut state.own.registers;
        let stopped = queue::MEMORY_FAULT | queue::OVERFLOW;
        if registers.fqcsr & queue::ON == 0 || registers.fqcsr & stopped != 0 {
            state.counts.lost_faults += 1;
            return;
        }
        let slots = 2u32 << (registers.fqb & 0x1f);
        let (head, tail) = (registers.fqh, registers.fqt);
        let next = (tail + 1) % slots;
        if next == head {
            registers.fqcsr |= queue::OVERFLOW;
            state.counts.lost_faults += 1;
        } else if self.write_record(registers.fqb, tail, &words).is_none() {
            registers.fqcsr |= queue::MEMORY_FAULT;
            state.counts.lost_faults += 1;
        } else {
            registers.fqt = next;
        }
        self.pend(state, InterruptCause::Faults);
    }

    /// Writes the record of number `slot` of the queue at `base`.
    pub(super) fn write_record(&self, base: u64, slot: u32, words: &[u64]) -> Option<()> {
        let bytes = 8 * words.len() as u64;
        let at = ((base >> 10 & 0xfff_ffff_ffff) << 12) + u64::from(slot) * bytes;
        for (n, word) in (0..).zip(words) {
            self.memory.write_u64(PhysAddr::new(at + 8 * n), *word)?;
        }
        Some(())
    }

    /// Raises a queue's interrupt, unless it is pending.
    pub(super) fn pend(&self, state: &mut State, cause: InterruptCause) {
        let registers = &mut state.own.registers;
        let (control, bit, counted) = match cause {
            InterruptCause::Faults => {
                (registers.fqcsr, pending::FAULTS, &mut state.counts.fault_interrupts)
            }
            InterruptCause::Requests => {
                (registers.pqcsr, pending::REQUESTS, &mut state.counts.request_interrupts)
            }
        };
        let quiet = registers.ipsr & bit == 0;
        if control & queue::INTERRUPT != 0 && quiet {
            registers.ipsr |= bit;
            *counted += 1;
            if let Some((at, data)) = registers.message(bit.trailing_zeros()) {
                // A message to an address without memory is lost.
                let _ = self.memory.write_u32(PhysAddr::new(at), data);
            }
        }
    }
}
