//! Invalidations and synchronisations.

use portolan::addr::{Iova, IovaRange, PageSize};

use super::faults::Refusal;
use super::faults::context::CONFLICT;
use super::translate::{global_context, space_context};
use super::{Cleaned, Safe, SmmuV2Registers, Space, State};
use crate::adversary::{Rank, unordered};
use crate::cache::{Cache, Reach};
use crate::decode::Leaf;
use crate::inject::{Drain, Violation};
use crate::iommu::Temper;
use crate::stage::{Drops, Held};

/// What an invalidation drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invalidate {
    /// A page of an address space.
    Page {
        space: Space,
        range: IovaRange,
        leaf_only: LeafOnly,
    },
    /// A page of all first stages of a VMID.
    AnyAsid {
        vmid: u16,
        range: IovaRange,
        leaf_only: LeafOnly,
    },
    /// An address space.
    Space(Space),
    /// All that a VMID tags.
    Vmid(u16),
    Everything,
}

impl Invalidate {
    fn rank(&self) -> Rank {
        let leaf_only = match self {
            Self::Page { leaf_only, .. } | Self::AnyAsid { leaf_only, .. } => *leaf_only,
            Self::Space(_) | Self::Vmid(_) | Self::Everything => LeafOnly::No,
        };
        match leaf_only {
            LeafOnly::Yes => Rank::Leaves,
            LeafOnly::No => Rank::Translations,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeafOnly {
    Yes,
    No,
}

impl LeafOnly {
    fn drops(self) -> Drops {
        match self {
            Self::Yes => Drops::LEAVES,
            Self::No => Drops::ALL,
        }
    }
}

/// A synchronisation, if one is under way, and what it covers.
#[derive(Debug, Default)]
pub(super) struct Sync {
    until: Option<u64>,
    covers: Vec<Invalidate>,
}

impl Sync {
    /// Whether it is under way.
    pub fn is_active(&self) -> bool {
        self.until.is_some()
    }

    fn begin(&mut self, until: u64, pending: &mut Vec<Invalidate>) {
        self.until = Some(until);
        self.covers.append(pending);
    }

    /// What takes effect by `now`, if it ends by then.
    fn end(&mut self, now: u64) -> Option<Vec<Invalidate>> {
        self.until.filter(|until| *until <= now)?;
        self.until = None;
        Some(std::mem::take(&mut self.covers))
    }
}

/// The page of 4 KiB that a register's address field names: 44 bits of it, or 36.
pub(super) fn page(value: u64, bits: u32) -> IovaRange {
    let unit = value & ((1 << bits) - 1);
    IovaRange::page(Iova::new(unit << 12), PageSize::SIZE_4K)
}

impl SmmuV2Registers {
    fn ends_at(&self, state: &State) -> u64 {
        let safe = match state.safe {
            Safe::On => self.setup.safe_ns,
            Safe::Off => 0,
        };
        let now = self.setup.clock.now_ns();
        now.saturating_add(self.setup.sync_ns).saturating_add(safe)
    }

    /// Begins the synchronisation of a bank.
    pub(super) fn begin_sync(&self, state: &mut State, bank: usize) {
        let until = self.ends_at(state);
        let bank = &mut state.banks[bank];
        bank.sync.begin(until, &mut bank.pending);
    }

    /// Begins the synchronisation of everything.
    pub(super) fn begin_global_sync(&self, state: &mut State) {
        let until = self.ends_at(state);
        state.sync.begin(until, &mut state.pending);
        for bank in &mut state.banks {
            state.sync.begin(until, &mut bank.pending);
        }
    }

    /// Ends the synchronisations whose time has come.
    pub(super) fn go_on(&self, state: &mut State) {
        if state.faults.drain == Drain::Never {
            return;
        }
        let now = self.setup.clock.now_ns();
        let mut ended = Vec::new();
        ended.extend(state.sync.end(now));
        for bank in &mut state.banks {
            if bank.sync.is_active() {
                ended.extend(bank.sync.end(now));
            }
        }
        for covered in ended {
            state.counts.syncs += 1;
            self.complete(state, covered);
        }
    }

    /// Carries out what a synchronisation covers. It has no order, and devices go on before
    /// and between.
    fn complete(&self, state: &mut State, covered: Vec<Invalidate>) {
        let covered = unordered(covered, Invalidate::rank);
        let Some(last) = covered.len().checked_sub(1) else {
            return;
        };
        self.try_again(state);
        for (at, what) in covered.into_iter().enumerate() {
            let before = entries(state);
            apply(state, what);
            if at < last && entries(state) < before {
                self.try_again(state);
            }
        }
    }

    /// Devices try the places that they reached before. Nothing is counted or recorded, but that a
    /// driver made entries of two sizes meet in the TLB.
    fn try_again(&self, state: &mut State) {
        let counts = state.counts.clone();
        let steps = [state.stage1.walk_steps, state.stage2.walk_steps];
        for visit in state.visits.all() {
            let found = self.translate(state, visit.stream, visit.iova, visit.access);
            let conflict =
                |refusal| matches!(refusal, Refusal::Context { code, .. } if code == CONFLICT);
            if found.is_err_and(conflict) {
                let iova = visit.iova;
                state.violations.push(Violation::SizesConflict { iova });
            }
        }
        state.counts = counts;
        [state.stage1.walk_steps, state.stage2.walk_steps] = steps;
    }

    /// Takes an invalidation of a bank's registers.
    pub(super) fn invalidate(&self, state: &mut State, bank: usize, what: Invalidate) {
        match self.setup.temper {
            Temper::Adversarial => state.banks[bank].pending.push(what),
            Temper::Realistic(_) => apply(state, what),
        }
    }

    /// Takes an invalidation of the global registers.
    pub(super) fn invalidate_globally(&self, state: &mut State, what: Invalidate) {
        match self.setup.temper {
            Temper::Adversarial => state.pending.push(what),
            Temper::Realistic(_) => apply(state, what),
        }
    }
}

/// Entries in all caches.
fn entries(state: &State) -> usize {
    let micro: usize = state.micro.values().map(Cache::len).sum();
    let main = state.stage1.len() + state.globals.len() + state.stage2.len();
    micro + main + state.matched.len()
}

/// Drops what an invalidation concerns from every cache.
fn apply(state: &mut State, what: Invalidate) {
    match what {
        Invalidate::Page {
            space,
            range,
            leaf_only,
        } => {
            let context = space_context(space);
            let reach = Reach::Range(context, range);
            match space {
                Space::One { vmid, .. } => {
                    state.stage1.invalidate(reach, None, leaf_only.drops());
                    let reach = Reach::Range(global_context(vmid), range);
                    state.globals.invalidate(reach, None, leaf_only.drops());
                    drop_micro(state, reach, None);
                }
                Space::Two { .. } => state.stage2.invalidate(reach, None, leaf_only.drops()),
            }
            drop_micro(state, reach, None);
        }
        Invalidate::AnyAsid {
            vmid,
            range,
            leaf_only,
        } => {
            let (owner, drops) = (vmid.into(), leaf_only.drops());
            for stage in [&mut state.stage1, &mut state.globals] {
                stage.invalidate_range_of_owner(range, owner, drops);
            }
            let hit = |_, held: &Held<Leaf>| {
                held.owner == owner && IovaRange::page(held.page, held.size).overlaps(range)
            };
            for cache in state.micro.values_mut() {
                cache.drop_where(Reach::All, hit, |_, _| {});
            }
        }
        Invalidate::Space(space) => {
            let reach = Reach::Context(space_context(space));
            let all = Drops::ALL;
            match space {
                Space::One { .. } => state.stage1.invalidate(reach, None, all),
                Space::Two { .. } => state.stage2.invalidate(reach, None, all),
            }
            drop_micro(state, reach, None);
            state.matched.retain(|_, (_, of)| *of != Some(space));
        }
        Invalidate::Vmid(vmid) => drop_owner(state, Some(vmid)),
        Invalidate::Everything => {
            drop_owner(state, None);
            state.matched.clear();
            state.cleaned = Cleaned::Done;
        }
    }
}

fn drop_owner(state: &mut State, vmid: Option<u16>) {
    let owner = vmid.map(u32::from);
    let all = Drops::ALL;
    for stage in [&mut state.stage1, &mut state.stage2, &mut state.globals] {
        stage.invalidate(Reach::All, owner, all);
    }
    drop_micro(state, Reach::All, owner);
    let concerned = |of: &Option<Space>| of.is_some_and(|of| vmid.is_none_or(|v| v == of.vmid()));
    state.matched.retain(|_, (_, of)| !concerned(of));
}

fn drop_micro(state: &mut State, reach: Reach, owner: Option<u32>) {
    for cache in state.micro.values_mut() {
        let owned = |of: u32| owner.is_none_or(|owner| owner == of);
        cache.drop_where(reach, |_, held| owned(held.owner), |_, _| {});
    }
}
