//! Many operations, full queues and commands that are refused.

use std::collections::BTreeMap;

use fastrand::Rng;
use portolan::addr::{Iova, PhysAddr};
use portolan::iommu::{FaultEvent, FaultReason, IommuError};

use super::basic::{Attached, PAGE, RW};
use super::{Host, Machine, Outcome, Verdict, drain, fail};

const EVENTS: u64 = 1 << 17;
const OPERATIONS: u32 = 1000;
/// Seed of the random numbers.
pub(super) const SEED: u64 = 0x1009_5eed;
/// Pages in play.
const PAGES: u64 = 64;

pub(super) fn queue_wraps<M: Machine>(machine: &M) -> Verdict {
    let Some(entries) = machine.queue_entries else {
        return Err(Outcome::Skip("the unit has no command queue".to_owned()));
    };
    let on = Attached::new(machine)?;
    let pa = machine.host.memory(PAGE);
    // Each round submits an invalidation and a sync at least: three times round.
    for round in 0..2 * entries {
        on.map(M::BASE, pa, PAGE, RW)?;
        if round % 32 == 0 {
            on.must_reach(machine, M::BASE, pa)?;
        }
        let owed = on.unmap(M::BASE, PAGE)?;
        on.sync(owed)?;
        if round % 32 == 0 {
            on.must_fault(machine, M::BASE, pa, &[FaultReason::NotMapped])?;
        }
    }
    Ok(())
}

/// Pages of a debt that needs more commands than hardware may accept at once.
const LONG: u64 = 200;

/// Pays one debt of many pages, each of which is a command on a unit without ranges.
pub(super) fn long_debts_are_paid<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let pa = machine.host.memory((LONG * PAGE).next_power_of_two());
    let place = |page: u64| {
        let iova = Iova::new(M::BASE.get() + page * PAGE);
        (iova, PhysAddr::new(pa.get() + page * PAGE))
    };
    for _ in 0..2 {
        on.map(M::BASE, pa, LONG * PAGE, RW)?;
        for (iova, pa) in (0..LONG).step_by(9).map(place) {
            on.must_reach(machine, iova, pa)?;
        }
        let owed = on.unmap(M::BASE, LONG * PAGE)?;
        on.sync(owed)?;
        for (iova, pa) in (0..LONG).step_by(9).map(place) {
            on.must_fault(machine, iova, pa, &[FaultReason::NotMapped])?;
        }
    }
    Ok(())
}

pub(super) fn fault_room_overflows<M: Machine>(machine: &M) -> Verdict {
    let Some(room) = machine.fault_room else {
        return Err(Outcome::Skip("the unit does not say which faults it lost".to_owned()));
    };
    let on = Attached::new(machine)?;
    let other = Attached::with(machine, machine.host.devices()[1])?;
    let pa = machine.host.memory(PAGE);
    for n in 0..room + 8 {
        let iova = Iova::new(M::BASE.get() + n * PAGE);
        on.reaches(machine, iova, pa);
        other.reaches(machine, iova, pa);
    }
    let events = drain(machine, EVENTS)?;
    if !events.contains(&FaultEvent::Lost) {
        return Err(fail(format!("{} records and no word of those lost", events.len())));
    }
    // Afterwards all is as before.
    on.must_fault(machine, M::BASE, pa, &[FaultReason::NotMapped])?;
    on.map(M::BASE, pa, PAGE, RW)?;
    on.must_reach(machine, M::BASE, pa)
}

pub(super) fn refused_command_recovers<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let pa = machine.host.memory(PAGE);
    on.map(M::BASE, pa, PAGE, RW)?;
    on.must_reach(machine, M::BASE, pa)?;
    for _ in 0..3 {
        match (machine.bad_command)(&machine.unit, &machine.host) {
            None => return Err(Outcome::Skip("no way to send a bad command".to_owned())),
            Some(Err(IommuError::Refused { .. })) => {}
            Some(other) => return Err(fail(format!("a bad command gave {other:?}"))),
        }
        let owed = on.unmap(M::BASE, PAGE)?;
        on.sync(owed)?;
        on.must_fault(machine, M::BASE, pa, &[FaultReason::NotMapped])?;
        on.map(M::BASE, pa, PAGE, RW)?;
        on.must_reach(machine, M::BASE, pa)?;
    }
    Ok(())
}

/// Maps, unmaps and accesses at random, against a map of the addresses that should be reachable.
pub(super) fn random_operations<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let mut rng = Rng::with_seed(SEED);
    let memory = machine.host.memory(PAGES * PAGE);
    let mut mapped: BTreeMap<u64, u64> = BTreeMap::new();
    for step in 0..OPERATIONS {
        let slot = rng.u64(0..PAGES);
        let iova = Iova::new(M::BASE.get() + slot * PAGE);
        let outcome = if let Some(&page) = mapped.get(&slot) {
            let pa = PhysAddr::new(memory.get() + page * PAGE);
            if rng.bool() {
                on.must_reach(machine, iova, pa)
            } else {
                mapped.remove(&slot);
                let owed = on.unmap(iova, PAGE)?;
                on.sync(owed)?;
                on.must_fault(machine, iova, pa, &[FaultReason::NotMapped])
            }
        } else {
            let page = rng.u64(0..PAGES);
            let pa = PhysAddr::new(memory.get() + page * PAGE);
            mapped.insert(slot, page);
            on.map(iova, pa, PAGE, RW)?;
            on.must_reach(machine, iova, pa)
        };
        outcome.map_err(|outcome| match outcome {
            Outcome::Fail(why) => fail(format!("step {step}: {why}")),
            other => other,
        })?;
    }
    Ok(())
}
