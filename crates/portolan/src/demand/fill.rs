//! A fault: populate without a lock, then map if the memory was not taken back meanwhile.

use super::account::count;
use super::attempt::{Attempt, not_paid};
use super::bits::GranuleRun;
use super::error::FaultError;
use super::owner::Pager;
use super::premap::Requester;
use super::region::{Part, Region, SlotPhase};
use super::space::Ioas;
use crate::addr::{Iova, IovaRange};
use crate::inval::Gather;
use crate::iommu::Domain;
use crate::platform::{Cpus, poll};
use crate::table::Access;

/// Access that a device wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRequest {
    /// The stream, and PASID, of the device that asks.
    pub who: Requester,
    /// The address that faulted.
    pub iova: Iova,
    /// The access that the device wants.
    pub access: Access,
}

/// State in which a fault found its granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Already {
    /// It was not mapped.
    No,
    /// Another fault had mapped it.
    Yes,
}

/// Result of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// State in which the fault found its granule.
    pub already: Already,
    /// Granules that were mapped.
    pub granules: u64,
}

/// Result of a look at a slot.
enum Look {
    /// These granules are free, as of the sequence.
    Free { sequence: u64, run: GranuleRun },
    /// The granule that is wanted is mapped, or nothing else is free.
    Nothing,
}

impl<D: Domain, O: Pager, P: Cpus> Ioas<D, O, P> {
    /// Makes the granule that a device wants accessible. When this returns, the device may try
    /// again.
    ///
    /// *Context.* Task: the owner populates.
    ///
    /// # Errors
    /// See [`FaultError`]: the device is not to get the access.
    pub fn fault(&self, request: &FaultRequest) -> Result<Mapped, FaultError> {
        count(&self.counters.faults, 1);
        let served = self.serve(request);
        match served {
            Ok(mapped) if mapped.already == Already::Yes => count(&self.counters.spurious, 1),
            Ok(mapped) => {
                count(&self.counters.granules_mapped, mapped.granules);
                count(&self.counters.granules_premapped, mapped.granules - 1);
            }
            Err(_) => count(&self.counters.failed, 1),
        }
        served
    }

    fn serve(&self, request: &FaultRequest) -> Result<Mapped, FaultError> {
        let iova = request.iova.align_down(self.domain.granule());
        let region = self.region_at(iova).ok_or(FaultError::NoRegion { iova })?;
        let (wanted, allowed) = (request.access, region.access);
        if !allowed.contains(wanted) {
            return Err(FaultError::Denied { iova, wanted, allowed });
        }
        let page = IovaRange::page(iova, self.domain.granule());
        let (part, _) = (region.first_part(page)).ok_or(FaultError::NoRegion { iova })?;
        let granules = match self.look(&region, part, part.run)? {
            Look::Nothing => 0,
            Look::Free { .. } => self.fill_window(&region, part, iova, request.who)?,
        };
        if granules != 0 {
            let already = Already::No;
            return Ok(Mapped { already, granules });
        }
        // Another fault mapped it: its debt may be open.
        self.paid(&region, part.slot, iova)?;
        let already = Already::Yes;
        Ok(Mapped { already, granules })
    }

    /// Makes sure that others' maps in a slot are paid for, or fails: they pay for them now, or the
    /// hardware did not complete.
    fn paid(&self, region: &Region<O, P>, slot: usize, iova: Iova) -> Result<(), FaultError> {
        let look = || {
            region.with(slot, |slot| {
                (slot.filling == 0 && slot.unpaid == 0).then_some(slot.map_debt)
            })?
        };
        // The clock is read only where there is something to wait for.
        let debt = match look() {
            Some(debt) => debt,
            None => poll(&self.cpus, self.options.timeout, look)
                .map_err(|_| FaultError::Busy { iova })?,
        };
        if debt.is_none() {
            return Ok(());
        }
        let settled = self.settle(Gather::new(), debt);
        settled.map_err(|unpaid| not_paid(unpaid.cause, iova))
    }

    /// Maps the beginning of the run of `wish` that is free around `must`; `None` if `must` is
    /// mapped.
    pub(super) fn fill(
        &self,
        region: &Region<O, P>,
        wish: Part,
        must: GranuleRun,
    ) -> Result<Option<GranuleRun>, FaultError> {
        for _ in 0..=self.options.retries {
            let Look::Free { sequence, run } = self.look(region, wish, must)? else {
                return Ok(None);
            };
            match self.attempt(region, Part { run, ..wish }, sequence)? {
                Attempt::Done(run) => return Ok(Some(run)),
                Attempt::Raced => count(&self.counters.raced, 1),
            }
        }
        let part = Part { run: must, ..wish };
        let iova = region.addresses(part).unwrap_or(region.range).start();
        let times = self.options.retries.saturating_add(1);
        Err(FaultError::Contended { iova, times })
    }

    /// Finds the free granules around `must`. Waits while memory of the slot is being taken back.
    fn look(
        &self,
        region: &Region<O, P>,
        wish: Part,
        must: GranuleRun,
    ) -> Result<Look, FaultError> {
        let part = Part { run: must, ..wish };
        let iova = region.addresses(part).unwrap_or(region.range).start();
        let look = || {
            let seen = region.with(wish.slot, |slot| match slot.phase {
                SlotPhase::Taking => None,
                SlotPhase::Stuck => Some(Err(FaultError::NotQuiet { iova })),
                SlotPhase::Closed => Some(Err(FaultError::NoRegion { iova })),
                SlotPhase::Open => Some(Ok(match slot.mapped.clear_around(must.first, wish.run) {
                    Some(run) => Look::Free { sequence: slot.sequence, run },
                    None => Look::Nothing,
                })),
            });
            seen.unwrap_or(Some(Err(FaultError::NoRegion { iova })))
        };
        // The clock is read only where there is something to wait for.
        match look() {
            Some(found) => found,
            None => poll(&self.cpus, self.options.timeout, look)
                .unwrap_or(Err(FaultError::Busy { iova })),
        }
    }
}
