//! Tests of many devices at once, of groups that are stopped or in a guest, and of pairs by name.

use std::collections::BTreeMap;

use super::*;
use crate::doctor::pci::FOLDER;
use crate::doctor::{Files, KeptFile, Log};

/// A machine with GPUs, each behind a root port of its own; `mode` is that of each group.
fn machine(gpus: u8, mode: &str) -> Subject {
    let mut files = BTreeMap::new();
    let mut put = |place: &str, class: u32, buses: Option<[u8; 3]>| {
        let mut space = vec![0; 4096];
        space[0..4].copy_from_slice(&0x2204_10de_u32.to_le_bytes());
        space[8..12].copy_from_slice(&(class << 8).to_le_bytes());
        space[6] = 0x10;
        space[0x34] = 0x40;
        space[0x40] = 0x10;
        if let Some(buses) = buses {
            space[0xe] = 0x01;
            space[0x18..0x1b].copy_from_slice(&buses);
            space[0x42] = 0x42;
        }
        let folder = format!("{FOLDER}/{place}");
        files.insert(format!("{folder}/config"), KeptFile::Bytes(space));
        let group = format!("../../../kernel/iommu_groups/{}", &place[5..7]);
        files.insert(format!("{folder}/iommu_group"), KeptFile::Link(group));
        let mode = KeptFile::Bytes(mode.as_bytes().to_vec());
        files.insert(format!("sys/kernel/iommu_groups/{}/type", &place[5..7]), mode);
    };
    // Buses of two digits that are decimal as well, so that a group's number is one.
    for number in 0..gpus {
        let (row, column) = (number / 10, number % 10);
        let bus = 0x10 + (row << 4) + column;
        let (segment, port) = (number / 32, number % 32);
        put(&format!("{segment:04x}:00:{port:02x}.0"), 0x06_0400, Some([0, bus, bus]));
        put(&format!("{segment:04x}:{bus:02x}:00.0"), 0x03_0200, None);
    }
    let processor = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\n";
    files.insert("proc/cpuinfo".to_owned(), KeptFile::Bytes(processor.as_bytes().to_vec()));
    let files = Files::Kept(files);
    Subject { files, log: Log::Unknown, lspci: None, is_this: false }
}

#[test]
fn alike_pairs_are_one_answer_in_the_text() {
    let report = PairAnswers::new(&machine(30, "identity\n"), &[]).unwrap();
    assert_eq!(report.pairs.len(), 30 * 29 / 2);
    assert!(
        report
            .pairs
            .iter()
            .all(|pair| pair.path == PeerPath::Root && pair.verdict == Verdict::Good)
    );
    let text = text(&report, 80);
    assert!(text.contains("435 pairs") && text.lines().count() < 20, "{text}");
}

#[test]
fn a_group_that_is_stopped_or_in_a_guest() {
    let path = |mode| {
        let report = PairAnswers::new(&machine(2, mode), &[]).unwrap();
        (report.pairs[0].path, report.pairs[0].verdict)
    };
    assert_eq!(path("blocked\n"), (PeerPath::Dropped, Verdict::Problem));
    assert_eq!(path("unmanaged\n"), (PeerPath::Iommu, Verdict::Unknown));
    assert_eq!(path("\u{1b}[2J"), (PeerPath::Unknown, Verdict::Unknown));
}

#[test]
fn names_that_name_nothing_or_one_device() {
    let machine = machine(2, "DMA\n");
    let named = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        PairAnswers::new(&machine, &names)
            .map(|report| report.pairs.len())
            .map_err(|error| error.to_string())
    };
    assert_eq!(named(&["0000:10:00.0", "11:00.0"]), Ok(1));
    assert!(named(&["nvme7", "11:00.0"]).unwrap_err().contains("nvme7"));
    assert!(named(&["11:00.0"]).is_err());
    let empty = Subject { files: Files::Kept(BTreeMap::new()), ..machine };
    assert!(PairAnswers::new(&empty, &[]).is_err());
}

#[test]
fn devices_beyond_the_most_are_said_to_be_left_out() {
    let mut report = PairAnswers::new(&machine(4, "DMA\n"), &[]).unwrap();
    assert!(report.findings.is_empty());
    let Subject { files: Files::Kept(files), .. } = machine(1, "DMA\n") else { panic!("kept") };
    let Some(KeptFile::Bytes(gpu)) = files.get(&format!("{FOLDER}/0000:10:00.0/config")) else {
        panic!("gpu")
    };
    let mut many = BTreeMap::new();
    for number in 0..300 {
        many.insert(format!("{FOLDER}/{number:04x}:00:00.0/config"), KeptFile::Bytes(gpu.clone()));
    }
    let many = Subject { files: Files::Kept(many), ..machine(0, "") };
    report = PairAnswers::new(&many, &[]).unwrap();
    assert_eq!(report.pairs.len(), MOST_DEVICES * (MOST_DEVICES - 1) / 2);
    assert_eq!(report.findings[0].what, "left out");
}
