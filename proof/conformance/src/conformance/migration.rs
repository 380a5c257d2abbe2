//! Marks of the pages that devices write: memory that moves to another machine while a device writes it.

use std::collections::BTreeSet;

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::{Domain as _, TrackDirtyError};
use portolan::table::format::DirtyTracking;

use super::basic::{Attached, PAGE, RW};
use super::{Host, Machine, Outcome, Verdict, drain, expect, fail, must};

/// Seed of the random numbers.
pub(super) const SEED: u64 = 0xd187_5eed;
const PAGES: u64 = 48;
const ROUNDS: u32 = 60;
const EVENTS: u64 = 1 << 12;

/// Memory of a device, and a copy of it elsewhere: one word of each page.
struct Moving<'m, M: Machine> {
    machine: &'m M,
    on: Attached<M>,
    memory: PhysAddr,
    copy: Vec<u32>,
    mapped: BTreeSet<u64>,
    rng: Rng,
    handed: u64,
}

impl<M: Machine> Moving<'_, M> {
    fn iova(page: u64) -> Iova {
        Iova::new(M::BASE.get() + page * PAGE)
    }

    fn pa(&self, page: u64) -> PhysAddr {
        PhysAddr::new(self.memory.get() + page * PAGE)
    }

    fn map(&mut self, page: u64) -> Verdict {
        self.mapped.insert(page);
        self.on.map(Self::iova(page), self.pa(page), PAGE, RW)
    }

    /// The device writes a few of its pages.
    fn load(&mut self) {
        for _ in 0..self.rng.u32(0..12) {
            // Some pages are written again and again: the unit knows them as written.
            let page = self.rng.u64(0..PAGES) >> self.rng.u32(0..4);
            if self.mapped.contains(&page) {
                let value = self.rng.u32(1..);
                self.machine.host.device_write(self.on.device, Self::iova(page), value);
            }
        }
    }

    /// Copies the pages of `ranges`.
    fn copy(&mut self, ranges: &[IovaRange]) {
        for range in ranges {
            let page = (range.start().get() - M::BASE.get()) / PAGE;
            self.copy[page as usize] = self.machine.host.peek(self.pa(page));
            self.handed += 1;
        }
    }

    /// Reads the marks while the device writes, and copies.
    fn round(&mut self) -> Verdict {
        let (mut owed, mut written) = (Gather::new(), Vec::new());
        let all = IovaRange::from_len(M::BASE, PAGES * PAGE);
        let all = all.ok_or_else(|| fail("empty range"))?;
        let visit = &mut |page| written.push(page);
        must("reading marks", self.on.domain.read_and_clear_dirty(all, &mut owed, visit))?;
        self.load();
        self.on.sync(owed)?;
        self.copy(&written);
        Ok(())
    }

    /// Takes a page away and brings another back.
    fn turn_over(&mut self) -> Verdict {
        let page = self.rng.u64(0..PAGES);
        if !self.mapped.remove(&page) {
            return self.map(page);
        }
        let (mut owed, mut written) = (Gather::new(), Vec::new());
        let range = IovaRange::from_len(Self::iova(page), PAGE);
        let range = range.ok_or_else(|| fail("empty range"))?;
        let visit = &mut |page| written.push(page);
        must("unmapping", self.on.domain.unmap_and_read_dirty(range, &mut owed, visit))?;
        // It may still go through, if the unit knew the page as written; otherwise it is refused.
        self.machine.host.device_write(self.on.device, Self::iova(page), 0xdead);
        self.on.sync(owed)?;
        self.copy(&written);
        drain(self.machine, EVENTS).map(drop)
    }
}

/// The first device on a new domain whose written pages are marked.
pub(super) fn marked<M: Machine>(machine: &M) -> Result<Attached<M>, Outcome> {
    let on = Attached::new(machine)?;
    match on.domain.track_dirty(DirtyTracking::Hardware) {
        Err(TrackDirtyError::NotTracked) => {
            Err(Outcome::Skip("the domain marks no pages".to_owned()))
        }
        tracked => must("marking", tracked).map(|()| on),
    }
}

/// Moves memory under a device's writes: once the device has stopped and the last marks were read, the copy is equal.
pub(super) fn ends_equal<M: Machine>(machine: &M) -> Verdict {
    let on = marked(machine)?;
    let memory = machine.host.memory((PAGES * PAGE).next_power_of_two());
    let (copy, mapped) = (vec![0; PAGES as usize], BTreeSet::new());
    let rng = Rng::with_seed(SEED);
    let mut moving = Moving { machine, on, memory, copy, mapped, rng, handed: 0 };
    (0..PAGES).try_for_each(|page| moving.map(page))?;
    for round in 0..ROUNDS {
        moving.load();
        // Off and on again: then everything is copied anew.
        if round == ROUNDS / 2 {
            must("marking", moving.on.domain.track_dirty(DirtyTracking::Off))?;
            moving.load();
            must("marking", moving.on.domain.track_dirty(DirtyTracking::Hardware))?;
            let every: Vec<_> = (0..PAGES).map(|page| machine.host.peek(moving.pa(page))).collect();
            moving.copy = every;
        }
        moving.round()?;
        moving.turn_over()?;
    }
    moving.round()?;
    // The device has stopped.
    let (mut owed, mut written) = (Gather::new(), Vec::new());
    let all = IovaRange::from_len(M::BASE, PAGES * PAGE).ok_or_else(|| fail("empty range"))?;
    let visit = &mut |page| written.push(page);
    must("reading marks", moving.on.domain.read_and_clear_dirty(all, &mut owed, visit))?;
    moving.on.sync(owed)?;
    moving.copy(&written);
    for page in 0..PAGES {
        let what = format!("page {page} of the copy (seed {SEED:#x})");
        expect(&what, moving.copy[page as usize], machine.host.peek(moving.pa(page)))?;
    }
    expect("pages were marked", moving.handed > 0, true)
}
