//! Moving streams: blocked, passed through, or attached to a domain.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2
//! and 2.4 (what to invalidate after which change).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::AtomicU64;

use arrayvec::ArrayVec;
use portolan::addr::{InvalTag, Iova, IovaRange, StreamId};
use portolan::iommu::{
    Attach, AttachError, Domain, FaultEvent, FaultReason, Iommu, IommuError, ReservedKind,
    ReservedRegion,
};
use portolan::platform::{Cpus, Mmio, TableMem};
use portolan::table::PageTable;
use portolan::table::format::AmdV1;

use super::command::{self, Counted};
use super::device_table::{BLOCKED, Forget, Memory};
use super::shared::Shared;
use super::spec::ADDRESS;
use super::spec::entry::{DOMAIN, IR, IW, MODE};
use super::unit::{AmdDomain, AmdVi, PASS};

/// A domain that is kept alive.
#[derive(Clone)]
pub(super) struct Kept(#[allow(dead_code)] Arc<dyn Domain + Send + Sync>);

impl Kept {
    pub(super) fn new(domain: Arc<dyn Domain + Send + Sync>) -> Self {
        Self(domain)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// Where a stream is.
#[derive(Clone, Debug)]
pub(super) struct Home {
    /// Domain identifier in its entry.
    pub(super) id: u16,
    /// Never read: holds the domain. Pass-through has none.
    pub(super) _kept: Option<Kept>,
}

/// Where a move that failed came from and was to go to.
type Stuck = ArrayVec<Home, 2>;

/// What the unit remembers of a stream.
#[derive(Debug, Default)]
struct Place {
    /// Where it is, if it is not blocked.
    home: Option<Home>,
    /// What the hardware may still reach after a move that failed. Its entry blocks meanwhile, and it
    /// has no home.
    stuck: Stuck,
}

impl Place {
    fn is_nowhere(&self) -> bool {
        self.home.is_none() && self.stuck.is_empty()
    }

    /// What was the home may still be reached.
    fn gets_stuck(&mut self) {
        let home = self.home.take();
        self.stuck
            .extend(home.into_iter().take(self.stuck.remaining_capacity()));
    }
}

/// What the unit remembers of streams: of each that ever left its block.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<u16, Place>);

impl Known {
    /// The stream is where its entry says, from the start.
    pub(super) fn begins_in(&mut self, stream: u16, home: Home) {
        let stuck = Stuck::new();
        let home = Some(home);
        self.0.insert(stream, Place { home, stuck });
    }

    /// Streams that are somewhere, or may still reach something.
    pub(super) fn somewhere(&self) -> impl Iterator<Item = u16> {
        self.somewhere_from(0)
    }

    fn somewhere_from(&self, first: u16) -> impl Iterator<Item = u16> {
        let places = self
            .0
            .range(first..)
            .filter(|(_, place)| !place.is_nowhere());
        places.map(|(stream, _)| *stream)
    }

    /// Every entry blocks, and what it led to may still be reached.
    pub(super) fn get_stuck(&mut self) {
        self.0.values_mut().for_each(Place::gets_stuck);
    }

    /// Everything is quiet: lets go of all domains.
    pub(super) fn settle_all(&mut self) {
        drop(core::mem::take(&mut self.0));
    }
}

impl Drop for Known {
    /// What the hardware may still reach is never freed.
    ///
    /// *Context.* Interrupt.
    fn drop(&mut self) {
        core::mem::forget(core::mem::take(&mut self.0));
    }
}

/// Addresses that are never translated: interrupt messages, and the range that HyperTransport has for
/// itself.
const WINDOWS: [(ReservedKind, u64, u64); 2] = [
    (ReservedKind::Interrupts, 0xfee0_0000, 0xfeef_ffff),
    (ReservedKind::Unusable, 0xfd_0000_0000, 0xff_ffff_ffff),
];

/// The same as reserved regions.
pub(super) fn windows() -> impl Iterator<Item = ReservedRegion> {
    WINDOWS.into_iter().filter_map(|(kind, start, last)| {
        let range = IovaRange::new(Iova::new(start), Iova::new(last))?;
        Some(ReservedRegion { range, kind })
    })
}

/// The entry of a stream that is nowhere.
const NOWHERE: Memory = [BLOCKED, 0];

/// The entry of a stream that `table` translates, tagged by `context`.
pub(super) fn entry_of<M: TableMem<AtomicU64>>(
    table: &PageTable<AmdV1, M>,
    context: InvalTag,
) -> Memory {
    let root = table.root().get() & ADDRESS;
    let levels = table.format().levels.count();
    let word = BLOCKED | IR | IW | MODE.at(levels.into()) | root;
    [word, DOMAIN.at(command::domain_of(context).into())]
}

/// What hardware has to forget when `stream` leaves the domain `id`: the entry, and then, so that
/// nothing is cached again from what is stale, the translations.
fn forget(stream: u16, id: u16) -> [Counted; 3] {
    [
        command::device_entry(stream),
        command::fence(),
        command::domain(id),
    ]
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> AmdVi<R, M, C> {
    /// Blocks all streams.
    ///
    /// *Context.* Task: domains that nobody else holds are dropped.
    ///
    /// # Errors
    /// The first failure; the others are tried all the same.
    pub fn block_all(&self) -> Result<(), AttachError> {
        let control = &self.shared.control;
        let mut result = Ok(());
        let mut from = Some(0);
        while let Some(first) = from {
            let known = self.known.take(&control.clock, control.limit)?;
            let next = known.somewhere_from(first).next();
            drop(known);
            if let Some(stream) = next {
                let moved = self.go(StreamId::new(stream.into()), NOWHERE, None);
                result = result.and(moved);
            }
            from = next.and_then(|stream| stream.checked_add(1));
        }
        result
    }

    /// Makes the entries of `streams` block, and everything forgotten.
    pub(super) fn block_table(&self, streams: impl Iterator<Item = u16>) -> Result<(), IommuError> {
        let nothing = Forget {
            old: &[],
            blocked: &[],
        };
        for stream in streams {
            self.table.change(&self.shared, stream, NOWHERE, &nothing)?;
        }
        self.shared.forget_everything()
    }

    fn go(&self, stream: StreamId, memory: Memory, new: Option<Home>) -> Result<(), AttachError> {
        let no_such = AttachError::NoSuchStream { stream };
        let stream = self.table.has(stream).ok_or(no_such)?;
        let control = &self.shared.control;
        let mut known = self.known.take(&control.clock, control.limit)?;
        // Memory for the place is there before the first write.
        let place = known.0.entry(stream).or_default();
        let settled = self.settle(stream, place)?;
        let forget_old = place.home.as_ref().map(|home| forget(stream, home.id));
        let arrive: ArrayVec<Counted, 3> = match (&new, self.caches_absence()) {
            (Some(home), true) => forget(stream, home.id).into(),
            _ => core::iter::once(command::device_entry(stream)).collect(),
        };
        let forget = Forget {
            old: forget_old.as_ref().map_or(&[], |all| all.as_slice()),
            blocked: &arrive,
        };
        let changed = self.table.change(&self.shared, stream, memory, &forget);
        if let Err(error) = changed {
            place.gets_stuck();
            place
                .stuck
                .extend(new.into_iter().take(place.stuck.remaining_capacity()));
            return Err(error.into());
        }
        let left = core::mem::replace(&mut place.home, new);
        drop(known);
        // Domains wait for the hardware when they are dropped: without the turn.
        drop((left, settled));
        Ok(())
    }

    fn caches_absence(&self) -> bool {
        use super::capability::Offers;
        let offers = self.features().capability.offers;
        offers.contains(Offers::CACHES_ABSENCE)
    }

    /// Once more invalidates what a failure left over of `stream`, whose entry blocks, before
    /// anything else happens to it; returns what is quiet now.
    fn settle(&self, stream: u16, place: &mut Place) -> Result<Stuck, IommuError> {
        for home in &place.stuck {
            self.shared.run(&mut forget(stream, home.id).into_iter())?;
        }
        Ok(core::mem::take(&mut place.stuck))
    }
}

/// *Context.* [`Iommu::next_fault`]: interrupt. [`Iommu::reserved`]: task. The others: atomic; they are
/// tasks where they let go of the last handle of a domain.
impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Iommu for AmdVi<R, M, C> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.go(stream, NOWHERE, None)
    }

    fn pass_through(&self, stream: StreamId) -> Result<(), AttachError> {
        let memory = [BLOCKED | IR | IW, DOMAIN.at(PASS.into())];
        let home = Home {
            id: PASS,
            _kept: None,
        };
        self.go(stream, memory, Some(home))
    }

    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.reservations().of(stream, each);
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        let Shared {
            control, events, ..
        } = &*self.shared;
        let mut event = events.next(control)?;
        if let Some(FaultEvent::Fault(record)) = &mut event {
            let is_fault = matches!(
                record.reason,
                FaultReason::Permission | FaultReason::NotMapped
            );
            let stream = record.stream.get() as u16;
            // An entry that blocks has no tables in which anything could be missing.
            if is_fault && self.table.blocks(&control.mem, stream) {
                record.reason = FaultReason::Blocked;
            }
        }
        Ok(event)
    }
}

/// *Context.* Atomic, or task where the last handle of a domain is let go of.
impl<R, M, C: Cpus> Attach<AmdDomain<R, M, C>> for AmdVi<R, M, C>
where
    R: Mmio + Send + Sync + 'static,
    M: TableMem<AtomicU64> + Send + Sync + 'static,
    C: Cpus,
{
    fn attach(
        &self,
        stream: StreamId,
        domain: &Arc<AmdDomain<R, M, C>>,
    ) -> Result<(), AttachError> {
        if !Arc::ptr_eq(&domain.queue().0, &self.shared) {
            return Err(AttachError::Mismatch);
        }
        let context = domain.context();
        let home = Home {
            id: command::domain_of(context),
            _kept: Some(Kept::new(domain.clone())),
        };
        self.go(stream, entry_of(domain.table(), context), Some(home))
    }
}
