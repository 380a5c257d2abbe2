//! Granules that a fault maps beyond the one that it asked for.

use core::num::NonZeroU32;

use super::bits::GranuleRun;
use super::error::FaultError;
use super::owner::Pager;
use super::premap::{Ahead, Requester, Window};
use super::region::{Part, Region};
use super::space::Ioas;
use crate::addr::{Iova, IovaRange};
use crate::iommu::Domain;
use crate::platform::{Cpus, Lock};

impl<D: Domain, O: Pager, P: Cpus> Ioas<D, O, P> {
    /// Maps `part`, the granule at `iova`, and further granules as the window says; returns the
    /// granules that it mapped.
    pub(super) fn fill_window(
        &self,
        region: &Region<O, P>,
        part: Part,
        iova: Iova,
        who: Requester,
    ) -> Result<u64, FaultError> {
        match self.options.window {
            Window::Page => Ok(self.fill(region, part, part.run)?.map_or(0, GranuleRun::count)),
            Window::Block => {
                let slot = region.around(iova).unwrap_or(part);
                self.fill_with(region, slot, part.run)
            }
            Window::Fixed(count) => self.fill_ahead(region, part, ahead_of(count)),
            Window::Adaptive(_) => {
                let number = iova.get() >> self.domain.granule().lg2();
                let ahead = self.detector.with(|d| d.ahead(who, number));
                self.fill_ahead(region, part, ahead)
            }
        }
    }

    /// Maps the granule `must` and the part `ahead` around it, as far as that goes.
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
        let mut granules = self.fill(region, must, must.run)?.map_or(0, GranuleRun::count);
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

    /// Maps granules for which no fault asked, as far as that goes without trouble.
    fn fill_rest(&self, region: &Region<O, P>, part: Part) -> u64 {
        let mut granules = 0;
        let mut rest = Some(part.run);
        while let Some(run) = rest {
            let first = GranuleRun::new(run.first, run.first).unwrap_or(run);
            let Ok(Some(mapped)) = self.fill(region, part, first) else {
                break;
            };
            granules += mapped.count();
            rest = GranuleRun::new(mapped.last + 1, run.last);
        }
        granules
    }

    /// Maps the run of `wish` around `must` that is free; `must` alone if the rest makes trouble.
    fn fill_with(
        &self,
        region: &Region<O, P>,
        wish: Part,
        must: GranuleRun,
    ) -> Result<u64, FaultError> {
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
            granules += self.fill(region, alone, must)?.map_or(0, GranuleRun::count);
        } else if let Some(run) = GranuleRun::new(first.last + 1, wish.run.last) {
            granules += self.fill_rest(region, Part { run, ..wish });
        }
        Ok(granules)
    }
}

fn ahead_of(count: NonZeroU32) -> Ahead {
    let count = count.get();
    Ahead { count, step: 1 }
}
