//! Streams that move while it goes wrong: devices that keep translations, devices that are gone,
//! moves that the unit refuses.

use crate::promise::all_memory;
use std::sync::Arc;

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::iommu::{Attach as _, AttachError, FaultReason, Iommu as _, IommuError};

use super::asking::{Asker, FaultSource, Faulting, MARK, Wrote};
use super::basic::{Attached, PAGE, RW};
use super::configuration::BLOCKED;
use super::{Has, Host, Machine, Outcome, Verdict, expect, fail, must, needs};

/// More commands than a move takes, unless it tells a device of each PASID.
const MOST_COMMANDS: u64 = 64;
/// More commands than any move takes.
const END: u64 = 4096;
/// Commands of a long move that are all refused; of the others ever fewer are.
const FIRST: u64 = 8;

/// A device that keeps translations, and two domains with a page each at the same address.
struct Keeping<'m, M: Machine> {
    machine: &'m M,
    faulting: &'m Faulting<M::Iommu>,
    asker: &'m dyn Asker,
    device: StreamId,
    /// Domains and where their page is.
    places: [(Attached<M>, PhysAddr); 2],
}

/// A domain that nothing is attached to, with a page.
fn place<M: Machine>(machine: &M, device: StreamId) -> Result<(Attached<M>, PhysAddr), Outcome> {
    let domain: Result<_, IommuError> = machine.domain();
    let domain = must("making a domain", domain)?;
    let (on, pa) = (Attached { domain, device }, machine.host.memory(PAGE));
    on.map(M::BASE, pa, PAGE, RW)?;
    Ok((on, pa))
}

fn attach<M: Machine>(machine: &M, to: &Attached<M>) -> Result<(), AttachError> {
    machine.unit.attach(to.device, &to.domain)
}

impl<'m, M: Machine> Keeping<'m, M> {
    fn new(machine: &'m M) -> Result<Self, Outcome> {
        let none = || Outcome::Skip("no device keeps translations here".to_owned());
        let faulting = machine.faulting.as_ref().ok_or_else(none)?;
        let asker = machine.host.asker().ok_or_else(none)?;
        if !faulting.ways.contains(&FaultSource::Requests) {
            return Err(none());
        }
        let device = machine.host.devices()[0];
        let keeping = Self {
            machine,
            faulting,
            asker,
            device,
            places: [place(machine, device)?, place(machine, device)?],
        };
        keeping.enable()?;
        Ok(keeping)
    }

    fn enable(&self) -> Verdict {
        let enabled =
            (self.faulting.enable)(&self.machine.unit, self.device, FaultSource::Requests);
        must("letting a device translate", enabled)
    }

    fn write(&self, iova: Iova) -> Wrote {
        self.asker.write(FaultSource::Requests, self.device, None, iova)
    }

    /// Result of a write by a translation that the device keeps, and for each of the two pages if it
    /// was reached.
    fn reached(&self) -> (Wrote, [bool; 2]) {
        let pages = self.places.each_ref().map(|(_, pa)| *pa);
        pages.iter().for_each(|pa| self.machine.host.poke(*pa, 0));
        let wrote = self.write(M::BASE);
        (wrote, pages.map(|pa| self.machine.host.peek(pa) == MARK))
    }

    fn must_reach(&self, which: usize) -> Verdict {
        let there = [0, 1].map(|place| place == which);
        let wanted = (Wrote::There, there);
        expect("a write, and whose page it reached", self.reached(), wanted)
    }

    fn must_be_refused(&self) -> Verdict {
        let wanted = (Wrote::Missing, [false; 2]);
        expect("a write, and whose page it reached", self.reached(), wanted)
    }

    fn attach(&self, which: usize) -> Verdict {
        must("attaching", attach(self.machine, &self.places[which].0))
    }

    /// Number of commands that asked devices to forget translations.
    fn asked(&self) -> u64 {
        let submitted = (self.machine.submitted)(&self.machine.unit);
        let asks = ["ATC_INV", "DEVICE_TLB", "ATS_INVAL", "INVALIDATE_IOTLB_PAGES"].into_iter();
        asks.filter_map(|kind| submitted.get(kind)).sum()
    }

    /// The page goes, without a word to the device.
    fn unmap_alone(&self, which: usize) -> Verdict {
        let asked = self.asked();
        let on = &self.places[which].0;
        let owed = on.unmap(M::BASE, PAGE)?;
        on.sync(owed)?;
        expect("times that the device was asked", self.asked(), asked)
    }
}

/// Translations that a device got in one domain are void in the next, and after it was blocked.
pub(super) fn moved_devices_forget<M: Machine>(machine: &M) -> Verdict {
    let keeping = Keeping::new(machine)?;
    keeping.attach(0)?;
    keeping.must_reach(0)?;
    for _ in 0..2 {
        keeping.attach(1)?;
        keeping.must_reach(1)?;
        must("blocking", machine.unit.block(keeping.device))?;
        keeping.must_be_refused()?;
        keeping.attach(0)?;
        keeping.must_reach(0)?;
        // Without a look while it is blocked.
        must("blocking", machine.unit.block(keeping.device))?;
        keeping.attach(1)?;
        keeping.must_reach(1)?;
        keeping.attach(0)?;
        keeping.must_reach(0)?;
    }
    Ok(())
}

/// Ends a device's own translations; its stream is not moved.
pub(super) fn kept_translations_end<M: Machine>(machine: &M) -> Verdict {
    let keeping = Keeping::new(machine)?;
    let none = || Outcome::Skip("they end when the stream is blocked".to_owned());
    let disable = keeping.faulting.disable.ok_or_else(none)?;
    keeping.attach(0)?;
    keeping.must_reach(0)?;
    must("ending it", disable(&machine.unit, keeping.device))?;
    keeping.must_be_refused()?;
    let (on, pa) = &keeping.places[0];
    on.must_reach(machine, M::BASE, *pa)?;
    keeping.unmap_alone(0)?;
    on.must_fault(machine, M::BASE, *pa, &[FaultReason::NotMapped])?;
    // Once more, after the device has forgotten its translations.
    must("blocking", machine.unit.block(keeping.device))?;
    keeping.asker.reset(keeping.device);
    keeping.enable()?;
    keeping.attach(1)?;
    keeping.must_reach(1)
}

/// A device that is gone is not asked to forget, its translations are void, and its domain is let go.
pub(super) fn gone_devices_are_refused<M: Machine>(machine: &M) -> Verdict {
    let keeping = Keeping::new(machine)?;
    keeping.attach(0)?;
    keeping.must_reach(0)?;
    let asked = keeping.asked();
    let gone = (keeping.faulting.gone)(&machine.unit, keeping.device);
    must("leaving a device that is gone", gone)?;
    expect("times that the device was asked", keeping.asked(), asked)?;
    keeping.must_be_refused()?;
    let (on, pa) = &keeping.places[0];
    on.must_fault(machine, M::BASE, *pa, BLOCKED)?;
    let holders = Arc::strong_count(&on.domain);
    expect("holders of the domain", holders, 1)?;
    keeping.unmap_alone(0)?;
    // It comes back, and remembers nothing.
    keeping.asker.reset(keeping.device);
    keeping.enable()?;
    keeping.attach(1)?;
    keeping.must_reach(1)?;
    keeping.places[1].0.must_reach(machine, M::BASE, keeping.places[1].1)
}

/// Tries `go` while the unit refuses the `nth` command; returns if it was refused.
fn refused<M: Machine>(
    machine: &M,
    nth: u64,
    go: impl FnOnce() -> Result<(), AttachError>,
) -> Result<bool, Outcome> {
    needs(machine.host.refuse(Some(nth)))?;
    let went = go();
    needs(machine.host.refuse(None))?;
    match went {
        Ok(()) => Ok(false),
        Err(AttachError::Iommu(IommuError::Refused { .. })) => Ok(true),
        Err(other) => Err(fail(format!("command {nth} was refused: {other}"))),
    }
}

/// Refuses each command of a move in turn, and each of the second attempt; the third attempt has to succeed. `ready`
/// runs before, `check` after.
fn each_refused<M: Machine>(
    machine: &M,
    ready: impl Fn() -> Verdict,
    go: impl Fn() -> Result<(), AttachError>,
    check: impl Fn() -> Verdict,
) -> Verdict {
    ready()?;
    let all = match refused(machine, MOST_COMMANDS, &go)? {
        true => FIRST,
        false => MOST_COMMANDS,
    };
    let next = |command| if command < all { command + 1 } else { command * 2 };
    let (mut first, mut second) = (1, 1);
    while first < END && second < END {
        ready()?;
        let once = refused(machine, first, &go)?;
        let twice = once && refused(machine, second, &go)?;
        if twice {
            must("a third attempt", go())?;
        }
        check().map_err(|outcome| match outcome {
            Outcome::Fail(why) => fail(format!("command {first}, then {second}: {why}")),
            other => other,
        })?;
        (first, second) = match (once, twice) {
            (true, true) => (first, next(second)),
            (true, false) => (next(first), 1),
            (false, _) if first > 1 => return Ok(()),
            (false, _) => {
                return Err(fail("no command was refused: the scenario proves nothing"));
            }
        };
    }
    Err(fail("a move without end"))
}

fn can_refuse<M: Machine>(machine: &M) -> Verdict {
    if machine.queue_entries.is_none() {
        return Err(Outcome::Skip("the unit has no command queue".to_owned()));
    }
    needs(machine.host.refuse(None))
}

/// A move whose commands the unit refuses has failed; when it is repeated, nothing of before is used.
pub(super) fn refused_moves_are_repeated<M: Machine>(machine: &M) -> Verdict {
    can_refuse(machine)?;
    let device = machine.host.devices()[0];
    let [here, there] = [place(machine, device)?, place(machine, device)?];
    let ready = || {
        must("attaching", attach(machine, &here.0))?;
        here.0.must_reach(machine, M::BASE, here.1)
    };
    let block = || machine.unit.block(device);
    each_refused(machine, ready, block, || here.0.must_fault(machine, M::BASE, here.1, BLOCKED))?;
    let away = || attach(machine, &there.0);
    each_refused(machine, ready, away, || there.0.must_reach(machine, M::BASE, there.1))?;
    if machine.abilities.pass_through == Has::Yes {
        let pass = || machine.unit.pass_through(device, all_memory());
        each_refused(machine, ready, pass, || {
            let direct = Iova::new(there.1.get());
            there.0.must_reach(machine, direct, there.1)?;
            if here.0.reaches(machine, M::BASE, here.1) {
                Err(fail("the domain still translates after it was left"))
            } else {
                Ok(())
            }
        })?;
    }
    Ok(())
}

/// Runs [`refused_moves_are_repeated`] for a device that keeps translations.
pub(super) fn refused_moves_of_keepers<M: Machine>(machine: &M) -> Verdict {
    can_refuse(machine)?;
    let keeping = Keeping::new(machine)?;
    let ready = || {
        keeping.attach(0)?;
        keeping.must_reach(0)
    };
    let block = || machine.unit.block(keeping.device);
    each_refused(machine, ready, block, || {
        keeping.must_be_refused()?;
        keeping.attach(1)?;
        keeping.must_reach(1)
    })?;
    let away = || attach(machine, &keeping.places[1].0);
    each_refused(machine, ready, away, || keeping.must_reach(1))
}
