//! The machines on which Linux runs, the programs that run there, and the checks of their results.

use super::architecture::{Architecture, X86};
use super::kernel::Kernel;
use super::{GuestRun, disk, guided, latencies, recording};
use crate::demo::{Release, Table};

/// A machine.
pub struct Machine {
    /// Its name in commands.
    pub name: &'static str,
    /// Its name as a step of `cargo xtask test`.
    pub step: &'static str,
    pub architecture: &'static Architecture,
    pub kernel: Kernel,
    /// Seconds after which it is stuck.
    pub limit: &'static str,
    /// Releases of QEMU that have the machine.
    pub release: Release,
    /// QEMU's arguments for the machine, in addition to those for CPUs, memory and console.
    pub devices: &'static [&'static str],
    /// Tables of firmware beside QEMU's own.
    pub tables: &'static [Table],
    /// Its disks: QEMU's drives that `devices` name, with their size in MiB, filled by `disk::before`.
    pub disks: &'static [(&'static str, usize)],
    /// Files of the host's that the guest has as `/dev/virtio-ports/NAME`.
    pub ports: &'static [&'static str],
    /// Arguments for the kernel's command line.
    pub kernel_arguments: &'static str,
    /// Modules to load; their dependencies are added.
    pub modules: &'static [&'static str],
    /// Programs in the guest's `/bin`.
    pub programs: &'static [Program],
    /// Programs of busybox to include.
    pub applets: &'static [&'static str],
    /// True if Debian's `trace-cmd` and `perf` are included, with their libraries.
    pub tools: bool,
    /// Programs to run, one after the other: words of a command line, without quotes.
    pub runs: &'static [&'static str],
    /// QEMU's events to be traced.
    pub traced: &'static [&'static str],
    /// Checks the results, once all programs have ended well.
    pub check: fn(&GuestRun) -> Result<(), String>,
}

/// A program of this workspace.
pub struct Program {
    pub package: &'static str,
    pub target: Target,
    /// rustc's `opt-level`: 1, or 0 where that builds for too long and the guest's time does not count, or 3 where time
    /// is measured, and then without checks of a debug build.
    pub opt_level: &'static str,
    /// More arguments for cargo.
    pub options: &'static [&'static str],
}

/// Target of cargo that a program is built from.
pub enum Target {
    Binary(&'static str),
    Example(&'static str),
    /// The tests of the package's library, as a program of this name.
    Tests(&'static str),
}

pub(super) const READ_BLOCKS: Program = program("read-blocks");
pub(super) const PORTOLAN: Program = Program {
    package: "portolan-tune",
    target: Target::Binary("portolan"),
    opt_level: "0",
    options: &[],
};

/// A program of `portolan-guest`.
pub const fn program(name: &'static str) -> Program {
    Program {
        package: "portolan-guest",
        target: Target::Binary(name),
        opt_level: "1",
        options: &[],
    }
}

/// Two disks behind VT-d, read whole under the kernel's strict policy.
pub const DISKS: Machine = Machine {
    name: "disks",
    step: "Linux guest: disks behind VT-d",
    architecture: &X86,
    kernel: Kernel::Stock,
    limit: "180",
    release: Release::Any,
    tables: &[],
    devices: &[
        "-device",
        "intel-iommu,intremap=on",
        "-device",
        "nvme,serial=1,drive=flash",
        "-device",
        "virtio-blk-pci,drive=disk,disable-legacy=on,iommu_platform=on",
    ],
    disks: &[("flash", 4), ("disk", 4)],
    ports: &[],
    kernel_arguments: "intel_iommu=on iommu.strict=1",
    modules: &["virtio_blk"],
    programs: &[READ_BLOCKS],
    applets: &[],
    tools: false,
    runs: &["read-blocks /dev/nvme0n1 4096", "read-blocks /dev/vda 65536"],
    traced: &["vtd_inv_desc_iotlb_pages"],
    check: strict_reads,
};

/// A disk driven from user space, over VFIO, and then by the kernel again.
pub const VFIO: Machine = Machine {
    name: "vfio",
    step: "Linux guest: an NVMe disk driven from user space",
    architecture: &X86,
    kernel: Kernel::Stock,
    limit: "180",
    release: Release::Any,
    tables: &[],
    devices: &[
        "-device",
        "intel-iommu,intremap=on",
        "-device",
        "nvme,serial=1,drive=flash,addr=5",
        "-device",
        "nvme,serial=2,drive=second,addr=6,cmb_size_mb=1",
    ],
    disks: &[("flash", 8), ("second", 8)],
    ports: &[],
    kernel_arguments: "intel_iommu=on hugepages=4",
    modules: &["vfio-pci", "vfio_iommu_type1"],
    programs: &[Program {
        package: "portolan-linux",
        target: Target::Example("nvme"),
        opt_level: "3",
        options: &[],
    }],
    applets: &[],
    tools: false,
    runs: &[
        "nvme 0000:00:05.0 --bind --remove",
        "nvme 0000:00:05.0 --kill",
        "nvme 0000:00:05.0 --bind --can --with 0000:00:06.0",
        "nvme 0000:00:06.0 --bind --parts --interface type1",
        "nvme 0000:00:05.0 --filtered",
        "nvme 0000:00:05.0 --write 7 --rounds 8",
        "nvme 0000:00:05.0 --write 8 --interrupts --rounds 8",
        "nvme 0000:00:05.0 --compare 8",
    ],
    traced: &[STARTS, "vtd_inv_desc_iotlb_*"],
    check: |ran| {
        driven_from_user_space(ran, &["type 1"; 2], &[MARKED, RETURNED, HUGE, PARTS, PIN, FILTERED])
    },
};

/// The same machine with both interfaces, of which iommufd is chosen.
pub const VFIO_OWN: Machine = Machine {
    name: "vfio-own",
    step: "Linux guest: an NVMe disk driven over type 1 and iommufd",
    kernel: Kernel::Own,
    runs: &[
        "nvme 0000:00:05.0 --bind --remove --interface type1 --interface iommufd",
        "nvme 0000:00:05.0 --kill --interface type1",
        "nvme 0000:00:05.0 --kill --interface iommufd",
        "nvme 0000:00:05.0 --bind --can --with 0000:00:06.0 --interface type1 --interface iommufd",
        "nvme 0000:00:06.0 --bind --parts --interface type1 --interface iommufd",
        "nvme 0000:00:06.0 --again --with 0000:00:05.0",
        "nvme 0000:00:06.0 --behind --with 0000:00:05.0",
        "nvme 0000:00:05.0 --write 7 --rounds 8 --interface type1 --interface iommufd",
        "nvme 0000:00:05.0 --write 8 --interrupts --rounds 8",
        "nvme 0000:00:05.0 --compare 8",
    ],
    check: |ran| {
        let interfaces = ["type 1", "iommufd", "iommufd"];
        driven_from_user_space(
            ran,
            &interfaces,
            &[
                MARKED,
                RETURNED,
                UNMARKED,
                SHARED,
                PEER,
                PASIDS,
                RETURNED_TOO,
                PARTS,
                PIN,
                PARTS_TOO,
                PIN_TOO,
                GONE_ON,
                EXECUTED,
                CHARGED,
                BEHIND,
            ],
        )
    },
    ..VFIO
};

/// The parts of iommufd that no IOMMU of QEMU's has, by the kernel's own device for tests.
pub const IOMMUFD: Machine = Machine {
    name: "iommufd",
    step: "Linux guest: iommufd's calls on the kernel's own test device",
    kernel: Kernel::Own,
    devices: &[],
    disks: &[],
    modules: &[],
    programs: &[Program {
        package: "portolan-linux",
        target: Target::Tests("tests"),
        opt_level: "1",
        options: &[],
    }],
    runs: &["tests ::kernel_ --nocapture --test-threads 1"],
    traced: &[],
    check: |ran| {
        if ran.console.contains("SKIP") || !ran.console.contains("ok. 19 passed") {
            Err("not all of the kernel's tests ran".to_owned())
        } else {
            Ok(())
        }
    },
    ..VFIO
};

/// `portolan record` of an NVMe disk that is read whole; its trace is replayed on the host.
pub const RECORD: Machine = Machine {
    name: "record",
    step: "Linux guest: portolan record",
    // An older one may run code that the kernel has just replaced, when it switches its tracing on or off, and the
    // guest ends with a breakpoint in its scheduler.
    release: Release::Ten,
    disks: &[("flash", 4)],
    devices: &["-device", "intel-iommu,intremap=on", "-device", "nvme,serial=1,drive=flash"],
    ports: &["trace.gz"],
    modules: &[],
    programs: &[
        READ_BLOCKS,
        Program { target: Target::Binary("record-troubles"), ..READ_BLOCKS },
        PORTOLAN,
    ],
    applets: &["dd"],
    runs: &[
        // The first commands of README.md.
        "portolan record -- dd if=/dev/nvme0n1 of=/dev/null bs=4k count=1024 iflag=direct",
        "portolan replay portolan-trace.gz",
        "portolan record -o /dev/virtio-ports/trace.gz -- read-blocks /dev/nvme0n1 4096",
        "record-troubles /dev/nvme0n1",
    ],
    traced: &["vtd_inv_desc_iotlb_*"],
    check: recording::check,
    ..DISKS
};

/// The steps that docs/guide.md has a user do: a recording, the change that it leads to, and another recording.
pub const GUIDE: Machine = Machine {
    name: "guide",
    step: "Linux guest: what is advised, done and measured",
    ports: &["before.gz", "after.gz"],
    programs: &[READ_BLOCKS, program("follow-guide"), PORTOLAN],
    applets: &[],
    runs: &["follow-guide /dev/nvme0n1"],
    check: guided::check,
    ..RECORD
};

/// Latencies of the kernel's functions while an NVMe disk is read by several sizes, by `portolan record --latency`, and
/// prices of them; one recording has events as well.
pub const CALIBRATE: Machine = Machine {
    name: "calibrate",
    step: "Linux guest: portolan calibrate",
    disks: &[("flash", 16)],
    ports: &["record.gz", "small", "middle", "large", "other"],
    programs: &[READ_BLOCKS, PORTOLAN, program("read-on")],
    applets: &[],
    runs: &[
        "portolan record --latency 1 --seconds 1 -o /dev/virtio-ports/record.gz -- read-on /dev/nvme0n1 4096",
        "portolan record --latency 3600 -o /dev/virtio-ports/small -- read-blocks /dev/nvme0n1 4096",
        "portolan record --latency 3600 -o /dev/virtio-ports/middle -- read-blocks /dev/nvme0n1 32768",
        "portolan record --latency 3600 -o /dev/virtio-ports/large -- read-blocks /dev/nvme0n1 262144",
        "portolan record --latency 3600 -o /dev/virtio-ports/other -- read-blocks /dev/nvme0n1 4096",
    ],
    check: latencies::check,
    ..RECORD
};

/// The same disks under a kernel with iommufd.
pub const DISKS_OWN: Machine = Machine {
    name: "disks-own",
    step: "Linux guest: the same, kernel with iommufd",
    kernel: Kernel::Own,
    ..DISKS
};

/// Each request of either disk ends with an invalidation of its pages; other work of the machine adds some.
fn strict_reads(ran: &GuestRun) -> Result<(), String> {
    let (mut said, mut requests) = (ran.console.lines(), 0);
    for bytes in [4096, 65536] {
        let (all, sum) = (4 << 20, disk::sum(4));
        let count = all / bytes;
        let line = format!("read {all} bytes by {count} requests, sum {sum:#018x}");
        if !said.any(|said| said.trim_end() == line) {
            return Err(format!("the guest did not say {line:?}"));
        }
        requests += count;
    }
    for (name, mebibytes) in DISKS.disks {
        let image = ran.place.join(name).with_extension("img");
        let found = std::fs::read(image).map_err(|error| error.to_string())?;
        if found != disk::before(*mebibytes) {
            return Err(format!("{name} has changed"));
        }
    }
    let traced = ran.traced("vtd_inv_desc_iotlb_pages");
    println!("{requests} requests, {traced} invalidations of pages in QEMU's trace");
    if traced >= requests as u64 {
        Ok(())
    } else {
        Err("a strict kernel invalidates after each request".to_owned())
    }
}

/// QEMU's event for the start of its NVMe controller: each manner of mapping starts it.
const STARTS: &str = "pci_nvme_mmio_start_success";
/// Beginnings of the driver's other lines: after another driver was killed, and about the kernel's abilities.
const BESIDE: [&str; 14] = [
    "filtered: ",
    ": given back when ",
    "pinned pages: ",
    ": dirty tracking: ",
    ": page requests: ",
    ": one domain for two: ",
    ": memory of another disk: ",
    ": PASIDs: ",
    ": opened anew ",
    ": executed anew: ",
    ": pinned KiB: ",
    ": behind a virtio-iommu: ",
    ": combined writes ",
    " raised the pin",
];
/// Required lines about dirty tracking.
const MARKED: &str = "type 1: dirty tracking: marks on 4 of 4 pages that the disk wrote";
const UNMARKED: &str = "iommufd: dirty tracking: none: the IOMMU keeps no marks";
const RETURNED: &str = "type 1: given back when the kernel took it out, and found again";
const RETURNED_TOO: &str = "iommufd: given back when the kernel took it out, and found again";
const SHARED: &str = "iommufd: one domain for two: 4 pages from disk to disk by one address";
const PEER: &str = "iommufd: memory of another disk: mapped, and mapped anew after its reset: 2 maps by a \
     descriptor; a page read by one disk into it";
const GONE_ON: &str = "iommufd: opened anew while it is bound";
const EXECUTED: &str =
    "iommufd: executed anew: 16 pages read meanwhile, 16 afterwards, 1 by a disk bound then";
const CHARGED: &str =
    "iommufd: pinned KiB: 160 before, 0 until it is charged, 160 then, 0 at the end";
const BEHIND: &str = "iommufd: behind a virtio-iommu: 16 pages read by the guest's addresses, 17 mappings copied, \
     0 pinned anew; pinned KiB: 160 before, 160 then; an unmapped page is not written";
const PASIDS: &str = "iommufd: PASIDs: ";
const PARTS: &str = "type 1: combined writes reached the device";
const PIN: &str = "type 1: 32 of 32 pages of 4096 bytes raised the pin";
const PARTS_TOO: &str = "iommufd: combined writes reached the device";
const PIN_TOO: &str = "iommufd: 32 of 32 pages of 4096 bytes raised the pin";
const FILTERED: &str = "filtered: slots, row 0: 1024 requests";
const HUGE: &str = "slots lie in pages of 2048 KiB";
/// Requests of each run of the driver.
const REQUESTS: u64 = 1024;
const ROUNDS: u64 = 8;

/// A row of the driver's output: interface and manner, microseconds, requests in a second, maps, unmaps, copies of a
/// request.
struct Row {
    name: String,
    time: f64,
    iops: f64,
    maps: u64,
    unmaps: u64,
    copies: u64,
}

impl Row {
    fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, time, iops, maps, unmaps, _, copies] = words.last_chunk()?;
        Some(Self {
            name: words.get(..words.len() - 7)?.join(" "),
            time: time.parse().ok()?,
            iops: iops.parse().ok()?,
            copies: copies.parse().ok()?,
            maps: maps.parse().ok()?,
            unmaps: unmaps.parse().ok()?,
        })
    }
}

/// Checks the costs of each way of mapping, by the driver's count of system calls and QEMU's trace of the kernel's
/// invalidations. `interfaces` are those by which all ways were tried, in that order; `words` are the beginnings of
/// other lines that the driver has to print.
fn driven_from_user_space(
    ran: &GuestRun,
    interfaces: &[&str],
    words: &[&str],
) -> Result<(), String> {
    let read = format!("{REQUESTS} pages read by the kernel's driver from /dev/nvme0n1 are those");
    let mut words = words.iter().copied().chain([read.as_str()]);
    let unsaid = |word: &&str| !ran.console.lines().any(|line| line.starts_with(word));
    if let Some(word) = words.find(unsaid) {
        return Err(format!("the guest did not say {word:?}"));
    }
    let beside: Vec<&str> =
        ran.console.lines().filter(|line| BESIDE.iter().any(|part| line.contains(part))).collect();
    println!("{}", beside.join("\n"));
    let rows: Vec<Row> = ran.console.lines().filter_map(Row::read).collect();
    let pages = ran.traced_after(STARTS, "vtd_inv_desc_iotlb_pages");
    let domains = ran.traced_after(STARTS, "vtd_inv_desc_iotlb_domain");
    let tried: Vec<_> = interfaces
        .iter()
        .flat_map(|one| MANNERS.map(|(manner, most)| (one, manner, most)))
        .collect();
    // Firmware and the kernel start the controller before, so do drivers that are killed, and the kernel once
    // afterwards.
    let first = pages.len().checked_sub(tried.len() + 1);
    let Some(first) = first.filter(|_| rows.len() == 2 * tried.len()) else {
        let found = (rows.len(), pages.len());
        return Err(format!("rows, and starts of the controller: {found:?}"));
    };
    let (pages, domains) = (&pages[first..], &domains[first..]);
    for (run, (both, (interface, manner, most))) in rows.chunks_exact(2).zip(tried).enumerate() {
        let name = format!("{interface} {manner}");
        if let Some(other) = both.iter().find(|row| row.name != name) {
            return Err(format!("{name}: the driver tried {}", other.name));
        }
        let (maps, unmaps) =
            both.iter().fold((0, 0), |(maps, unmaps), row| (maps + row.maps, unmaps + row.unmaps));
        let each = |count: u64| count as f64 / (2 * REQUESTS * ROUNDS) as f64;
        println!(
            "{name:18} {:8.1} us, {:6.0} IOPS, {:.3} maps, {:.3} unmaps, {} copies; invalidated: {:.3} by page, \
             {} whole domains",
            both.iter().map(|row| row.time).sum::<f64>() / 2.0,
            both.iter().map(|row| row.iops).sum::<f64>() / 2.0,
            each(maps),
            each(unmaps),
            both.iter().map(|row| row.copies).max().unwrap_or(0),
            each(pages[run]),
            domains[run],
        );
        if each(unmaps) > most || each(maps) > most.ceil() {
            return Err(format!("{name}: more calls than {most} a request"));
        }
        if both.iter().any(|row| row.copies != u64::from(manner == "pool")) {
            return Err(format!("{name}: copies, or none of a pool that copies"));
        }
        // Nothing is reused before the kernel has invalidated it.
        if pages[run] + domains[run] < unmaps.min(1) {
            return Err(format!("{name}: unmaps, and no invalidation"));
        }
    }
    Ok(())
}

/// The ways of mapping, in the order in which the driver tries them, and the most unmaps of a request.
const MANNERS: [(&str, f64); 8] = [
    ("naive loop", 1.0),
    ("strict", 1.0),
    ("deferred", 0.5),
    ("lazy", 0.5),
    ("window", 0.1),
    ("pool", 0.0),
    ("mapped once", 0.0),
    ("slots", 0.0),
];
