//! Events and their log: section 2.5.

use portolan::addr::PhysAddr;

use super::interrupts::send_own;
use super::registers::{control, status};
use super::{AmdEvent, AmdRegisters, State};
use crate::inject::{DmaFault, Pace};
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

/// Reason why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmdRefusal {
    /// The device table has no such entry.
    NoEntry,
    /// The entry is malformed.
    Malformed,
    /// The entry cannot be read, at this address.
    NoTable(PhysAddr),
    /// Refused by the tables of a domain.
    Page { domain: u16, why: PageRefusal },
    /// Refused by guest tables.
    Guest { pasid: u32, why: PageRefusal },
    /// An entry of the tables of a domain cannot be read, at this address.
    NoPage { domain: u16, at: PhysAddr },
}

/// Reason why tables refuse an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRefusal {
    NotPresent,
    Forbidden,
    Reserved,
}

impl PageRefusal {
    fn flags(self) -> u64 {
        match self {
            Self::NotPresent => 0,
            Self::Forbidden => PRESENT | FORBIDS,
            Self::Reserved => PRESENT | RESERVED,
        }
    }
}

/// Flags of a record: the entry was present, it forbids the access, it has reserved bits.
const PRESENT: u64 = 1 << 52;
const WRITE: u64 = 1 << 53;
const FORBIDS: u64 = 1 << 54;
const RESERVED: u64 = 1 << 55;
/// Flag of a record: guest tables refused it.
const GUEST: u64 = 1 << 48;

impl AmdRefusal {
    /// The code, flags and domain, and an address in memory if there is one.
    fn told(self) -> (u64, u64, u16, Option<PhysAddr>) {
        match self {
            Self::NoEntry => (1, 0, 0, None),
            Self::Malformed => (1, RESERVED, 0, None),
            Self::NoTable(at) => (3, 0, 0, Some(at)),
            Self::Page { domain, why } => (2, why.flags(), domain, None),
            Self::Guest { pasid, why } => {
                let high = u64::from(pasid >> 16) << 16;
                (2, why.flags() | GUEST | high, pasid as u16, None)
            }
            Self::NoPage { domain, at } => (4, 0, domain, Some(at)),
        }
    }
}

impl AmdRegisters {
    /// Records a refusal and returns the fault for the device.
    pub(super) fn refuse(&self, state: &mut State, refusal: AmdRefusal, of: Request) -> DmaFault {
        state.counts.faults += 1;
        let (code, flags, domain, at) = refusal.told();
        let write = match of.access {
            AccessKind::Read => 0,
            AccessKind::Write => WRITE,
        };
        let device = u64::from(of.stream.get() & 0xffff);
        let low = code << 60 | flags | write | u64::from(domain) << 32 | device;
        let high = at.map_or(of.iova.get(), PhysAddr::get);
        self.log(state, [low, high]);
        DmaFault::of(of, code as u32)
    }

    /// Logs an event; with no room left the log stops.
    pub(super) fn log(&self, state: &mut State, words: [u64; 2]) {
        state.own.events.push(AmdEvent { words });
        let registers = &mut state.own.registers;
        if registers.status & status::EVENT_RUN == 0 {
            state.counts.lost_events += 1;
            return;
        }
        let bytes = 16u64 << (registers.event_base >> 56 & 0xf);
        let (head, tail) = (registers.event_head, registers.event_tail);
        let next = (tail + 16) % bytes;
        if next == head % bytes {
            registers.status |= status::EVENT_OVERFLOW;
            registers.status &= !status::EVENT_RUN;
            state.counts.lost_events += 1;
            return;
        }
        let at = PhysAddr::new((registers.event_base & 0x000f_ffff_ffff_f000) + tail);
        registers.event_tail = next;
        let quiet = registers.status & status::EVENT_INTERRUPT == 0;
        let sent = quiet && registers.control & control::EVENT_INTERRUPT != 0;
        registers.status |= status::EVENT_INTERRUPT;
        if sent {
            state.counts.event_interrupts += 1;
            let target = state.own.registers.event_target;
            send_own(state, target);
        }
        match self.setup.records {
            Pace::AtOnce => self.write_record(at, words),
            Pace::After(ns) => {
                let when = self.clock().now_ns().saturating_add(ns);
                state.own.late.push_back((when, at, words));
            }
        }
    }

    /// Writes the records that are due.
    pub(super) fn write_late_records(&self, state: &mut State) {
        let now = self.clock().now_ns();
        while let Some((when, at, words)) = state.own.late.front().copied() {
            if when > now {
                return;
            }
            self.write_record(at, words);
            state.own.late.pop_front();
        }
    }

    /// Writes the word with the code last. A log that is not in memory gets nothing.
    fn write_record(&self, at: PhysAddr, [low, high]: [u64; 2]) {
        let after = PhysAddr::new(at.get() + 8);
        let _ = self.memory.write_u64(after, high);
        let _ = self.memory.write_u64(at, low);
    }
}
