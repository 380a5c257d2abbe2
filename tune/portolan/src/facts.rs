//! Facts of a recorded machine: its kernel, CPUs, IOMMUs, groups and devices.
//!
//! Read from `/proc` and `/sys` (Documentation/ABI/testing/sysfs-class-iommu and sysfs-kernel-iommu_groups of Linux),
//! without the kernel's log. Missing files are left out: no fact is needed to record. A recording carries them in
//! one line at its head.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::files::Files;

/// Beginning of the line with the facts.
pub const HEAD: &str = "# portolan-facts: ";
/// Beginning of each line with the time that a function of the kernel took.
pub const LATENCY: &str = "# portolan-latency: ";
/// Beginning of the line that ends a recording.
pub const END: &str = "# portolan-end: ";
/// VT-d, 11.4.2 (CAP_REG): caching mode. 11.4.3 (ECAP_REG): scalable mode, first-stage translation.
const CAP_CM: u64 = 1 << 7;
const ECAP_FIRST_STAGE: u64 = 1 << 43 | 1 << 47;
/// Limit of described devices; beyond it only groups are counted.
const MOST_DEVICES: usize = 4096;

/// Facts of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// The kernel's release.
    pub release: String,
    /// The kernel's command line.
    pub command_line: String,
    /// The CPUs' architecture, as Rust calls it.
    pub architecture: String,
    /// CPUs that are online.
    pub cpus: u32,
    /// Model name of the CPUs.
    pub cpu_model: Option<String>,
    /// The CPUs say that a hypervisor runs below them.
    pub under_hypervisor: bool,
    /// Percentage of the time since the start of the kernel in which its CPUs ran, by its own accounting: a CPU that
    /// a hypervisor does not run has no ticks, or reports stolen time.
    pub cpus_ran_pct: Option<u32>,
    /// IOMMUs, as `/sys/class/iommu` has them.
    pub iommus: Vec<IommuFacts>,
    /// Groups by the kind of their domain (`DMA` strict, `DMA-FQ` lazy, `identity`), and the number of each.
    pub group_kinds: BTreeMap<String, u32>,
    /// Devices behind the IOMMUs.
    pub devices: Vec<DeviceFacts>,
    /// Slots of 2 KiB in the kernel's bounce pool, if debugfs reports them.
    pub swiotlb_slots: Option<u64>,
    /// The kernel's mode of transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
}

/// An IOMMU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IommuFacts {
    /// The kernel's name for it.
    pub name: String,
    /// Its driver, if known.
    pub kind: IommuKind,
    /// Registers that sysfs shows: `cap`, `ecap`, `features`, in hexadecimal.
    pub registers: BTreeMap<String, String>,
    /// Devices behind it.
    pub devices: u32,
}

/// Driver of an IOMMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IommuKind {
    /// Intel's VT-d.
    Vtd,
    /// AMD-Vi.
    AmdVi,
    /// Arm's SMMUv3.
    SmmuV3,
    /// Arm's SMMUv2 and Qualcomm's.
    SmmuV2,
    /// Tegra's own.
    TegraSmmu,
    /// virtio-iommu.
    VirtioIommu,
    /// RISC-V's.
    RiscV,
    /// Another driver.
    #[default]
    #[serde(other)]
    Other,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceFacts {
    /// Its name in events.
    pub name: String,
    /// Its group.
    pub group: u32,
    /// The kind of the group's domain: `DMA` strict, `DMA-FQ` lazy, `identity`.
    pub group_kind: Option<String>,
    /// `vendor:device` of PCI, in hexadecimal.
    pub id: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
}

/// A release as two numbers: `6.12.117+deb12-amd64` is 6, 12.
pub(crate) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

impl IommuFacts {
    /// A register that sysfs shows.
    pub fn register(&self, name: &str) -> Option<u64> {
        let digits = self.registers.get(name)?;
        u64::from_str_radix(digits.trim_start_matches("0x"), 16).ok()
    }
}

impl Facts {
    /// Reads the facts of the machine whose root folder is `root`.
    pub fn read(root: &Path) -> Self {
        let architecture = std::env::consts::ARCH.to_owned();
        Self { architecture, ..Self::of(&Files::Below(root.to_owned())) }
    }

    /// Reads the facts of the machine with these files. Its architecture is not among them.
    pub fn of(files: &Files) -> Self {
        Self::beside(files, &text(files, "proc/cpuinfo").unwrap_or_default())
    }

    /// Reads the facts of the machine with these files, of which `cpuinfo` is read already.
    pub(crate) fn beside(files: &Files, cpuinfo: &str) -> Self {
        let at = |path: &str| text(files, path);
        let field = |name: &str| {
            let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(key, _)| key.trim() == name);
            found.map(|(_, value)| value.trim().to_owned())
        };
        let arm = || Some(format!("{} {}", field("CPU implementer")?, field("CPU part")?));
        let flags = field("flags").unwrap_or_default();
        let (group_kinds, devices) = groups(files);
        Self {
            release: at("proc/sys/kernel/osrelease").unwrap_or_default(),
            command_line: at("proc/cmdline").unwrap_or_default(),
            architecture: String::new(),
            cpus: at("sys/devices/system/cpu/online").map_or(0, |list| count(&list)),
            cpu_model: field("model name").or_else(arm),
            under_hypervisor: flags.split(' ').any(|flag| flag == "hypervisor"),
            cpus_ran_pct: cpus_ran_pct(
                &at("proc/stat").unwrap_or_default(),
                &at("proc/uptime").unwrap_or_default(),
            ),
            iommus: {
                let units = names(files, "sys/class/iommu").into_iter();
                units.map(|name| iommu(files, name)).collect()
            },
            group_kinds,
            devices,
            swiotlb_slots: at("sys/kernel/debug/swiotlb/io_tlb_nslabs")
                .and_then(|slots| slots.parse().ok()),
            huge_pages: at("sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|words| chosen(&words)),
        }
    }

    /// The line that a recording begins with.
    ///
    /// # Errors
    /// None that a machine's facts bring about.
    pub fn line(&self) -> serde_json::Result<String> {
        Ok(format!("{HEAD}{}\n", serde_json::to_string(self)?))
    }

    /// Facts in a line of a trace, if it is the line with the facts.
    ///
    /// # Errors
    /// If such a line cannot be read: the reason.
    pub fn parse(line: &[u8]) -> Option<serde_json::Result<Self>> {
        Some(serde_json::from_slice(line.strip_prefix(HEAD.as_bytes())?))
    }

    /// The kernel's release as two numbers: `6.12.117+deb12-amd64` is 6, 12.
    pub fn version(&self) -> Option<(u32, u32)> {
        version(&self.release)
    }

    /// The value of `name=` on the kernel's command line, the last one if there are several.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let mut words = self.command_line.split_whitespace().rev();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// Kinds of domains, and the number of `devices` that have a group of each; the numbers of groups, where none of
    /// them is known.
    pub fn kinds_of(&self, devices: &[String]) -> BTreeMap<&str, u32> {
        let mut kinds = BTreeMap::new();
        let wanted: BTreeSet<&str> = devices.iter().map(String::as_str).collect();
        let named = self.devices.iter();
        for device in named.filter(|device| wanted.contains(device.name.as_str())) {
            if let Some(kind) = &device.group_kind {
                *kinds.entry(kind.as_str()).or_default() += 1;
            }
        }
        if kinds.is_empty() {
            let all = self.group_kinds.iter();
            kinds = all.map(|(kind, count)| (kind.as_str(), *count)).collect();
        }
        kinds
    }

    /// Tells if the VT-d unit that most devices are behind has all of `bits` in a register.
    fn register_has(&self, register: &str, bits: u64) -> Option<bool> {
        let unit = self.iommus.iter().max_by_key(|unit| unit.devices)?;
        let value = unit.register(register)?;
        (unit.kind == IommuKind::Vtd).then_some(value & bits == bits)
    }

    /// Tells if the unit reports caching mode.
    pub fn has_caching_mode(&self) -> Option<bool> {
        self.register_has("cap", CAP_CM)
    }

    /// Tells if the unit has scalable mode with first-stage tables.
    pub fn has_first_stage(&self) -> Option<bool> {
        self.register_has("ecap", ECAP_FIRST_STAGE)
    }

    /// Tells if the kernel is strict for these devices, by [`kinds_of`](Self::kinds_of); `None` if no group is known,
    /// or groups differ.
    pub fn is_strict(&self, devices: &[String]) -> Option<bool> {
        let kinds = self.kinds_of(devices);
        match (kinds.contains_key("DMA"), kinds.contains_key("DMA-FQ")) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            _ => None,
        }
    }
}

fn text(files: &Files, path: &str) -> Option<String> {
    Some(files.text(path).found()?.trim().to_owned())
}

/// Names in a folder, in order.
fn names(files: &Files, folder: &str) -> Vec<String> {
    files.names(folder).found().unwrap_or_default()
}

/// Name of a link's target.
fn target(files: &Files, link: &str) -> Option<String> {
    let target = files.link(link).found()?;
    target.rsplit('/').next().map(str::to_owned)
}

/// The word in brackets, which is the active one: `always [madvise] never`.
fn chosen(words: &str) -> Option<String> {
    let (_, after) = words.split_once('[')?;
    Some(after.split_once(']')?.0.to_owned())
}

/// The numbers in a list like `0-3,8`.
fn count(list: &str) -> u32 {
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    ranges.fold(0, u32::saturating_add)
}

/// Part of the time since the start that `/proc/stat` accounts for (proc_stat(5)).
fn cpus_ran_pct(stat: &str, uptime: &str) -> Option<u32> {
    let seconds: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    let (mut ran, mut cpus) = (0u64, 0u32);
    for line in stat.lines() {
        let Some(line) = line.strip_prefix("cpu") else {
            continue;
        };
        if !line.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        // Up to softirq. What follows is stolen, or in the others already.
        let times = line.split_whitespace().skip(1).take(7);
        ran = times.flat_map(str::parse).fold(ran, u64::saturating_add);
        cpus += 1;
    }
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let all = seconds * ticks * f64::from(cpus);
    (all > 0.0).then(|| (100.0 * ran as f64 / all).min(100.0) as u32)
}

fn iommu(files: &Files, name: String) -> IommuFacts {
    let at = |path: &str| format!("sys/class/iommu/{name}/{path}");
    let driver = target(files, &at("device/driver")).unwrap_or_default();
    let of = |start: &str| name.starts_with(start) || driver.starts_with(start);
    let has = |folder: &str| !names(files, &at(folder)).is_empty();
    let kind = if has("intel-iommu") || of("dmar") {
        IommuKind::Vtd
    } else if has("amd-iommu") || of("ivhd") {
        IommuKind::AmdVi
    } else if of("smmu3") || of("arm-smmu-v3") {
        IommuKind::SmmuV3
    } else if of("smmu.") || of("arm-smmu") {
        IommuKind::SmmuV2
    } else if of("tegra-smmu") || of("tegra-mc") {
        IommuKind::TegraSmmu
    } else if of("virtio") {
        IommuKind::VirtioIommu
    } else if of("riscv-iommu") || of("riscv,iommu") {
        IommuKind::RiscV
    } else {
        IommuKind::Other
    };
    let mut registers = BTreeMap::new();
    for (folder, register) in [
        ("intel-iommu", "cap"),
        ("intel-iommu", "ecap"),
        ("intel-iommu", "version"),
        ("amd-iommu", "cap"),
        ("amd-iommu", "features"),
    ] {
        if let Some(value) = text(files, &at(&format!("{folder}/{register}"))) {
            registers.insert(register.to_owned(), value);
        }
    }
    let devices = names(files, &at("devices")).len() as u32;
    IommuFacts { name, kind, registers, devices }
}

fn groups(files: &Files) -> (BTreeMap<String, u32>, Vec<DeviceFacts>) {
    let (mut kinds, mut devices) = (BTreeMap::new(), Vec::new());
    for group in names(files, "sys/kernel/iommu_groups") {
        let folder = format!("sys/kernel/iommu_groups/{group}");
        let kind = text(files, &format!("{folder}/type"));
        if let Some(kind) = &kind {
            *kinds.entry(kind.clone()).or_insert(0) += 1;
        }
        let number = group.parse().unwrap_or(0);
        let room = MOST_DEVICES.saturating_sub(devices.len());
        if room == 0 {
            continue;
        }
        let members = names(files, &format!("{folder}/devices")).into_iter();
        devices.extend(members.take(room).map(|name| {
            // The folder's entries are links, which files in memory do not follow.
            let at = match files.follows_links() {
                true => format!("{folder}/devices/{name}"),
                false => format!("sys/bus/pci/devices/{name}"),
            };
            let id = |what: &str| {
                let digits = text(files, &format!("{at}/{what}"))?;
                Some(digits.trim_start_matches("0x").to_owned())
            };
            DeviceFacts {
                group: number,
                group_kind: kind.clone(),
                id: id("vendor").zip(id("device")).map(|(vendor, id)| format!("{vendor}:{id}")),
                driver: target(files, &format!("{at}/driver")),
                name,
            }
        }));
    }
    (kinds, devices)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_machines_facts_come_from_its_files_and_back_from_a_line() {
        let root = std::env::temp_dir().join(format!("portolan-facts-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/sys/kernel/osrelease", "6.12.1\n");
        write("proc/cmdline", "quiet iommu.strict=1\n");
        write("proc/cpuinfo", "model name\t: A CPU\nflags\t\t: fpu hypervisor\n");
        write("sys/devices/system/cpu/online", "0-3,8\n");
        write("proc/uptime", "100.00 99.00\n");
        write("sys/class/iommu/dmar0/intel-iommu/cap", "d2008c22260206\n");
        write("sys/class/iommu/dmar0/devices/0000:00:03.0/x", "");
        write("sys/kernel/iommu_groups/1/type", "DMA\n");
        write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        write("sys/kernel/iommu_groups/1/devices/0000:00:03.0/vendor", "0x1b36\n");
        write("sys/kernel/iommu_groups/1/devices/0000:00:03.0/device", "0x0010\n");
        let facts = Facts::read(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((facts.release.as_str(), facts.cpus), ("6.12.1", 5));
        assert_eq!(facts.version(), Some((6, 12)));
        assert_eq!(facts.parameter("iommu.strict"), Some("1"));
        assert_eq!(facts.parameter("iommu"), None);
        assert!(facts.under_hypervisor && facts.is_strict(&[]) == Some(true));
        let [unit] = facts.iommus.as_slice() else { panic!("one unit") };
        assert_eq!((unit.kind, unit.devices), (IommuKind::Vtd, 1));
        assert_eq!(unit.register("cap"), Some(0xd2_008c_2226_0206));
        assert_eq!(facts.devices[0].id.as_deref(), Some("1b36:0010"));
        assert_eq!(facts.devices[0].group_kind.as_deref(), Some("DMA"));
        assert_eq!(facts.huge_pages.as_deref(), Some("madvise"));
        assert_eq!(facts.cpus_ran_pct, None);
        let line = facts.line().unwrap();
        let back = Facts::parse(line.trim_end().as_bytes()).unwrap().unwrap();
        assert_eq!(back, facts);
        assert!(Facts::parse(b"# portolan-facts: {").unwrap().is_err());
        assert!(Facts::parse(b"# tracer: nop").is_none());
    }

    #[test]
    fn time_that_the_kernel_accounts_for_is_that_in_which_cpus_ran() {
        let hz = rustix::param::clock_ticks_per_second();
        let (idle, most) = (60 * hz, 30 * hz);
        // Ten seconds of the second CPU are stolen, and of the first nothing is known.
        let stat = format!(
            "cpu  1 1 1 1 1 1 1 1 1 1\ncpu0 0 0 {most} {idle} 0 0 0 0 0 0\n\
             cpu1 {most} 0 0 {idle} 0 0 0 {} {most} 0\nctxt 5\n",
            10 * hz
        );
        assert_eq!(cpus_ran_pct(&stat, "100.00 120.00"), Some(90));
        assert_eq!(cpus_ran_pct(&stat, "80.00 120.00"), Some(100));
        assert_eq!(cpus_ran_pct(&stat, "0.00 0.00"), None);
        assert_eq!(cpus_ran_pct("", "100.00 120.00"), None);
        assert_eq!(cpus_ran_pct(&stat, ""), None);
    }

    #[test]
    fn one_group_made_lazy_says_nothing_of_the_others() {
        let device = |name: &str, kind: &str| DeviceFacts {
            name: name.to_owned(),
            group_kind: Some(kind.to_owned()),
            ..DeviceFacts::default()
        };
        let facts = Facts {
            group_kinds: BTreeMap::from([("DMA".to_owned(), 3), ("DMA-FQ".to_owned(), 1)]),
            devices: vec![device("disk", "DMA-FQ"), device("card", "DMA")],
            ..Facts::default()
        };
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            facts.is_strict(&names)
        };
        assert_eq!((of(&["disk"]), of(&["card"])), (Some(false), Some(true)));
        assert_eq!((of(&["disk", "card"]), of(&["other"])), (None, None));
    }

    #[test]
    fn of_a_machine_with_many_devices_all_groups_are_counted_and_the_facts_stay_a_line() {
        let root = std::env::temp_dir().join(format!("portolan-many-{}", std::process::id()));
        let count = MOST_DEVICES + 100;
        for group in 0..count {
            let name = format!("0000:{:02x}:{:02x}.0", group >> 5 & 0xff, group & 31);
            let group = root.join(format!("sys/kernel/iommu_groups/{group}"));
            fs::create_dir_all(group.join("devices").join(name)).unwrap();
            fs::write(group.join("type"), "DMA\n").unwrap();
        }
        let facts = Facts::read(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(facts.group_kinds["DMA"] as usize, count);
        assert_eq!(facts.devices.len(), MOST_DEVICES);
        // The longest line that a reader of traces looks at.
        assert!(facts.line().unwrap().len() < 1 << 20);
        let names: Vec<String> = facts.devices.iter().map(|one| one.name.clone()).collect();
        assert_eq!(facts.kinds_of(&names), BTreeMap::from([("DMA", 4096)]));
    }

    #[test]
    fn a_machine_without_files_has_no_facts_and_is_none_the_worse() {
        let facts = Facts::read(Path::new("/nowhere-at-all"));
        assert_eq!((facts.cpus, facts.is_strict(&[])), (0, None));
        assert_eq!(count("3-1,x,"), 0);
    }
}
