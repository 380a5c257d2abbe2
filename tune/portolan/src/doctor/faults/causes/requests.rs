//! Causes of refused reads and writes.

use portolan::dma::Direction;
use portolan::iommu::FaultReason;

use super::{Cause, Circumstances};
use crate::doctor::faults::device::DeviceKind;
use crate::doctor::faults::history::Recorded;
use crate::doctor::faults::place::Owner;
use crate::doctor::faults::seen::{Attempt, Kind};
use crate::facts::IommuKind;

/// The causes.
pub(super) fn of(facts: &Circumstances<'_>) -> Vec<Cause> {
    if let Some(recorded) = facts.recorded {
        return by_recording(facts, recorded);
    }
    let mut causes = Vec::new();
    if facts.context.is_crash_kernel {
        causes.push(crashed());
    }
    causes.extend(by_device(facts));
    causes.extend(by_address(facts));
    if causes.is_empty() || facts.place.owner == Owner::GivenOut || is_open(facts) {
        causes.extend(by_kind(facts));
    }
    if facts.is_unrecorded {
        causes.push(Cause::new(
            "The recording has mappings of this device, and none at that address: it was not mapped \
             while it was recorded, or never.",
        ));
    }
    causes
}

/// Tells if neither the device nor the address decides.
fn is_open(facts: &Circumstances<'_>) -> bool {
    let is_refused = matches!(
        facts.kind(),
        Kind::AbsentOrForbidden | Kind::Refused(FaultReason::NotMapped | FaultReason::Permission)
    );
    let is_early = facts.device.is_before_driver == Some(true);
    is_refused && !is_early && facts.place.owner == Owner::Unknown && !facts.device.is_of_guest()
}

/// The mapping is known.
fn by_recording(facts: &Circumstances<'_>, recorded: &Recorded) -> Vec<Cause> {
    let driver = facts.driver();
    let read = "The recording names both; look there for what stops the device before the unmap.";
    let sure = match recorded.has_device() {
        true => "",
        false => "If that mapping is this device's (the recording names none for it): ",
    };
    let ended = Cause::new(format!(
        "{sure}The device uses memory that was unmapped before: {driver} gave it back while the device \
         still worked on it."
    ))
    .act(read);
    let forbids = |direction| {
        matches!(
            (direction, facts.attempt()),
            (Direction::FromDevice, Some(Attempt::Read | Attempt::Execute))
                | (Direction::ToDevice, Some(Attempt::Write))
        )
    };
    let wrong = recorded.mapping.direction.is_some_and(forbids);
    let direction = direction(facts);
    match (recorded.had_ended(), wrong) {
        (Some(true), _) => vec![ended],
        (Some(false), true) => vec![direction],
        (None, true) => vec![direction, ended],
        (None, false) if recorded.mapping.unmapped.is_some() => vec![ended],
        _ => vec![
            Cause::new(
                "The recording has the address mapped, and for this kind of access: then it is not \
                 the mapping that the device used, or the IOMMU had not been told of it.",
            )
            .act(
                "Record again, with the fault in the middle, and pass that log and that recording.",
            ),
        ],
    }
}

fn crashed() -> Cause {
    Cause::new(
        "This kernel saves the memory of one that crashed, and devices still work for that one.",
    )
    .act("Nothing: such faults stop when each driver resets its device.")
}

/// The device, or the lack of one, tells.
fn by_device(facts: &Circumstances<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let Some(alias) = facts.device.alias {
        causes.push(second_function(alias.of.to_string().as_str(), alias.is_known));
    } else if facts.kind() == Kind::Refused(FaultReason::Blocked) && !may_be_firmware(facts) {
        causes.extend(unknown_sender(facts));
    }
    if facts.device.is_of_guest() {
        causes.extend(guest(facts));
    }
    if may_be_firmware(facts) {
        causes.push(firmware(facts));
    }
    if facts.device.kind == DeviceKind::Nvme && reads_nothing(facts) {
        causes.push(discard());
    }
    causes
}

/// The address tells.
fn by_address(facts: &Circumstances<'_>) -> Vec<Cause> {
    let driver = facts.driver();
    match facts.place.owner {
        Owner::Zero => vec![no_address(facts)],
        Owner::Memory => vec![physical(facts)],
        Owner::Resource => vec![peer()],
        Owner::Region => vec![region(facts)],
        Owner::Messages => vec![
            Cause::new(
                "The device sends an interrupt message in a form that the IOMMU takes for memory, or \
                 reads that window: firmware of the device, or a wrong address in its descriptors.",
            )
            .act("Try newer firmware of the device; report it to the driver's authors."),
        ],
        Owner::HyperTransport => vec![
            Cause::new(
                "No driver maps that range: the processor's own parts or the board's firmware send \
                 there, and the firmware's table does not allow it.",
            )
            .act("Try newer firmware of the board. If everything works, the lines do no harm."),
        ],
        Owner::BeyondWidth => vec![
            Cause::new(format!(
                "The address is beyond what this IOMMU translates: {driver} or the device made it up \
                 (bits beside the address, an unset descriptor), or a guest has more addresses than \
                 the IOMMU."
            ))
            .act(
                "For a guest, lower the width of its addresses (QEMU: `-cpu ...,host-phys-bits-limit=39`). \
                 Else report it to the driver's authors.",
            ),
        ],
        Owner::LowMemory => vec![
            Cause::new(
                "Firmware left the device working in low memory, or a driver took a small number for \
                 an address.",
            )
            .act("See if it stops once the driver has begun; if not, report it to its authors."),
        ],
        Owner::Firmware if !may_be_firmware(facts) => vec![region(facts)],
        _ => Vec::new(),
    }
}

/// Only the kind of fault tells.
fn by_kind(facts: &Circumstances<'_>) -> Vec<Cause> {
    match facts.kind() {
        Kind::Refused(FaultReason::Permission) => vec![direction(facts), early_unmap(facts)],
        Kind::AbsentOrForbidden if facts.attempt() == Some(Attempt::Read) => {
            vec![early_unmap(facts), direction(facts)]
        }
        Kind::AbsentOrForbidden if facts.attempt() == Some(Attempt::Write) => {
            vec![early_unmap(facts), direction(facts)]
        }
        Kind::AbsentOrForbidden | Kind::Refused(FaultReason::NotMapped) => {
            vec![early_unmap(facts)]
        }
        Kind::Refused(
            FaultReason::Table | FaultReason::External | FaultReason::Configuration,
        ) => vec![
            Cause::new(
                "The kernel's own tables for this device are broken, or not written yet: a bug of the \
                 kernel, memory that something else overwrote, or a start from an earlier kernel.",
            )
            .act("Try a newer kernel, and test the memory; report it with the lines around."),
        ],
        Kind::BadRequest => vec![
            Cause::new(
                "The device sends a kind of request that its entry does not allow: translated \
                 addresses or page requests (ATS, PRI) that no driver switched on, or an address that \
                 is none.",
            )
            .act("Start once with `pci=noats`; try newer firmware of the board and the device.")
            .gives_up("The devices' own caches of addresses. Protection stays."),
        ],
        _ => vec![Cause::new("Not known.").act(
            "Record the device while the fault repeats (`portolan record`), and pass the recording \
             with `--trace`.",
        )],
    }
}

/// Tells if firmware may have left the device working.
fn may_be_firmware(facts: &Circumstances<'_>) -> bool {
    let is_graphics = facts.device.kind == DeviceKind::Graphics;
    let is_smmu = matches!(facts.fault.first.unit.kind, IommuKind::SmmuV2 | IommuKind::SmmuV3);
    match facts.device.is_before_driver {
        Some(true) => is_graphics || is_smmu || facts.place.owner == Owner::Firmware,
        Some(false) => false,
        None => is_graphics && !facts.device.is_of_guest(),
    }
}

fn firmware(facts: &Circumstances<'_>) -> Cause {
    let part = match facts.device.kind {
        DeviceKind::Graphics => "the graphics device still reads the picture that firmware drew",
        _ => "the device still works for firmware or the boot loader, as a display does",
    };
    let known = match facts.device.is_before_driver {
        Some(true) => "So early in the boot no driver has begun: ",
        _ => "If it comes at the boot only: ",
    };
    let missing = match facts.place.owner {
        Owner::Region => "; the memory is listed as a reserved region, but was not mapped in time",
        _ => "; firmware lists no reserved region that covers it",
    };
    let act = match facts.fault.first.unit.kind {
        IommuKind::SmmuV2 | IommuKind::SmmuV3 => {
            "Nothing, if it stops when the display's driver begins. To be rid of it, the device tree \
             has to name that memory (`memory-region` with `iommu-addresses`)."
        }
        _ => {
            "Nothing, if it stops when the graphics driver begins: the picture flickers at most. To \
             be rid of it, newer firmware of the board, which has to list the memory (RMRR)."
        }
    };
    Cause::new(format!("{known}{part}{missing}.")).act(act)
}

fn second_function(of: &str, is_known: bool) -> Cause {
    let quirk = if is_known {
        "Linux has a quirk for this model since it is known for that; an old kernel, or a hypervisor, \
         may not"
    } else {
        "Linux needs a quirk for such a model, and knows none for this one"
    };
    Cause::new(format!(
        "There is no device at this place, but {of} beside it: the device sends its requests as \
         another function. {quirk}."
    ))
    .act(
        "Use a kernel that has the quirk (`quirk_dma_func1_alias` and others), or report the model; \
         for Xen `pci-phantom=`.",
    )
}

/// The kernel set nothing up for the sender.
fn unknown_sender(facts: &Circumstances<'_>) -> Vec<Cause> {
    let bridge = Cause::new(
        "The kernel has set nothing up for this requester: a device behind a bridge, or a bridge \
         between two machines (NTB), sends by numbers that the kernel does not know of. Linux has \
         quirks for the models that it knows.",
    )
    .act(
        "Try a newer kernel, which may have the quirk for the model; else report it with `lspci -nn` \
         and `lspci -t`.",
    );
    let earlier = Cause::new(
        "The device still works for firmware, or for the kernel before this one (kexec, crash dump).",
    )
    .act("Nothing, if it stops when the device's driver begins.");
    match facts.device.is_before_driver {
        Some(true) => vec![earlier, bridge],
        _ => vec![bridge, earlier],
    }
}

fn guest(facts: &Circumstances<'_>) -> Vec<Cause> {
    let what = match facts.device.kind {
        DeviceKind::Graphics => {
            "the graphics device goes on with its picture while the guest restarts"
        }
        _ => "the device goes on while the guest restarts or its memory is taken away",
    };
    vec![
        Cause::new(format!(
            "The device belongs to a guest, so the address is the guest's own: {what}, and was not \
             stopped or reset before."
        ))
        .act(
            "See if it comes when the guest starts, resets or ends. A driver in the guest that stops \
             the device, or a reset of it between (`/sys/bus/pci/devices/PLACE/reset`), ends it.",
        ),
        Cause::new(
            "The guest gives the device an address that is not its memory: another device's \
             registers, or one of the host's.",
        )
        .act("Look at the address in the guest (`/proc/iomem`); graphics need their reserved memory."),
    ]
}

/// Tells if a disk may have read beyond the end of a list.
fn reads_nothing(facts: &Circumstances<'_>) -> bool {
    let is_absent =
        matches!(facts.kind(), Kind::AbsentOrForbidden | Kind::Refused(FaultReason::NotMapped));
    is_absent && facts.attempt() != Some(Attempt::Write) && facts.place.owner != Owner::Zero
}

fn discard() -> Cause {
    Cause::new(
        "Some NVMe disks read beyond the list that a discard (trim) names. That does no \
         harm, and Linux gives such lists a whole page since 5.5.",
    )
    .act(
        "See if it comes with `fstrim`, a format or a mount with `discard`. If the disk stops working \
         instead, it is another cause: try newer firmware of the disk.",
    )
}

fn no_address(facts: &Circumstances<'_>) -> Cause {
    let driver = facts.driver();
    Cause::new(format!(
        "The device was given no address, and uses 0: {driver} started it with an empty descriptor, \
         or did not set it up again after a reset; else its firmware."
    ))
    .act(
        "Try a newer driver and newer firmware of the device. Switching the IOMMU off only hides it: \
         the device then writes to or reads the first page of memory.",
    )
    .gives_up("With the IOMMU off or `iommu=pt`: all protection from this device.")
}

fn physical(facts: &Circumstances<'_>) -> Cause {
    let driver = facts.driver();
    Cause::new(format!(
        "The device was given a physical address: {driver}, or a program that drives it, did not map \
         the memory by the kernel's DMA interface."
    ))
    .act(
        "Report it to the driver's authors: memory for the device has to come from the DMA interface \
         (`dma_alloc_coherent`, `dma_map_single`). Until then `iommu=pt`.",
    )
    .gives_up("With `iommu=pt`: protection from all devices of the host.")
}

fn peer() -> Cause {
    Cause::new(
        "The device reaches for another device (peer to peer) by an address that was not mapped for \
         it.",
    )
    .act(
        "`portolan explain --between` tells if the two may reach each other, and by which way; the \
         software has to map that range for the device.",
    )
}

fn region(facts: &Circumstances<'_>) -> Cause {
    let guest = if facts.device.is_of_guest() { " (as a guest's device it is not)" } else { "" };
    Cause::new(format!(
        "Firmware works with the device in that memory, and it is not mapped for it at this time{guest}."
    ))
    .act(
        "Leave such a device to the host. In the host, try newer firmware of the board; switch off the \
         firmware's use of the device (USB legacy, management) in its set-up.",
    )
}

fn direction(facts: &Circumstances<'_>) -> Cause {
    let driver = facts.driver();
    let (did, told) = match facts.attempt() {
        Some(Attempt::Write) => ("writes", "reads"),
        _ => ("reads", "writes"),
    };
    let sure = if facts.recorded.is_some() { "" } else { "It may be the direction: " };
    Cause::new(format!(
        "{sure}{driver} mapped the memory for {told} of the device alone, and the device {did} it."
    ))
    .act(
        "Report it to the driver's authors: the mapping has the wrong direction (DMA_FROM_DEVICE lets \
         the device write, DMA_TO_DEVICE read, DMA_BIDIRECTIONAL both).",
    )
}

fn early_unmap(facts: &Circumstances<'_>) -> Cause {
    let driver = facts.driver();
    Cause::new(format!(
        "The memory may have been unmapped while the device still used it: {driver} gave it back too \
         early (a timeout, a reset, a shutdown, a lost completion)."
    ))
    .act(
        "`portolan record` while it repeats, then `--trace` with that recording names the mapping and \
         its unmap. Try a newer driver and newer firmware of the device.",
    )
}
