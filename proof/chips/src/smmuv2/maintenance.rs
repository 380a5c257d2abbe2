//! Invalidations and synchronisations.

use portolan::addr::{Iova, IovaRange, PageSize};

use super::space::{Space, global_context, space_context};
use super::{SmmuV2Registers, State};
use crate::inject::Drain;
use crate::stage::{Drops, OwnedEntry};
use crate::unit::Invalidated;
use portolan_sim::adversary::Rank;
use portolan_sim::cache::Reach;
use portolan_sim::decode::Leaf;
use portolan_sim::iommu::Temper;

/// Entries that an invalidation drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmmuV2Invalidation {
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
    /// Everything with a VMID.
    Vmid(u16),
    Everything,
}

impl SmmuV2Invalidation {
    pub(super) fn rank(&self) -> Rank {
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
pub enum LeafOnly {
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

/// Wait-for-safe: invalidations wait for real-time devices while it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Safe {
    Off,
    On,
}

/// A synchronisation, if one is under way, and the invalidations that it covers.
#[derive(Debug, Default)]
pub(super) struct Sync {
    until: Option<u64>,
    covers: Vec<SmmuV2Invalidation>,
}

impl Sync {
    /// Tells if it is under way.
    pub fn is_active(&self) -> bool {
        self.until.is_some()
    }

    fn begin(&mut self, until: u64, pending: &mut Vec<SmmuV2Invalidation>) {
        self.until = Some(until);
        self.covers.append(pending);
    }

    /// Invalidations that take effect by `now`, if it ends by then.
    fn end(&mut self, now: u64) -> Option<Vec<SmmuV2Invalidation>> {
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
        let safe = match state.own.safe {
            Safe::On => self.setup.safe_ns,
            Safe::Off => 0,
        };
        let now = self.setup.clock.now_ns();
        now.saturating_add(self.setup.sync_ns).saturating_add(safe)
    }

    /// Begins the synchronisation of a bank.
    pub(super) fn begin_sync(&self, state: &mut State, bank: usize) {
        let until = self.ends_at(state);
        let bank = &mut state.own.banks[bank];
        bank.sync.begin(until, &mut bank.pending);
    }

    /// Begins the synchronisation of everything.
    pub(super) fn begin_global_sync(&self, state: &mut State) {
        let until = self.ends_at(state);
        state.own.sync.begin(until, &mut state.pending);
        for bank in &mut state.own.banks {
            state.own.sync.begin(until, &mut bank.pending);
        }
    }

    /// Ends the synchronisations that are due.
    pub(super) fn end_syncs(&self, state: &mut State) {
        if state.faults.drain == Drain::Never {
            return;
        }
        let now = self.setup.clock.now_ns();
        let mut ended = Vec::new();
        ended.extend(state.own.sync.end(now));
        for bank in &mut state.own.banks {
            if bank.sync.is_active() {
                ended.extend(bank.sync.end(now));
            }
        }
        for covered in ended {
            state.counts.syncs += 1;
            self.complete(state, covered);
        }
    }

    /// Takes an invalidation of a bank's registers.
    pub(super) fn invalidate(&self, state: &mut State, bank: usize, what: SmmuV2Invalidation) {
        match self.setup.temper {
            Temper::Adversarial => state.own.banks[bank].pending.push(what),
            Temper::Realistic(_) => apply(state, what),
        }
    }
}

/// Drops the entries of an invalidation from every cache.
pub(super) fn apply(state: &mut State, what: SmmuV2Invalidation) {
    match what {
        SmmuV2Invalidation::Page { space, range, leaf_only } => {
            let context = space_context(space);
            let reach = Reach::Range(context, range);
            match space {
                Space::One { vmid, .. } => {
                    state.own.stage1.invalidate(reach, None, leaf_only.drops());
                    let reach = Reach::Range(global_context(vmid), range);
                    state.own.globals.invalidate(reach, None, leaf_only.drops());
                    drop_micro(state, reach, None);
                }
                Space::Two { .. } => state.own.stage2.invalidate(reach, None, leaf_only.drops()),
            }
            drop_micro(state, reach, None);
        }
        SmmuV2Invalidation::AnyAsid { vmid, range, leaf_only } => {
            let (owner, drops) = (vmid.into(), leaf_only.drops());
            for stage in [&mut state.own.stage1, &mut state.own.globals] {
                stage.invalidate_range_of_owner(range, owner, drops);
            }
            let hit = |_, held: &OwnedEntry<Leaf>| {
                held.owner == owner && IovaRange::page(held.page, held.size).overlaps(range)
            };
            for cache in state.own.micro.values_mut() {
                cache.drop_where(Reach::All, hit, |_, _| {});
            }
        }
        SmmuV2Invalidation::Space(space) => {
            let reach = Reach::Context(space_context(space));
            let all = Drops::ALL;
            match space {
                Space::One { .. } => state.own.stage1.invalidate(reach, None, all),
                Space::Two { .. } => state.own.stage2.invalidate(reach, None, all),
            }
            drop_micro(state, reach, None);
            state.own.matched.retain(|_, (_, of)| *of != Some(space));
        }
        SmmuV2Invalidation::Vmid(vmid) => drop_owner(state, Some(vmid)),
        SmmuV2Invalidation::Everything => {
            drop_owner(state, None);
            state.own.matched.clear();
            state.cleaned = (Invalidated::Done, Invalidated::Done);
        }
    }
}

fn drop_owner(state: &mut State, vmid: Option<u16>) {
    let owner = vmid.map(u32::from);
    let all = Drops::ALL;
    for stage in [&mut state.own.stage1, &mut state.own.stage2, &mut state.own.globals] {
        stage.invalidate(Reach::All, owner, all);
    }
    drop_micro(state, Reach::All, owner);
    let concerned = |of: &Option<Space>| of.is_some_and(|of| vmid.is_none_or(|v| v == of.vmid()));
    state.own.matched.retain(|_, (_, of)| !concerned(of));
}

fn drop_micro(state: &mut State, reach: Reach, owner: Option<u32>) {
    for cache in state.own.micro.values_mut() {
        let owned = |of: u32| owner.is_none_or(|owner| owner == of);
        cache.drop_where(reach, |_, held| owned(held.owner), |_, _| {});
    }
}
