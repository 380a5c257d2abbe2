//! The container: a domain, its regions, and what it owes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use super::account::{Counters, Limited, Limits, Quantity, Usage};
use super::error::{RegionError, RemoveError};
use super::owner::MemoryOwner;
use super::premap::{Detector, Window};
use super::region::{Hold, Phase, Region, RegionOptions};
use crate::addr::{Iova, IovaRange};
use crate::inval::Gather;
use crate::platform::{Cpus, Lock, Nanos};
use crate::unit::{Domain, UnitError};

/// How a container behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassthroughOptions {
    /// What it may hold.
    pub limits: Limits,
    /// What a fault maps.
    pub window: Window,
    /// How long a fault waits for memory around it that is being taken back.
    pub patience: Nanos,
    /// How often a fault populates again because memory was taken back meanwhile.
    pub retries: u32,
}

impl Default for PassthroughOptions {
    /// No limits, page by page, a second's patience, 64 retries.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            window: Window::Page,
            patience: Nanos::from_millis(1000),
            retries: 64,
        }
    }
}

/// The memory that devices of one domain may use.
///
/// *Locking.* Methods may be called from any CPU; no lock is held across a wait, and none while the
/// owner populates. Nobody else maps in the domain where regions are.
#[derive(Debug)]
pub struct Passthrough<D: Domain, O: MemoryOwner, P: Cpus> {
    pub(super) domain: Arc<D>,
    pub(super) cpus: P,
    pub(super) options: PassthroughOptions,
    /// In order of address.
    regions: P::Lock<Vec<Arc<Region<O, P>>>>,
    pub(super) detector: P::Lock<Detector>,
    /// What the hardware did not complete.
    debt: P::Lock<Gather>,
    in_debt: AtomicBool,
    pub(super) pinned: Quantity,
    pub(super) mapped: Quantity,
    pub(super) counters: Counters,
}

impl<D: Domain, O: MemoryOwner, P: Cpus> Passthrough<D, O, P> {
    /// A container without regions.
    pub fn new(domain: Arc<D>, cpus: P, options: PassthroughOptions) -> Self {
        Self {
            domain,
            cpus,
            options,
            regions: Lock::new(Vec::new()),
            detector: Lock::new(Detector::new(options.window)),
            debt: Lock::new(Gather::new()),
            in_debt: AtomicBool::new(false),
            pinned: Quantity::new(Limited::Pinned, options.limits.pinned),
            mapped: Quantity::new(Limited::Mapped, options.limits.mapped),
            counters: Counters::default(),
        }
    }

    /// The domain.
    pub fn domain(&self) -> &Arc<D> {
        &self.domain
    }

    /// What it did so far, and what it holds.
    pub fn usage(&self) -> Usage {
        self.counters.read(self.pinned.used(), self.mapped.used())
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

    /// Pays `owed`, and what is owed from before.
    pub(super) fn settle(&self, mut owed: Gather) -> Result<(), UnitError> {
        if self.in_debt.swap(false, Ordering::Acquire) {
            let mut older = self.debt.with(core::mem::take);
            // Both are of this domain.
            let _ = self.domain.absorb(&mut owed, &mut older);
        }
        self.domain.sync(&mut owed).map_err(|error| {
            self.keep(owed);
            error.into()
        })
    }

    /// Keeps a debt that was not paid.
    fn keep(&self, mut owed: Gather) {
        // Both are of this domain.
        let _ = self.debt.with(|debt| self.domain.absorb(debt, &mut owed));
        self.in_debt.store(true, Ordering::Release);
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
            Hold::Pinned => core::slice::from_ref(&options.range),
            Hold::OnDemand => &[],
            Hold::Selective(parts) => parts,
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

    /// Adds a region, and pins and maps what of it is to be pinned. Faults in it are served once
    /// this has returned.
    ///
    /// # Errors
    /// See [`RegionError`]; there is no such region then.
    pub fn add_region(&self, options: &RegionOptions<'_>, owner: O) -> Result<(), RegionError> {
        let pinned = self.check(options)?;
        let access = options.access;
        let granted = (self.domain.grants(access)).ok_or(RegionError::Access { access })?;
        let granted = RegionOptions {
            access: granted,
            ..*options
        };
        let granule = self.domain.granule();
        let region = Arc::new(Region::<O, P>::new(&granted, owner, pinned, granule)?);
        self.regions.with(|regions| {
            let range = region.range;
            let at = regions.partition_point(|other| other.range.last() < range.start());
            if regions
                .get(at)
                .is_some_and(|next| next.range.overlaps(range))
            {
                return Err(RegionError::Overlaps { range });
            }
            let no_memory = RegionError::NoMemory { slots: 0 };
            regions.try_reserve(1).map_err(|_| no_memory)?;
            regions.insert(at, region.clone());
            Ok(())
        })?;
        if let Err(error) = self.pin_all(&region) {
            self.forget(&region);
            return Err(error);
        }
        for part in region.parts(region.range) {
            region.with(part.slot, |slot| {
                slot.resume = Phase::Open;
                if slot.phase == Phase::Closed {
                    slot.phase = Phase::Open;
                }
            });
        }
        region.complete.store(true, Ordering::Release);
        Ok(())
    }

    fn forget(&self, region: &Arc<Region<O, P>>) {
        self.regions
            .with(|regions| regions.retain(|other| !Arc::ptr_eq(other, region)));
    }

    /// Removes the region that begins at `start`: when this returns, no device reaches its memory,
    /// and what was pinned of it is not any more.
    ///
    /// # Errors
    /// See [`RemoveError`].
    pub fn remove_region(&self, start: Iova) -> Result<(), RemoveError> {
        let region = self.region_at(start);
        let region = region.filter(|region| region.range.start() == start);
        let region = region.filter(|region| region.complete.load(Ordering::Acquire));
        let region = region.ok_or(RemoveError::NoRegion { start })?;
        self.take_back(&region, region.range, Phase::Closed)?;
        // Whoever takes it off the list is the one who unpins.
        let taken_off = self.regions.with(|regions| {
            let before = regions.len();
            regions.retain(|other| !Arc::ptr_eq(other, &region));
            before - regions.len()
        });
        if taken_off == 0 {
            return Err(RemoveError::NoRegion { start });
        }
        for part in &region.pinned {
            self.unpin(&region, *part);
        }
        Ok(())
    }
}

impl<D: Domain, O: MemoryOwner, P: Cpus> Drop for Passthrough<D, O, P> {
    /// Removes all regions. What cannot be made quiet stays pinned.
    fn drop(&mut self) {
        let mut from = Some(Iova::new(0));
        while let Some(region) = from.and_then(|from| self.next_region(from)) {
            from = region.range.last().checked_add(1);
            let _ = self.remove_region(region.range.start());
        }
    }
}
