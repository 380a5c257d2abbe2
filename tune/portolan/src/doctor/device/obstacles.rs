//! Obstacles on a device's way to a guest: no IOMMU, drivers, reserved memory, identifiers, resets, addresses.
//!
//! Sources: Documentation/driver-api/vfio.rst (viable groups), Documentation/ABI/testing/sysfs-kernel-iommu_groups
//! (`reserved_regions`) and sysfs-class-iommu-intel-iommu (`cap`, D51397 revision 4.1, section 11.4.2) of Linux.

use portolan::addr::{PciFunction, RequesterId};
use portolan_cli::display;

use super::DeviceCase;
use super::group::listed;
use super::uses::HostUse;
use crate::doctor::Finding;
use crate::doctor::pci::{FOLDER, GroupMode, KnownFunction};

/// Ways in which Linux resets more than one function (`pci_reset_fn_methods`).
const WIDE_RESETS: [&str; 2] = ["bus", "cxl_bus"];
/// Lines of a group's regions that are read.
const MOST_REGIONS: usize = 256;

/// Answers if an IOMMU serves the device.
pub fn iommu(case: &DeviceCase<'_>) -> Finding {
    let what = "the IOMMU";
    let files = &case.subject.files;
    if let Some(group) = case.device.group {
        let by = case.device.unit.as_ref().map_or(String::new(), |unit| format!(" by {unit}"));
        let mode = match case.pci.mode(files, case.device.at) {
            GroupMode::Translated => "it translates for the host",
            GroupMode::Identity => "for the host it passes addresses on as they are",
            GroupMode::Blocked => "it stops all accesses until a user takes the device",
            GroupMode::User => "a guest or another user of VFIO has it",
            GroupMode::None | GroupMode::Unknown => "its mode was not readable",
        };
        let outside = match case.device.is_removable {
            true => {
                " It is below a port that, as firmware says, leads out of the machine: Linux trusts such a device \
                 least, translates it whatever the mode of the others, and takes memory back from it at once."
            }
            false => "",
        };
        let why = format!("The device is served{by}, in group {group}; {mode}.{outside}");
        return Finding::good(what, why);
    }
    if case.device.is_board() {
        let why =
            "It is a part of the board, and no device that a guest could take: it needs no IOMMU.";
        return Finding::good(what, why);
    }
    if files.link(&format!("{FOLDER}/{}/iommu_group", case.device.at)).is_denied() {
        return Finding::unknown(what, "The device's group could not be read.");
    }
    let grouped = files.names("sys/kernel/iommu_groups").found().is_some_and(|all| !all.is_empty());
    let listed_only = files.names(FOLDER).found().is_none();
    if grouped {
        let why = "The device has no group: the machine's IOMMU serves other devices, not this one. Either firmware \
                   does not name it, or the one that its accesses pass does not know PCI's identifiers.";
        return Finding::problem(what, why).act(
            "Nothing that Linux offers: without a group VFIO does not hand the device over safely.",
        );
    }
    if listed_only {
        return Finding::unknown(what, "What `lspci` prints does not tell if an IOMMU is on.");
    }
    let line = files.text("proc/cmdline").found().unwrap_or_default();
    let off = ["intel_iommu=off", "amd_iommu=off", "iommu=off"];
    let off = line.split_whitespace().find(|word| off.contains(word)).map(str::to_owned);
    let act = match off {
        Some(word) => format!("Take {word} off the kernel's command line."),
        None => "Switch it on in the firmware's setup (VT-d on Intel's, IOMMU or AMD-Vi on AMD's machines); some \
                 kernels of Intel machines want intel_iommu=on besides."
            .to_owned(),
    };
    Finding::problem(
        what,
        "The device has no group, and no other has one: the IOMMU is off, or there is none.",
    )
    .act(act)
}

fn is_users(driver: &str) -> bool {
    driver.contains("vfio") || driver == "pci-stub"
}

/// Answers which drivers have to change; those of devices that the host uses must not.
pub fn drivers(case: &DeviceCase<'_>, uses: &[HostUse]) -> Finding {
    let what = "drivers";
    let has = |one: &&KnownFunction| one.driver.as_deref().is_some_and(|driver| !is_users(driver));
    let hosts: Vec<&KnownFunction> = case.endpoints().filter(has).collect();
    let with =
        |one: &&KnownFunction| format!("{} ({})", one.at, one.driver.as_deref().unwrap_or(""));
    let them = listed(hosts.iter().map(with));
    let is_used = |one: &&&KnownFunction| uses.iter().any(|own| own.at == one.at);
    let used = listed(hosts.iter().filter(is_used).map(|one| one.at.to_string()));
    let act = match used.is_empty() {
        true => format!(
            "Bind to vfio-pci: {}. Ports and bridges keep their driver.",
            listed(hosts.iter().map(|one| one.at.to_string()))
        ),
        false => format!(
            "Leave the group with the host: it needs {used} itself. Bind none of it to vfio-pci."
        ),
    };
    let taken = case.device.driver.as_deref().is_some_and(is_users);
    match (taken, hosts.is_empty()) {
        (_, true) => {
            let why = "No driver of the host's has a device of the group. A port or bridge keeps pcieport, \
                       which is no obstacle.";
            Finding::good(what, why)
        }
        (true, false) => {
            let why = format!(
                "The device is bound for a user, and drivers of the host's have others of its group: {them}. VFIO \
                 calls the group not viable until each device has vfio-pci or none."
            );
            Finding::problem(what, why).act(act)
        }
        (false, false) => {
            let why = format!(
                "Drivers of the host's have {them}. For a guest they give the whole group up."
            );
            Finding::good(what, why).act(act)
        }
    }
}

/// Answers if firmware keeps memory for the group.
pub fn reserved(case: &DeviceCase<'_>) -> Option<Finding> {
    let what = "reserved memory";
    let path = format!("sys/kernel/iommu_groups/{}/reserved_regions", case.device.group?);
    let text = case.subject.files.text(&path).found()?;
    let of = |kind: &str| -> Vec<String> {
        let lines = text.lines().take(MOST_REGIONS).map(|line| line.split_whitespace().collect());
        let lines = lines.filter_map(|words: Vec<&str>| match words.as_slice() {
            [start, last, own] if *own == kind => {
                let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
                Some(format!("{:#x} to {:#x}", number(start)?, number(last)?))
            }
            _ => None,
        });
        lines.collect()
    };
    let (kept, relaxable) = (of("direct"), of("direct-relaxable"));
    if !kept.is_empty() {
        let why = format!(
            "Firmware keeps memory that the device goes on using, at the same addresses (1:1): {}. Linux does not \
             give such a device to a guest.",
            listed(kept)
        );
        let act = "Look in the firmware's setup for what keeps it (shared memory of the slot, health monitoring, USB \
                   keyboard emulation), or use a device in another slot. A patched kernel that ignores it exists.";
        let price = "with the patch, firmware's engine and the guest write to the same device: memory of either may \
                     be damaged";
        return Some(Finding::problem(what, why).act(act).gives_up(price));
    }
    (!relaxable.is_empty()).then(|| {
        let why = format!(
            "Firmware's memory for it is relaxable, given up when a guest takes the device: {}.",
            listed(relaxable)
        );
        Finding::good(what, why)
    })
}

/// Answers by which identifiers the device's accesses arrive, if there are several.
pub fn identifiers(case: &DeviceCase<'_>) -> Option<Finding> {
    let own = case.device.at;
    let others: Vec<RequesterId> = case.pci.tree().requesters(own);
    let others: Vec<RequesterId> = others.into_iter().filter(|one| *one != own.requester).collect();
    let place = |requester| PciFunction { segment: own.segment, requester };
    let named = listed(others.iter().map(|one| place(*one).to_string()));
    let mut why = format!(
        "Its accesses may arrive at the IOMMU as {named} too; Linux knows that and maps for all."
    );
    let beside = |one: &&RequesterId| one.get() >> 3 == own.requester.get() >> 3;
    if let Some(alias) = others.iter().find(beside) {
        let (bus, device, function) =
            (own.requester.bus(), own.requester.device(), own.requester.function());
        let step = alias.function().abs_diff(function);
        why += &format!(" Xen has to be told: pci-phantom={bus:02x}:{device:02x},{step}.");
    }
    (!others.is_empty()).then(|| Finding::good("identifiers", why))
}

/// Answers if Linux can reset the device between users.
pub fn resets(case: &DeviceCase<'_>) -> Option<Finding> {
    let what = "reset";
    match case.device.resets.as_deref()? {
        [] => {
            let why = "Linux knows no way to reset the device: after one guest it stays as that guest left it.";
            Some(Finding::problem(what, why).act("Restart the machine between guests."))
        }
        all => Some(reset_with_others(case, all)),
    }
}

/// Answers which others a reset takes along: one of the bus (or slot) takes all functions below the port.
fn reset_with_others(case: &DeviceCase<'_>, methods: &[String]) -> Finding {
    let what = "reset";
    let mut why = format!("Linux resets it by: {}.", methods.join(", "));
    let is_wide = methods.iter().all(|method| WIDE_RESETS.contains(&method.as_str()));
    let bus = |at: PciFunction| (at.segment, at.requester.bus());
    let beside = |one: &&KnownFunction| {
        let other = case.members.iter().all(|member| member.at != one.at);
        other && one.at != case.device.at && bus(one.at) == bus(case.device.at)
    };
    // Without a port above there is no bus to reset.
    let has_port = !case.pci.way_up(case.device.at).is_empty();
    let along = case.pci.functions().filter(beside);
    let along: Vec<&KnownFunction> = along.filter(|_| is_wide && has_port).collect();
    if along.is_empty() {
        return Finding::good(what, why);
    }
    let named = listed(along.iter().map(|one| match one.group {
        Some(group) => format!("{} (group {group})", one.at),
        None => one.at.to_string(),
    }));
    why += &format!(
        " That resets all of its bus, and with it {named}: VFIO does so only for a user that has these too."
    );
    let hosts = along.iter().filter(|one| !one.driver.as_deref().is_some_and(is_users));
    let hosts = listed(hosts.map(|one| one.at.to_string()));
    if hosts.is_empty() {
        return Finding::good(what, why);
    }
    let act = format!(
        "Give the guest these as well: bind {hosts} to vfio-pci, and add them to the guest."
    );
    Finding::problem(what, why).act(act)
}

/// Answers if the unit's addresses reach the device's windows; nothing where its width is not known.
pub fn addresses(case: &DeviceCase<'_>) -> Option<Finding> {
    let what = "addresses";
    let unit = case.device.unit.as_ref()?;
    let text =
        case.subject.files.text(&format!("sys/class/iommu/{unit}/intel-iommu/cap")).found()?;
    let cap = u64::from_str_radix(text.trim(), 16).ok()?;
    let width = (cap >> 16 & 0x3f) + 1;
    let last =
        |one: &crate::doctor::pci::BarWindow| one.start.saturating_add(one.bytes.saturating_sub(1));
    let highest = case.device.windows.iter().filter(|one| one.start != 0).map(last).max()?;
    let bits = u64::from(u64::BITS - highest.leading_zeros());
    let largest = case.device.windows.iter().map(|one| one.bytes).max().unwrap_or(0);
    let why = format!(
        "The IOMMU takes addresses of {width} bits. The largest window has {}, the highest address of one takes {bits} \
         bits",
        display::bytes(largest)
    );
    if bits <= width {
        return Some(Finding::good(what, format!("{why}.")));
    }
    let why =
        format!("{why}: a guest that maps it for other devices gets VFIO_MAP_DMA failed: -22.");
    let act = "Give the guest fewer physical address bits than the IOMMU has (QEMU: -cpu …,guest-phys-bits, or a \
               smaller 64-bit window), or switch Resizable BAR off.";
    Some(Finding::problem(what, why).act(act))
}
