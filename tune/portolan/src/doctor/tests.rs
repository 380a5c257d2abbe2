//! Looks at a machine's files: each is at one that `collect` takes, no file is read twice for an answer, and their
//! number grows with the machine's functions, not faster. What is collected gives the same answers.

#[path = "../../tests/threads/functions.rs"]
mod functions;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Cursor;
use std::sync::Arc;

use serde_json::json;

use super::between::PairAnswers;
use super::collect::Collected;
use super::device::DeviceAnswers;
use super::faults::{FaultAnswers, LogContents};
use super::machine::MachineAnswers;
use super::pci::FOLDER;
use super::{Files, KeptFile, Log, Subject};
use crate::files::tests::Watch;

/// Functions below one host bridge, itself included.
const PER_HOST: usize = 51;
/// Looks that an answer takes beside those at functions.
const FIXED: u32 = 400;
/// Looks at one function.
const PER_FUNCTION: u32 = 24;

/// Lines of a machine with so many host bridges, each with ten ports, and below each a GPU, a network card and two
/// disks of one card.
fn lines(hosts: u32) -> String {
    let mut out = String::new();
    let mut group = 0;
    for host in 0..hosts {
        let bus = host * 24;
        let of = format!("host=0000:{bus:02x}");
        writeln!(out, "{bus:02x}:00.0 8086:09a2 060000 conventional group={group} {of}").unwrap();
        for port in 1..=10 {
            let below = bus + port;
            group += 2;
            let at = format!("{bus:02x}:{port:02x}.0 8086:352a 060400 root-port");
            let to =
                format!("buses={below:02x}-{below:02x} acs=5f/1d group={group} driver=pcieport");
            writeln!(out, "{at} {to} {of}").unwrap();
            let group = group + 1;
            let number = host * 10 + port;
            for (function, what) in [
                format!("10de:2bb1 030000 endpoint several driver=nvidia names=card{number}"),
                format!("15b3:101e 020000 endpoint several driver=mlx5_core names=eth{number}"),
                format!("144d:a824 010802 endpoint several driver=nvme names=nvme{number}"),
                "144d:a825 010802 endpoint several driver=vfio-pci".to_owned(),
            ]
            .iter()
            .enumerate()
            {
                let at = format!("{below:02x}:00.{function}");
                writeln!(out, "{at} {what} group={group} bars=64K,16M {of}").unwrap();
            }
        }
    }
    out
}

/// Files of that machine that are not of a function.
fn others(groups: u32) -> BTreeMap<String, serde_json::Value> {
    let mut files = BTreeMap::new();
    let mut add = |path: &str, text: &str| {
        files.insert(path.to_owned(), json!({ "text": text }));
    };
    for (path, text) in [
        ("proc/cmdline", "ro intel_iommu=on\n"),
        ("proc/cpuinfo", "vendor_id\t: GenuineIntel\nmodel name\t: A\nflags\t\t: fpu vmx\n"),
        ("proc/interrupts", "  30:  7  IR-PCI-MSI-0000:01:00.2  0-edge  nvme0q0\n"),
        (
            "proc/iomem",
            "c0000000-cfffffff : PCI Bus 0000:00\n  c0000000-c0ffffff : 0000:01:00.0\n    c0000000-c00fffff : BOOTFB\n",
        ),
        ("proc/mounts", "/dev/nvme1n1p2 / ext4 rw 0 0\n/dev/mapper/vg-home /home ext4 rw 0 0\n"),
        ("proc/swaps", "Filename Type Size Used Priority\n/dev/dm-0 partition 1 0 -2\n"),
        ("proc/net/route", "Iface\tDestination\tGateway\nbr0\t00000000\t00000000\n"),
        (
            "proc/self/limits",
            "Max locked memory         8388608              8388608              bytes     \n",
        ),
        ("proc/sys/kernel/osrelease", "6.12.1\n"),
        ("proc/meminfo", "MemTotal: 1 kB\n"),
        ("proc/uptime", "100.00 99.00\n"),
        ("boot/config-6.12.1", "CONFIG_VFIO_PCI=m\nCONFIG_IOMMU_DEFAULT_DMA_LAZY=y\n"),
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("sys/class/iommu/dmar0/intel-iommu/cap", "d2008c40660462\n"),
        ("sys/class/iommu/dmar0/intel-iommu/ecap", "f050da\n"),
        ("sys/kernel/debug/swiotlb/io_tlb_nslabs", "32768\n"),
        ("sys/kernel/debug/swiotlb/io_tlb_used_hiwater", "5\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "N\n"),
        ("sys/bus/thunderbolt/devices/domain0/iommu_dma_protection", "1\n"),
        ("sys/class/block/dm-0/dm/name", "vg-home\n"),
    ] {
        add(path, text);
    }
    for group in 0..=groups {
        add(&format!("sys/kernel/iommu_groups/{group}/type"), "DMA-FQ\n");
        let region = "0x00000000fee00000 0x00000000feefffff msi\n";
        add(&format!("sys/kernel/iommu_groups/{group}/reserved_regions"), region);
    }
    let disk = "../../devices/pci0000:00/0000:00:01.0/0000:01:00.2/nvme/nvme1/nvme1n1";
    for (path, target) in [
        ("sys/class/block/nvme1n1", disk.to_owned()),
        ("sys/class/block/nvme1n1p2", format!("{disk}/nvme1n1p2")),
        ("sys/class/block/dm-0/slaves/nvme1n1p2", format!("../../{disk}/nvme1n1p2")),
        ("sys/class/net/br0/brif/bond0", "../../bond0".to_owned()),
        ("sys/class/net/bond0/lower_eth2", "../eth2".to_owned()),
    ] {
        files.insert(path.to_owned(), json!({ "link": target }));
    }
    files
}

/// A log with faults of two devices, and of one that is not there.
const LOG: &str = "\
[    0.0] Command line: ro intel_iommu=on
[    3.0] DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0xc1001000 [fault reason 0x06] x
[    4.0] DMAR: [DMA Write NO_PASID] Request device [01:00.2] fault addr 0x1000c1001000 [fault reason 0x05] x
[    5.0] DMAR: [DMA Write NO_PASID] Request device [02:00.7] fault addr 0x1000c1001000 [fault reason 0x05] x
";

/// That machine, kept.
fn machine(hosts: u32) -> Subject {
    let mut files = functions::files(&lines(hosts), true);
    files.extend(others(hosts * 20));
    let document = json!({ "portolan-collected": 1, "files": files, "log": LOG });
    let collected = Collected::parse(document.to_string().as_bytes()).unwrap();
    let log = collected.log.map_or(Log::Unknown, Log::Kept);
    Subject { files: Files::Kept(collected.files), log, lspci: None, is_this: false }
}

/// Questions about a machine.
const QUESTIONS: [&str; 8] = [
    "machine",
    "device 0000:01:00.0",
    "device nvme2",
    "device nvme1n1p2",
    "device eth2",
    "between",
    "between card1 card2 eth3",
    "faults",
];

/// The JSON of the answer to `question`.
fn answer(question: &str, subject: &Subject) -> String {
    let mut words = question.split(' ');
    let kind = words.next().unwrap();
    let names: Vec<String> = words.map(str::to_owned).collect();
    match kind {
        "machine" => serde_json::to_string(&MachineAnswers::new(subject).unwrap()),
        "device" => serde_json::to_string(&DeviceAnswers::new(subject, &names[0]).unwrap()),
        "between" => serde_json::to_string(&PairAnswers::new(subject, &names).unwrap()),
        _ => {
            let text = subject.log.text().found().unwrap();
            let log = LogContents::read(&mut Cursor::new(text)).unwrap();
            assert!(log.is_of(&Files::Kept(BTreeMap::from([(
                "proc/cmdline".to_owned(),
                KeptFile::Bytes(b"ro intel_iommu=on\n".to_vec())
            )]))));
            let answers = FaultAnswers::new(&log, &subject.files, None);
            assert_eq!(answers.faults.len(), 3);
            serde_json::to_string(&answers)
        }
    }
    .unwrap()
}

/// Looks for an answer, by kind and path.
type Looks = BTreeMap<(&'static str, String), u32>;

/// The looks that the answer to each question takes, and those of `collect`.
fn looks(hosts: u32) -> (Vec<(&'static str, Looks)>, Looks) {
    let mut subject = machine(hosts);
    let watch = Watch::new(subject.files);
    subject.files = Files::Watched(Arc::clone(&watch));
    let of = |question: &'static str| {
        answer(question, &subject);
        (question, watch.take())
    };
    let all = QUESTIONS.map(of).to_vec();
    Collected::of(&subject);
    (all, watch.take())
}

#[test]
fn each_look_is_at_a_file_that_is_collected() {
    let (all, collected) = looks(1);
    let paths: BTreeSet<&str> = collected.keys().map(|(_, path)| path.as_str()).collect();
    // The log is kept apart, and its being unreadable noted under this name; no answer uses the time of the CPUs.
    let elsewhere = ["dev/kmsg", "proc/stat"];
    let is_within = |folder: &str| {
        let folder = format!("{folder}/");
        paths.range(folder.as_str()..).next().is_some_and(|path| path.starts_with(&folder))
    };
    let functions = machine(1).files.names(FOLDER).found().unwrap();
    let is_of_nothing = |path: &str| {
        let of = path.strip_prefix(FOLDER).and_then(|path| path.split('/').nth(1));
        of.is_some_and(|name| functions.iter().all(|known| known != name))
    };
    for (question, looks) in all {
        // A fault may name a function that is not there.
        for (kind, path) in looks.keys().filter(|(_, path)| !is_of_nothing(path)) {
            let taken = paths.contains(path.as_str()) || *kind == "names" && is_within(path);
            assert!(taken || elsewhere.contains(&path.as_str()), "{question}: {kind} of {path}");
        }
    }
}

#[test]
fn an_answer_reads_each_file_once_and_no_more_than_the_machine_has() {
    for hosts in [1, 10] {
        let functions = hosts * PER_HOST as u32;
        for (question, looks) in looks(hosts).0 {
            let twice: Vec<_> =
                looks.iter().filter(|((kind, _), n)| *kind == "bytes" && **n > 1).collect();
            assert!(twice.is_empty(), "{question} with {functions} functions: {twice:#?}");
            let count: u32 = looks.values().sum();
            let most = FIXED + PER_FUNCTION * functions;
            assert!(count <= most, "{question}: {count} looks for {functions} functions");
        }
    }
}

#[test]
fn what_is_collected_gives_the_answers_of_the_machine() {
    let machine = machine(2);
    let collected = Collected::of(&machine);
    let back = Collected::parse(collected.json().unwrap().as_bytes()).unwrap();
    let log = back.log.map_or(Log::Unknown, Log::Kept);
    let back = Subject { files: Files::Kept(back.files), log, lspci: None, is_this: false };
    for question in QUESTIONS {
        assert_eq!(answer(question, &machine), answer(question, &back), "{question}");
    }
}
