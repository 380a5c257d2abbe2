//! Interrupts that are posted to guest virtual APICs (2.2.5.3), and their log (2.7).
//!
//! The bit of the vector is set in the backing page first. IsRun, GALogIntr, the destination and GATag are read from
//! memory then, each time; the page, the vector and GuestMode are those of the kept entry.

use portolan::addr::PhysAddr;

use super::interrupts::{AmdDelivered, field, is_posted, send_own};
use super::registers::{control, status};
use super::{AmdRegisters, State};
use portolan_sim::decode::WalkMemory as _;

const GALOGINTR: u64 = 1 << 2;
const IS_RUN: u64 = 1 << 6;

impl AmdRegisters {
    /// Posts the interrupt of `kept`, whose words `again` reads once more; none with reserved bits, or without its
    /// page.
    pub(super) fn post(
        &self,
        state: &mut State,
        device: u16,
        kept: [u64; 2],
        again: impl FnOnce() -> Option<[u64; 2]>,
    ) -> Option<AmdDelivered> {
        let [low, high] = kept;
        if field(low, 3, 3) | field(high, 8, 4) | field(high, 52, 4) != 0 {
            return None;
        }
        let (page, vector) = (high & 0x000f_ffff_ffff_f000, field(high, 0, 8));
        let at = PhysAddr::new(page + 0x200 + vector / 32 * 16);
        let requests = self.memory.snooped().read_u64(at)?;
        self.memory.write_u64(at, requests | 1 << (vector % 32))?;
        let [low, high] = again().filter(|words| is_posted(*words)).unwrap_or(kept);
        if low & IS_RUN != 0 {
            return Some(AmdDelivered::Rung((field(low, 8, 24) | field(high, 56, 8) << 24) as u32));
        }
        if low & GALOGINTR != 0 {
            let record = 1 << 60 | u64::from(device) << 32 | low >> 32;
            self.log_sleeper(state, record);
        }
        Some(AmdDelivered::Pending)
    }

    /// Logs an interrupt for a virtual CPU that does not run; with no room left the log stops.
    fn log_sleeper(&self, state: &mut State, record: u64) {
        let registers = &mut state.own.registers;
        let bytes = 16u64 << (registers.guest_base >> 56 & 0xf);
        let (head, tail) = (registers.guest_head, registers.guest_tail);
        let next = (tail + 8) % bytes;
        let runs = registers.status & status::GUEST_RUN != 0;
        if !runs || next == head % bytes {
            if runs {
                registers.status |= status::GUEST_OVERFLOW;
                registers.status &= !status::GUEST_RUN;
            }
            state.counts.lost_sleepers += 1;
            return;
        }
        let at = PhysAddr::new((registers.guest_base & 0x000f_ffff_ffff_f000) + tail);
        let copy = PhysAddr::new(registers.guest_tail_copy & 0x000f_ffff_ffff_fff8);
        registers.guest_tail = next;
        let quiet = registers.status & status::GUEST_INTERRUPT == 0;
        let sent = quiet && registers.control & control::GUEST_INTERRUPT != 0;
        registers.status |= status::GUEST_INTERRUPT;
        if sent {
            state.counts.sleeper_interrupts += 1;
            let target = state.own.registers.guest_target;
            send_own(state, target);
        }
        // A log that is not in memory gets nothing.
        let _ = self.memory.write_u64(at, record);
        let _ = self.memory.write_u64(copy, next);
    }
}
