//! What caches hold until they are told, and no longer.

use portolan::addr::{Iova, PhysAddr};
use portolan::unit::{Attach, FaultReason};

use super::basic::{Attached, BASE, PAGE, RW};
use super::{Machine, Verdict, fail, must, needs};

const NOT_MAPPED: &[FaultReason] = &[FaultReason::NotMapped];

pub(super) fn stale_until_sync<M: Machine>(machine: &M) -> Verdict {
    needs(machine.abilities().caches)?;
    let on = Attached::new(machine)?;
    let pa = machine.memory(PAGE);
    on.map(BASE, pa, PAGE, RW)?;
    on.must_reach(machine, BASE, pa)?;
    let owed = on.unmap(BASE, PAGE)?;
    if !on.reaches(machine, BASE, pa) {
        return Err(fail("nothing was cached: the scenario proves nothing"));
    }
    on.sync(owed)?;
    on.must_fault(machine, BASE, pa, NOT_MAPPED)
}

pub(super) fn other_page_stays_stale<M: Machine>(machine: &M) -> Verdict {
    let abilities = machine.abilities();
    needs(abilities.caches)?;
    needs(abilities.page_exact)?;
    let on = Attached::new(machine)?;
    let pa = machine.memory(2 * PAGE);
    let (next, second) = (Iova::new(BASE.get() + PAGE), PhysAddr::new(pa.get() + PAGE));
    on.map(BASE, pa, 2 * PAGE, RW)?;
    // Keeps the leaf table in the tree, so that leaf-only invalidations are enough.
    let far = Iova::new(BASE.get() + 8 * PAGE);
    on.map(far, pa, PAGE, RW)?;
    on.must_reach(machine, BASE, pa)?;
    on.must_reach(machine, next, second)?;
    let first_owed = on.unmap(BASE, PAGE)?;
    let second_owed = on.unmap(next, PAGE)?;
    on.sync(first_owed)?;
    on.must_fault(machine, BASE, pa, NOT_MAPPED)?;
    if !on.reaches(machine, next, second) {
        return Err(fail("the invalidation of one page dropped its neighbour"));
    }
    on.sync(second_owed)?;
    on.must_fault(machine, next, second, NOT_MAPPED)
}

pub(super) fn other_domain_stays_stale<M: Machine>(machine: &M) -> Verdict {
    let abilities = machine.abilities();
    needs(abilities.caches)?;
    needs(abilities.domain_exact)?;
    let [first, second] = machine.devices();
    let (here, there) = (
        Attached::with(machine, first)?,
        Attached::with(machine, second)?,
    );
    let (pa, other) = (machine.memory(PAGE), machine.memory(PAGE));
    here.map(BASE, pa, PAGE, RW)?;
    there.map(BASE, other, PAGE, RW)?;
    here.must_reach(machine, BASE, pa)?;
    there.must_reach(machine, BASE, other)?;
    let owed = here.unmap(BASE, PAGE)?;
    let others = there.unmap(BASE, PAGE)?;
    there.sync(others)?;
    there.must_fault(machine, BASE, other, NOT_MAPPED)?;
    if !here.reaches(machine, BASE, pa) {
        return Err(fail(
            "the invalidation of one domain dropped another's entries",
        ));
    }
    here.sync(owed)?;
    here.must_fault(machine, BASE, pa, NOT_MAPPED)
}

pub(super) fn remapped_goes_to_the_new_page<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let (old, new) = (machine.memory(PAGE), machine.memory(PAGE));
    for _ in 0..3 {
        on.map(BASE, old, PAGE, RW)?;
        on.must_reach(machine, BASE, old)?;
        let owed = on.unmap(BASE, PAGE)?;
        on.sync(owed)?;
        on.must_fault(machine, BASE, old, NOT_MAPPED)?;
        on.map(BASE, new, PAGE, RW)?;
        on.must_reach(machine, BASE, new)?;
        let owed = on.unmap(BASE, PAGE)?;
        on.sync(owed)?;
    }
    Ok(())
}

pub(super) fn identifier_reuse_forgets<M: Machine>(machine: &M) -> Verdict {
    let old = machine.memory(PAGE);
    // As many domains as it takes for an identifier to come round, if the smallest free is used.
    for _ in 0..4 {
        let on = Attached::new(machine)?;
        on.map(BASE, old, PAGE, RW)?;
        on.must_reach(machine, BASE, old)?;
        must("blocking", attach_away(machine, &on))?;
        drop(on);
        let on = Attached::new(machine)?;
        on.must_fault(machine, BASE, old, NOT_MAPPED)?;
        must("blocking", attach_away(machine, &on))?;
    }
    Ok(())
}

fn attach_away<M: Machine>(machine: &M, on: &Attached<M>) -> Result<(), portolan::unit::AttachError>
where
    M::Unit: Attach<M::Domain>,
{
    use portolan::unit::Unit as _;
    machine.unit().block(on.device)
}
