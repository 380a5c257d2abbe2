//! The command queue: sections "Command-Queue" and "Command-queue CSR".

use std::mem;

use portolan::addr::{InvalTag, Iova, PhysAddr, StreamId};

use super::commands::{Order, RiscvEffect, RiscvInvalidation, StageTranslations, decode};
use super::contexts::TranslationControl;
use super::registers::queue;
use super::{RiscvRegisters, State};
use crate::stage::{Sizes, Stage};
use portolan_sim::adversary::Rank;
use portolan_sim::cache::Reach;
use portolan_sim::decode::WalkMemory;
use portolan_sim::iommu::Temper;

/// Owner of all tags of a stage.
pub(super) const OWNER: u32 = 0;

impl RiscvRegisters {
    /// Carries out the commands that are due.
    pub(super) fn fetch_all(&self, state: &mut State) {
        let slots = 2u32 << (state.own.registers.cqb & 0x1f);
        // Once around at most, for any indices.
        for _ in 0..slots {
            let registers = &state.own.registers;
            let (head, status) = (registers.cqh, registers.cqcsr);
            let stopped = status & queue::ERRORS != 0 || status & queue::ON == 0;
            if head == registers.cqt || stopped || self.rests(state) {
                return;
            }
            match self.carry_out(state, head) {
                Ok(()) => state.own.registers.cqh = (head + 1) % slots,
                Err(errors) => {
                    state.own.registers.cqcsr |= errors & queue::ERRORS;
                    // Commands that no fence has confirmed may not have been done: at its worst, none of them.
                    if self.setup.temper == Temper::Adversarial {
                        state.pending.clear();
                    }
                    return;
                }
            }
        }
    }

    fn fetch(&self, state: &State, slot: u32) -> Option<[u64; 2]> {
        let base = (state.own.registers.cqb >> 10 & 0xfff_ffff_ffff) << 12;
        let at = base | u64::from(slot) << 4;
        let read = |at| self.memory.snooped().read_u64(PhysAddr::new(at));
        Some([read(at)?, read(at + 8)?])
    }

    fn carry_out(&self, state: &mut State, head: u32) -> Result<(), u32> {
        let words = self.fetch(state, head).ok_or(queue::MEMORY_FAULT)?;
        if let Some(errors) = self.consume(state, &[words[0], words[1], 0, 0]) {
            return Err(errors);
        }
        let id = &self.setup.identification;
        let widest = match state.own.registers.levels() {
            Some(levels) => (1u64 << (id.leaf_lg2() + 9 * (levels - 1)).min(24)) as u32 - 1,
            None => 0xff_ffff,
        };
        let (kind, effect) = decode(words, id, widest).ok_or(queue::ILLEGAL)?;
        match effect {
            RiscvEffect::Invalidate(RiscvInvalidation::Device(of))
                if !self
                    .remote_of(state, StreamId::new(of.stream))
                    .is_ok_and(TranslationControl::translates) =>
            {
                // The answer of a device that may not have translations is none.
                state.own.has_unanswered = true;
            }
            RiscvEffect::Invalidate(what) => self.take(state, what),
            RiscvEffect::Respond(to, response) => state.asking.tell(to, response),
            RiscvEffect::Fence { .. } if mem::take(&mut state.own.has_unanswered) => {
                return Err(queue::TIME_OUT);
            }
            RiscvEffect::Fence { store, order } => {
                self.arrive_all(state);
                let awaited = std::mem::take(&mut state.pending);
                self.complete(state, awaited);
                if let Some((at, data)) = store {
                    let stored = self.memory.write_u32(at, data);
                    stored.ok_or(queue::MEMORY_FAULT)?;
                    state.counts.unordered += u64::from(order == Order::Less);
                }
            }
        }
        *state.counts.commands.entry(kind).or_default() += 1;
        Ok(())
    }
}

pub(super) fn rank(what: &RiscvInvalidation) -> Rank {
    let leaves = |of: &StageTranslations| of.drops.pointers == Sizes::NONE;
    match what {
        RiscvInvalidation::Contexts(_)
        | RiscvInvalidation::Process(..)
        | RiscvInvalidation::Nothing => Rank::Streams,
        RiscvInvalidation::Device(_) => Rank::Devices,
        RiscvInvalidation::Second(of) if leaves(of) => Rank::SecondStageLeaves,
        RiscvInvalidation::Second(_) => Rank::SecondStage,
        RiscvInvalidation::First(of) if leaves(of) => Rank::Leaves,
        RiscvInvalidation::First(_) => Rank::Translations,
    }
}

pub(super) fn invalidate(state: &mut State, what: RiscvInvalidation) {
    match what {
        RiscvInvalidation::Contexts(Some(device)) => {
            state.own.contexts.remove(&device);
            state.own.processes.retain(|(of, _), _| *of != device);
            state.own.process_pages.retain(|(of, ..), _| *of != device);
        }
        // Of a process, its context alone.
        RiscvInvalidation::Process(device, pasid) => {
            state.own.processes.remove(&(device, pasid));
        }
        RiscvInvalidation::Contexts(None) => {
            state.own.processes.clear();
            state.own.process_pages.clear();
            state.own.contexts.clear();
            state.own.pages.clear();
        }
        RiscvInvalidation::First(of) => drop_some(&mut state.own.first, of),
        RiscvInvalidation::Second(of) => {
            let StageTranslations { tag, range, .. } = of;
            let covers =
                |page: u64| range.is_none_or(|range| range.contains(Iova::new(page << 12)));
            let messages = &mut state.own.messages;
            messages.retain(|(of, page), _| tag.is_some_and(|tag| tag != *of) || !covers(*page));
            drop_some(&mut state.own.second, of);
        }
        RiscvInvalidation::Device(what) => state.remote.forget(what),
        RiscvInvalidation::Nothing => {}
    }
}

fn drop_some(stage: &mut Stage, of: StageTranslations) {
    let StageTranslations { tag, range, drops } = of;
    let context = tag.map(InvalTag::new);
    match (context, range) {
        (Some(context), Some(range)) => stage.invalidate(Reach::Range(context, range), None, drops),
        (Some(context), None) => stage.invalidate(Reach::Context(context), None, drops),
        (None, Some(range)) => stage.invalidate_range_of_owner(range, OWNER, drops),
        (None, None) => stage.invalidate(Reach::All, None, drops),
    }
}
