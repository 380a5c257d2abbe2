//! An address space with addresses to give out and a policy.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::default::accepted;
use super::error::{MapError, SpaceError, UnmapError};
use super::flush_queue::{FlushQueue, LazyBounds};
use super::layout::Layout;
use super::list::List;
use super::policy::MayBlock;
use super::quarantine::{Lost, Quarantine};
use super::range::DmaRange;
use super::streams::{Regions, Streams};
use super::trust::MembersTrust;
use super::waiting::Wait;
use super::{Constraints, Policy, Trust};
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange, TableId};
use crate::inval::Gather;
use crate::iommu::{BoundDomain, Domain, IommuError, Shadowing};
use crate::iova::{FreeError, IovaError, IovaOptions, IovaSpace, IovaStats, Request};
use crate::platform::contract::{Buffer, DmaMemory, MemoryKind, Unowned, hidden_from};
use crate::platform::{Cpus, Lock, Nanos, SharedWord};
use crate::table::Access;

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
    /// With so many table pages or fewer, tables that become empty stay in place; more than those
    /// go back to their memory once they are quiet.
    pub keep_tables: usize,
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
            iova: IovaOptions::default(),
        }
    }
}

/// Error of placing pieces.
pub(super) struct NotPlaced {
    pub error: MapError,
    /// Wait for them if a device may have reached them.
    pub held: Option<Wait>,
}

impl<E: Into<MapError>> From<E> for NotPlaced {
    #[inline]
    fn from(error: E) -> Self {
        let (error, held) = (error.into(), None);
        Self { error, held }
    }
}

/// Reason for which a space is not lazy whose devices are not all trusted.
const NOT_TRUSTED: &str =
    "A device that is not trusted would reach memory that is its driver's again.";

/// The most ranges that fill the room between pieces: of 2 MiB for each of many pages.
const MOST_FILLS: usize = 1 << 16;

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
    pub(super) streams: P::Lock<Streams>,
    pub(super) regions: P::Lock<Regions>,
    pub(super) lost: Lost,
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
        domain.keep_empty_tables(options.keep_tables);
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
            streams: Lock::new(Streams::new()),
            regions: Lock::new(Regions::new()),
            lost: Lost::default(),
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

    /// Maps memory for a driver that keeps its buffers itself; the first address has the offset of
    /// the memory in its page.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// See [`MapError`]. After [`MapError::Iommu`] and [`MapError::Busy`] a device may have reached
    /// the memory, and may do so until the space has been flushed.
    #[inline]
    pub fn map_range(
        &self,
        memory: Unowned,
        access: Access,
        constraints: &Constraints,
    ) -> Result<(DmaRange, Iova), MapError> {
        if let Some(piece) = hidden_from(constraints.reach, &memory) {
            return Err(MapError::Private { piece });
        }
        let judged;
        let constraints = match self.trust() {
            Some(Trust::Trusted) => constraints,
            _ => {
                judged = self.judged(constraints);
                &judged
            }
        };
        let access = match memory.memory_kind() {
            MemoryKind::Registers => access.union(Access::DEVICE),
            MemoryKind::Cached | MemoryKind::Uncached => access,
        };
        let (range, first) = self.place_kept(memory.memory(), access, constraints)?;
        let space = self.id;
        Ok((DmaRange { range, space }, first))
    }

    /// The same, for a caller that keeps the memory in any case.
    #[inline]
    pub(super) fn place_kept(
        &self,
        memory: PhysRange,
        access: Access,
        constraints: &Constraints,
    ) -> Result<(IovaRange, Iova), MapError> {
        self.place_one(memory, access, constraints).map_err(|failed| {
            if let Some(wait) = failed.held {
                self.keep(&wait);
            }
            failed.error
        })
    }

    /// The same of memory that the library keeps.
    #[inline]
    pub(super) fn place_one(
        &self,
        memory: PhysRange,
        access: Access,
        constraints: &Constraints,
    ) -> Result<(IovaRange, Iova), NotPlaced> {
        let pieces = core::slice::from_ref(&memory);
        let layout = Layout::new(Iova::new(0), self.granule, constraints);
        let range = self.place_by(layout, pieces, access, constraints, MayBlock::Yes)?;
        let placed = layout.from(range.start()).place(memory);
        Ok((range, Iova::new(placed.first)))
    }

    /// Access that a device has to be granted to have `access`.
    pub(super) fn granted(&self, access: Access) -> Access {
        if access == Access::WRITE {
            self.write_only
        } else if access == Access::READ {
            self.read_only
        } else if access.contains(Access::DEVICE) {
            self.granted_registers(access)
        } else {
            access
        }
    }

    #[cold]
    fn granted_registers(&self, access: Access) -> Access {
        // A table that knows no kinds of memory leaves them to the rest of the machine.
        let granted = self.domain.grants(access);
        granted.unwrap_or_else(|| self.granted(access - Access::DEVICE))
    }

    /// Maps `pieces`, each in pages of its own, in one range, as [`Layout`] says.
    #[inline]
    pub(super) fn place(
        &self,
        pieces: &[PhysRange],
        access: Access,
        constraints: &Constraints,
        may_block: MayBlock,
    ) -> Result<IovaRange, NotPlaced> {
        let layout = Layout::new(Iova::new(0), self.granule, constraints);
        self.place_by(layout, pieces, access, constraints, may_block)
    }

    #[inline]
    fn place_by(
        &self,
        layout: Layout,
        pieces: &[PhysRange],
        access: Access,
        constraints: &Constraints,
        may_block: MayBlock,
    ) -> Result<IovaRange, NotPlaced> {
        let addresses = |bytes, limits: &Constraints| self.allocate(bytes, limits, may_block);
        match layout.is_dense() {
            true => self.place_dense(pieces, access, constraints, may_block, addresses),
            false => self.place_apart(pieces, access, constraints, may_block, addresses, layout),
        }
    }

    /// The same from the page at `page` on.
    pub(super) fn place_at(
        &self,
        page: Iova,
        pieces: &[PhysRange],
        access: Access,
        constraints: &Constraints,
    ) -> Result<IovaRange, NotPlaced> {
        let addresses = |bytes, limits: &Constraints| {
            let granule = IovaRange::page(page, self.granule);
            let aligned = page.is_aligned(limits.align.max(self.granule));
            let range = IovaRange::from_len(page, bytes).filter(|_| aligned);
            let range = range.ok_or(MapError::Outside { range: granule })?;
            self.take_chosen(range, limits, || self.iova.alloc_at(range))?;
            Ok(range)
        };
        let layout = Layout::new(Iova::new(0), self.granule, constraints);
        let may_block = MayBlock::Yes;
        match layout.is_dense() {
            true => self.place_dense(pieces, access, constraints, may_block, addresses),
            false => self.place_apart(pieces, access, constraints, may_block, addresses, layout),
        }
    }

    /// Takes addresses that the caller chose; those that wait for an invalidation are waited for.
    pub(super) fn take_chosen(
        &self,
        range: IovaRange,
        constraints: &Constraints,
        take: impl Fn() -> Result<(), FreeError>,
    ) -> Result<(), MapError> {
        if !self.iova.window().covers(range) || range.last() > constraints.dma_mask {
            return Err(MapError::Outside { range });
        }
        let taken = self.or_flushed(take);
        taken.map_err(|error| match error {
            FreeError::Memory => MapError::Iova(IovaError::Memory),
            _ => MapError::Taken { range },
        })
    }

    /// The same where pieces may have to lie apart.
    #[cold]
    fn place_apart(
        &self,
        pieces: &[PhysRange],
        access: Access,
        constraints: &Constraints,
        may_block: MayBlock,
        addresses: impl FnOnce(u64, &Constraints) -> Result<IovaRange, MapError>,
        layout: Layout,
    ) -> Result<IovaRange, NotPlaced> {
        self.measure(pieces, constraints)?;
        let count = layout.count(pieces);
        if count - pieces.len() > MOST_FILLS {
            return Err(MapError::Records.into());
        }
        let list = List::gather(layout.filled(pieces), count, may_block)?;
        let bytes = self.measure(list.as_slice(), constraints)?;
        let constraints =
            Constraints { align: constraints.align.max(layout.alignment(bytes)), ..*constraints };
        self.place_dense(list.as_slice(), access, &constraints, may_block, addresses)
    }

    /// Maps `pieces`, each in pages of its own, at contiguous addresses.
    #[inline]
    fn place_dense(
        &self,
        pieces: &[PhysRange],
        access: Access,
        constraints: &Constraints,
        may_block: MayBlock,
        addresses: impl FnOnce(u64, &Constraints) -> Result<IovaRange, MapError>,
    ) -> Result<IovaRange, NotPlaced> {
        let bytes = self.measure(pieces, constraints)?;
        if may_block == MayBlock::No && self.maps_owe == MapsOwe::Sync {
            return Err(MapError::WouldWait.into());
        }
        let range = addresses(bytes, constraints)?;
        let mut owed = Gather::new();
        if may_block == MayBlock::Yes {
            owed.pay_before_use();
        }
        let access = self.granted(access);
        // They are a buffer's, a pool's, or memory that a caller has promised.
        let memory = DmaMemory::all_promised(pieces);
        let mut mapped = self.domain.map_sg(range.start(), memory, access, &mut owed);
        if let Err(error) = &mapped {
            if may_block == MayBlock::Yes && self.ends_by_flush(error) {
                mapped = self.domain.map_sg(range.start(), memory, access, &mut owed);
            }
        }
        if let Err(error) = mapped {
            if !owed.is_empty() {
                self.owe(owed);
            }
            self.give_back_unused(range);
            return Err(error.into());
        }
        self.trace_map(range.start(), pieces);
        let owes = self.maps_owe == MapsOwe::Sync || owed.holds_tables();
        if owes && self.domain.is_due(&owed) {
            self.after_map(range, &mut owed, may_block)?;
        }
        Ok(range)
    }

    /// Pays the debt of a map of `range`; if that fails, takes the mapping away again.
    fn after_map(
        &self,
        range: IovaRange,
        owed: &mut Gather,
        may_block: MayBlock,
    ) -> Result<(), NotPlaced> {
        let error = match may_block {
            MayBlock::No => MapError::WouldWait,
            MayBlock::Yes => match self.domain.sync(owed) {
                Ok(_) => return Ok(()),
                Err(error) => MapError::of(error.into()),
            },
        };
        // It was mapped just now, and no other caller knows of it.
        let unmapped = self.domain.unmap(range, owed);
        let owed = core::mem::take(owed);
        let held = match unmapped {
            Ok(()) => {
                self.trace_unmap(range);
                self.hold(range, owed)
            }
            Err(_) => self.hold_mapped(owed),
        };
        if let MapError::Iommu(error) = error {
            self.fail(error);
        }
        let held = Some(held);
        Err(NotPlaced { error, held })
    }

    /// The bytes of the pages that `pieces` need: one page for each, added once, and those behind it.
    #[inline]
    fn measure(&self, pieces: &[PhysRange], constraints: &Constraints) -> Result<u64, MapError> {
        if let Some(error) = self.failure() {
            return Err(MapError::Broken(error));
        }
        let mut pages = pieces.len() as u64;
        let inside = self.granule.bytes() - 1;
        for &piece in pieces {
            let uneven = (piece.start().get() | piece.last().get().wrapping_add(1)) & inside != 0;
            if uneven && constraints.trust == Trust::Untrusted {
                return Err(MapError::SubPage { piece });
            }
            pages = pages.saturating_add(piece.pages_minus_one(self.granule));
        }
        match pages.checked_mul(self.granule.bytes()) {
            Some(0) => Err(MapError::Empty),
            Some(bytes) => Ok(bytes),
            None => Err(MapError::TooLong),
        }
    }

    /// Addresses for `bytes`.
    #[inline]
    pub(super) fn allocate(
        &self,
        bytes: u64,
        constraints: &Constraints,
        may_block: MayBlock,
    ) -> Result<IovaRange, MapError> {
        let align = constraints.align.max(self.granule);
        let request = Request { bytes, align, limit: constraints.dma_mask };
        if may_block == MayBlock::No {
            return self.allocate_sparing(&request);
        }
        self.replenish();
        match self.iova.alloc(&request) {
            Ok(range) => Ok(range),
            Err(error) if self.ends_by_flush(&error) => Ok(self.iova.alloc(&request)?),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that `range` is of this space.
    #[inline]
    pub(super) fn check(&self, range: &DmaRange) -> Result<(), UnmapError> {
        if range.space == self.id { Ok(()) } else { Err(UnmapError::OtherSpace) }
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

impl<P: Cpus + Clone> Drop for DmaSpace<P> {
    fn drop(&mut self) {
        // Addresses that are not quiet must not become another space's.
        if self.flush().is_ok() {
            self.domain.claim().give_back();
        }
    }
}
