//! Tests of answers that no public thread has: resets, addresses, bridges to PCI, swap, bonds, and names of nothing.

use std::collections::BTreeMap;

use super::*;
use crate::doctor::pci::FOLDER;
use crate::doctor::{Files, KeptFile, Log, Verdict};

/// A machine with a card at 0000:01:00.0, in group 3, by lines of paths and texts or links (`->`).
fn machine(lines: &[(&str, &str)]) -> Subject {
    let mut space = vec![0; 64];
    space[0..4].copy_from_slice(&0x1572_8086_u32.to_le_bytes());
    space[8..12].copy_from_slice(&0x0200_0000_u32.to_le_bytes());
    let mut files = BTreeMap::new();
    files.insert(format!("{FOLDER}/0000:01:00.0/config"), KeptFile::Bytes(space));
    let group = KeptFile::Link("../../../kernel/iommu_groups/3".to_owned());
    files.insert(format!("{FOLDER}/0000:01:00.0/iommu_group"), group);
    for (path, said) in lines {
        let file = match said.strip_prefix("-> ") {
            Some(target) => KeptFile::Link(target.to_owned()),
            None => KeptFile::Bytes(said.as_bytes().to_vec()),
        };
        files.insert(path.replace("CARD", &format!("{FOLDER}/0000:01:00.0")), file);
    }
    Subject { files: Files::Kept(files), log: Log::Unknown, lspci: None, is_this: false }
}

/// The finding about `what`.
fn found(lines: &[(&str, &str)], what: &str) -> Option<(Verdict, String)> {
    let report = DeviceAnswers::new(&machine(lines), "0000:01:00.0").unwrap();
    let one = report.findings.into_iter().find(|one| one.what == what);
    one.map(|one| (one.verdict, one.why))
}

#[test]
fn a_device_below_a_port_that_leads_outside_is_told() {
    let why = |word| found(&[("CARD/removable", word)], "the IOMMU").unwrap().1;
    assert!(why("removable\n").contains("leads out of the machine"));
    assert!(!why("fixed\n").contains("leads out of the machine"));
}

#[test]
fn a_device_that_cannot_be_reset_is_a_problem() {
    let verdict = |text| found(&[("CARD/reset_method", text)], "reset").unwrap().0;
    assert_eq!(verdict("flr bus\n"), Verdict::Good);
    assert_eq!(verdict("\n"), Verdict::Problem);
    assert_eq!(found(&[], "reset"), None);
}

#[test]
fn a_host_bridge_without_a_group_is_no_problem() {
    let space = [(0, 0x14d8_1022_u32), (8, 0x0600_0000)];
    let mut machine = machine(&[]);
    let Files::Kept(files) = &mut machine.files else { panic!("kept") };
    let mut bytes = vec![0; 64];
    for (at, word) in space {
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    files.insert(format!("{FOLDER}/0000:00:00.0/config"), KeptFile::Bytes(bytes));
    let of = |name| {
        let findings = DeviceAnswers::new(&machine, name).unwrap().findings;
        findings.iter().any(|one| one.verdict == Verdict::Problem)
    };
    assert!(!of("0000:00:00.0"));
    let Files::Kept(files) = &mut machine.files else { panic!("kept") };
    files.remove(&format!("{FOLDER}/0000:01:00.0/iommu_group"));
    let findings = DeviceAnswers::new(&machine, "0000:01:00.0").unwrap().findings;
    assert!(findings.iter().any(|one| one.verdict == Verdict::Problem), "no device of the board");
}

#[test]
fn a_window_above_the_units_addresses_is_a_problem() {
    let verdict = |cap| {
        let lines = [
            ("CARD/iommu", "-> ../../virtual/iommu/dmar0"),
            ("CARD/resource", "0x0000008000000000 0x00000087ffffffff 0x000000000014220c\n"),
            ("sys/class/iommu/dmar0/intel-iommu/cap", cap),
        ];
        found(&lines, "addresses").map(|(verdict, why)| (verdict, why.contains("-22")))
    };
    assert_eq!(verdict("1c0000c40660462\n"), Some((Verdict::Problem, true)));
    assert_eq!(verdict("8d2078c106f0466\n"), Some((Verdict::Good, false)));
    assert_eq!(verdict("none\n"), None);
}

#[test]
fn swap_and_a_bond_are_uses() {
    let below = "../../devices/pci0000:00/0000:01:00.0";
    let (net, disk) = (format!("-> {below}/net/eth0"), format!("-> {below}/nvme/nvme0/nvme0n1"));
    let route = "Iface Destination\nbond0 00000000 01010101\n";
    let bond = [
        ("proc/net/route", route),
        ("sys/class/net/bond0", "-> ../../devices/virtual/net/bond0"),
        ("sys/class/net/bond0/lower_eth0", "-> ../eth0"),
        ("sys/class/net/eth0", net.as_str()),
    ];
    let (verdict, why) = found(&bond, "in use here").unwrap();
    assert!(
        verdict == Verdict::Problem && why.contains("bond0 carries the default route"),
        "{why}"
    );
    let swap = [
        ("proc/swaps", "Filename Type\n/dev/nvme0n1 partition 1 0 -2\n"),
        ("sys/class/block/nvme0n1", disk.as_str()),
    ];
    let (verdict, why) = found(&swap, "in use here").unwrap();
    assert!(verdict == Verdict::Problem && why.contains("swap"), "{why}");
    assert_eq!(
        found(&[("proc/mounts", "/dev/sda / ext4\n")], "in use here").unwrap().0,
        Verdict::Good
    );
}

/// Names that lead to each other, and many below each, end.
#[test]
fn names_that_lead_in_circles_end() {
    let mut lines = vec![("proc/net/route".to_owned(), "x\na 00000000 0\n")];
    for one in ["a", "b", "c"] {
        for other in ["a", "b", "c"] {
            lines.push((format!("sys/class/net/{one}/lower_{other}"), "-> ../x"));
        }
    }
    let lines: Vec<(&str, &str)> =
        lines.iter().map(|(path, said)| (path.as_str(), *said)).collect();
    assert_eq!(found(&lines, "in use here"), None);
}

#[test]
fn names_of_nothing_are_refused() {
    let error =
        |machine: &Subject, name| DeviceAnswers::new(machine, name).unwrap_err().to_string();
    assert!(error(&machine(&[]), "nvme9").contains("0000:01:00.0"));
    let empty = Subject { files: Files::Kept(BTreeMap::new()), ..machine(&[]) };
    assert!(error(&empty, "nvme9").contains("no PCI function"));
}
