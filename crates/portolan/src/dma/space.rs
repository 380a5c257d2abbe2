//! An address space with addresses to give out and a policy.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

use super::buffer::{Placing, whole};
use super::error::{MapError, RetireError, SpaceError};
use super::pending::{Bounds, Fill, Pending, Ticket};
use super::{Constraints, Policy, Trust};
use crate::addr::{Iova, IovaRange, PageSize, PhysRange, StreamId};
use crate::inval::Gather;
use crate::iova::{IovaError, IovaOptions, IovaSpace, Request};
use crate::platform::{Cpus, Lock, Nanos, SharedWord};
use crate::table::Access;
use crate::unit::{Domain, Unit, UnitError};

/// How an address space is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceOptions {
    /// The addresses to give out; those that the domain cannot translate are left out.
    pub window: IovaRange,
    /// When unmaps are invalidated.
    pub policy: Policy,
    /// How much may wait for its invalidation, in each CPU's queue.
    pub bounds: Bounds,
    /// How long one CPU waits for another's flush. At least the unit's own limit.
    pub turn_limit: Nanos,
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
            bounds: Bounds::default(),
            turn_limit: Nanos::from_millis(2000),
            keep_tables: 256,
            iova: IovaOptions::default(),
        }
    }
}

/// What was given up instead of being reused too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quarantine {
    /// Mappings and retired buffers that were dropped instead of being unmapped or reclaimed; their
    /// memory is never freed.
    pub dropped: u64,
    /// The bytes of those.
    pub bytes: u64,
    /// Addresses that could not be given back for want of memory: ranges.
    pub addresses: u64,
}

#[derive(Debug, Default)]
struct Lost {
    dropped: AtomicU64,
    bytes: AtomicU64,
    addresses: AtomicU64,
}

/// A mapped range of one address space; not a number that can be copied, so that it is unmapped
/// once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is mapped stays reachable"]
pub struct DmaRange {
    range: IovaRange,
    space: u64,
}

impl DmaRange {
    /// The addresses, whole granules.
    pub fn addresses(&self) -> IovaRange {
        self.range
    }
}

/// Streams that reach memory through a space.
type Streams = Vec<(Arc<dyn Unit + Send + Sync>, StreamId)>;

/// A domain, the addresses in it, and what waits for its invalidation.
///
/// *Locking.* Each CPU has its own addresses and its own queue; CPUs meet where those run out. No
/// lock is held while hardware is waited for.
///
/// *Failure.* When the hardware does not complete an invalidation in time, the space is *broken*:
/// its streams are blocked, nothing more is mapped, and what is not known to be quiet stays out of
/// use until [`DmaSpace::recover`] succeeds.
pub struct DmaSpace<D: Domain, P: Cpus + Clone> {
    domain: Arc<D>,
    cpus: P,
    iova: IovaSpace<P>,
    pending: Pending<P>,
    policy: Policy,
    granule: PageSize,
    write_only: Access,
    read_only: Access,
    number: u64,
    broken: P::Word,
    why: P::Lock<Option<UnitError>>,
    streams: P::Lock<Streams>,
    lost: Lost,
}

/// Something that leads to a space and stays with its mappings: a reference or a count.
pub trait Handle: Deref<Target = DmaSpace<Self::Domain, Self::Cpus>> {
    /// The kind of domain.
    type Domain: Domain;
    /// The CPUs.
    type Cpus: Cpus + Clone;
}

impl<D: Domain, P: Cpus + Clone> Handle for &DmaSpace<D, P> {
    type Domain = D;
    type Cpus = P;
}

impl<D: Domain, P: Cpus + Clone> Handle for Arc<DmaSpace<D, P>> {
    type Domain = D;
    type Cpus = P;
}

/// Numbers spaces, so that a range is not unmapped in another's.
static NUMBER: AtomicU64 = AtomicU64::new(0);

impl<D: Domain, P: Cpus + Clone> DmaSpace<D, P> {
    /// A space over `domain`, of which nothing is mapped.
    ///
    /// # Errors
    /// See [`SpaceError`].
    pub fn new(domain: Arc<D>, cpus: P, options: &SpaceOptions) -> Result<Self, SpaceError> {
        let granule = domain.granule();
        let window = options
            .window
            .intersection(domain.input_range())
            .ok_or(SpaceError::NoAddresses)?;
        let grants = |access| domain.grants(access).ok_or(SpaceError::NoAccess);
        let memory = |_| SpaceError::Memory;
        domain.keep_empty_tables(options.keep_tables);
        Ok(Self {
            write_only: grants(Access::WRITE)?,
            read_only: grants(Access::READ)?,
            iova: IovaSpace::new(cpus.clone(), window, granule, options.iova)?,
            pending: Pending::new(&cpus, options.bounds, options.turn_limit).map_err(memory)?,
            policy: options.policy,
            granule,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            broken: SharedWord::new(0),
            why: Lock::new(None),
            streams: Lock::new(Vec::new()),
            lost: Lost::default(),
            domain,
            cpus,
        })
    }

    /// The domain.
    pub fn domain(&self) -> &Arc<D> {
        &self.domain
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The smallest page.
    pub fn granule(&self) -> PageSize {
        self.granule
    }

    /// The addresses.
    pub fn addresses(&self) -> &IovaSpace<P> {
        &self.iova
    }

    /// Sets `range` aside, so that no mapping gets it: for addresses with a meaning of their own.
    ///
    /// # Errors
    /// If part of it is in use or outside the window.
    pub fn reserve(&self, range: IovaRange) -> Result<(), crate::iova::FreeError> {
        self.iova.reserve(range)
    }

    /// What was given up so far.
    pub fn quarantine(&self) -> Quarantine {
        Quarantine {
            dropped: self.lost.dropped.load(Ordering::Relaxed),
            bytes: self.lost.bytes.load(Ordering::Relaxed),
            addresses: self.lost.addresses.load(Ordering::Relaxed),
        }
    }

    /// Mappings that were unmapped and are not quiet yet, and bytes not yet being flushed.
    pub fn waiting(&self) -> (usize, u64) {
        self.pending.held()
    }

    /// Why the space is broken, if it is.
    pub fn failure(&self) -> Option<UnitError> {
        match self.broken.load(Ordering::Acquire) {
            0 => None,
            _ => self.why.with(|why| *why),
        }
    }

    /// Maps memory for a driver that keeps its buffers itself; the first address has the offset of
    /// `memory` in its page.
    ///
    /// # Errors
    /// See [`MapError`].
    #[inline]
    pub fn map_range(
        &self,
        memory: PhysRange,
        access: Access,
        constraints: &Constraints,
    ) -> Result<(DmaRange, Iova), MapError> {
        let range = self.place(core::iter::once(memory), access, constraints)?;
        let inside = memory.start().get() & (self.granule.bytes() - 1);
        let first = Iova::new(range.range.start().get() | inside);
        Ok((range, first))
    }

    /// Unmaps. When it returns `Ok`, no device reaches the memory; under [`Policy::Lazy`] devices
    /// may, within the bounds.
    ///
    /// # Errors
    /// With the range if nothing was unmapped, so that it can be tried again. After
    /// [`RetireError::Unit`] there is no range: it is unmapped and stays out of use.
    #[inline]
    pub fn unmap_range(&self, range: DmaRange) -> Result<(), (RetireError, Option<DmaRange>)> {
        let kept = |(error, range)| (error, Some(range));
        match self.policy {
            Policy::Strict => self.take_down(range),
            Policy::Retired => {
                let ticket = self.retire(range).map_err(kept)?;
                self.settle(ticket).map_err(|error| (error, None))
            }
            Policy::Lazy => self.retire(range).map(|_| ()).map_err(kept),
        }
    }

    /// Pays for what has reached its age in every CPU's queue. Under [`Policy::Lazy`] a timer calls
    /// this at least as often as the bound on age wants it; under the others it frees what nobody
    /// waits for.
    ///
    /// # Errors
    /// Of the first queue that the hardware did not complete; the others have been tried.
    pub fn tick(&self) -> Result<(), RetireError> {
        self.flush_older(self.pending.age())
    }

    /// Pays for everything that waits.
    ///
    /// # Errors
    /// As [`DmaSpace::tick`].
    pub fn flush(&self) -> Result<(), RetireError> {
        self.flush_older(Nanos::new(0))
    }

    /// Tries again to make everything quiet after the hardware has failed; if that succeeds, the
    /// space can be used as before. Streams stay blocked until they are attached again.
    ///
    /// # Errors
    /// If the hardware still does not complete.
    pub fn recover(&self) -> Result<(), RetireError> {
        self.broken.store(0, Ordering::Release);
        self.flush()
    }

    fn flush_older(&self, age: Nanos) -> Result<(), RetireError> {
        let mut first = Ok(());
        for queue in 0..self.pending.len() {
            let ticket = self.pending.older_than(&self.cpus, queue, age);
            if let Some(ticket) = ticket {
                first = first.and(self.settle(ticket));
            }
        }
        first
    }

    /// What a device has to be granted to have `access`.
    pub(super) fn granted(&self, access: Access) -> Access {
        if access == Access::WRITE {
            self.write_only
        } else if access == Access::READ {
            self.read_only
        } else {
            access
        }
    }

    /// Maps `pieces`, each in pages of its own, at contiguous addresses.
    #[inline]
    pub(super) fn place<I>(
        &self,
        pieces: I,
        access: Access,
        constraints: &Constraints,
    ) -> Result<DmaRange, MapError>
    where
        I: Iterator<Item = PhysRange> + Clone,
    {
        let bytes = self.measure(pieces.clone(), constraints)?;
        let range = self.allocate(bytes, constraints)?;
        let mut owed = Gather::new();
        let granule = self.granule;
        let segments = pieces.map(|piece| whole(piece, granule));
        let access = self.granted(access);
        let mapped = self
            .domain
            .map_sg(range.start(), segments, access, &mut owed);
        if let Err(error) = mapped {
            self.give_back(&[range]);
            return Err(error.into());
        }
        self.after_map(range, owed)?;
        let space = self.number;
        Ok(DmaRange { range, space })
    }

    /// Pays what a map of `range` owes; if that fails, takes the mapping away again.
    pub(super) fn after_map(&self, range: IovaRange, mut owed: Gather) -> Result<(), MapError> {
        if !self.domain.is_due(&owed) {
            return Ok(());
        }
        let Err(error) = self.domain.sync(&mut owed) else {
            return Ok(());
        };
        let error = UnitError::from(error);
        let mut debt = owed;
        // It was mapped just now and is nobody else's: if it cannot be unmapped, it stays out of
        // use with what it owes.
        let _ = self.domain.unmap(range, &mut debt);
        self.pending.hold(&self.cpus, &*self.domain, range, debt);
        self.fail(error);
        Err(error.into())
    }

    /// The bytes of the pages that `pieces` need.
    #[inline]
    fn measure<I>(&self, pieces: I, constraints: &Constraints) -> Result<u64, MapError>
    where
        I: Iterator<Item = PhysRange>,
    {
        if let Some(error) = self.failure() {
            return Err(error.into());
        }
        let mut pages = 0u64;
        let inside = self.granule.bytes() - 1;
        for piece in pieces {
            let uneven = (piece.start().get() | piece.last().get().wrapping_add(1)) & inside != 0;
            if uneven && constraints.trust == Trust::Untrusted {
                return Err(MapError::SubPage { piece });
            }
            pages = pages.saturating_add(piece.pages(self.granule));
        }
        match pages.checked_mul(self.granule.bytes()) {
            Some(0) => Err(MapError::Empty),
            Some(bytes) => Ok(bytes),
            None => Err(MapError::TooLong),
        }
    }

    /// Addresses for `bytes`; if there are none, what waits is made quiet first.
    #[inline]
    pub(super) fn allocate(
        &self,
        bytes: u64,
        constraints: &Constraints,
    ) -> Result<IovaRange, MapError> {
        let align = constraints.align.max(self.granule);
        let request = Request {
            bytes,
            align,
            limit: constraints.limit,
        };
        match self.iova.alloc(&request) {
            Ok(range) => Ok(range),
            Err(error @ IovaError::Full { .. }) => {
                if self.pending.held().0 == 0 {
                    return Err(error.into());
                }
                // What cannot be made quiet cannot be given out: the error is that of the search.
                let _ = self.flush();
                Ok(self.iova.alloc(&request)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes addresses back that are quiet.
    pub(super) fn give_back(&self, ranges: &[IovaRange]) {
        let lost = self.iova.free_all(ranges);
        if lost != 0 {
            self.lost.addresses.fetch_add(lost, Ordering::Relaxed);
        }
    }

    /// Unmaps and pays at once.
    pub(super) fn take_down(&self, range: DmaRange) -> Result<(), (RetireError, Option<DmaRange>)> {
        if let Err(error) = self.check(&range) {
            return Err((error, Some(range)));
        }
        let mut owed = Gather::new();
        if let Err(error) = self.domain.unmap(range.range, &mut owed) {
            // A block that was broken and not made owes something.
            if !owed.is_empty() {
                self.settle_broken(owed);
            }
            return Err((error.into(), Some(range)));
        }
        match self.domain.sync(&mut owed) {
            Ok(()) => {
                self.give_back(&[range.range]);
                Ok(())
            }
            Err(error) => {
                let (error, debt) = (UnitError::from(error), owed);
                self.pending
                    .hold(&self.cpus, &*self.domain, range.range, debt);
                self.fail(error);
                Err((error.into(), None))
            }
        }
    }

    fn settle_broken(&self, mut owed: Gather) {
        if let Err(error) = self.domain.sync(&mut owed) {
            self.owe(owed);
            self.fail(error.into());
        }
    }

    /// Adds `owed` to what the next flush of the calling CPU's queue pays for.
    pub(super) fn owe(&self, owed: Gather) {
        self.pending.owe(&self.cpus, &*self.domain, owed);
    }

    /// What the policy wants of a blocking caller whose range has been retired.
    pub(super) fn finish(&self, ticket: Ticket) -> Result<(), RetireError> {
        match self.policy {
            Policy::Strict | Policy::Retired => self.settle(ticket),
            Policy::Lazy => Ok(()),
        }
    }

    fn check(&self, range: &DmaRange) -> Result<(), RetireError> {
        if range.space == self.number {
            Ok(())
        } else {
            Err(RetireError::OtherSpace)
        }
    }

    /// Unmaps, and adds the range to the CPU's queue, which is flushed if it has reached a bound.
    #[inline]
    pub(super) fn retire(&self, range: DmaRange) -> Result<Ticket, (RetireError, DmaRange)> {
        if let Err(error) = self.check(&range) {
            return Err((error, range));
        }
        match self.retire_mapped(range.range, range.range) {
            Ok(ticket) => Ok(ticket),
            Err(error) => Err((error, range)),
        }
    }

    /// Unmaps `mapped`, and adds `range`, of which that is all that was mapped, to the queue.
    #[inline]
    pub(super) fn retire_mapped(
        &self,
        mapped: IovaRange,
        range: IovaRange,
    ) -> Result<Ticket, RetireError> {
        loop {
            let (ticket, fill) = self
                .pending
                .retire(&self.cpus, &*self.domain, mapped, range)?;
            match fill {
                Some(Fill::Room) => return Ok(ticket),
                Some(Fill::Due) => {
                    // If this fails, whoever wants the range back hears of it.
                    let _ = self.settle(ticket);
                    return Ok(ticket);
                }
                None => self.settle(ticket)?,
            }
        }
    }

    /// Makes `ticket` quiet.
    pub(super) fn settle(&self, ticket: Ticket) -> Result<(), RetireError> {
        if self.pending.is_quiet(ticket) {
            return Ok(());
        }
        if let Some(error) = self.failure() {
            return Err(error.into());
        }
        let give_back = |ranges: &[IovaRange]| self.give_back(ranges);
        let settled = self
            .pending
            .settle(&self.cpus, &*self.domain, ticket, give_back);
        if let Err(RetireError::Unit(error)) = settled {
            self.fail(error);
        }
        settled
    }

    /// Whether `ticket` is quiet.
    #[inline]
    pub(super) fn is_quiet(&self, ticket: Ticket) -> bool {
        self.pending.is_quiet(ticket)
    }

    /// Counts a buffer that will never come back.
    pub(super) fn count_dropped(&self, bytes: u64) {
        self.lost.dropped.fetch_add(1, Ordering::Relaxed);
        self.lost.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Remembers that `stream` of `unit` reaches memory through this space.
    pub(super) fn join(
        &self,
        unit: Arc<dyn Unit + Send + Sync>,
        stream: StreamId,
    ) -> Result<(), alloc::collections::TryReserveError> {
        self.streams.with(|streams| {
            streams.try_reserve(1)?;
            streams.push((unit, stream));
            Ok(())
        })
    }

    /// Forgets `stream`.
    pub(super) fn leave(&self, stream: StreamId) {
        let kept = self.streams.with(|streams| {
            let at = streams.iter().position(|(_, known)| *known == stream);
            at.map(|at| streams.swap_remove(at))
        });
        drop(kept);
    }

    /// Marks the space as broken and blocks its streams. Only the first failure waits for that.
    #[cold]
    pub(super) fn fail(&self, error: UnitError) {
        self.why.with(|why| *why = Some(error));
        if self.broken.swap(1, Ordering::AcqRel) != 0 {
            return;
        }
        // Blocking waits for hardware: not under the lock, and without taking memory.
        let stream = |i| {
            self.streams
                .with(|streams: &mut Streams| streams.get(i).cloned())
        };
        let mut i = 0;
        while let Some((unit, stream)) = stream(i) {
            // A unit that cannot even block has stopped, or says so itself.
            let _ = unit.block(stream);
            i += 1;
        }
    }

    /// How the pieces of a mapping at `range` lie.
    pub(super) fn placing(range: &DmaRange) -> Placing {
        Placing::From(range.range.start())
    }
}

impl<D: Domain, P: Cpus + Clone> Drop for DmaSpace<D, P> {
    /// Pays for what waits, so that table pages come back. If the hardware fails, they stay
    /// allocated.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}
