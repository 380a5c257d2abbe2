//! Streams that move: blocked, passed through, attached here and there.

use crate::promise::all_memory;
use portolan::addr::{Iova, Pasid, PhysAddr};
use portolan::iommu::{Attach as _, FaultReason, Iommu as _, IommuError};

use super::basic::{Attached, PAGE, RW};
use super::{Host, Machine, Outcome, Verdict, expect, fail, must, needs};

pub(super) const BLOCKED: &[FaultReason] =
    &[FaultReason::Blocked, FaultReason::NotMapped, FaultReason::Configuration];

pub(super) fn never_attached_is_blocked<M: Machine>(machine: &M) -> Verdict {
    needs(machine.abilities.second)?;
    let [first, second] = machine.host.devices();
    let on = Attached::with(machine, first)?;
    let pa = machine.host.memory(PAGE);
    on.map(M::BASE, pa, PAGE, RW)?;
    on.must_reach(machine, M::BASE, pa)?;
    let domain = machine.domain();
    let stranger = Attached { domain: must("making a domain", domain)?, device: second };
    stranger.must_fault(machine, M::BASE, pa, BLOCKED)
}

pub(super) fn attach_block_attach<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let pa = machine.host.memory(PAGE);
    on.map(M::BASE, pa, PAGE, RW)?;
    for _ in 0..3 {
        on.must_reach(machine, M::BASE, pa)?;
        must("blocking", machine.unit.block(on.device))?;
        on.must_fault(machine, M::BASE, pa, BLOCKED)?;
        must("attaching again", machine.unit.attach(on.device, &on.domain))?;
    }
    on.must_reach(machine, M::BASE, pa)
}

pub(super) fn domain_to_domain<M: Machine>(machine: &M) -> Verdict {
    let here = Attached::new(machine)?;
    let (pa, other) = (machine.host.memory(PAGE), machine.host.memory(PAGE));
    here.map(M::BASE, pa, PAGE, RW)?;
    here.must_reach(machine, M::BASE, pa)?;
    let there = Attached::new(machine)?;
    there.map(M::BASE, other, PAGE, RW)?;
    there.must_reach(machine, M::BASE, other)?;
    must("attaching back", machine.unit.attach(here.device, &here.domain))?;
    here.must_reach(machine, M::BASE, pa)
}

pub(super) fn pass_through_to_paging<M: Machine>(machine: &M) -> Verdict {
    needs(machine.abilities.pass_through)?;
    let device = machine.host.devices()[0];
    let pa = machine.host.memory(PAGE);
    let direct = Iova::new(pa.get());
    must("passing through", machine.unit.pass_through(device, all_memory()))?;
    let on = Attached { domain: must("making a domain", machine.domain())?, device };
    on.must_reach(machine, direct, pa)?;
    must("attaching", machine.unit.attach(device, &on.domain))?;
    on.must_fault(machine, direct, pa, &[FaultReason::NotMapped])?;
    on.map(M::BASE, pa, PAGE, RW)?;
    on.must_reach(machine, M::BASE, pa)?;
    must("passing through again", machine.unit.pass_through(device, all_memory()))?;
    if on.reaches(machine, M::BASE, pa) {
        return Err(fail("the domain still translates after it was left"));
    }
    on.must_reach(machine, direct, pa)
}

/// Tells if a write with a PASID arrives at `pa`.
fn reaches_as<M: Machine>(
    machine: &M,
    on: &Attached<M>,
    pasid: Pasid,
    iova: Iova,
    pa: PhysAddr,
) -> bool {
    let value = machine.host.peek(pa).wrapping_add(0x5eed) & 0xffff;
    machine.host.device_write_as(on.device, pasid, iova, value);
    machine.host.peek(pa) == value
}

pub(super) fn pasid_moves<M: Machine>(machine: &M) -> Verdict {
    let Some(pasids) = machine.pasids.as_ref() else {
        return Err(Outcome::Skip("requests with a PASID are not here".to_owned()));
    };
    let (unit, device, pasid) = (&machine.unit, machine.host.devices()[0], Pasid::new(3));
    must("making room for PASIDs", (pasids.enable)(unit, device))?;
    let domain = |pa| {
        let domain: Result<_, IommuError> = machine.domain();
        let on = Attached::<M> { domain: must("making a domain", domain)?, device };
        on.map(M::BASE, pa, PAGE, RW)?;
        Ok::<_, Outcome>(on)
    };
    let [here, there, main] = [(); 3].map(|()| machine.host.memory(PAGE));
    let (first, second, without) = (domain(here)?, domain(there)?, domain(main)?);
    must("attaching", unit.attach(device, &without.domain))?;
    let arrives = |at: PhysAddr| {
        let found = reaches_as(machine, &first, pasid, M::BASE, at);
        let others = [here, there, main].into_iter().filter(|other| *other != at);
        let touched = others.filter(|other| machine.host.peek(*other) == machine.host.peek(at));
        expect("writes that arrived, and elsewhere", (found, touched.count()), (true, 0))
    };
    // Contents that differ, so that it can be told where a write went.
    for (n, at) in (1u32..).zip([here, there, main]) {
        machine.host.poke(at, n << 12);
    }
    for _ in 0..2 {
        must("attaching", (pasids.attach)(unit, device, pasid, &first.domain))?;
        arrives(here)?;
        must("attaching", (pasids.attach)(unit, device, pasid, &second.domain))?;
        arrives(there)?;
        without.must_reach(machine, M::BASE, main)?;
    }
    must("blocking", (pasids.block)(unit, device, pasid))?;
    let before = [here, there, main].map(|at| machine.host.peek(at));
    machine.host.device_write_as(device, pasid, M::BASE, 0xdead);
    let after = [here, there, main].map(|at| machine.host.peek(at));
    expect("memory after a blocked write", after, before)?;
    without.must_reach(machine, M::BASE, main)
}
