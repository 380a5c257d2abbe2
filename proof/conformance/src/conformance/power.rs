//! Units that lose their power and get it back: what they block meanwhile, and what they have kept.

use portolan::addr::{Iova, IovaRange};
use portolan::inval::Gather;
use portolan::iommu::{Domain as _, FaultReason, Iommu as _, IommuError};

use super::basic::{Attached, PAGE, RW};
use super::handover::{let_three_loose, reached_at_most};
use super::interrupts::{FIRST, SECOND, remapper, set_up};
use super::migration::marked;
use super::{Host, Machine, Outcome, Run, Verdict, expect, fail, must};

/// All scenarios of this module.
pub(super) fn all<M: Machine>() -> [(&'static str, Run<M>); 4] {
    [
        ("sleep-keeps-mappings", keeps_mappings),
        ("sleep-lets-nothing-through", lets_nothing_through),
        ("sleep-keeps-marks", keeps_marks),
        ("sleep-keeps-interrupts", keeps_interrupts),
    ]
}

const UNMAPPED: &[FaultReason] = &[FaultReason::NotMapped];

fn suspend<M: Machine>(machine: &M) -> Verdict {
    match machine.unit.suspend() {
        Err(IommuError::Unsupported) => {
            Err(Outcome::Skip("the driver suspends no unit".to_owned()))
        }
        done => must("suspending", done),
    }
}

/// Takes the power of a unit that is suspended, where that can be done, and resumes it.
fn wake<M: Machine>(machine: &M) -> Verdict {
    let _ = machine.host.cut_power();
    must("resuming", machine.unit.resume())
}

fn iova<M: Machine>(page: u64) -> Iova {
    Iova::new(M::BASE.get() + page * PAGE)
}

fn keeps_mappings<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let [first, second] = [(); 2].map(|()| machine.host.memory(PAGE));
    let next = iova::<M>(1);
    on.map(M::BASE, first, PAGE, RW)?;
    on.must_reach(machine, M::BASE, first)?;
    for _ in 0..3 {
        suspend(machine)?;
        let asleep = on.reaches(machine, M::BASE, first);
        expect("a write that arrives while the unit is suspended", asleep, false)?;
        // Tables change meanwhile.
        on.map(next, second, PAGE, RW)?;
        on.sync(on.unmap(M::BASE, PAGE)?)?;
        wake(machine)?;
        on.must_reach(machine, next, second)?;
        on.must_fault(machine, M::BASE, first, UNMAPPED)?;
        // The unit carries invalidations out again.
        on.sync(on.unmap(next, PAGE)?)?;
        on.must_fault(machine, next, second, UNMAPPED)?;
        on.map(M::BASE, first, PAGE, RW)?;
        on.must_reach(machine, M::BASE, first)?;
    }
    must("blocking", machine.unit.block(on.device))?;
    suspend(machine)?;
    wake(machine)?;
    expect("a write of a blocked device arrives", on.reaches(machine, M::BASE, first), false)
}

/// A unit that keeps its power, with devices that are not quiet.
fn lets_nothing_through<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let pa = machine.host.memory(PAGE);
    on.map(M::BASE, pa, PAGE, RW)?;
    on.must_reach(machine, M::BASE, pa)?;
    let_three_loose(machine, pa)?;
    for _ in 0..2 {
        suspend(machine)?;
        let asleep = reached_at_most(machine, pa)?;
        expect("the last write to a suspended unit", asleep.last(), Some(&None))?;
        must("resuming", machine.unit.resume())?;
        let awake = reached_at_most(machine, pa)?;
        expect("the last write to a unit that was resumed", awake.last(), Some(&Some(pa)))?;
    }
    Ok(())
}

/// Checks that pages are marked which were written since the last call. Others may be, but for the third, which never
/// was: devices of the model repeat their writes while the unit carries commands out.
fn has_marks<M: Machine>(on: &Attached<M>, written: &[u64]) -> Verdict {
    let (mut owed, mut pages) = (Gather::new(), Vec::new());
    let all = IovaRange::from_len(M::BASE, 4 * PAGE).ok_or_else(|| fail("empty range"))?;
    let visit = &mut |range: IovaRange| pages.push((range.start().get() - M::BASE.get()) / PAGE);
    must("reading marks", on.domain.read_and_clear_dirty(all, &mut owed, visit))?;
    on.sync(owed)?;
    let all = written.iter().all(|page| pages.contains(page));
    if all && !pages.contains(&2) {
        return Ok(());
    }
    Err(fail(format!("of the pages {written:?} these are marked: {pages:?}")))
}

fn keeps_marks<M: Machine>(machine: &M) -> Verdict {
    let on = marked(machine)?;
    on.map(M::BASE, machine.host.memory(4 * PAGE), 4 * PAGE, RW)?;
    let write = |page| machine.host.device_write(on.device, iova::<M>(page), 1);
    write(0);
    write(3);
    suspend(machine)?;
    wake(machine)?;
    write(1);
    has_marks(&on, &[0, 1, 3])?;
    write(1);
    suspend(machine)?;
    wake(machine)?;
    write(3);
    has_marks(&on, &[1, 3])
}

fn keeps_interrupts<M: Machine>(machine: &M) -> Verdict {
    let unit = remapper(machine)?;
    let [first, second] = machine.host.devices();
    let (_mine, message) = set_up(machine, first, FIRST)?;
    let (others, other) = set_up(machine, second, SECOND)?;
    must("giving back", unit.free(others))?;
    for _ in 0..2 {
        suspend(machine)?;
        wake(machine)?;
        expect("what arrives", machine.host.raise(first, message), Some(FIRST))?;
        expect("what was given back", machine.host.raise(second, other), None)?;
    }
    Ok(())
}
