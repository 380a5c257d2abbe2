//! Regions of memory and their slots.
//!
//! A slot is the piece of a region that one aligned run of 512 granules holds. Its lock guards which
//! of its granules are mapped; nothing is mapped, unmapped, allocated or waited for while it is held.

use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;

use super::bits::{Bits, GRANULES, GranuleRun};
use super::debt::Generation;
use super::error::RegionError;
use crate::addr::{Iova, IovaRange, PageSize};
use crate::platform::{Cpus, Lock};
use crate::table::Access;

/// Way in which the memory of a region is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency<'a> {
    /// All of it is pinned and mapped at once, until the region is removed.
    Pinned,
    /// None of it is pinned: it is mapped when a device asks for it, and taken back at any time.
    OnDemand,
    /// These parts are pinned, the rest comes on demand.
    Selective(&'a [IovaRange]),
}

/// Options of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionOptions<'a> {
    /// Its addresses, whole granules.
    pub range: IovaRange,
    /// Access that devices get.
    pub access: Access,
    /// Way in which its memory is held.
    pub hold: Residency<'a>,
}

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotPhase {
    /// Faults map.
    Open,
    /// A caller takes memory back, and is the only one that does: faults wait.
    Taking,
    /// Memory was to be taken back, and is still mapped or not quiet: faults fail.
    Stuck,
    /// The region comes or goes: there is no memory here.
    Closed,
}

/// State of a slot, under its lock.
#[derive(Debug)]
pub(super) struct RegionSlot {
    /// Steps whenever memory is taken back: memory that was populated before is out of date.
    pub(super) sequence: u64,
    pub(super) phase: SlotPhase,
    /// Phase once memory was taken back: open or closed.
    pub(super) resume: SlotPhase,
    /// Phase before a caller entered to take memory back.
    pub(super) before: SlotPhase,
    pub(super) mapped: Bits,
    /// Granules that were unmapped since the last dirty read, and may have been written before.
    pub(super) lost: Bits,
    /// Maps that are being written, without the lock; their granules count as mapped.
    pub(super) filling: u32,
    /// Maps that are written and whose debt is being paid.
    pub(super) unpaid: u32,
    /// Generation with the debt of maps that the hardware did not complete.
    pub(super) map_debt: Option<Generation>,
    /// Generation with the debt of unmaps, of memory taken back, that the hardware did not
    /// complete.
    pub(super) unmap_debt: Option<Generation>,
    /// Granules that were taken back and are not quiet.
    pub(super) leaving: u64,
}

impl RegionSlot {
    const CLOSED: Self = Self {
        sequence: 0,
        phase: SlotPhase::Closed,
        resume: SlotPhase::Closed,
        before: SlotPhase::Closed,
        mapped: Bits::EMPTY,
        lost: Bits::EMPTY,
        filling: 0,
        unpaid: 0,
        map_debt: None,
        unmap_debt: None,
        leaving: 0,
    };
}

/// Parts to be pinned of a region that are pinned now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pins {
    /// So many parts from the first are, all of each.
    pub(super) whole: usize,
    /// The beginning of the part after those.
    pub(super) beginning: Option<IovaRange>,
}

/// One region.
#[derive(Debug)]
pub(super) struct Region<O, P: Cpus> {
    pub(super) range: IovaRange,
    pub(super) access: Access,
    pub(super) owner: O,
    /// Parts that are to be pinned, in order.
    pub(super) pinned: Vec<IovaRange>,
    pub(super) pins: P::Lock<Pins>,
    /// Set if it may be removed: adding it has ended.
    pub(super) complete: AtomicBool,
    granule: PageSize,
    slots: Vec<P::Lock<RegionSlot>>,
}

/// A part of a region that lies in one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) slot: usize,
    pub(super) run: GranuleRun,
}

impl<O, P: Cpus> Region<O, P> {
    /// A region, all closed. `pinned` is in order and inside.
    pub(super) fn new(
        options: &RegionOptions<'_>,
        owner: O,
        pinned: Vec<IovaRange>,
        granule: PageSize,
    ) -> Result<Self, RegionError> {
        let range = options.range;
        let lg2 = granule.lg2() + GRANULES.ilog2();
        let count = (range.last().get() >> lg2) - (range.start().get() >> lg2) + 1;
        let no_memory = RegionError::NoMemory { slots: count };
        let count = usize::try_from(count).map_err(|_| no_memory)?;
        let mut slots = Vec::new();
        slots.try_reserve_exact(count).map_err(|_| no_memory)?;
        slots.extend((0..count).map(|_| Lock::new(RegionSlot::CLOSED)));
        Ok(Self {
            range,
            access: options.access,
            owner,
            pinned,
            pins: Lock::new(Pins::default()),
            complete: AtomicBool::new(false),
            granule,
            slots,
        })
    }

    fn slot_lg2(&self) -> u32 {
        self.granule.lg2() + GRANULES.ilog2()
    }

    /// Number of the slot around `iova`, which lies in the region.
    fn number(&self, iova: Iova) -> u64 {
        (iova.get() >> self.slot_lg2()) - (self.range.start().get() >> self.slot_lg2())
    }

    /// The granule of `iova` in its slot.
    fn granule_of(&self, iova: Iova) -> u32 {
        ((iova.get() >> self.granule.lg2()) & u64::from(GRANULES - 1)) as u32
    }

    /// The part of the first slot that `range` touches, and the rest of the range.
    pub(super) fn first_part(&self, range: IovaRange) -> Option<(Part, Option<IovaRange>)> {
        let inside = range.intersection(self.range)?;
        let around = IovaRange::page(inside.start(), PageSize::of_lg2(self.slot_lg2()));
        let here = inside.intersection(around)?;
        let part = Part {
            slot: usize::try_from(self.number(here.start())).ok()?,
            run: GranuleRun::new(self.granule_of(here.start()), self.granule_of(here.last()))?,
        };
        let rest = here.last().checked_add(1);
        Some((part, rest.and_then(|from| IovaRange::new(from, inside.last()))))
    }

    /// The parts of `range`, in order.
    pub(super) fn parts(&self, range: IovaRange) -> impl Iterator<Item = Part> + '_ {
        let mut rest = Some(range);
        core::iter::from_fn(move || {
            let (part, left) = self.first_part(rest?)?;
            rest = left;
            Some(part)
        })
    }

    /// All that lies in the slot around `iova`.
    pub(super) fn around(&self, iova: Iova) -> Option<Part> {
        let slot = IovaRange::page(iova, PageSize::of_lg2(self.slot_lg2()));
        self.first_part(slot).map(|(part, _)| part)
    }

    /// The addresses of a part.
    pub(super) fn addresses(&self, part: Part) -> Option<IovaRange> {
        let slots = self.range.start().get() >> self.slot_lg2();
        let base = slots.checked_add(part.slot as u64)? << self.slot_lg2();
        let start = base + (u64::from(part.run.first) << self.granule.lg2());
        IovaRange::from_len(Iova::new(start), part.run.count() << self.granule.lg2())
    }

    /// Looks at a slot with its lock held; `None` if there is no such slot.
    pub(super) fn with<R>(&self, slot: usize, f: impl FnOnce(&mut RegionSlot) -> R) -> Option<R> {
        self.slots.get(slot).map(|lock| lock.with(f))
    }

    /// The pinned part that `range` touches first.
    pub(super) fn pinned_in(&self, range: IovaRange) -> Option<IovaRange> {
        let mut pinned = self.pinned.iter();
        pinned.find_map(|pinned| pinned.intersection(range))
    }
}
