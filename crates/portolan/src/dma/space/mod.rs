//! An address space with addresses to give out and a policy.
//!
//! `map` places pieces, `unmap` takes them back and flushes, `members` are the streams that reach
//! memory through it, and `reserved` the addresses that no mapping gets.

mod dirty;
mod former;
mod map;
mod members;
mod reserved;
mod retired;
mod tables;
mod unmap;

pub use former::FormerError;

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::error::{Lost, Quarantine, SpaceError, UnmapError};
use super::flush_queue::FlushQueue;
use super::policy::{LazyBounds, Policy, Trust, accepted};
use super::trace;
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange, TableId};
use crate::inval::Gather;
use crate::iommu::{BoundDomain, Domain, FaultEvent, IommuError, Shadowing};
use crate::iova::{IovaOptions, IovaSpace, IovaStats};
use crate::platform::{Cpus, Lock, Nanos, Platform, SharedWord, TrustedBase};
use crate::table::{Access, Translation};
pub(super) use map::{MOST_FILLS, NotPlaced, Placement};
pub(super) use members::Member;
use members::{MembersTrust, SpaceStreams};
use reserved::Regions;
use retired::RetiredBuffers;
use tables::TablesThatStay;
pub(super) use unmap::UnmapPaid;

/// Options of an address space.
///
/// ```
/// # use portolan::dma::{Policy, SpaceOptions};
/// let mut options = SpaceOptions::default();
/// options.policy = Policy::Deferred;
/// ```
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceOptions {
    /// The addresses to give out; those that the domain cannot translate are left out.
    pub window: IovaRange,
    /// Time at which unmaps are invalidated. Lazy is not accepted where a hypervisor follows mappings, nor
    /// where a device is said not to be trusted: the space says why it is strict ([`DmaSpace::lazy_refused`]).
    pub policy: Policy,
    /// Shadowing of the hypervisor beside that which the domain reports ([`Domain::shadowing`]): no
    /// register tells that tables are write-protected.
    pub shadowing: Shadowing,
    /// Trust in the least trusted device that will be in the space; all mappings are judged by
    /// that, and the other devices are trusted no further. With nothing said, it is the trust of
    /// the first device, or of the limits by which memory is mapped before there is one. A device
    /// that is trusted less is refused.
    pub trust: Option<Trust>,
    /// Bounds of the ranges that wait for their invalidation, in each CPU's queue.
    pub bounds: LazyBounds,
    /// Longest time that one CPU waits for another's flush before it reports that it is busy. At
    /// least the unit's own limit.
    pub turn_timeout: Nanos,
    /// With so many table pages or fewer, tables that become empty stay in place. Where there are
    /// more, [`DmaSpace::tick`] takes empty ones out, until there are no more than these or none is
    /// empty. One whose addresses a CPU keeps for its next mappings stays for the time being; once
    /// there are more such tables than these, the CPUs give their addresses back.
    pub keep_tables: usize,
    /// Number of mappings and deferred buffers that may be dropped, also by an interrupt handler, before the next
    /// [`DmaSpace::tick`]: they are unmapped, and the buffers are dropped once no device reaches them. Beyond that,
    /// and with 0, the default, they are never freed, and counted ([`DmaSpace::quarantine`]).
    pub dropped_buffers: usize,
    /// The address allocator.
    pub iova: IovaOptions,
}

impl Default for SpaceOptions {
    /// All addresses but the lowest 64 KiB, [`Policy::Strict`], the usual bounds, two seconds, 256
    /// table pages, that is 1 MiB for half a gigabyte of addresses where pages and tables have 4 KiB.
    fn default() -> Self {
        let window = IovaRange::new(Iova::new(1 << 16), Iova::new(u64::MAX));
        Self {
            window: window.unwrap_or(IovaRange::page(Iova::new(0), PageSize::of_lg2(63))),
            policy: Policy::default(),
            shadowing: Shadowing::None,
            trust: None,
            bounds: LazyBounds::default(),
            turn_timeout: Nanos::from_millis(2000),
            keep_tables: 256,
            dropped_buffers: 0,
            iova: IovaOptions::default(),
        }
    }
}

/// Use of an address of a space.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IovaUse {
    /// It is mapped. [`Mapping::offset_of`](crate::dma::Mapping::offset_of) tells if it is a given mapping's.
    Mapped(Translation),
    /// It was unmapped, and its invalidation is still to come: the device used it too late.
    Deferred {
        /// The mapping's addresses.
        range: IovaRange,
    },
    /// No mapping is given it, since the unit or the embedder has reserved it.
    Reserved {
        /// Addresses that were set aside.
        range: IovaRange,
    },
    /// None of these.
    Unused,
    /// It lies outside of the space's window.
    Outside,
}

/// A mapped range of one address space; not a number that can be copied, so that it is unmapped
/// once. One that is dropped stays mapped, and its addresses stay out of use.
///
/// ```no_run
/// # use portolan::dma::{Constraints, DmaSpace, Unowned};
/// # use portolan::platform::Platform;
/// # use portolan::table::Access;
/// fn lend<P: Platform>(space: &DmaSpace<P>, memory: Unowned) {
///     let lent = space.map_range(memory, Access::READ, &Constraints::trusted());
///     let (range, first) = lent.expect("addresses and table pages");
///     // ... the device reads at `first`, and is done some time ...
///     space.unmap_range(range).expect("the unit answered");
/// }
/// ```
///
/// *Context.* Interrupt: a value.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is mapped stays reachable"]
pub struct DmaRange {
    pub(super) range: IovaRange,
    pub(super) space: TableId,
}

impl DmaRange {
    /// The addresses, whole granules.
    #[inline]
    pub fn addresses(&self) -> IovaRange {
        self.range
    }
}

/// Reason for which a space is not lazy whose devices are not all trusted.
const NOT_TRUSTED: &str =
    "A device that is not trusted would reach memory that is its driver's again.";

/// Debt of a map that has to be paid before a device uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapsOwe {
    Nothing,
    Sync,
}

/// A domain, the addresses in it, and the ranges that wait for their invalidation.
///
/// ```no_run
/// # use portolan::dma::{DmaSpace, Policy, SpaceError, SpaceOptions};
/// # use portolan::iommu::BoundDomain;
/// # use portolan::platform::Platform;
/// # use std::sync::Arc;
/// /// A space for devices whose drivers reclaim many buffers at once.
/// fn space<P: Platform>(domain: BoundDomain, platform: P) -> Result<Arc<DmaSpace<P>>, SpaceError> {
///     let mut options = SpaceOptions::default();
///     options.policy = Policy::Deferred;
///     DmaSpace::new(domain, platform, &options).map(Arc::new)
/// }
/// ```
///
/// *Locking.* Each CPU has its own addresses and its own queue; CPUs meet where those run out. No
/// lock is held while hardware is waited for.
///
/// *Failure.* When the hardware does not complete an invalidation in time, the space is *broken*:
/// nothing more is mapped, ranges that are not known to be quiet stay out of use until
/// [`DmaSpace::recover`] succeeds, and the next [`DmaSpace::tick`] blocks its streams.
///
/// A domain has one space at a time: another one is refused until this is gone.
///
/// *Drop.* Task. It pays for the waiting ranges, so that table pages come back; if the hardware
/// fails, they stay allocated, and the domain gets no other space.
pub struct DmaSpace<P: Cpus + Clone> {
    pub(super) domain: Arc<dyn Domain>,
    pub(super) bound: BoundDomain,
    pub(super) cpus: P,
    pub(super) iova: IovaSpace<P>,
    pub(super) pending: FlushQueue<P>,
    pub(super) policy: Policy,
    pub(super) members: MembersTrust<P>,
    lazy_refused: Option<&'static str>,
    granule: PageSize,
    write_only: Access,
    read_only: Access,
    maps_owe: MapsOwe,
    id: TableId,
    pub(super) broken: P::Word,
    pub(super) why: P::Lock<Option<IommuError>>,
    pub(super) streams: P::Lock<SpaceStreams>,
    pub(super) regions: P::Lock<Regions>,
    pub(super) lost: Lost,
    retired: RetiredBuffers<P>,
    tables: TablesThatStay<P::Word>,
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// A space on CPUs that the caller has promised.
    pub(super) fn on(
        bound: BoundDomain,
        cpus: P,
        options: &SpaceOptions,
    ) -> Result<Self, SpaceError> {
        let domain = bound.domain().clone();
        let granule = domain.granule();
        let window =
            options.window.intersection(domain.input_range()).ok_or(SpaceError::NoAddresses)?;
        let grants = |access| domain.grants(access).ok_or(SpaceError::NoAccess);
        let (write_only, read_only) = (grants(Access::WRITE)?, grants(Access::READ)?);
        let iova = IovaSpace::new(cpus.clone(), window, granule, options.iova)?;
        let pending = FlushQueue::new(&cpus, options.bounds, options.turn_timeout, granule);
        let pending = pending.map_err(|_| SpaceError::Memory)?;
        // Nothing fails after this; the space gives it back.
        if !domain.claim().take() {
            return Err(SpaceError::Claimed);
        }
        let (policy, lazy_refused) = match (options.policy, options.trust) {
            (Policy::Lazy, Some(Trust::Untrusted)) => (Policy::Strict, Some(NOT_TRUSTED)),
            _ => accepted(options.policy, options.shadowing, domain.shadowing()),
        };
        Ok(Self {
            write_only,
            read_only,
            maps_owe: maps_owe(&*domain, window),
            iova,
            pending,
            policy,
            members: MembersTrust::new(options.trust),
            lazy_refused,
            granule,
            id: domain.id(),
            broken: SharedWord::new(0),
            why: Lock::new(None),
            streams: Lock::new(SpaceStreams::new()),
            regions: Lock::new(Regions::new()),
            lost: Lost::default(),
            retired: RetiredBuffers::new(options.dropped_buffers),
            tables: TablesThatStay::new(options.keep_tables),
            bound,
            domain,
            cpus,
        })
    }

    /// The policy.
    ///
    /// *Context.* Interrupt.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Reason for which the space is strict although lazy was asked for; `None` if it is as was
    /// asked.
    ///
    /// *Context.* Interrupt.
    pub fn lazy_refused(&self) -> Option<&'static str> {
        self.lazy_refused
    }

    /// The smallest page.
    ///
    /// *Context.* Interrupt.
    #[inline]
    pub fn granule(&self) -> PageSize {
        self.granule
    }

    /// Numbers of addresses, by their state.
    ///
    /// *Context.* Task.
    pub fn address_stats(&self) -> IovaStats {
        self.iova.stats()
    }

    /// Gives the addresses that CPUs keep for themselves back to all.
    ///
    /// *Context.* Task.
    pub fn trim_addresses(&self) {
        self.iova.trim_all();
    }

    /// Buffers and addresses that were given up so far.
    ///
    /// *Context.* Interrupt.
    pub fn quarantine(&self) -> Quarantine {
        self.lost.get()
    }

    /// Addresses that wait for their invalidation, in ranges, and bytes not yet being flushed.
    ///
    /// *Context.* Interrupt.
    pub fn waiting(&self) -> (usize, u64) {
        self.pending.held()
    }

    /// Error by which the space is broken, if it is.
    ///
    /// *Context.* Interrupt.
    #[inline]
    pub fn failure(&self) -> Option<IommuError> {
        match self.broken.load(Ordering::Relaxed) {
            0 => None,
            _ => self.why.with(|why| *why),
        }
    }

    /// Returns the present use of `iova`. Addresses that are being flushed at this moment count as
    /// unused.
    ///
    /// ```
    /// # use portolan::dma::{DmaSpace, IovaUse};
    /// # use portolan::iommu::FaultRecord;
    /// # use portolan::platform::Platform;
    /// fn explain<P: Platform>(space: &DmaSpace<P>, fault: &FaultRecord) -> &'static str {
    ///     match fault.iova.map(|iova| space.find(iova)) {
    ///         Some(IovaUse::Mapped(_)) => "mapped, but not for this kind of access",
    ///         Some(IovaUse::Deferred { .. }) => "the device used a buffer that was unmapped",
    ///         _ => "the device used an address that it never got",
    ///     }
    /// }
    /// ```
    ///
    /// *Context.* Interrupt: one walk, and one look at the waiting ranges in each CPU's queue.
    pub fn find(&self, iova: Iova) -> IovaUse {
        if let Some(found) = self.domain.translate(iova) {
            return IovaUse::Mapped(found);
        }
        let held = || self.regions.with(|known| known.held_with(iova));
        if let Some(range) = self.pending.find(iova).or_else(held) {
            return IovaUse::Deferred { range };
        }
        if let Some(range) = self.regions.with(|known| known.set_aside(iova)) {
            return IovaUse::Reserved { range };
        }
        match self.iova.window().contains(iova) {
            true => IovaUse::Unused,
            false => IovaUse::Outside,
        }
    }

    /// Reports pieces that were mapped one behind the other from `at`.
    #[inline]
    pub(super) fn trace_map(&self, at: Iova, pieces: &[PhysRange]) {
        if let Some(tracer) = self.cpus.tracer() {
            trace::table_mapped(tracer, self.granule, at, pieces);
        }
    }

    /// Reports a range that was unmapped.
    #[inline]
    pub(super) fn trace_unmap(&self, range: IovaRange) {
        if let Some(tracer) = self.cpus.tracer() {
            trace::table_unmapped(tracer, range);
        }
    }

    /// The oldest thing that the space's unit has to say of refused accesses, which is reported to
    /// the tracer. A unit's other spaces share its records.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// As [`Iommu::next_fault`](crate::iommu::Iommu::next_fault).
    pub fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        let event = self.bound.unit().next_fault()?;
        if let (Some(FaultEvent::Fault(fault)), Some(tracer)) = (event, self.cpus.tracer()) {
            trace::fault(tracer, &fault);
        }
        Ok(event)
    }

    /// Checks that `range` is of this space.
    #[inline]
    pub(super) fn check(&self, range: &DmaRange) -> Result<(), UnmapError> {
        if range.space == self.id { Ok(()) } else { Err(UnmapError::OtherSpace) }
    }
}

impl<P: Platform> DmaSpace<P> {
    /// A space over `bound`, of which nothing is mapped.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`SpaceError`].
    pub fn new(bound: BoundDomain, cpus: P, options: &SpaceOptions) -> Result<Self, SpaceError> {
        Self::on(bound, cpus, options)
    }
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// As [`DmaSpace::new`], on CPUs that are no [`Platform`]'s. `_base` is the promise for them.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`SpaceError`].
    pub fn with_cpus(
        bound: BoundDomain,
        cpus: P,
        options: &SpaceOptions,
        _base: TrustedBase,
    ) -> Result<Self, SpaceError> {
        Self::on(bound, cpus, options)
    }
}

/// Tells if maps owe a sync: asks with a debt as a map leaves it, of addresses and lines of tables.
fn maps_owe(domain: &dyn Domain, window: IovaRange) -> MapsOwe {
    let mut owed = Gather::new();
    owed.add_mapped(window, domain.granule());
    let line = PhysRange::page(PhysAddr::new(0), PageSize::of_lg2(0));
    let _ = owed.add_lines(line);
    match domain.is_due(&owed) {
        true => MapsOwe::Sync,
        false => MapsOwe::Nothing,
    }
}

impl<P: Cpus + Clone> core::fmt::Debug for DmaSpace<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut shown = f.debug_struct("DmaSpace");
        shown.field("id", &self.id).field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<P: Cpus + Clone> Drop for DmaSpace<P> {
    fn drop(&mut self) {
        // Addresses that are not quiet must not become another space's.
        if self.flush().is_ok() {
            self.domain.claim().give_back();
        }
    }
}
