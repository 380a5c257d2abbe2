//! Interrupts: devices raise those that they were given, and no others.

use portolan::addr::{RequesterId, StreamId};
use portolan::iommu::{
    Destination, FaultEvent, FaultReason, Interrupt, InterruptError, InterruptRefusal,
    InterruptSource, InterruptTarget, Iommu as _, MsiMessage, RemapInterrupts, Vector,
};

use super::{Has, Host, Machine, Outcome, Run, Verdict, drain, expect, fail, must, needs};

/// Interrupt that arrived at the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// The vector.
    pub vector: u8,
    /// The identifier of the CPU's interrupt controller.
    pub destination: u32,
}

pub(super) const FIRST: Raised = Raised { vector: 0x52, destination: 1 };
/// An identifier of which each byte counts.
const FAR: Raised = Raised { vector: 0x52, destination: 0x0102_0304 };
pub(super) const SECOND: Raised = Raised { vector: 0x63, destination: 0 };

pub(super) fn target(of: Raised) -> Result<InterruptTarget, Outcome> {
    let vector = Vector::new(of.vector).ok_or_else(|| fail("no such vector"))?;
    let destination = Destination::Physical(of.destination);
    Ok(InterruptTarget::new(vector, destination))
}

fn source(device: StreamId) -> InterruptSource {
    InterruptSource::Requester(RequesterId::new(device.get() as u16))
}

pub(super) fn remapper<M: Machine>(machine: &M) -> Result<&dyn RemapInterrupts, Outcome> {
    let none = || Outcome::Skip("interrupts are not remapped here".to_owned());
    machine.interrupts.map(|of| of(&machine.unit)).ok_or_else(none)
}

/// An interrupt of `device` that arrives as `of`, with the device's message.
pub(super) fn set_up<M: Machine>(
    machine: &M,
    device: StreamId,
    of: Raised,
) -> Result<(Interrupt, MsiMessage), Outcome> {
    let unit = remapper(machine)?;
    let interrupt = must("setting up", unit.allocate(source(device), target(of)?))?;
    let message = must("asking for the message", unit.message(&interrupt))?;
    expect("what arrives", machine.host.raise(device, message), Some(of))?;
    Ok((interrupt, message))
}

/// Checks that `message` of `device` raises nothing, and that the record has the reason.
pub(super) fn must_be_refused<M: Machine>(
    machine: &M,
    device: StreamId,
    message: MsiMessage,
    wanted: InterruptRefusal,
) -> Verdict {
    drain(machine, 1000)?;
    expect("what arrives", machine.host.raise(device, message), None)?;
    if needs(machine.abilities.records_interrupts).is_err() {
        return Ok(());
    }
    let [FaultEvent::Fault(record)] = drain(machine, 1000)?[..] else {
        return Err(fail("not one record of a refused interrupt"));
    };
    let FaultReason::Interrupt { refusal, .. } = record.reason else {
        return Err(fail(format!("{record:?} is not of an interrupt")));
    };
    expect("the record", (record.stream, refusal), (device, wanted))
}

/// All scenarios of this module.
pub(super) fn all<M: Machine>() -> [(&'static str, Run<M>); 6] {
    [
        ("far-cpus-are-reached-or-refused", far_cpus_are_reached_or_refused),
        ("remapped-interrupts-arrive", remapped_interrupts_arrive),
        ("forged-interrupts-are-refused", forged_interrupts_are_refused),
        ("plain-interrupts-are-refused", plain_interrupts_are_refused),
        ("freed-interrupts-are-refused", freed_interrupts_are_refused),
        ("blocked-devices-interrupt-nobody", blocked_devices_interrupt_nobody),
    ]
}

fn remapped_interrupts_arrive<M: Machine>(machine: &M) -> Verdict {
    let unit = remapper(machine)?;
    let device = machine.host.devices()[0];
    let (mut interrupt, message) = set_up(machine, device, FIRST)?;
    let (_others, other) = set_up(machine, device, SECOND)?;
    let moved = Raised {
        vector: match machine.abilities.renumbers {
            Has::Yes => 0x77,
            Has::No(_) => FIRST.vector,
        },
        destination: 0,
    };
    must("moving", unit.retarget(&mut interrupt, target(moved)?))?;
    expect("the moved one", machine.host.raise(device, message), Some(moved))?;
    expect("the other one", machine.host.raise(device, other), Some(SECOND))
}

fn far_cpus_are_reached_or_refused<M: Machine>(machine: &M) -> Verdict {
    let unit = remapper(machine)?;
    let device = machine.host.devices()[0];
    let far = target(FAR)?;
    if let Has::No(_) = machine.abilities.wide_destinations {
        let refused = unit.allocate(source(device), far).err();
        let wanted = InterruptError::Destination(far.destination);
        return expect("a far CPU", refused, Some(wanted));
    }
    let (mut interrupt, message) = set_up(machine, device, FAR)?;
    for near in [FIRST, FAR, SECOND] {
        must("moving", unit.retarget(&mut interrupt, target(near)?))?;
        expect("the moved one", machine.host.raise(device, message), Some(near))?;
    }
    Ok(())
}

fn forged_interrupts_are_refused<M: Machine>(machine: &M) -> Verdict {
    let [first, second] = machine.host.devices();
    let (mine, message) = set_up(machine, first, FIRST)?;
    let (others, other) = set_up(machine, second, SECOND)?;
    let (_more, more) = set_up(machine, second, SECOND)?;
    if mine.place().table == others.place().table {
        // If devices share a table, each could name the other's entry.
        must_be_refused(machine, second, message, InterruptRefusal::Source)?;
        must_be_refused(machine, first, other, InterruptRefusal::Source)?;
        must_be_refused(machine, first, more, InterruptRefusal::Source)?;
    } else {
        // If each device has a table, another's second entry does not exist in this one.
        must_be_refused(machine, first, more, InterruptRefusal::Absent)?;
    }
    expect("its own", machine.host.raise(first, message), Some(FIRST))?;
    expect("the other's own", machine.host.raise(second, other), Some(SECOND))
}

fn plain_interrupts_are_refused<M: Machine>(machine: &M) -> Verdict {
    remapper(machine)?;
    needs(machine.abilities.refuses_plain)?;
    let plain = MsiMessage { address: 0xfee0_1000, data: 0x52 };
    let device = machine.host.devices()[0];
    must_be_refused(machine, device, plain, InterruptRefusal::NotRemapped)
}

fn freed_interrupts_are_refused<M: Machine>(machine: &M) -> Verdict {
    let unit = remapper(machine)?;
    let [first, second] = machine.host.devices();
    let (mine, message) = set_up(machine, first, FIRST)?;
    let before = mine.place();
    must("giving back", unit.free(mine))?;
    must_be_refused(machine, first, message, InterruptRefusal::Absent)?;
    let (again, other) = set_up(machine, second, SECOND)?;
    if (again.place().table, again.index()) == (before.table, before.index) && message == other {
        must_be_refused(machine, first, message, InterruptRefusal::Source)?;
    }
    expect("the other's own", machine.host.raise(second, other), Some(SECOND))
}

fn blocked_devices_interrupt_nobody<M: Machine>(machine: &M) -> Verdict {
    let unit = remapper(machine)?;
    let [first, second] = machine.host.devices();
    let (mine, message) = set_up(machine, first, FIRST)?;
    let (_others, other) = set_up(machine, second, SECOND)?;
    must("blocking", machine.unit.block(first))?;
    must_be_refused(machine, first, message, InterruptRefusal::Absent)?;
    expect("a handle of before", unit.message(&mine).is_err(), true)?;
    expect("the other's own", machine.host.raise(second, other), Some(SECOND))
}
