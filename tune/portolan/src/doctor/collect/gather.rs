//! Files of a machine that the commands need, made fit to be passed on.

use std::collections::BTreeMap;

use super::redact::Redactor;
use super::{Collected, KeptFile};
use crate::doctor::kernel_config::KernelConfig;
use crate::doctor::{Files, Log, Reading, Subject};

/// Names that a `*` stands for at most.
const MOST_NAMES: usize = 4096;
/// Bytes of one file that are kept at most.
const MOST_BYTES: usize = 1 << 20;
/// Bytes that are kept at most in all.
const MOST_IN_ALL: usize = 32 << 20;
/// Lines of the log that are kept at most.
const MOST_LINES: usize = 100_000;

/// Files that are kept as they are, or as links; `*` stands for each name in a folder, or the rest of one.
const WANTED: [&str; 60] = [
    "proc/sys/kernel/osrelease",
    "proc/self/limits",
    "proc/iomem",
    "proc/swaps",
    "proc/device-tree/compatible",
    "proc/device-tree/model",
    "sys/devices/system/cpu/online",
    "sys/hypervisor/type",
    "sys/class/iommu/*/intel-iommu/cap",
    "sys/class/iommu/*/intel-iommu/ecap",
    "sys/class/iommu/*/intel-iommu/version",
    "sys/class/iommu/*/amd-iommu/cap",
    "sys/class/iommu/*/amd-iommu/features",
    "sys/class/iommu/*/devices/*",
    "sys/class/iommu/*/device/driver",
    "sys/class/iommu/*",
    "sys/kernel/iommu_groups/*/type",
    "sys/kernel/iommu_groups/*/reserved_regions",
    "sys/kernel/iommu_groups/*/devices/*",
    "sys/bus/pci/devices/*",
    "sys/bus/pci/devices/*/class",
    "sys/bus/pci/devices/*/vendor",
    "sys/bus/pci/devices/*/device",
    "sys/bus/pci/devices/*/resource",
    "sys/bus/pci/devices/*/numa_node",
    "sys/bus/pci/devices/*/max_link_speed",
    "sys/bus/pci/devices/*/boot_vga",
    "sys/bus/pci/devices/*/reset_method",
    "sys/bus/pci/devices/*/removable",
    "sys/bus/pci/devices/*/driver",
    "sys/bus/pci/devices/*/iommu_group",
    "sys/bus/pci/devices/*/iommu",
    "sys/bus/pci/devices/*/physfn",
    "sys/class/nvme/*",
    "sys/class/net/*",
    "sys/class/net/*/brif/*",
    "sys/class/net/*/lower_*",
    "sys/class/drm/*",
    "sys/class/infiniband/*",
    "sys/class/block/*",
    "sys/class/block/*/dm/name",
    "sys/class/block/*/slaves/*",
    "sys/bus/thunderbolt/devices/*/iommu_dma_protection",
    "sys/bus/thunderbolt/devices/*/security",
    "sys/firmware/acpi/tables/DMAR",
    "sys/firmware/acpi/tables/IVRS",
    "sys/firmware/acpi/tables/IORT",
    "sys/firmware/acpi/tables/VIOT",
    "sys/firmware/acpi/tables/RIMT",
    "sys/firmware/acpi/tables/APIC",
    "sys/kernel/debug/swiotlb/io_tlb_nslabs",
    "sys/kernel/debug/swiotlb/io_tlb_used",
    "sys/kernel/debug/swiotlb/io_tlb_used_hiwater",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/module/vfio/parameters/*",
    "sys/module/vfio_pci/parameters/*",
    "sys/module/vfio_iommu_type1/parameters/*",
    "sys/module/iommufd/*",
    "proc/meminfo",
    "proc/uptime",
];
/// Words of the log's lines that are kept.
const LINES: [&str; 22] = [
    "iommu",
    "IOMMU",
    "DMAR",
    "AMD-Vi",
    "IVRS",
    "smmu",
    "SMMU",
    "vfio",
    "VFIO",
    "swiotlb",
    "SWIOTLB",
    "software IO TLB",
    "ommand line: ",
    "emory Encryption",
    "RMRR",
    "MEMLOCK",
    "SNP",
    "2apic",
    "_map(",
    "PCI-DMA",
    "ACS ",
    "fault",
];
/// Words of names of the kernel's options that are kept.
const CONFIG: [&str; 8] =
    ["IOMMU", "VFIO", "SWIOTLB", "IRQ_REMAP", "P2PDMA", "SMMU", "CONFIG_X86_64=", "CONFIG_ARM64="];
/// Lines of `/proc/cpuinfo` that are kept, of the first processor.
const PROCESSOR: [&str; 13] = [
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "flags",
    "address sizes",
    "CPU implementer",
    "CPU part",
    "Model",
    "isa",
    "mmu",
    "cpu",
];
/// Mount points whose names say nothing of a person.
const MOUNTS: [&str; 9] =
    ["/", "/boot", "/boot/efi", "/efi", "/usr", "/var", "/home", "/tmp", "/opt"];

/// A collection at work.
struct Gathering<'a> {
    files: &'a Files,
    kept: BTreeMap<String, KeptFile>,
    bytes: usize,
    redactor: Redactor,
}

impl Gathering<'_> {
    /// Keeps what `pattern` stands for.
    fn want(&mut self, pattern: &str) {
        let Some((before, rest)) = pattern.split_once('*') else {
            return self.keep(pattern);
        };
        let (folder, start) = before.rsplit_once('/').unwrap_or(("", before));
        let names = self.files.names(folder);
        if names.is_denied() {
            self.kept.insert(folder.to_owned(), KeptFile::Denied);
        }
        let names = names.found().unwrap_or_default().into_iter();
        for name in names.filter(|name| name.starts_with(start)).take(MOST_NAMES) {
            self.want(&format!("{folder}/{name}{rest}"));
        }
    }

    fn keep(&mut self, path: &str) {
        if let Some(target) = self.files.link(path).found() {
            return self.add(path, KeptFile::Link(target));
        }
        if self.files.names(path).found().is_some() {
            return;
        }
        match self.files.bytes(path) {
            Reading::Found(bytes) => self.add(path, KeptFile::Bytes(bytes)),
            Reading::Denied => self.add(path, KeptFile::Denied),
            Reading::Absent => {}
        }
    }

    fn add(&mut self, path: &str, file: KeptFile) {
        let size = match &file {
            KeptFile::Bytes(bytes) => bytes.len(),
            KeptFile::Link(target) => target.len(),
            KeptFile::Denied => 0,
        };
        if size > MOST_BYTES || self.bytes + size > MOST_IN_ALL {
            self.redactor.too_long();
            return;
        }
        self.bytes += size;
        self.kept.insert(path.to_owned(), file);
    }

    /// Keeps the text of `path` as `edit` leaves it.
    fn edited(&mut self, path: &str, edit: impl FnOnce(&mut Redactor, &str) -> String) {
        match self.files.text(path) {
            Reading::Found(text) => {
                let text = edit(&mut self.redactor, &text);
                self.add(path, KeptFile::Bytes(text.into_bytes()));
            }
            Reading::Denied => self.add(path, KeptFile::Denied),
            Reading::Absent => {}
        }
    }

    /// Keeps configuration spaces, without the serial numbers in them.
    fn spaces(&mut self) {
        let folder = "sys/bus/pci/devices";
        for name in
            self.files.names(folder).found().unwrap_or_default().into_iter().take(MOST_NAMES)
        {
            let path = format!("{folder}/{name}/config");
            if let Reading::Found(mut bytes) = self.files.bytes(&path) {
                self.redactor.space(&mut bytes);
                self.add(&path, KeptFile::Bytes(bytes));
            }
        }
    }

    /// Keeps the options of the kernel's configuration that concern IOMMUs.
    fn config(&mut self) {
        let release = self.files.text("proc/sys/kernel/osrelease").found().unwrap_or_default();
        let release = release.trim();
        let config = KernelConfig::read(self.files, release);
        if let Some(text) = config.text() {
            let wanted = |line: &&str| CONFIG.iter().any(|word| line.contains(word));
            let lines: Vec<&str> = text.lines().filter(wanted).collect();
            let text = lines.join("\n") + "\n";
            self.add(&format!("boot/config-{release}"), KeptFile::Bytes(text.into_bytes()));
        }
    }
}

/// The first processor's lines that are wanted.
fn processor(_: &mut Redactor, text: &str) -> String {
    let mut seen: Vec<&str> = Vec::new();
    let mut out = String::new();
    for line in text.lines() {
        let key = line.split(':').next().unwrap_or_default().trim();
        if PROCESSOR.contains(&key) && !seen.contains(&key) {
            seen.push(key);
            out += line;
            out.push('\n');
        }
    }
    out
}

/// The table of interrupts without its counters.
fn interrupts(_: &mut Redactor, text: &str) -> String {
    let line = |line: &str| {
        let words = line.split_whitespace();
        let rest: Vec<&str> = words
            .skip_while(|word| word.trim_end_matches(':').bytes().all(|byte| byte.is_ascii_digit()))
            .collect();
        rest.join(" ")
    };
    text.lines()
        .filter(|row| row.contains("MSI") || row.contains("IO-APIC"))
        .map(|row| line(row) + "\n")
        .collect()
}

/// Mounts of disks; places that may name a person are replaced.
fn mounts(redactor: &mut Redactor, text: &str) -> String {
    let mut out = String::new();
    for line in text.lines().filter(|line| line.starts_with("/dev/")) {
        let mut words = line.split(' ');
        let (device, place) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let place = match MOUNTS.contains(&place) {
            true => place,
            false => {
                redactor.place();
                "/elsewhere"
            }
        };
        let kind = words.next().unwrap_or_default();
        out += &format!("{device} {place} {kind} rw 0 0\n");
    }
    out
}

/// Routes without their addresses; only the one to everywhere is needed.
fn routes(redactor: &mut Redactor, text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut words: Vec<&str> = line.split('\t').map(str::trim).collect();
        if words.get(1) == Some(&"00000000")
            && let Some(gateway) = words.get_mut(2)
        {
            *gateway = "00000000";
            redactor.network();
        } else if !line.starts_with("Iface") {
            continue;
        }
        out += &(words.join("\t") + "\n");
    }
    out
}

/// A command line, or a line of the log that has one, without what follows for the first process, which may be
/// anything.
fn for_the_kernel(text: &str) -> &str {
    text.split(" -- ").next().unwrap_or_default().trim_end()
}

/// The log's lines that concern IOMMUs.
fn log(redactor: &mut Redactor, text: &str) -> String {
    let mut out = String::new();
    let mut lines = 0;
    for line in text.lines() {
        if lines < MOST_LINES && LINES.iter().any(|word| line.contains(word)) {
            out += &redactor.line(for_the_kernel(line));
            out.push('\n');
            lines += 1;
        } else {
            redactor.log_line();
        }
    }
    out
}

impl Collected {
    /// Collects the files of `subject`.
    pub fn of(subject: &Subject) -> Self {
        let files = &subject.files;
        let host = files.text("proc/sys/kernel/hostname").found().unwrap_or_default();
        let redactor = Redactor::new(host.trim());
        let mut all = Gathering { files, kept: BTreeMap::new(), bytes: 0, redactor };
        for pattern in WANTED {
            all.want(pattern);
        }
        all.spaces();
        all.config();
        all.edited("proc/cpuinfo", processor);
        all.edited("proc/interrupts", interrupts);
        all.edited("proc/mounts", mounts);
        all.edited("proc/net/route", routes);
        for path in ["proc/cmdline", "etc/kernel/cmdline"] {
            all.edited(path, |redactor, text| redactor.line(for_the_kernel(text)) + "\n");
        }
        all.edited("etc/default/grub", |redactor, text| {
            let lines = text.lines().filter(|line| line.starts_with("GRUB_CMDLINE"));
            lines.map(|line| redactor.line(line) + "\n").collect()
        });
        if files.names("sys/kernel/debug").is_denied() {
            all.kept.insert("sys/kernel/debug".to_owned(), KeptFile::Denied);
        }
        let text = subject.log.text();
        if text.is_denied() && !matches!(subject.log, Log::Unknown) {
            all.kept.insert("dev/kmsg".to_owned(), KeptFile::Denied);
        }
        let log = text.found().map(|text| log(&mut all.redactor, &text));
        let lspci = subject.lspci.as_ref().map(|text| {
            let lines = text.lines().map(|line| all.redactor.line(line) + "\n");
            lines.collect()
        });
        Self { files: all.kept, log, lspci, left_out: all.redactor.told() }
    }
}
