//! The command buffer: sections 2.4 and 3.4.14 to 3.4.15.

use portolan::addr::{InvalTag, PhysAddr};

use super::commands::{AmdEffect, AmdInvalidation, CompletionFlush, CompletionInterrupt, decode};
use super::registers::status;
use super::{AmdRegisters, State, counters};
use crate::inject::Violation;
use crate::stage::{Drops, Sizes};
use portolan_sim::adversary::Rank;
use portolan_sim::cache::Reach;
use portolan_sim::decode::WalkMemory;

/// ILLEGAL_COMMAND_ERROR (2.5.6) and COMMAND_HARDWARE_ERROR (2.5.7).
const ILLEGAL: u32 = 5;
const HARDWARE: u32 = 6;
/// IOTLB_INV_TIMEOUT (2.5.8): a device does not answer an invalidation that is refused with this code.
const SILENT: u32 = 7;
/// Bytes of a command.
const BYTES: u64 = 16;

impl AmdRegisters {
    /// Carries out the commands that are due.
    pub(super) fn fetch_all(&self, state: &mut State) {
        self.write_late_records(state);
        let size = state.own.registers.command_bytes();
        // Once around at most, for any pointers.
        for _ in 0..size / BYTES {
            let registers = &state.own.registers;
            let (head, tail) = (registers.command_head, registers.command_tail);
            let runs = registers.status & status::COMMANDS_RUN != 0;
            if head == tail || !runs || self.rests(state) {
                return;
            }
            if head >= size || tail >= size {
                state.violations.push(Violation::QueueOverrun { tail });
                state.own.registers.status &= !status::COMMANDS_RUN;
                return;
            }
            match self.carry_out(state, head) {
                Ok(()) => {
                    let registers = &mut state.own.registers;
                    registers.counters.count(counters::COMMAND, None);
                    registers.command_head = (head + BYTES) % size;
                }
                Err(code) => {
                    state.own.registers.status &= !status::COMMANDS_RUN;
                    let at = self.command_at(state, head);
                    // Of a code of zero not even where it was.
                    let words = match code & 0xf {
                        0 => [0, 0],
                        code => [u64::from(code) << 60, at],
                    };
                    self.log(state, words);
                    return;
                }
            }
        }
    }

    fn command_at(&self, state: &State, offset: u64) -> u64 {
        (state.own.registers.command_base & 0x000f_ffff_ffff_f000) + offset
    }

    fn fetch(&self, state: &State, offset: u64) -> Option<[u64; 2]> {
        let at = self.command_at(state, offset);
        let read = |at| self.memory.snooped().read_u64(PhysAddr::new(at));
        Some([read(at)?, read(at + 8)?])
    }

    fn carry_out(&self, state: &mut State, head: u64) -> Result<(), u32> {
        let words = self.fetch(state, head).ok_or(HARDWARE)?;
        let refused = self.consume(state, &[words[0], words[1], 0, 0]);
        let found = decode(words, &self.setup.identification);
        match (refused, found) {
            (Some(SILENT), Some((_, AmdEffect::Invalidate(AmdInvalidation::Device(of))))) => {
                // The unit goes on without the device.
                let device = u64::from(of.stream & 0xffff);
                let at = self.command_at(state, head);
                self.log(state, [u64::from(SILENT) << 60 | device, at]);
                return Ok(());
            }
            (Some(code), _) => return Err(code),
            (None, _) => {}
        }
        let (kind, effect) = found.ok_or(ILLEGAL)?;
        match effect {
            AmdEffect::Nothing => {}
            AmdEffect::Respond { to, response } => state.asking.tell(to, response),
            AmdEffect::Invalidate(what) => self.take(state, what),
            AmdEffect::Wait { store, interrupt, flush } => {
                if flush == CompletionFlush::No {
                    let behind = self.behind(state, head);
                    self.overtake(state, behind);
                }
                let awaited = std::mem::take(&mut state.pending);
                self.complete(state, awaited);
                if let Some((at, data)) = store {
                    self.memory.write_u64(at, data).ok_or(HARDWARE)?;
                }
                if interrupt == CompletionInterrupt::Wanted {
                    state.own.registers.status |= status::WAIT_INTERRUPT;
                }
            }
        }
        *state.counts.commands.entry(kind).or_default() += 1;
        Ok(())
    }

    /// The invalidations between the wait at `head` and the next one that flushes.
    fn behind(&self, state: &State, head: u64) -> Vec<AmdInvalidation> {
        let registers = &state.own.registers;
        let (size, tail) = (registers.command_bytes(), registers.command_tail);
        let mut behind = Vec::new();
        let mut at = (head + BYTES) % size;
        while at != tail {
            let words = self.fetch(state, at);
            match words.and_then(|words| decode(words, &self.setup.identification)) {
                Some((_, AmdEffect::Invalidate(what))) => behind.push(what),
                Some((_, AmdEffect::Wait { flush: CompletionFlush::Yes, .. })) | None => break,
                Some(_) => {}
            }
            at = (at + BYTES) % size;
        }
        behind
    }
}

pub(super) fn rank(what: &AmdInvalidation) -> Rank {
    match what {
        AmdInvalidation::Entry { .. } => Rank::Streams,
        AmdInvalidation::Pages { drops, .. } if drops.pointers == Sizes::NONE => Rank::Leaves,
        AmdInvalidation::Pages { .. } | AmdInvalidation::Everything => Rank::Translations,
        AmdInvalidation::Device(_) => Rank::Devices,
        // They are found by the device's entry.
        AmdInvalidation::Interrupts { .. } => Rank::Leaves,
    }
}

pub(super) fn invalidate(state: &mut State, what: AmdInvalidation) {
    match what {
        AmdInvalidation::Entry { device } => {
            state.own.entries.remove(&device);
            state.own.interrupt_words.remove(&device);
        }
        AmdInvalidation::Pages { domain, pasid: Some(pasid), range, drops } => {
            state.own.guests.forget(domain, pasid, range, drops);
        }
        AmdInvalidation::Pages { domain, pasid: None, range, drops } => {
            let reach = Reach::Range(InvalTag::new(domain.into()), range);
            state.own.pages.invalidate(reach, None, drops);
            state.own.guests.forget_hosted(domain, range);
        }
        AmdInvalidation::Device(what) => state.remote.forget(what),
        AmdInvalidation::Interrupts { device } => {
            state.own.interrupts.retain(|(of, _), _| *of != device)
        }
        AmdInvalidation::Everything => {
            state.own.entries.clear();
            state.own.interrupt_words.clear();
            state.own.interrupts.clear();
            state.own.pages.invalidate(Reach::All, None, Drops::ALL);
            state.own.guests.forget_all();
        }
    }
}
