//! Causes of refused interrupts.

use portolan::iommu::{FaultReason, InterruptRefusal};

use super::{Cause, Circumstances};
use crate::doctor::faults::seen::Kind;

/// Buses from here on belong to the processor's own parts on Intel's platforms.
const OWN_BUSES: u8 = 0xf0;

/// The causes.
pub(super) fn of(facts: &Circumstances<'_>) -> Vec<Cause> {
    let Kind::Refused(FaultReason::Interrupt { refusal, .. }) = facts.kind() else {
        return vec![unknown()];
    };
    match refusal {
        InterruptRefusal::Source => source(),
        InterruptRefusal::NotRemapped => old_format(facts),
        InterruptRefusal::Absent => absent(facts),
        InterruptRefusal::Malformed | InterruptRefusal::External => vec![unknown()],
    }
}

fn source() -> Vec<Cause> {
    vec![
        Cause::new(
            "The interrupt comes from another requester than the one that its entry was set up \
             for: through a bridge, from a second function, or by a number that firmware gave \
             wrongly. If no device has this place, that is it.",
        )
        .act(
            "Try newer firmware of board and device. To be sure that this is the cause, start once \
             with `intremap=nosid`, which lets interrupts of any sender through.",
        )
        .gives_up("With `intremap=nosid` a device may raise the interrupts of others."),
        Cause::new("The device lost its settings in a sleep state and sends an old message.").act(
            "If it comes at regular times or after a sleep, keep the device awake: `echo on > \
             /sys/bus/pci/devices/PLACE/power/control`.",
        ),
    ]
}

fn old_format(facts: &Circumstances<'_>) -> Vec<Cause> {
    let sender = facts.fault.first.sender.function();
    let is_own = sender.is_some_and(|function| function.requester.bus() >= OWN_BUSES);
    let is_unknown = facts.device.driver.is_none();
    let apic = Cause::new(
        "A place from f0 on is mostly no device, but the I/O APIC of an Intel machine. At resume one \
         of its entries has the old format for a moment.",
    )
    .act("Nothing, if it comes once at each resume and everything works.");
    let left = Cause::new(
        "The device sends an interrupt in the old format, with CPU and vector in it, which is blocked \
         since interrupts are remapped: it was set up before, by firmware or an earlier kernel, or by \
         a part that the kernel's own set-up passes over, such as a bridge to hidden disks (VMD).",
    )
    .act(
        "Try a newer kernel. If disks behind VMD are missing, switch VMD off in the firmware's \
         set-up, or use a kernel that sets up their interrupts itself.",
    );
    let guest = Cause::new(
        "A guest wrote an address of its own into the device's interrupt registers (a device with \
         registers that VFIO does not watch).",
    )
    .act("Load the device's driver in the host once and see if it works there; report the model.");
    match (is_own && is_unknown, facts.device.is_of_guest()) {
        (true, _) => vec![apic, left],
        (_, true) => vec![guest, left],
        _ => vec![left, guest],
    }
}

fn absent(facts: &Circumstances<'_>) -> Vec<Cause> {
    let driver = facts.driver();
    vec![
        Cause::new(format!(
            "The interrupt's entry was freed, or is not set up yet, and the device sends all the \
             same: {driver} does not silence the device before it gives the interrupt back, or \
             enables it in the device before it asks for it."
        ))
        .act(
            "If it comes when the device is opened, closed or unloaded, report it to the driver's \
             authors. One such line does no harm: the interrupt was dropped.",
        ),
        Cause::new("An earlier kernel or firmware set the device up, and it still sends.")
            .act("Nothing, if it comes at the start only and stops when the driver begins."),
    ]
}

fn unknown() -> Cause {
    Cause::new("The entry of the interrupt is malformed or cannot be read: the kernel's own table.")
        .act("Try a newer kernel; report it with the lines around.")
}
