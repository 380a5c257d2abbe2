//! The invalidation queue and the registers that invalidate: section 6.5.

use portolan::addr::PhysAddr;

use super::descriptors::{
    Fence, VtdEffect, VtdInvalidation, WaitInterrupt, context_command, descriptor, error,
    iotlb_command,
};
use super::forget::invalidate;
use super::registers::{QUEUE_ERROR, QUEUE_ERRORS, TIME_OUT};
use super::{State, VtdRegisters};
use crate::inject::Violation;
use crate::stage::{Drops, Sizes};
use portolan_sim::adversary::Rank;
use portolan_sim::decode::WalkMemory;

const BUSY: u64 = 1 << 63;

impl VtdRegisters {
    /// Carries out the requests that are due.
    pub(super) fn fetch_all(&self, state: &mut State) {
        if self.rests(state) {
            return;
        }
        self.context_register(state);
        self.iotlb_register(state);
        let iqa = state.own.registers.iqa;
        let wide = iqa >> 11 & 1 == 1;
        let entry = if wide { 32 } else { 16 };
        let bytes = 0x1000u64 << (iqa & 7);
        let mut left = bytes / entry;
        while left > 0 && state.own.registers.queue_enabled() {
            left -= 1;
            if self.rests(state) {
                return;
            }
            let registers = &state.own.registers;
            let (head, tail) = (registers.iqh, registers.iqt);
            if head == tail || registers.fsts & QUEUE_ERRORS != 0 {
                return;
            }
            if tail >= bytes || tail % entry != 0 || head >= bytes {
                state.violations.push(Violation::QueueOverrun { tail });
                refuse(state, error::TAIL);
                return;
            }
            if let Err(code) = self.carry_out(state, head, wide) {
                refuse(state, code);
                return;
            }
            if state.own.registers.fsts & QUEUE_ERROR == 0 {
                state.own.registers.iqh = (head + entry) % bytes;
            }
            if state.own.aborted_to == Some(state.own.registers.iqh) {
                state.own.aborted_to = None;
            }
        }
    }

    /// The descriptor at `head`, or why it cannot be one.
    fn fetch(&self, state: &State, head: u64, wide: bool) -> Result<[u64; 4], u8> {
        let at = (state.own.registers.iqa & !0xfff) + head;
        let mut words = [0; 4];
        let number = if wide { 4 } else { 2 };
        for (i, word) in words.iter_mut().take(number).enumerate() {
            let at = PhysAddr::new(at + 8 * i as u64);
            let read = self.memory.snooped().read_u64(at);
            *word = read.ok_or(error::UNREADABLE)?;
        }
        Ok(words)
    }

    fn carry_out(&self, state: &mut State, head: u64, wide: bool) -> Result<(), u8> {
        let words = self.fetch(state, head, wide)?;
        if let Some(bits) = self.consume(state, &words) {
            let registers = &mut state.own.registers;
            registers.faulted(|of| of.fsts |= bits & QUEUE_ERRORS);
            // The reason in bits 3:0, and the device that did not answer in bits 47:32.
            registers.iqercd = u64::from(bits >> 16) << 32 | u64::from(bits >> 8 & 0xf);
            if bits & TIME_OUT != 0 {
                state.own.aborted_to = Some(state.own.registers.iqt);
            }
            // A completion without a waiter does no harm to the descriptor at hand.
            if bits & (QUEUE_ERROR | TIME_OUT) != 0 {
                return Ok(());
            }
        }
        // In scalable mode descriptors are wide.
        if !wide && state.own.registers.root >> 10 & 3 == 1 {
            return Err(error::WIDTH);
        }
        let (kind, effect) = descriptor(words, &self.setup.identification)?;
        match effect {
            VtdEffect::Respond { to, response } => state.asking.tell(to, response),
            VtdEffect::Invalidate(what) => self.take(state, what),
            VtdEffect::Wait { .. } if state.own.aborted_to.is_some() => return Ok(()),
            VtdEffect::Wait { status, interrupt, fence } => {
                if fence == Fence::No {
                    let behind = self.behind(state, head, wide);
                    self.overtake(state, behind);
                }
                let awaited = std::mem::take(&mut state.pending);
                self.complete(state, awaited);
                if let Some((at, data)) = status {
                    self.memory.write_u32(at, data).ok_or(error::UNREADABLE)?;
                }
                if interrupt == WaitInterrupt::Wanted {
                    state.own.registers.ics |= 1;
                }
            }
        }
        *state.counts.descriptors.entry(kind).or_default() += 1;
        Ok(())
    }

    /// The invalidations between the wait at `head` and the next one with a fence.
    fn behind(&self, state: &State, head: u64, wide: bool) -> Vec<VtdInvalidation> {
        let entry = if wide { 32 } else { 16 };
        let bytes = 0x1000u64 << (state.own.registers.iqa & 7);
        let mut at = (head + entry) % bytes;
        let mut behind = Vec::new();
        while at != state.own.registers.iqt {
            let words = self.fetch(state, at, wide);
            let found = words.and_then(|words| descriptor(words, &self.setup.identification));
            match found {
                Ok((_, VtdEffect::Invalidate(what))) => behind.push(what),
                Ok((_, VtdEffect::Wait { fence: Fence::Yes, .. })) | Err(_) => break,
                Ok(_) => {}
            }
            at = (at + entry) % bytes;
        }
        behind
    }

    fn context_register(&self, state: &mut State) {
        let value = state.own.registers.ccmd;
        if value & BUSY == 0 {
            return;
        }
        // Bits 60:59 tell the granularity that was done; zero if nothing was.
        let mut done = value & !BUSY & !(3 << 59);
        if let Some(what) = context_command(value) {
            invalidate(state, what);
            state.counts.through_registers.0 += 1;
            done |= (value >> 61 & 3) << 59;
        }
        state.own.registers.ccmd = done;
    }

    fn iotlb_register(&self, state: &mut State) {
        let value = state.own.registers.iotlb;
        if value & BUSY == 0 {
            return;
        }
        // Bits 58:57 tell the granularity that was done; zero if nothing was.
        let mut done = value & !BUSY & !(3 << 57);
        let id = &self.setup.identification;
        if let Some(what) = iotlb_command(value, state.own.registers.iva, id) {
            invalidate(state, what);
            state.counts.through_registers.1 += 1;
            done |= match what {
                VtdInvalidation::Translations => 1,
                VtdInvalidation::TranslationsOf { .. } => 2,
                _ => 3,
            } << 57;
        }
        state.own.registers.iotlb = done;
    }
}

pub(super) fn rank(what: &VtdInvalidation) -> Rank {
    let leaves = |drops: &Drops| drops.pointers == Sizes::NONE;
    match what {
        VtdInvalidation::Contexts
        | VtdInvalidation::ContextsOf { .. }
        | VtdInvalidation::Context { .. } => Rank::Streams,
        VtdInvalidation::Pasids
        | VtdInvalidation::PasidsOf { .. }
        | VtdInvalidation::Pasid { .. } => Rank::Spaces,
        VtdInvalidation::Pages { drops, .. } if leaves(drops) => Rank::SecondStageLeaves,
        VtdInvalidation::Pages { .. } => Rank::SecondStage,
        VtdInvalidation::FirstStagePages { drops, .. } if leaves(drops) => Rank::Leaves,
        VtdInvalidation::FirstStagePages { .. }
        | VtdInvalidation::FirstStage { .. }
        | VtdInvalidation::Translations
        | VtdInvalidation::TranslationsOf { .. } => Rank::Translations,
        VtdInvalidation::Device(_) => Rank::Devices,
        // Nothing is made of them.
        VtdInvalidation::Interrupts { .. } => Rank::Leaves,
    }
}

fn refuse(state: &mut State, code: u8) {
    state.own.registers.faulted(|of| of.fsts |= QUEUE_ERROR);
    state.own.registers.iqercd = code.into();
}
