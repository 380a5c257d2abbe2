//! The kernel's means to give devices away, confidential guests, and ports that lead out of the machine.

use portolan_cli::display::bytes;

use super::known::{Known, MOST_DEVICES};
use super::processor::Processor;
use super::unit::opts_in;
use crate::doctor::Finding;
use crate::doctor::device::listed;
use crate::doctor::pci::{FOLDER, REMOVABLE};

/// Memory of devices for which the addresses of a guest by QEMU's default (40 bits) do not suffice: half of them.
const LARGE: u64 = 1 << 39;
/// Thunderbolt domains that are looked at.
const MOST_DOMAINS: usize = 64;

/// The finding on VFIO, iommufd and page requests.
pub(super) fn devices(known: &Known) -> Finding {
    const WHAT: &str = "devices for guests";
    let module = |name: &str| known.files().names(&format!("sys/module/{name}")).found().is_some();
    if !known.config.is_known() {
        let found = [("vfio", "VFIO"), ("vfio_pci", "VFIO for PCI"), ("iommufd", "iommufd")];
        let found: Vec<&str> =
            found.into_iter().filter(|(name, _)| module(name)).map(|(_, words)| words).collect();
        return match found.is_empty() {
            true => Finding::unknown(WHAT, "The kernel's configuration could not be read."),
            false => Finding::good(WHAT, format!("Loaded: {}.", found.join(", "))),
        };
    }
    let has = |name| known.config.has(name) == Some(true);
    let mut why = match has("VFIO_PCI") {
        true => "This kernel gives PCI devices to guests (VFIO).".to_owned(),
        false => "This kernel gives no PCI devices to guests: it lacks VFIO (CONFIG_VFIO_PCI)."
            .to_owned(),
    };
    let lacks: Vec<&str> =
        ["IOMMUFD", "VFIO_DEVICE_CDEV"].into_iter().filter(|name| !has(name)).collect();
    why += &match lacks.as_slice() {
        [] => " It has the newer way too (iommufd), which confidential guests and some monitors ask for.".to_owned(),
        some => {
            let names: Vec<String> = some.iter().map(|name| format!("CONFIG_{name}")).collect();
            format!(
                " It lacks {} of the newer way (iommufd), which confidential guests and some monitors ask for.",
                names.join(" and ")
            )
        }
    };
    if has("IOMMU_IOPF") || has("INTEL_IOMMU_SVM") {
        why += " Devices may ask for pages that are not there yet (page requests).";
    }
    Finding::good(WHAT, why)
}

/// The finding on memory of devices that a monitor could not map by iommufd, if the log has one.
pub(super) fn device_memory(known: &Known) -> Option<Finding> {
    let refused = known.says("IOMMU_IOAS_MAP failed: Bad address")
        || known.says("failed to map an IOVA range to the IOAS: Bad address");
    if !refused {
        return None;
    }
    let mut why = "iommufd does not map the memory of a device (its BAR) by address (-14, Bad address): the guest's \
                   devices do not reach each other directly. Of QEMU that is a warning, and it goes on; other \
                   monitors end."
        .to_owned();
    let mut act = "Linux 6.19 or newer with a monitor that maps it by dma-buf; until then Cloud Hypervisor's \
                   vfio_p2p_dma=off, or VFIO's older interface."
        .to_owned();
    let held = known.given_away();
    let given = known.memories().iter().filter(|(_, device)| held.contains(&device.as_str()));
    let given: u64 = given.fold(0, |all, (size, _)| all.saturating_add(*size));
    if given >= LARGE {
        why += &format!(
            " The devices for guests have {} of memory, more than a guest of 40 bits finds a place for beside its \
             own.",
            bytes(given)
        );
        act = format!(
            "If a guest with all of them fails: -cpu …,host-phys-bits=on (QEMU). Else: {act}"
        );
    }
    let finding = Finding::problem("devices' memory in guests", why).act(act);
    Some(finding.gives_up("Direct transfers between the guest's devices, until then."))
}

/// The finding on SEV-SNP, if it is wanted and kept from working.
pub(super) fn confidential(known: &Known) -> Option<Finding> {
    let refused = [
        "SEV-SNP: IOMMU is either disabled or configured in passthrough mode",
        "SNP: IOMMU is configured in passthrough mode",
        "SNP: IOMMU disabled",
    ];
    refused.iter().find(|words| known.says(words))?;
    let set = known.options.passthrough(known.processor).filter(|set| set.is_on);
    let (why, act) = match set {
        Some(set) => (
            format!("SEV-SNP does not work: {} keeps devices from being translated.", set.word),
            format!("Take {} from the kernel's command line.", set.word),
        ),
        None => (
            "SEV-SNP does not work: the IOMMU is off, or does not translate devices.".to_owned(),
            "Switch the IOMMU on, and add iommu=nopt to the kernel's command line.".to_owned(),
        ),
    };
    let price = "Some speed where devices transfer much.";
    Some(Finding::problem("confidential guests", why).act(act).gives_up(price))
}

/// The finding on ports that lead out of the machine: Thunderbolt's, and others of which firmware says so.
pub(super) fn outside(known: &Known) -> Option<Finding> {
    thunderbolt(known).or_else(|| plugged_in(known))
}

const OUTSIDE: &str = "ports that lead outside";

/// The finding on devices below such ports, by their folders.
fn plugged_in(known: &Known) -> Option<Finding> {
    let names = known.files().names(FOLDER).found()?.into_iter().take(MOST_DEVICES);
    let word = |name: &String| known.word(&format!("{FOLDER}/{name}/{REMOVABLE}"));
    let from_outside = names.filter(|name| word(name).as_deref() == Some("removable"));
    let from_outside: Vec<String> = from_outside.collect();
    if from_outside.is_empty() || !known.is_on() {
        return None;
    }
    let why = format!(
        "Below ports that, as firmware says, lead out of the machine: {}. Linux translates these devices whatever the \
         mode of the others, and takes memory back from them at once.",
        listed(from_outside)
    );
    Some(Finding::good(OUTSIDE, why))
}

/// The finding on Thunderbolt's ports.
fn thunderbolt(known: &Known) -> Option<Finding> {
    let domains = known.files().names("sys/bus/thunderbolt/devices").found()?;
    let domains = domains.into_iter().filter(|name| name.starts_with("domain")).take(MOST_DOMAINS);
    let protected = domains.filter_map(|name| {
        let path = format!("sys/bus/thunderbolt/devices/{name}/iommu_dma_protection");
        known.word(&path)
    });
    let protected: Vec<String> = protected.collect();
    if protected.is_empty() {
        return None;
    }
    if protected.iter().all(|value| value == "1") {
        let why = "Devices at Thunderbolt and USB4 ports reach only memory that is theirs, in whatever mode the \
                   others are.";
        return Some(Finding::good(OUTSIDE, why));
    }
    let cause = match opts_in(known).filter(|_| known.processor == Processor::Intel) {
        Some(true) => "firmware asks for it (its DMAR table), and the IOMMU is off",
        Some(false) => "firmware does not ask for it (its DMAR table)",
        None => "firmware does not say that these ports lead outside, or the IOMMU is off",
    };
    let why = format!(
        "Devices at Thunderbolt and USB4 ports are not kept in memory of their own (iommu_dma_protection is 0): \
         {cause}."
    );
    let act = "Switch the IOMMU and `Kernel DMA Protection` on in the firmware's setup, or update firmware. Until then \
               allow devices by hand (`boltctl`).";
    Some(Finding::problem(OUTSIDE, why).act(act).gives_up("Convenience."))
}
