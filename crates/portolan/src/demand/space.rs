//! The container: a domain, its regions, and its debts.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::account::{Counters, Limited, Limits, Quantity, Usage};
use super::debt::{Debts, Generation, Unpaid};
use super::error::{DomainClaimed, RecoverError, RegionError, RemoveError};
use super::owner::Pager;
use super::premap::{Detector, Window};
use super::region::{Region, RegionOptions, Residency, SlotPhase};
use crate::addr::{Iova, IovaRange};
use crate::inval::Gather;
use crate::iommu::Domain;
use crate::platform::{Cpus, Lock, Nanos, TrustedBase};

/// Options of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoasOptions {
    /// Limits of its memory.
    pub limits: Limits,
    /// Granules that a fault maps.
    pub window: Window,
    /// Longest time that a fault waits for memory around it that is being taken back, and that a
    /// caller that takes memory back waits for others that do so there.
    pub timeout: Nanos,
    /// Number of times that a fault populates again because memory was taken back meanwhile.
    pub retries: u32,
}

impl Default for IoasOptions {
    /// No limits, page by page, a second's timeout, 64 retries.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            window: Window::Page,
            timeout: Nanos::from_millis(1000),
            retries: 64,
        }
    }
}

/// The memory that devices of one domain may use.
///
/// ```no_run
/// # use portolan::addr::IovaRange;
/// # use portolan::demand::{Ioas, IoasOptions, Pager, RegionOptions, Residency};
/// # use portolan::iommu::Domain;
/// # use portolan::platform::{Platform, TrustedBase};
/// # use portolan::table::Access;
/// # use std::sync::Arc;
/// /// A guest's memory, of which a device reaches a part from the time on at which it asks for it.
/// fn guest<D: Domain, O: Pager, P: Platform>(
///     domain: Arc<D>, memory: O, range: IovaRange, platform: P, base: TrustedBase,
/// ) -> Option<Ioas<D, O, P>> {
///     let space = Ioas::new(domain, platform, IoasOptions::default(), base).ok()?;
///     let (access, hold) = (Access::READ | Access::WRITE, Residency::OnDemand);
///     space.add_region(&RegionOptions { range, access, hold }, memory).ok()?;
///     Some(space)
/// }
/// ```
///
/// *Locking.* Methods may be called from any CPU. While a lock is held nothing is waited for,
/// mapped, unmapped or allocated, and the owner is not called. No other space has the domain
/// meanwhile; code that maps in it by itself leaves the regions alone.
#[derive(Debug)]
pub struct Ioas<D: Domain, O: Pager, P: Cpus> {
    pub(super) domain: Arc<D>,
    pub(super) cpus: P,
    pub(super) options: IoasOptions,
    /// In order of address.
    regions: P::Lock<Vec<Arc<Region<O, P>>>>,
    pub(super) detector: P::Lock<Detector>,
    /// Debts that the hardware did not complete.
    pub(super) debts: Debts<P>,
    /// Generation with the debt of cleared marks, if the hardware did not complete that.
    pub(super) marks: P::Lock<Option<Generation>>,
    pub(super) pinned: Quantity,
    pub(super) mapped: Quantity,
    /// Taken back, and not quiet.
    pub(super) leaving: Quantity,
    pub(super) counters: Counters,
}

impl<D: Domain, O: Pager, P: Cpus> Ioas<D, O, P> {
    /// A container without regions. `_base` is the promise for domain and CPUs: pagers hand over memory by theirs,
    /// and take it back once the domain's sync says so.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`DomainClaimed`], with domain and CPUs: a domain has one space at a time, for good if its last one went
    /// before its addresses were quiet.
    pub fn new(
        domain: Arc<D>,
        cpus: P,
        options: IoasOptions,
        _base: TrustedBase,
    ) -> Result<Self, DomainClaimed<D, P>> {
        // Nothing fails after this; the container gives it back.
        if !domain.claim().take() {
            return Err(DomainClaimed { domain, cpus });
        }
        Ok(Self {
            domain,
            cpus,
            options,
            regions: Lock::new(Vec::new()),
            detector: Lock::new(Detector::new(options.window)),
            debts: Debts::new(),
            marks: Lock::new(None),
            pinned: Quantity::new(Limited::Pinned, options.limits.pinned),
            mapped: Quantity::new(Limited::Mapped, options.limits.mapped),
            leaving: Quantity::new(Limited::Mapped, u64::MAX),
            counters: Counters::default(),
        })
    }

    /// The domain.
    ///
    /// *Context.* Interrupt.
    pub fn domain(&self) -> &Arc<D> {
        &self.domain
    }

    /// Counts since its start, and the memory that it holds.
    ///
    /// *Context.* Interrupt.
    pub fn usage(&self) -> Usage {
        let (pinned, mapped) = (self.pinned.used(), self.mapped.used());
        self.counters.read(pinned, mapped, self.leaving.used())
    }

    /// The region at `iova`.
    pub(super) fn region_at(&self, iova: Iova) -> Option<Arc<Region<O, P>>> {
        let found = self.next_region(iova)?;
        found.range.contains(iova).then_some(found)
    }

    /// The region at `iova`, or the next one above.
    pub(super) fn next_region(&self, iova: Iova) -> Option<Arc<Region<O, P>>> {
        self.regions.with(|regions| {
            let at = regions.partition_point(|region| region.range.last() < iova);
            regions.get(at).cloned()
        })
    }

    /// Pays `owed`, and older debts if no other caller does; `needs` is quiet afterwards.
    pub(super) fn settle(&self, owed: Gather, needs: Option<Generation>) -> Result<(), Unpaid> {
        let (cpus, timeout) = (&self.cpus, self.options.timeout);
        self.debts.settle(cpus, timeout, &*self.domain, owed, needs)
    }

    /// Pays the debts that the hardware did not complete before. Ranges that could not be taken
    /// back then are quiet afterwards; each opens once it is taken back again, which does not fail
    /// for that reason any more.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// See [`RecoverError`]: all of it is still owed.
    pub fn recover(&self) -> Result<(), RecoverError> {
        let Some(newest) = self.debts.newest() else {
            return Ok(());
        };
        let settled = self.settle(Gather::new(), Some(newest));
        settled.map_err(|unpaid| unpaid.cause.into())
    }

    fn check(&self, options: &RegionOptions<'_>) -> Result<Vec<IovaRange>, RegionError> {
        let range = options.range;
        let granule = self.domain.granule();
        let whole = |range: IovaRange| {
            let after = range.last().checked_add(1);
            let ends = after.is_none_or(|after| after.is_aligned(granule));
            match range.start().is_aligned(granule) && ends {
                true => Ok(()),
                false => Err(RegionError::Unaligned { range }),
            }
        };
        whole(range)?;
        if !self.domain.input_range().covers(range) {
            return Err(RegionError::OutOfRange { range });
        }
        let parts = match options.hold {
            Residency::Pinned => core::slice::from_ref(&options.range),
            Residency::OnDemand => &[],
            Residency::Selective(parts) => parts,
        };
        let mut pinned = Vec::new();
        let no_memory = RegionError::NoMemory { slots: 0 };
        (pinned.try_reserve_exact(parts.len())).map_err(|_| no_memory)?;
        pinned.extend_from_slice(parts);
        pinned.sort_unstable_by_key(|part: &IovaRange| part.start());
        for (at, part) in pinned.iter().enumerate() {
            whole(*part)?;
            let before = at.checked_sub(1).and_then(|at| pinned.get(at));
            if !range.covers(*part) || before.is_some_and(|before| before.overlaps(*part)) {
                return Err(RegionError::Overlaps { range: *part });
            }
        }
        Ok(pinned)
    }

    /// Adds a region, and pins and maps the parts of it that are to be pinned. Faults in it are
    /// served once this has returned.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`RegionError`]; there is no such region then, unless devices may still reach memory
    /// that was pinned for it.
    pub fn add_region(&self, options: &RegionOptions<'_>, owner: O) -> Result<(), RegionError> {
        let pinned = self.check(options)?;
        let access = options.access;
        let granted = (self.domain.grants(access)).ok_or(RegionError::Access { access })?;
        let granted = RegionOptions { access: granted, ..*options };
        let granule = self.domain.granule();
        let region = Arc::new(Region::<O, P>::new(&granted, owner, pinned, granule)?);
        self.insert(&region)?;
        if let Err(error) = self.pin_all(&region) {
            return Err(self.unwind(&region, error));
        }
        for part in region.parts(region.range) {
            region.with(part.slot, |slot| {
                slot.resume = SlotPhase::Open;
                if slot.phase == SlotPhase::Closed {
                    slot.phase = SlotPhase::Open;
                }
            });
        }
        region.complete.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Adds a region to the list, whose memory is made without its lock.
    fn insert(&self, region: &Arc<Region<O, P>>) -> Result<(), RegionError> {
        let range = region.range;
        let mut room = Vec::new();
        loop {
            let wanted = self.regions.with(|regions| {
                let at = regions.partition_point(|other| other.range.last() < range.start());
                let next = regions.get(at);
                if next.is_some_and(|next| next.range.overlaps(range)) {
                    return Err(RegionError::Overlaps { range });
                }
                if regions.len() == regions.capacity() {
                    if room.capacity() <= regions.len() {
                        return Ok(Some(regions.len().saturating_mul(2).max(4)));
                    }
                    room.append(regions);
                    core::mem::swap(&mut room, regions);
                }
                regions.insert(at, region.clone());
                Ok(None)
            })?;
            let Some(count) = wanted else {
                return Ok(());
            };
            room = Vec::new();
            let no_memory = RegionError::NoMemory { slots: 0 };
            room.try_reserve_exact(count).map_err(|_| no_memory)?;
        }
    }

    /// Takes a region off the list; returns `true` if it was on it. The caller that took it off
    /// unpins.
    pub(super) fn forget(&self, region: &Arc<Region<O, P>>) -> bool {
        self.regions.with(|regions| {
            let before = regions.len();
            regions.retain(|other| !Arc::ptr_eq(other, region));
            before != regions.len()
        })
    }

    /// Removes the region that begins at `start`: when this returns, no device reaches its memory,
    /// and none of it is pinned any more. It takes no memory.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`RemoveError`].
    pub fn remove_region(&self, start: Iova) -> Result<(), RemoveError> {
        let region = self.region_at(start);
        let region = region.filter(|region| region.range.start() == start);
        let region = region.filter(|region| region.complete.load(Ordering::Relaxed));
        let region = region.ok_or(RemoveError::NoRegion { start })?;
        self.close(&region);
        self.take_back(&region, region.range)?;
        if !self.forget(&region) {
            return Err(RemoveError::NoRegion { start });
        }
        self.unpin_all(&region);
        Ok(())
    }

    /// Closes a region for good: its slots serve no fault any more.
    fn close(&self, region: &Region<O, P>) {
        for part in region.parts(region.range) {
            region.with(part.slot, |slot| {
                slot.resume = SlotPhase::Closed;
                if slot.phase == SlotPhase::Open {
                    slot.phase = SlotPhase::Closed;
                }
            });
        }
    }
}

impl<D: Domain, O: Pager, P: Cpus> Drop for Ioas<D, O, P> {
    /// Removes all regions. Memory that cannot be made quiet stays pinned, and the domain gets no
    /// other space.
    ///
    /// *Context.* Task.
    fn drop(&mut self) {
        let mut from = Some(Iova::new(0));
        while let Some(region) = from.and_then(|from| self.next_region(from)) {
            from = region.range.last().checked_add(1);
            let _ = self.remove_region(region.range.start());
        }
        let quiet = self.debts.newest().is_none();
        if quiet && self.regions.with(|regions| regions.is_empty()) {
            self.domain.claim().give_back();
        }
    }
}
