//! The invalidation queue and the registers that invalidate: section 6.5.

use portolan::addr::{InvalTag, PhysAddr};

use super::descriptors::{
    Effect, Fence, Interrupt, Invalidate, context_command, descriptor, error, iotlb_command,
};
use super::registers::{QUEUE_ERROR, QUEUE_ERRORS, TIME_OUT};
use super::{Invalidated, State, VtdRegisters};
use crate::adversary::{Rank, Visit, Way, in_classes};
use crate::cache::Reach;
use crate::decode::WalkMemory;
use crate::inject::{Drain, Violation};
use crate::iommu::Temper;
use crate::stage::{Drops, Sizes};

const BUSY: u64 = 1 << 63;

impl VtdRegisters {
    /// Carries out the requests whose time has come.
    pub(super) fn go_on(&self, state: &mut State) {
        if state.faults.drain == Drain::Never || self.setup.clock.now_ns() < state.ready_at {
            return;
        }
        self.context_register(state);
        self.iotlb_register(state);
        let iqa = state.registers.iqa;
        let wide = iqa >> 11 & 1 == 1;
        let entry = if wide { 32 } else { 16 };
        let bytes = 0x1000u64 << (iqa & 7);
        let mut left = bytes / entry;
        while left > 0 && state.registers.queue_enabled() {
            left -= 1;
            let registers = &state.registers;
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
            if state.registers.fsts & QUEUE_ERROR == 0 {
                state.registers.iqh = (head + entry) % bytes;
            }
            if state.aborted_to == Some(state.registers.iqh) {
                state.aborted_to = None;
            }
        }
    }

    /// The descriptor at `head`, or why it cannot be one.
    fn fetch(&self, state: &State, head: u64, wide: bool) -> Result<[u64; 4], u8> {
        let at = (state.registers.iqa & !0xfff) + head;
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
        state.consumed += 1;
        if let Some((ordinal, bits)) = state.faults.refuse
            && ordinal == state.consumed
        {
            state.registers.fsts |= bits & QUEUE_ERRORS;
            if bits & TIME_OUT != 0 {
                state.aborted_to = Some(state.registers.iqt);
            }
            // A completion that nobody waits for does no harm to the descriptor at hand.
            if bits & (QUEUE_ERROR | TIME_OUT) != 0 {
                return Ok(());
            }
        }
        // In scalable mode descriptors are wide.
        if !wide && state.registers.root >> 10 & 3 == 1 {
            return Err(error::WIDTH);
        }
        let (kind, effect) = descriptor(words, &self.setup.identification)?;
        match effect {
            Effect::Nothing => {}
            Effect::Respond { to, response } => state.asking.tell(to, response),
            Effect::Invalidate(_) if state.early > 0 => state.early -= 1,
            Effect::Invalidate(what) => match self.setup.temper {
                Temper::Adversarial => state.pending.push(what),
                Temper::Realistic(_) => invalidate(state, what),
            },
            Effect::Wait { .. } if state.aborted_to.is_some() => return Ok(()),
            Effect::Wait {
                status,
                interrupt,
                fence,
            } => {
                if fence == Fence::No && self.setup.temper == Temper::Adversarial {
                    self.overtake(state, head, wide);
                }
                self.complete(state);
                if let Some((at, data)) = status {
                    self.memory.write_u32(at, data).ok_or(error::UNREADABLE)?;
                }
                if interrupt == Interrupt::Wanted {
                    state.registers.ics |= 1;
                }
            }
        }
        *state.counts.descriptors.entry(kind).or_default() += 1;
        Ok(())
    }

    /// What is behind a wait without a fence may be carried out before the wait is complete: all of
    /// it is, up to the next wait that has one.
    fn overtake(&self, state: &mut State, head: u64, wide: bool) {
        let entry = if wide { 32 } else { 16 };
        let bytes = 0x1000u64 << (state.registers.iqa & 7);
        let mut at = (head + entry) % bytes;
        let mut behind = Vec::new();
        while at != state.registers.iqt {
            let words = self.fetch(state, at, wide);
            let found = words.and_then(|words| descriptor(words, &self.setup.identification));
            match found {
                Ok((_, Effect::Invalidate(what))) => behind.push(what),
                Ok((
                    _,
                    Effect::Wait {
                        fence: Fence::Yes, ..
                    },
                ))
                | Err(_) => break,
                Ok(_) => {}
            }
            at = (at + entry) % bytes;
        }
        // The first of them may have been by an earlier wait.
        let news = behind.split_off(state.early.min(behind.len()));
        state.early += news.len();
        state.pending.extend(news);
    }

    /// Carries out what a wait awaits, in an order that section 6.5.2.11 allows: context cache, PASID
    /// cache, IOTLB, device TLBs; none of them before those of earlier kinds that stand ahead of it.
    /// Devices go on before and between them.
    fn complete(&self, state: &mut State) {
        let pending = in_classes(std::mem::take(&mut state.pending), class, rank);
        let Some(last) = pending.len().checked_sub(1) else {
            return;
        };
        // Where devices alone are told, they may have been stopped before.
        let again = pending.iter().any(|what| rank(what) != Rank::Devices);
        if again {
            self.try_again(state);
        }
        for (at, what) in pending.into_iter().enumerate() {
            let before = entries(state);
            invalidate(state, what);
            if again && at < last && entries(state) < before {
                self.try_again(state);
            }
        }
    }

    /// Devices try the places that they reached before. Nothing is counted or recorded.
    fn try_again(&self, state: &mut State) {
        let counts = state.counts.clone();
        let steps = [state.first.walk_steps, state.second.walk_steps];
        for visit in state.visits.all() {
            let Visit {
                stream,
                pasid,
                iova,
                access,
                way,
            } = visit;
            match way {
                Way::Untranslated => {
                    let _ = self.translate(state, stream, pasid, iova, access);
                }
                Way::Translated => {
                    let _ = self.by_remote(state, stream, pasid, iova, access);
                }
            }
        }
        state.counts = counts;
        [state.first.walk_steps, state.second.walk_steps] = steps;
    }

    fn context_register(&self, state: &mut State) {
        let value = state.registers.ccmd;
        if value & BUSY == 0 {
            return;
        }
        // What was done is told in bits 60:59; zero if it was nothing.
        let mut done = value & !BUSY & !(3 << 59);
        if let Some(what) = context_command(value) {
            invalidate(state, what);
            state.counts.through_registers.0 += 1;
            done |= (value >> 61 & 3) << 59;
        }
        state.registers.ccmd = done;
    }

    fn iotlb_register(&self, state: &mut State) {
        let value = state.registers.iotlb;
        if value & BUSY == 0 {
            return;
        }
        // What was done is told in bits 58:57; zero if it was nothing.
        let mut done = value & !BUSY & !(3 << 57);
        let id = &self.setup.identification;
        if let Some(what) = iotlb_command(value, state.registers.iva, id) {
            invalidate(state, what);
            state.counts.through_registers.1 += 1;
            done |= match what {
                Invalidate::Translations => 1,
                Invalidate::TranslationsOf { .. } => 2,
                _ => 3,
            } << 57;
        }
        state.registers.iotlb = done;
    }
}

/// Entries in all caches.
fn entries(state: &State) -> usize {
    let translations = state.first.len() + state.second.len() + state.remote.len();
    translations + state.contexts.len() + state.pasids.len()
}

fn class(what: &Invalidate) -> u8 {
    match rank(what) {
        Rank::Streams => 0,
        Rank::Spaces => 1,
        Rank::Devices => 3,
        _ => 2,
    }
}

fn rank(what: &Invalidate) -> Rank {
    let leaves = |drops: &Drops| drops.pointers == Sizes::NONE;
    match what {
        Invalidate::Contexts | Invalidate::ContextsOf { .. } | Invalidate::Context { .. } => {
            Rank::Streams
        }
        Invalidate::Pasids | Invalidate::PasidsOf { .. } | Invalidate::Pasid { .. } => Rank::Spaces,
        Invalidate::Pages { drops, .. } if leaves(drops) => Rank::SecondStageLeaves,
        Invalidate::Pages { .. } => Rank::SecondStage,
        Invalidate::FirstStagePages { drops, .. } if leaves(drops) => Rank::Leaves,
        Invalidate::FirstStagePages { .. }
        | Invalidate::FirstStage { .. }
        | Invalidate::Translations
        | Invalidate::TranslationsOf { .. } => Rank::Translations,
        Invalidate::Device(_) => Rank::Devices,
    }
}

fn refuse(state: &mut State, code: u8) {
    state.registers.fsts |= QUEUE_ERROR;
    state.registers.iqercd = code.into();
}

fn invalidate(state: &mut State, what: Invalidate) {
    let every = Drops::ALL;
    match what {
        Invalidate::Contexts => {
            state.contexts.clear();
            state.cleaned.0 = Invalidated::Done;
        }
        Invalidate::ContextsOf { domain } => state
            .contexts
            .retain(|_, cached| cached.domain.is_some_and(|of| of != domain)),
        Invalidate::Context {
            domain,
            source,
            mask,
        } => state.contexts.retain(|of, cached| {
            let other_domain = cached.domain.is_some_and(|of| of != domain);
            (of ^ source) & !mask != 0 || other_domain
        }),
        Invalidate::Pasids => state.pasids.clear(),
        Invalidate::PasidsOf { domain } => {
            state
                .pasids
                .retain(|_, cached| cached.domain != Some(domain));
        }
        Invalidate::Pasid { domain, pasid } => state
            .pasids
            .retain(|key, cached| key.1 != pasid || cached.domain != Some(domain)),
        Invalidate::Device(what) => state.remote.forget(what),
        Invalidate::Translations => {
            state.first.invalidate(Reach::All, None, every);
            state.second.invalidate(Reach::All, None, every);
            state.cleaned.1 = Invalidated::Done;
        }
        Invalidate::TranslationsOf { domain } => {
            let owner = u32::from(domain);
            state.first.invalidate(Reach::All, Some(owner), every);
            let reach = Reach::Context(InvalTag::new(owner));
            state.second.invalidate(reach, None, every);
        }
        Invalidate::Pages {
            domain,
            range,
            drops,
        } => {
            // What both stages together came to stays, as it may.
            let reach = Reach::Range(InvalTag::new(domain.into()), range);
            state.second.invalidate(reach, None, drops);
        }
        Invalidate::FirstStage { domain, pasid } => {
            let reach = Reach::Context(state.first_tag(domain, pasid));
            state.first.invalidate(reach, None, every);
        }
        Invalidate::FirstStagePages {
            domain,
            pasid,
            range,
            drops,
        } => {
            let reach = Reach::Range(state.first_tag(domain, pasid), range);
            state.first.invalidate(reach, None, drops);
        }
    }
}
