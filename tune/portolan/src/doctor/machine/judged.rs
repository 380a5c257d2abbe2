//! Options of Linux's command line that concern IOMMUs, by the parsers of Linux 5.4 to 7.3: `intel_iommu_setup`
//! (drivers/iommu/intel), `parse_amd_iommu_options` (drivers/iommu/amd), `iommu_setup` (arch/x86/kernel/pci-dma.c),
//! drivers/iommu/iommu.c, `setup_irqremap`.
//!
//! Not supported: options of other architectures' own (powerpc, s390, ia64), and of modules but VFIO's.

use super::known::Known;
use super::options::{Word, boolean};
use super::processor::Processor;
use crate::doctor::{Finding, Verdict};

/// Values of `intel_iommu=`. Linux compares their beginning.
const INTEL: [&str; 8] =
    ["on", "off", "igfx_off", "forcedac", "strict", "sp_off", "sm_", "tboot_noforce"];
/// Values of `amd_iommu=`. Linux compares their beginning.
const AMD: [&str; 9] = [
    "fullflush",
    "force_enable",
    "off",
    "force_isolation",
    "pgtbl_v1",
    "pgtbl_v2",
    "irtcachedis",
    "nohugepages",
    "v2_pgsizes_only",
];
/// Values of `iommu=` on x86, with those of AMD's old aperture.
const X86: [&str; 22] = [
    "off",
    "force",
    "noforce",
    "biomerge",
    "panic",
    "nopanic",
    "merge",
    "nomerge",
    "forcesac",
    "allowdac",
    "nodac",
    "usedac",
    "soft",
    "pt",
    "nopt",
    "allowed",
    "leak",
    "noagp",
    "fullflush",
    "nofullflush",
    "noaperture",
    "memaper",
];
/// Names of options that have `iommu` in them.
const NAMES: [&str; 12] = [
    "intel_iommu",
    "amd_iommu",
    "amd_iommu_dump",
    "amd_iommu_intr",
    "iommu",
    "iommu.strict",
    "iommu.passthrough",
    "iommu.forcedac",
    "iommu.debug_pagealloc",
    "ivrs_ioapic",
    "ivrs_hpet",
    "ivrs_acpihid",
];
/// Beginnings of names that modules own.
const MODULES: [&str; 8] = [
    "vfio_iommu_type1.",
    "vfio_iommu_spapr_tce.",
    "iommufd.",
    "arm_smmu",
    "virtio_iommu.",
    "riscv_iommu",
    "tegra",
    "omap_iommu.",
];

/// Remarks on one option.
struct Remark {
    verdict: Verdict,
    text: String,
    act: Option<String>,
}

impl Remark {
    fn good(text: String) -> Self {
        Self { verdict: Verdict::Good, text, act: None }
    }

    fn wrong(text: String, act: String) -> Self {
        Self { verdict: Verdict::Problem, text, act: Some(act) }
    }
}

/// The finding on the kernel's options.
pub(super) fn finding(known: &Known) -> Finding {
    let words = &known.options.0;
    if words.is_empty() {
        return Finding::unknown("kernel options", "The kernel's command line could not be read.");
    }
    let mut remarks: Vec<Remark> = Vec::new();
    for word in words {
        remarks.extend(judge(word, known));
    }
    remarks.dedup_by(|one, other| one.text == other.text);
    let worst = remarks.iter().map(|remark| remark.verdict).min().unwrap_or(Verdict::Good);
    if remarks.is_empty() {
        let why = match known.options.concern_iommus() {
            0 => "The kernel's command line has no option for the IOMMU.",
            _ => "Linux understands each option for the IOMMU on its command line.",
        };
        return Finding::good("kernel options", why);
    }
    remarks.sort_by_key(|remark| remark.verdict);
    let texts: Vec<&str> = remarks.iter().map(|remark| remark.text.as_str()).collect();
    let mut finding = Finding::new("kernel options", worst, texts.join(" "));
    let acts: Vec<String> = remarks.into_iter().filter_map(|remark| remark.act).collect();
    if !acts.is_empty() {
        finding = finding.act(acts.join(" "));
    }
    finding
}

fn judge(word: &Word, known: &Known) -> Vec<Remark> {
    let processor = known.processor;
    let written = &word.written;
    let values = || word.value.split(',').filter(|value| !value.is_empty());
    match word.name.as_str() {
        "intel_iommu" if processor == Processor::Amd => {
            vec![Remark::good(format!("{written} does nothing on this AMD processor."))]
        }
        "amd_iommu" if processor == Processor::Intel => vec![of_the_other(word, known)],
        "intel_iommu" => values().filter_map(|value| intel(value, written, known)).collect(),
        "amd_iommu" => values().filter_map(|value| amd(value, written)).collect(),
        "iommu" if processor.is_x86() => {
            values().filter_map(|value| x86(value, written, known)).collect()
        }
        "iommu" if matches!(processor, Processor::Arm | Processor::RiscV) => {
            vec![of_x86_alone(word)]
        }
        "iommu.strict" | "iommu.passthrough" | "iommu.forcedac" => {
            let text = format!("Linux ignores {written}: the value is neither 0 nor 1.");
            let act = format!("Write {}=0 or {}=1.", word.name, word.name);
            match boolean(&word.value) {
                None => vec![Remark::wrong(text, act)],
                Some(_) => Vec::new(),
            }
        }
        "pci" if values().any(|value| value == "noacs") => vec![Remark::wrong(
            format!("Linux ignores noacs in {written}: it has no such option."),
            "To let devices reach each other directly, see `pci=disable_acs_redir=`.".to_owned(),
        )],
        "pcie_acs_override" => vec![Remark::good(format!(
            "{written} works in patched kernels alone. It makes Linux believe that devices are kept apart which \
             are not."
        ))],
        name => misspelt(name, written).into_iter().collect(),
    }
}

fn intel(value: &str, written: &str, known: &Known) -> Option<Remark> {
    if value == "relax_rmrr" {
        let patched = known.says("assuming all RMRRs are relaxable");
        let refused = known.says("Unknown option - 'relax_rmrr'");
        let text = match (patched, refused) {
            (true, _) => {
                let text = format!(
                    "{written}: this kernel has the relax_rmrr patch, so that devices are given to guests \
                     although firmware still uses memory through them."
                );
                return Some(Remark::good(text));
            }
            (false, true) => {
                format!("This kernel has no relax_rmrr patch, and ignores it in {written}.")
            }
            (false, false) => format!(
                "relax_rmrr in {written} works with a patched kernel alone, and the log does not say that this \
                 is one."
            ),
        };
        let act =
            "Use a kernel with the relax_rmrr patch (Proxmox has it), or leave the option out.";
        return Some(Remark::wrong(text, act.to_owned()));
    }
    let known = INTEL.iter().any(|one| value.starts_with(one));
    (!known).then(|| unknown("intel_iommu", value, written))
}

fn amd(value: &str, written: &str) -> Option<Remark> {
    if AMD.iter().any(|one| value.starts_with(one)) {
        return None;
    }
    if value == "on" {
        let text = format!("Linux ignores {written}: AMD's IOMMU is on by itself.");
        return Some(Remark::good(text));
    }
    Some(unknown("amd_iommu", value, written))
}

fn x86(value: &str, written: &str, known: &Known) -> Option<Remark> {
    let number = value.bytes().all(|byte| byte.is_ascii_digit());
    if X86.iter().any(|one| value.starts_with(one)) {
        return None;
    }
    let text = format!("Linux ignores {written}: `{value}` is no value of iommu=.");
    match known.is_on() {
        true => Some(Remark::good(text)),
        false if number && value != "1" => None,
        false => {
            let act = match known.processor {
                Processor::Intel => "Write intel_iommu=on.",
                _ => "Leave it out.",
            };
            Some(Remark::wrong(text, act.to_owned()))
        }
    }
}

/// An option of one maker with a value that it does not have.
fn unknown(name: &str, value: &str, written: &str) -> Remark {
    let text = format!("Linux ignores {written}: `{value}` is no value of {name}=.");
    let act = match value {
        "pt" => format!("Write iommu=pt instead of {written}, or leave it out."),
        "nopt" => format!("Write iommu=nopt instead of {written}."),
        "lazy" => format!("Write iommu.strict=0 instead of {written}."),
        _ => format!("Leave {written} out, or correct it."),
    };
    Remark::wrong(text, act)
}

/// AMD's option on Intel's processor.
fn of_the_other(word: &Word, known: &Known) -> Remark {
    let text = format!("{} does nothing on this Intel processor.", word.written);
    match known.is_on() || word.value.starts_with("off") {
        true => Remark::good(text),
        false => Remark::wrong(text, format!("Write intel_iommu=on instead of {}.", word.written)),
    }
}

fn of_x86_alone(word: &Word) -> Remark {
    let text = format!("Linux ignores {}: iommu= is an option of x86 processors.", word.written);
    let act = match word.value.as_str() {
        "pt" => "Write iommu.passthrough=1 if that is what you want, or leave it out.",
        "nopt" => "Write iommu.passthrough=0.",
        _ => "Leave it out.",
    };
    Remark::wrong(text, act.to_owned())
}

/// A name with `iommu` in it that Linux does not know.
fn misspelt(name: &str, written: &str) -> Option<Remark> {
    let ours = name.contains("iommu") || name.contains("iomu");
    let module = MODULES.iter().any(|module| name.starts_with(module));
    if !ours || module || NAMES.contains(&name) {
        return None;
    }
    let near = NAMES.iter().map(|known| (distance(name, known), known)).min()?;
    let act = match near {
        (0..=2, known) => format!("Write {known}= if that is meant."),
        _ => format!("Leave {written} out."),
    };
    Some(Remark::wrong(format!("Linux knows no option {name}, and ignores {written}."), act))
}

/// Letters to change, insert or remove between two words.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.chars().take(64).enumerate() {
        let mut before = i;
        let mut left = i + 1;
        for (entry, known) in row.iter_mut().skip(1).zip(&other) {
            let here = (before + usize::from(letter != *known)).min(left + 1).min(*entry + 1);
            before = std::mem::replace(entry, here);
            left = here;
        }
        row.splice(..1, [i + 1]);
    }
    row.last().copied().unwrap_or(usize::MAX)
}
