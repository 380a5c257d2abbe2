//! Streams that move: blocked, passed through, attached here and there.

use portolan::unit::{Attach as _, FaultReason, Unit as _};

use portolan::addr::Iova;

use super::basic::{Attached, BASE, PAGE, RW};
use super::{Machine, Verdict, fail, must, needs};

const BLOCKED: &[FaultReason] = &[
    FaultReason::Blocked,
    FaultReason::NotMapped,
    FaultReason::Configuration,
];

pub(super) fn never_attached_is_blocked<M: Machine>(machine: &M) -> Verdict {
    let [first, second] = machine.devices();
    let on = Attached::with(machine, first)?;
    let pa = machine.memory(PAGE);
    on.map(BASE, pa, PAGE, RW)?;
    on.must_reach(machine, BASE, pa)?;
    let domain = machine.domain();
    let stranger = Attached {
        domain: must("making a domain", domain)?,
        device: second,
    };
    stranger.must_fault(machine, BASE, pa, BLOCKED)
}

pub(super) fn attach_block_attach<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let pa = machine.memory(PAGE);
    on.map(BASE, pa, PAGE, RW)?;
    for _ in 0..3 {
        on.must_reach(machine, BASE, pa)?;
        must("blocking", machine.unit().block(on.device))?;
        on.must_fault(machine, BASE, pa, BLOCKED)?;
        must(
            "attaching again",
            machine.unit().attach(on.device, &on.domain),
        )?;
    }
    on.must_reach(machine, BASE, pa)
}

pub(super) fn domain_to_domain<M: Machine>(machine: &M) -> Verdict {
    let here = Attached::new(machine)?;
    let (pa, other) = (machine.memory(PAGE), machine.memory(PAGE));
    here.map(BASE, pa, PAGE, RW)?;
    here.must_reach(machine, BASE, pa)?;
    let there = Attached::new(machine)?;
    there.map(BASE, other, PAGE, RW)?;
    there.must_reach(machine, BASE, other)?;
    must(
        "attaching back",
        machine.unit().attach(here.device, &here.domain),
    )?;
    here.must_reach(machine, BASE, pa)
}

pub(super) fn pass_through_to_paging<M: Machine>(machine: &M) -> Verdict {
    needs(machine.abilities().pass_through)?;
    let device = machine.devices()[0];
    let pa = machine.memory(PAGE);
    let direct = Iova::new(pa.get());
    must("passing through", machine.unit().pass_through(device))?;
    let on = Attached {
        domain: must("making a domain", machine.domain())?,
        device,
    };
    on.must_reach(machine, direct, pa)?;
    must("attaching", machine.unit().attach(device, &on.domain))?;
    on.must_fault(machine, direct, pa, &[FaultReason::NotMapped])?;
    on.map(BASE, pa, PAGE, RW)?;
    on.must_reach(machine, BASE, pa)?;
    must("passing through again", machine.unit().pass_through(device))?;
    if on.reaches(machine, BASE, pa) {
        return Err(fail("the domain still translates after it was left"));
    }
    on.must_reach(machine, direct, pa)
}
