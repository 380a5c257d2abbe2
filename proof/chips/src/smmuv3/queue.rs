//! The command queue: sections 3.5 and 4.

use portolan::addr::{InvalTag, PhysAddr};

use super::commands::{Signal, SmmuV3Effect, SmmuV3Invalidation, decode};
use super::registers::CMDQ_ERROR;
use super::{SmmuRegisters, State};
use crate::stage::{Drops, Sizes};
use crate::unit::Invalidated;
use portolan_sim::adversary::Rank;
use portolan_sim::cache::Reach;
use portolan_sim::decode::WalkMemory;

pub(super) const ERROR_ILLEGAL: u32 = 1;
const ERROR_ABORT: u32 = 2;

/// Queue that a command comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    /// The unit's own.
    Own,
    /// One beside it.
    Beside,
}

impl SmmuRegisters {
    /// Carries out the commands that are due.
    pub(super) fn fetch_all(&self, state: &mut State) {
        self.fetch_own(state);
        self.fetch_beside(state);
    }

    fn fetch_own(&self, state: &mut State) {
        let most = self.setup.identification.field(1, 21, 5);
        let lg2 = ((state.own.registers.cmdq_base & 0x1f) as u32).min(most);
        let (mask, positions) = ((1u32 << lg2) - 1, (2u32 << lg2) - 1);
        // Once around at most, for any pointers.
        for _ in 0..=positions {
            let registers = &state.own.registers;
            let at = registers.cmdq_cons & positions;
            let idle = at == registers.cmdq_prod & positions;
            let stopped = !registers.commands_enabled() || registers.is_raised(CMDQ_ERROR);
            if idle || stopped || self.rests(state) {
                return;
            }
            let most = self.setup.most_unsynced.unwrap_or(u64::MAX);
            if state.own.unsynced > most {
                return;
            }
            let base = registers.cmdq_base & 0x000f_ffff_ffff_ffe0;
            let entry = base + u64::from(at & mask) * 16;
            match self.carry_out(state, entry, Fetch::Own) {
                Ok(()) => state.own.registers.cmdq_cons = (at + 1) & positions,
                Err(code) => {
                    state.own.registers.cmdq_cons = at | (code & 0x7f) << 24;
                    state.own.registers.raise(CMDQ_ERROR);
                    return;
                }
            }
        }
    }

    pub(super) fn carry_out(&self, state: &mut State, entry: u64, from: Fetch) -> Result<(), u32> {
        let read = |at| self.memory.read_u64(PhysAddr::new(at)).ok_or(ERROR_ABORT);
        let words = [read(entry)?, read(entry + 8)?];
        if let Some(code) = self.consume(state, &[words[0], words[1], 0, 0]) {
            return Err(code);
        }
        let (kind, effect) = decode(words, &self.setup.identification).ok_or(ERROR_ILLEGAL)?;
        state.own.unsynced = match effect {
            _ if from == Fetch::Beside => state.own.unsynced,
            SmmuV3Effect::Sync(_) => 0,
            _ => state.own.unsynced + 1,
        };
        match effect {
            SmmuV3Effect::Nothing => {}
            SmmuV3Effect::Respond { to, response } => state.asking.tell(to, response),
            SmmuV3Effect::Resume { to, tag, how } => self.resume(state, to, tag, how),
            SmmuV3Effect::Invalidate(what) => self.take(state, what),
            SmmuV3Effect::Sync(signal) => {
                // Commands before it have no order (sections 4.4 and 4.8).
                let awaited = std::mem::take(&mut state.pending);
                self.complete(state, awaited);
                if let Signal::Message { at, data } = signal
                    && self.memory.write_u32(at, data).is_none()
                {
                    // The sync is complete; only its message is lost.
                    state.own.registers.raise(1 << 4);
                }
            }
        }
        *state.counts.commands.entry(kind).or_default() += 1;
        Ok(())
    }
}

pub(super) fn rank(what: &SmmuV3Invalidation) -> Rank {
    match what {
        SmmuV3Invalidation::Stream { .. } | SmmuV3Invalidation::Streams { .. } => Rank::Streams,
        SmmuV3Invalidation::Descriptor { .. } | SmmuV3Invalidation::Descriptors { .. } => {
            Rank::Spaces
        }
        SmmuV3Invalidation::Ipa { what, .. } if what.drops.pointers == Sizes::NONE => {
            Rank::SecondStageLeaves
        }
        SmmuV3Invalidation::Ipa { .. } => Rank::SecondStage,
        SmmuV3Invalidation::Va { what, .. } | SmmuV3Invalidation::Vaa { what, .. }
            if what.drops.pointers == Sizes::NONE =>
        {
            Rank::Leaves
        }
        SmmuV3Invalidation::Va { .. }
        | SmmuV3Invalidation::Vaa { .. }
        | SmmuV3Invalidation::Asid { .. }
        | SmmuV3Invalidation::Vmid1 { .. }
        | SmmuV3Invalidation::Vmid { .. }
        | SmmuV3Invalidation::Everything => Rank::Translations,
        SmmuV3Invalidation::Device(_) => Rank::Devices,
    }
}

fn stage1_context(vmid: u16, asid: u16) -> InvalTag {
    super::translate::stage1_tag(vmid, asid).context
}

pub(super) fn invalidate(state: &mut State, what: SmmuV3Invalidation) {
    let every = Drops::ALL;
    match what {
        SmmuV3Invalidation::Stream { sid, leaf_only } => {
            drop_streams(state, sid, sid);
            if !leaf_only {
                state.own.spans.clear();
            }
        }
        SmmuV3Invalidation::Streams { first, last } => {
            drop_streams(state, first, last);
            state.own.spans.clear();
            if (first, last) == (0, u32::MAX) {
                state.cleaned.0 = Invalidated::Done;
            }
        }
        SmmuV3Invalidation::Descriptor { sid, ssid } => {
            state.own.descriptors.remove(&(sid, ssid));
        }
        SmmuV3Invalidation::Descriptors { sid } => {
            state.own.descriptors.retain(|key, _| key.0 != sid)
        }
        SmmuV3Invalidation::Asid { vmid, asid } => {
            let reach = Reach::Context(stage1_context(vmid, asid));
            state.own.stage1.invalidate(reach, None, every);
        }
        SmmuV3Invalidation::Va { vmid, asid, what } => {
            let reach = Reach::Range(stage1_context(vmid, asid), what.range);
            state.own.stage1.invalidate(reach, None, what.drops);
            let reach = Reach::Range(InvalTag::new(vmid.into()), what.range);
            state.own.globals.invalidate(reach, None, what.drops);
        }
        SmmuV3Invalidation::Vaa { vmid, what } => {
            let owner = vmid.into();
            state.own.stage1.invalidate_range_of_owner(what.range, owner, what.drops);
            let reach = Reach::Range(InvalTag::new(owner), what.range);
            state.own.globals.invalidate(reach, None, what.drops);
        }
        SmmuV3Invalidation::Vmid1 { vmid } => drop_stage1(state, vmid),
        SmmuV3Invalidation::Vmid { vmid } => {
            drop_stage1(state, vmid);
            let reach = Reach::Context(InvalTag::new(vmid.into()));
            state.own.stage2.invalidate(reach, None, every);
        }
        SmmuV3Invalidation::Ipa { vmid, what } => {
            // Combined translations of both stages stay, as they may.
            let reach = Reach::Range(InvalTag::new(vmid.into()), what.range);
            state.own.stage2.invalidate(reach, None, what.drops);
        }
        SmmuV3Invalidation::Device(what) => state.remote.forget(what),
        SmmuV3Invalidation::Everything => {
            for stage in [&mut state.own.stage1, &mut state.own.globals, &mut state.own.stage2] {
                stage.invalidate(Reach::All, None, every);
            }
            state.cleaned.1 = Invalidated::Done;
        }
    }
}

fn drop_stage1(state: &mut State, vmid: u16) {
    let every = Drops::ALL;
    let owner = Some(vmid.into());
    state.own.stage1.invalidate(Reach::All, owner, every);
    state.own.globals.invalidate(Reach::All, owner, every);
}

/// An entry goes, and the context descriptors that were read through it.
fn drop_streams(state: &mut State, first: u32, last: u32) {
    state.own.entries.retain(|sid, _| !(first..=last).contains(sid));
    state.own.descriptors.retain(|(sid, _), _| !(first..=last).contains(sid));
}
