//! A fault: populate without a lock, then map if nobody took the memory back meanwhile.

use core::num::NonZeroU32;

use super::account::count;
use super::bits::{GRANULES, Run};
use super::error::FaultError;
use super::owner::{Frames, MemoryOwner};
use super::premap::{Ahead, Requester, Window};
use super::region::{Part, Phase, Region};
use super::space::Passthrough;
use crate::addr::{Iova, IovaRange};
use crate::inval::Gather;
use crate::platform::{Cpus, Lock, poll};
use crate::table::Access;
use crate::unit::Domain;

/// What a device wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who.
    pub who: Requester,
    /// Where.
    pub iova: Iova,
    /// What for.
    pub access: Access,
}

/// Whether a fault found its granule mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Already {
    /// It was not.
    No,
    /// Another fault had mapped it.
    Yes,
}

/// What a fault came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Whether there was nothing to do.
    pub already: Already,
    /// Granules that were mapped.
    pub granules: u64,
}

/// What a look at a slot found.
enum Look {
    /// These granules are free, as of the sequence.
    Free { sequence: u64, run: Run },
    /// The granule that is wanted is mapped, or nothing else is free.
    Nothing,
}

/// How an attempt to map ended.
enum Attempt {
    Done(Run),
    /// Memory was taken back, or somebody else mapped.
    Raced,
}

impl<D: Domain, O: MemoryOwner, P: Cpus> Passthrough<D, O, P> {
    /// Makes what a device wants accessible. When this returns, the device may try again.
    ///
    /// # Errors
    /// See [`FaultError`]: the device is not to get what it wants.
    pub fn fault(&self, request: &Request) -> Result<Mapped, FaultError> {
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

    fn serve(&self, request: &Request) -> Result<Mapped, FaultError> {
        let iova = request.iova.align_down(self.domain.granule());
        let region = self.region_at(iova).ok_or(FaultError::NoRegion { iova })?;
        let (wanted, allowed) = (request.access, region.access);
        if !allowed.contains(wanted) {
            return Err(FaultError::Denied {
                iova,
                wanted,
                allowed,
            });
        }
        let page = IovaRange::page(iova, self.domain.granule());
        let (part, _) = (region.first_part(page)).ok_or(FaultError::NoRegion { iova })?;
        if let Look::Nothing = self.look(&region, part, part.run)? {
            self.paid(&region, part.slot)?;
            return Ok(Mapped {
                already: Already::Yes,
                granules: 0,
            });
        }
        let granules = match self.options.window {
            Window::Page => self.fill(&region, part, part.run)?.map_or(0, Run::count),
            Window::Block => {
                let slot = region.around(iova).unwrap_or(part);
                self.fill_with(&region, slot, part.run)?
            }
            Window::Fixed(count) => self.fill_ahead(&region, part, ahead_of(count))?,
            Window::Adaptive(_) => {
                let number = iova.get() >> self.domain.granule().lg2();
                let ahead = self.detector.with(|d| d.ahead(request.who, number));
                self.fill_ahead(&region, part, ahead)?
            }
        };
        let already = match granules {
            0 => Already::Yes,
            _ => Already::No,
        };
        Ok(Mapped { already, granules })
    }

    /// Maps the granule `must` and what `ahead` says, as far as that goes.
    fn fill_ahead(
        &self,
        region: &Region<O, P>,
        must: Part,
        ahead: Ahead,
    ) -> Result<u64, FaultError> {
        let Some(page) = region.addresses(must) else {
            return Ok(0);
        };
        let lg2 = self.domain.granule().lg2();
        let bytes = u64::from(ahead.count) << lg2;
        let at = page.start().get();
        let span = match ahead.step {
            1 => IovaRange::new(page.start(), Iova::new(at.saturating_add(bytes - 1))),
            -1 => {
                let first = page.last().get().saturating_sub(bytes - 1);
                IovaRange::new(Iova::new(first), page.last())
            }
            _ => return self.fill_apart(region, must, ahead, at),
        };
        let span = span.and_then(|span| span.intersection(region.range));
        let span = span.unwrap_or(page);
        // In the direction of the stream, from slot to slot as long as all of each is mapped.
        let mut granules = 0;
        let first = region.parts(span).find(|part| part.slot == must.slot);
        granules += self.fill_with(region, first.unwrap_or(must), must.run)?;
        if ahead.step == 1 && granules != 0 {
            for part in region.parts(span).skip_while(|part| part.slot <= must.slot) {
                match self.fill_rest(region, part) {
                    0 => break,
                    mapped => granules += mapped,
                }
            }
        } else if granules != 0 {
            let below = region.parts(span).take_while(|part| part.slot < must.slot);
            for part in below {
                granules += self.fill_rest(region, part);
            }
        }
        Ok(granules)
    }

    /// Maps `must`, and single granules ahead of it.
    fn fill_apart(
        &self,
        region: &Region<O, P>,
        must: Part,
        ahead: Ahead,
        at: u64,
    ) -> Result<u64, FaultError> {
        let granule = self.domain.granule();
        let mut granules = self.fill(region, must, must.run)?.map_or(0, Run::count);
        for number in 1..i64::from(ahead.count) {
            let far = ahead.step.saturating_mul(number);
            let page = (at >> granule.lg2()).checked_add_signed(far);
            let page = page.map(|page| IovaRange::page(Iova::new(page << granule.lg2()), granule));
            match page.and_then(|page| region.first_part(page)) {
                Some((part, _)) => granules += self.fill_rest(region, part),
                None => break,
            }
        }
        Ok(granules)
    }

    /// Maps what nobody asked for, as far as that goes without trouble.
    fn fill_rest(&self, region: &Region<O, P>, part: Part) -> u64 {
        let mut granules = 0;
        let mut rest = Some(part.run);
        while let Some(run) = rest {
            let first = Run::new(run.first, run.first).unwrap_or(run);
            let Ok(Some(mapped)) = self.fill(region, Part { run, ..part }, first) else {
                break;
            };
            granules += mapped.count();
            rest = Run::new(mapped.last + 1, run.last);
        }
        granules
    }

    /// Maps the run of `wish` around `must` that is free; `must` alone if the rest makes trouble.
    fn fill_with(&self, region: &Region<O, P>, wish: Part, must: Run) -> Result<u64, FaultError> {
        let alone = Part { run: must, ..wish };
        let (first, mut granules) = match self.fill(region, wish, must) {
            Ok(Some(run)) => (run, run.count()),
            Ok(None) => return Ok(0),
            Err(_) if wish.run != must => match self.fill(region, alone, must)? {
                Some(run) => return Ok(run.count()),
                None => return Ok(0),
            },
            Err(error) => return Err(error),
        };
        // Memory in many pieces comes a few at a time.
        if first.last < must.first {
            granules += self.fill(region, alone, must)?.map_or(0, Run::count);
        } else if let Some(run) = Run::new(first.last + 1, wish.run.last) {
            granules += self.fill_rest(region, Part { run, ..wish });
        }
        Ok(granules)
    }

    /// Maps the beginning of the run of `wish` that is free around `must`; `None` if `must` is
    /// mapped.
    fn fill(
        &self,
        region: &Region<O, P>,
        wish: Part,
        must: Run,
    ) -> Result<Option<Run>, FaultError> {
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

    /// What is free around `must`. Waits while memory of the slot is being taken back.
    fn look(&self, region: &Region<O, P>, wish: Part, must: Run) -> Result<Look, FaultError> {
        let part = Part { run: must, ..wish };
        let iova = region.addresses(part).unwrap_or(region.range).start();
        let look = || {
            let seen = region.with(wish.slot, |slot| match slot.phase {
                Phase::Taking => None,
                Phase::Stuck => Some(Err(FaultError::NotQuiet { iova })),
                Phase::Closed => Some(Err(FaultError::NoRegion { iova })),
                Phase::Open => Some(Ok(match slot.mapped.clear_around(must.first, wish.run) {
                    Some(run) => Look::Free {
                        sequence: slot.sequence,
                        run,
                    },
                    None => Look::Nothing,
                })),
            });
            seen.unwrap_or(Some(Err(FaultError::NoRegion { iova })))
        };
        // The clock is read only where there is something to wait for.
        match look() {
            Some(found) => found,
            None => poll(&self.cpus, self.options.patience, look)
                .unwrap_or(Err(FaultError::Busy { iova })),
        }
    }

    /// Populates the beginning of `part` and maps it, if the slot's sequence is still `sequence`.
    fn attempt(
        &self,
        region: &Region<O, P>,
        part: Part,
        sequence: u64,
    ) -> Result<Attempt, FaultError> {
        let Some(range) = region.addresses(part) else {
            return Ok(Attempt::Raced);
        };
        let lg2 = self.domain.granule().lg2();
        let mut frames = Frames::new();
        region.owner.populate(range, region.access, &mut frames)?;
        let granules = (frames.bytes() >> lg2).min(GRANULES.into()) as u32;
        let iova = range.start();
        let run = granules.checked_sub(1).map(|more| part.run.first + more);
        let run = run.and_then(|last| Run::new(part.run.first, last.min(part.run.last)));
        let Some(run) = run else {
            let bytes = frames.bytes();
            return Err(FaultError::Short { iova, bytes });
        };
        let bytes = run.count() << lg2;
        frames.truncate(bytes);
        self.mapped.take(bytes)?;
        let mut owed = Gather::new();
        let pieces = frames.pieces().iter().copied();
        let mapped = region.with(part.slot, |slot| {
            let stands = slot.phase == Phase::Open && slot.sequence == sequence;
            if !stands || slot.mapped.run_of(true, run).is_some() {
                return Ok(Attempt::Raced);
            }
            self.domain.map_sg(iova, pieces, region.access, &mut owed)?;
            slot.mapped.set(run);
            slot.unpaid += 1;
            Ok(Attempt::Done(run))
        });
        match mapped {
            Some(Ok(Attempt::Done(run))) => {
                let settled = self.settle(owed);
                region.with(part.slot, |slot| slot.unpaid -= 1);
                settled?;
                Ok(Attempt::Done(run))
            }
            other => {
                self.mapped.give(bytes);
                other.unwrap_or(Ok(Attempt::Raced))
            }
        }
    }
}

fn ahead_of(count: NonZeroU32) -> Ahead {
    let count = count.get();
    Ahead { count, step: 1 }
}
