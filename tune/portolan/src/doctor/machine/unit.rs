//! Presence of an IOMMU, and the reason where Linux runs none.

use super::known::Known;
use super::processor::Processor;
use crate::doctor::{Finding, Reading};
use crate::facts::IommuKind;

const WHAT: &str = "IOMMU";
/// Place of DMAR's flags, and the flag by which firmware opts in.
const OPT_IN_AT: usize = 37;
const OPT_IN: u8 = 1 << 2;

/// The name of a kind of IOMMU for people.
const fn name(kind: IommuKind) -> &'static str {
    match kind {
        IommuKind::Vtd => "Intel VT-d",
        IommuKind::AmdVi => "AMD-Vi",
        IommuKind::SmmuV3 => "Arm SMMUv3",
        IommuKind::SmmuV2 => "Arm SMMUv2",
        IommuKind::TegraSmmu => "Tegra SMMU",
        IommuKind::VirtioIommu => "virtio-iommu",
        IommuKind::RiscV => "RISC-V IOMMU",
        IommuKind::Other => "of another kind",
    }
}

/// The finding on the IOMMU itself.
pub(super) fn finding(known: &Known) -> Finding {
    if known.is_on() {
        return present(known);
    }
    if let Reading::Denied = known.files().names("sys/class/iommu") {
        return Finding::unknown(WHAT, "/sys/class/iommu could not be read.");
    }
    if let Some(word) = known.options.off(known.processor) {
        return switched_off(word, known.processor);
    }
    if known.files().names("sys").found().is_none() {
        return Finding::unknown(WHAT, "/sys was not there to be read.");
    }
    if known.word("sys/hypervisor/type").as_deref() == Some("xen") {
        return Finding::good(
            WHAT,
            "Xen runs it, and Linux does not see it: `xl info` (virt_caps: hvm_directio) and `xl dmesg` tell.",
        );
    }
    let described = ["DMAR", "IVRS"].iter().any(|table| has_table(known, table) == Some(true));
    if known.facts.under_hypervisor && !described {
        return Finding::good(
            WHAT,
            "This is a virtual machine without an IOMMU of its own, as most are: its host keeps its devices \
             apart from others. It cannot hand devices on to guests of its own.",
        );
    }
    match known.processor {
        Processor::Intel | Processor::Amd | Processor::OtherX86 => absent_on_x86(known),
        Processor::Unknown => {
            Finding::unknown(WHAT, "Linux runs none, and the processor is unknown.")
        }
        _ => Finding::problem(
            WHAT,
            "Linux runs none: this board has none that Linux knows for these devices, so each device reaches all \
             memory, and none can be passed to a guest. There is no option that changes this.",
        ),
    }
}

fn present(known: &Known) -> Finding {
    let units = &known.facts.iommus;
    let mut kinds: Vec<&str> = units.iter().map(|unit| name(unit.kind)).collect();
    kinds.dedup();
    let mut why = match units.len() {
        0 => "Linux runs one.".to_owned(),
        1 => format!("Linux runs one: {}.", kinds.join(", ")),
        many => format!("Linux runs {many}: {}.", kinds.join(", ")),
    };
    let by = match known.processor {
        Processor::Intel if known.says("force enabled due to platform opt in") => {
            "firmware asks for it because of ports that lead outside"
        }
        Processor::Intel if known.options.with("intel_iommu", "on").is_some() => {
            "intel_iommu=on on the kernel's command line"
        }
        Processor::Intel if known.config.has("INTEL_IOMMU_DEFAULT_ON") == Some(true) => {
            "the kernel switches it on by default (CONFIG_INTEL_IOMMU_DEFAULT_ON)"
        }
        Processor::Amd => "AMD's is on by itself",
        Processor::Intel if opts_in(known) == Some(true) => {
            "firmware asks for it (its DMAR table) because of ports that lead outside"
        }
        _ => return Finding::good(WHAT, why),
    };
    why += &format!(" Who switched it on: {by}.");
    Finding::good(WHAT, why)
}

fn switched_off(word: &str, processor: Processor) -> Finding {
    let lost = match processor {
        Processor::Amd => {
            "Each device reaches all memory, and none can be passed to a guest. An NPU needs the IOMMU and does not \
             work; some laptops do not sleep deeply."
        }
        _ => "Each device reaches all memory, and none can be passed to a guest.",
    };
    let why = format!("{word} on the kernel's command line switches it off. {lost}");
    Finding::problem(WHAT, why)
        .act(format!("Take {word} from the kernel's command line."))
        .gives_up(
            "Some speed where devices transfer much: measure it; iommu=pt costs next to none.",
        )
}

/// Tells if firmware's DMAR table asks that devices be translated (DMA_CTRL_PLATFORM_OPT_IN_FLAG of VT-d 4.1, section
/// 8.1); `None` if it cannot be read, or is none.
pub(super) fn opts_in(known: &Known) -> Option<bool> {
    let table = known.files().bytes("sys/firmware/acpi/tables/DMAR").found()?;
    table.starts_with(b"DMAR").then(|| table.get(OPT_IN_AT).map(|flags| flags & OPT_IN != 0))?
}

/// Tells if firmware has the table of that name; `None` if that is unknown.
fn has_table(known: &Known, table: &str) -> Option<bool> {
    if known.logged("ACPI: ").any(|line| line.contains(&format!("ACPI: {table} 0x"))) {
        return Some(true);
    }
    let names = known.files().names("sys/firmware/acpi/tables").found()?;
    Some(names.iter().any(|name| name.starts_with(table)))
}

fn absent_on_x86(known: &Known) -> Finding {
    let (table, setting) = match known.processor {
        Processor::Amd => ("IVRS", "IOMMU (often under AMD CBS, NBIO)"),
        _ => ("DMAR", "VT-d"),
    };
    let lost = "Each device reaches all memory, and none can be passed to a guest.";
    match (has_table(known, table), known.processor) {
        (Some(false), _) => Finding::problem(
            WHAT,
            format!(
                "Linux finds none: firmware has no {table} table, so it is off or not there. {lost}"
            ),
        )
        .act(format!("Switch {setting} on in the firmware's setup, if it has the setting."))
        .gives_up("Little: the default costs some speed where devices transfer much."),
        (Some(true), Processor::Intel) => {
            let unset = known.options.with("intel_iommu", "on").is_none();
            match unset {
                true => asked_elsewhere(known, lost).unwrap_or_else(|| {
                    Finding::problem(
                    WHAT,
                    format!(
                        "Firmware has one, and this kernel leaves it off unless it is asked. {lost}"
                    ),
                )
                .act("Add intel_iommu=on to the kernel's command line.")
                .gives_up("Some speed where devices transfer much.")
                }),
                false => broken(known, table, lost),
            }
        }
        (Some(true), _) => broken(known, table, lost),
        (None, _) => Finding::problem(WHAT, format!("Linux runs none. {lost}")).act(format!(
            "Look for {setting} in the firmware's setup; {}.",
            match known.processor {
                Processor::Intel => "then add intel_iommu=on to the kernel's command line",
                _ => "Linux switches it on by itself then",
            }
        )),
    }
}

/// The finding where a boot loader's file has the option, and the kernel was booted without it.
fn asked_elsewhere(known: &Known, lost: &str) -> Option<Finding> {
    let has = |path: &str| {
        let text = known.files().text(path).found()?;
        let mut lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        Some(lines.any(|line| line.contains("intel_iommu=on")))
    };
    let (grub, kernel) = (has("etc/default/grub"), has("etc/kernel/cmdline"));
    if grub != Some(true) && kernel != Some(true) {
        return None;
    }
    let (file, act) = match (grub, kernel) {
        (Some(true), Some(false)) => (
            "/etc/default/grub",
            "This machine boots by systemd-boot: add intel_iommu=on to /etc/kernel/cmdline, and run \
             `proxmox-boot-tool refresh` (Proxmox) or `kernel-install`.",
        ),
        (Some(true), _) => {
            ("/etc/default/grub", "Run `update-grub` (or `grub2-mkconfig`), and reboot.")
        }
        _ => (
            "/etc/kernel/cmdline",
            "Run `proxmox-boot-tool refresh` (Proxmox) or `kernel-install`, and reboot.",
        ),
    };
    let why = format!("{file} has intel_iommu=on, and this kernel was booted without it. {lost}");
    Some(Finding::problem(WHAT, why).act(act).gives_up("Some speed where devices transfer much."))
}

fn broken(known: &Known, table: &str, lost: &str) -> Finding {
    let driver = if table == "IVRS" { "AMD_IOMMU" } else { "INTEL_IOMMU" };
    if known.config.has(driver) == Some(false) {
        let why = format!(
            "Firmware has one, and this kernel is built without its driver (CONFIG_{driver}). {lost}"
        );
        return Finding::problem(WHAT, why).act(format!("Use a kernel with CONFIG_{driver}."));
    }
    let why = format!(
        "Firmware describes one ({table}), it is not switched off, and Linux does not run it: the kernel may lack \
         the driver, or refuse the table. {lost}"
    );
    Finding::problem(WHAT, why)
        .act("Look for DMAR or AMD-Vi in the kernel's log (`dmesg`), as root.")
}
