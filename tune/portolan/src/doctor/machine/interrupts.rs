//! Interrupts of devices that guests have: remapped, or unsafe.

use super::known::Known;
use crate::doctor::Finding;

const WHAT: &str = "interrupts";
const PARAMETER: &str = "sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";

/// Tells if interrupts are remapped; `None` if that is unknown.
fn remapped(known: &Known) -> Option<bool> {
    if let Some(table) = known.files().text("proc/interrupts").found() {
        let lines =
            || table.lines().filter(|line| line.contains("MSI") || line.contains("IO-APIC"));
        if lines().next().is_some() {
            return Some(lines().any(|line| line.contains("IR-")));
        }
    }
    if known.says("Enabled IRQ remapping in") || known.says("AMD-Vi: Interrupt remapping enabled") {
        return Some(true);
    }
    known.says("No interrupt remapping support").then_some(false)
}

/// The finding on interrupts of x86, if an IOMMU is there.
pub(super) fn finding(known: &Known) -> Option<Finding> {
    if !known.processor.is_x86() {
        return None;
    }
    let asked = known.options.boolean("vfio_iommu_type1.allow_unsafe_interrupts") == Some(true);
    let unsafe_now = match known.word(PARAMETER) {
        Some(value) => value == "Y" || value == "1",
        None => asked,
    };
    let danger = "a device that a guest has may send the host any interrupt, which is a way to take the host over";
    Some(match (remapped(known), unsafe_now) {
        (Some(true), true) => Finding::problem(
            WHAT,
            format!(
                "The IOMMU checks devices' interrupts, and allow_unsafe_interrupts is set, which is not needed \
                 here: if the check is ever off, {danger}."
            ),
        )
        .act(
            "Take allow_unsafe_interrupts=1 from the kernel's command line and from /etc/modprobe.d."
                .to_owned(),
        )
        .gives_up("Nothing."),
        (Some(true), false) => {
            Finding::good(WHAT, "The IOMMU checks which interrupts a device may send (IR- in /proc/interrupts).")
        }
        (Some(false), true) => Finding::problem(
            WHAT,
            format!("The IOMMU does not check interrupts, and allow_unsafe_interrupts is set: {danger}."),
        )
        .act(cure(known))
        .gives_up("Nothing."),
        (Some(false), false) if known.is_on() => Finding::problem(
            WHAT,
            "The IOMMU does not check which interrupts a device may send: VFIO refuses to give devices to guests \
             (\"Operation not permitted\").",
        )
        .act(cure(known))
        .gives_up("Nothing. allow_unsafe_interrupts=1 would do as well, and gives up the host's safety."),
        (None, _) if known.is_on() => Finding::unknown(
            WHAT,
            "Neither /proc/interrupts nor the kernel's log tells if the IOMMU checks devices' interrupts.",
        ),
        _ => return None,
    })
}

/// The way to have interrupts checked.
fn cure(known: &Known) -> String {
    if let Some(word) = known.options.with("intremap", "off") {
        return format!("Take {word} from the kernel's command line.");
    }
    if known.config.has("IRQ_REMAP") == Some(false) {
        return "Use a kernel that is built with CONFIG_IRQ_REMAP: this one is not.".to_owned();
    }
    if known.logged("not in IVRS table").any(|line| line.contains("IOAPIC")) {
        return "Update the firmware, whose table lacks the I/O APIC; or name it by ivrs_ioapic= (Linux, \
                kernel-parameters.txt)."
            .to_owned();
    }
    if known.facts.under_hypervisor {
        return "Give this virtual machine's IOMMU interrupt remapping: QEMU's -device intel-iommu,intremap=on with \
                -machine kernel-irqchip=split."
            .to_owned();
    }
    "Switch interrupt remapping (or x2APIC) on in the firmware's setup, and look for DMAR-IR or AMD-Vi in the kernel's \
     log."
        .to_owned()
}
