//! Mode of the devices' translations, its price, and who chose it.
//!
//! Linux names it in `/sys/kernel/iommu_groups/N/type` (Documentation/ABI/testing/sysfs-kernel-iommu_groups).

use super::known::Known;
use crate::doctor::Finding;
use crate::facts::{DeviceFacts, IommuKind};

const WHAT: &str = "mode";
/// Bit of VT-d's capability register: a hypervisor follows the tables.
const CACHING_MODE: u64 = 1 << 7;
/// Drivers of devices whose speed depends on the mode.
const FAST: [&str; 10] =
    ["nvme", "mlx5_core", "mlx4_core", "ice", "i40e", "ixgbe", "bnxt_en", "ena", "mana", "idpf"];

/// GPUs that share a processor's page tables: GH200, GB200, GB300 (`drivers/vfio/pci/nvgrace-gpu` of Linux).
const BY_PROCESS: [&str; 5] = ["10de:2342", "10de:2345", "10de:2348", "10de:2941", "10de:31c2"];

/// The mode of one group of devices, in words.
fn words(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "DMA" => "translated, and memory is taken back from a device at once",
        "DMA-FQ" => "translated, and memory is taken back from a device within some milliseconds",
        "identity" => "not translated: the device reaches all memory",
        "blocked" => "cut off from memory",
        "unmanaged" | "auto" => "in the hands of a guest or a program",
        _ => return None,
    })
}

/// Modes that decide the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Strict,
    Lazy,
    Identity,
}

/// The finding on the mode, if an IOMMU is at work.
pub(super) fn finding(known: &Known) -> Option<Finding> {
    if !known.is_on() {
        return None;
    }
    let Some(mode) = most(known) else {
        let why = "The kernel does not say in which mode devices are (`/sys/kernel/iommu_groups/*/type`, since \
                   Linux 5.11).";
        return Some(Finding::unknown(WHAT, why));
    };
    let why = format!("{}{}", counted(known), chooser(known, mode));
    Some(match mode {
        Mode::Lazy => lazy(known, why),
        Mode::Identity if wants_address_spaces(known) => without_address_spaces(why),
        Mode::Identity => {
            let why = format!(
                "{why} Nothing of that costs time, and a device or its firmware that goes wrong reaches all memory."
            );
            Finding::good(WHAT, why)
        }
        Mode::Strict => strict(known, why),
    })
}

/// The mode of most groups.
fn most(known: &Known) -> Option<Mode> {
    let kinds = &known.facts.group_kinds;
    let of = |name: &str| kinds.get(name).copied().unwrap_or(0);
    let counts =
        [(of("DMA"), Mode::Strict), (of("DMA-FQ"), Mode::Lazy), (of("identity"), Mode::Identity)];
    let most = counts.iter().max_by_key(|(count, _)| *count)?;
    if most.0 > 0 {
        return Some(most.1);
    }
    // The log's last word on it, of kernels whose files do not tell.
    let logged = |text: &'static str| known.says(text);
    if logged("Default domain type: Passthrough") {
        return Some(Mode::Identity);
    }
    if logged("TLB invalidation policy: lazy") {
        return Some(Mode::Lazy);
    }
    logged("TLB invalidation policy: strict").then_some(Mode::Strict)
}

/// The modes and the number of groups in each.
fn counted(known: &Known) -> String {
    let kinds = &known.facts.group_kinds;
    let named = kinds.iter().filter_map(|(kind, count)| Some((words(kind)?, kind, *count)));
    let mut parts: Vec<(&str, &String, u32)> = named.collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.2));
    match parts.as_slice() {
        [] => String::new(),
        [(words, kind, _)] => format!("Devices are {words} ({kind})."),
        many => {
            let all: u32 = many.iter().map(|part| part.2).sum();
            let one = |(words, kind, count): &(&str, &String, u32)| {
                format!("{count} of {all}: {words} ({kind})")
            };
            let list: Vec<String> = many.iter().map(one).collect();
            format!("Devices by what is kept apart together: {}.", list.join("; "))
        }
    }
}

/// The sentence on who chose the mode.
fn chooser(known: &Known, mode: Mode) -> String {
    let by_option = match mode {
        Mode::Identity => known.options.passthrough(known.processor).filter(|set| set.is_on),
        Mode::Strict => known.options.strict().filter(|set| set.is_on),
        Mode::Lazy => {
            let lazy = known.options.strict().filter(|set| !set.is_on);
            let translated = known.options.passthrough(known.processor);
            lazy.or(translated.filter(|set| !set.is_on))
        }
    };
    if let Some(set) = by_option {
        let last = match set.overrides {
            true => ", the last of several that contradict each other",
            false => "",
        };
        return format!(" Who chose that: {} on the kernel's command line{last}.", set.word);
    }
    let names = match mode {
        Mode::Identity => "IOMMU_DEFAULT_PASSTHROUGH",
        Mode::Strict => "IOMMU_DEFAULT_DMA_STRICT",
        Mode::Lazy => "IOMMU_DEFAULT_DMA_LAZY",
    };
    if mode == Mode::Strict && is_shadowed(known) {
        return " Who chose that: Linux, because a hypervisor follows each change here, so that waiting would save \
                nothing."
            .to_owned();
    }
    match known.config.has(names) {
        Some(true) => format!(" Who chose that: the kernel, as it was built (CONFIG_{names})."),
        _ => " Who chose that: the kernel's default.".to_owned(),
    }
}

/// Tells if a hypervisor follows VT-d's tables.
fn is_shadowed(known: &Known) -> bool {
    let units = known.facts.iommus.iter().filter(|unit| unit.kind == IommuKind::Vtd);
    units.filter_map(|unit| unit.register("cap")).any(|cap| cap & CACHING_MODE != 0)
}

/// Tells if the machine has devices whose speed depends on the mode.
fn is_fast(known: &Known) -> bool {
    let disks = known.files().names("sys/class/nvme").found().unwrap_or_default();
    let drivers = known.facts.devices.iter().filter_map(|device| device.driver.as_deref());
    !disks.is_empty() || drivers.into_iter().any(|driver| FAST.contains(&driver))
}

/// Tells if a GPU wants address spaces of processes (PASID) beside its own, which is passed through, and the driver of
/// SMMUv3 gives none there: before Linux 6.11.
fn wants_address_spaces(known: &Known) -> bool {
    let smmu = known.facts.iommus.iter().any(|unit| unit.kind == IommuKind::SmmuV3);
    let old = known.facts.version().is_some_and(|version| version < (6, 11));
    let wants = |device: &DeviceFacts| {
        device.group_kind.as_deref() == Some("identity")
            && device.id.as_deref().is_some_and(|id| BY_PROCESS.contains(&id))
    };
    smmu && old && known.facts.devices.iter().any(wants)
}

fn without_address_spaces(why: String) -> Finding {
    let why = format!(
        "{why} The GPU here uses addresses of processes, and Linux before 6.11 gives it none while it is not \
         translated: its programs fail as if it were busy."
    );
    Finding::problem(WHAT, why)
        .act("Add iommu.passthrough=0 to the kernel's command line, or use Linux 6.11 or later.")
        .gives_up("Some speed where devices transfer much.")
}

/// Lazy is good; the fastest network cards still pay for it.
fn lazy(known: &Known, why: String) -> Finding {
    let option = if known.processor.is_x86() { "iommu=pt" } else { "iommu.passthrough=1" };
    let cards = known.facts.devices.iter().filter_map(|device| device.driver.as_deref());
    let finding = Finding::good(WHAT, why);
    match cards.into_iter().any(|driver| driver != "nvme" && FAST.contains(&driver)) {
        false => finding,
        true => finding
            .act(format!(
                "Nothing, unless a network card of 100 Gbit/s or more is too slow: {option} on the kernel's \
                 command line."
            ))
            .gives_up("The protection of memory from devices and their firmware."),
    }
}

fn strict(known: &Known, why: String) -> Finding {
    let asked = known.options.strict().is_some_and(|set| set.is_on);
    if asked || is_shadowed(known) {
        return Finding::good(WHAT, why);
    }
    let act = "Add iommu.strict=0 to the kernel's command line; or, for one device: echo DMA-FQ > \
               /sys/bus/pci/devices/ADDRESS/iommu_group/type. Measure before and after (`portolan record`).";
    let price =
        "For some milliseconds a device still reaches memory that may have another use already.";
    if !is_fast(known) {
        return Finding::good(
            WHAT,
            format!("{why} It is the safest, and costs speed at high load."),
        );
    }
    let why = format!(
        "{why} For each transfer the processor waits until the IOMMU has forgotten its memory. Fast disks and \
         network cards may lose half of their speed."
    );
    Finding::problem(WHAT, why).act(act).gives_up(price)
}
