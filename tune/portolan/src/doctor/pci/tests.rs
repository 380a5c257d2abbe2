//! Tests of functions that only a part is known of, of lists, and of hostile ones.

use std::collections::BTreeMap;
use std::path::PathBuf;

use portolan_hw::topology::pci::PciKind;

use super::*;
use crate::doctor::{KeptFile, Log};

fn subject(files: BTreeMap<String, KeptFile>, lspci: Option<&str>) -> Subject {
    let files = Files::Kept(files);
    Subject { files, log: Log::Unknown, lspci: lspci.map(str::to_owned), is_this: false }
}

fn at(text: &str) -> PciFunction {
    text.parse().unwrap()
}

/// A header: identity, class, and the buses behind if it is a bridge.
fn header(class: u32, buses: Option<[u8; 3]>) -> Vec<u8> {
    let mut space = vec![0; 64];
    space[0..4].copy_from_slice(&0x1483_1022_u32.to_le_bytes());
    space[8..12].copy_from_slice(&(class << 8).to_le_bytes());
    if let Some(buses) = buses {
        space[0xe] = 1;
        space[0x18..0x1b].copy_from_slice(&buses);
    }
    space
}

fn put(files: &mut BTreeMap<String, KeptFile>, place: &str, name: &str, bytes: &[u8]) {
    files.insert(format!("{FOLDER}/{place}/{name}"), KeptFile::Bytes(bytes.to_vec()));
}

/// Ports on the way from a root port over a switch to a device, and a bridge to PCI, as a user sees them.
fn without_root() -> BTreeMap<String, KeptFile> {
    let mut files = BTreeMap::new();
    let ports = [
        ("0000:00:01.0", Some([0, 1, 5])),
        ("0000:01:00.0", Some([1, 2, 5])),
        ("0000:02:04.0", Some([2, 3, 3])),
        ("0000:02:05.0", Some([2, 4, 5])),
        ("0000:04:00.0", Some([4, 5, 5])),
        ("0000:03:00.0", None),
    ];
    for (place, buses) in ports {
        let class = if buses.is_some() { 0x06_0400 } else { 0x03_0000 };
        put(&mut files, place, "config", &header(class, buses));
        put(&mut files, place, "max_link_speed", b"16.0 GT/s PCIe\n");
    }
    // Function 0 of the port's device, and a conventional card.
    put(&mut files, "0000:02:00.0", "config", &header(0x06_0000, None));
    put(&mut files, "0000:05:00.0", "config", &header(0x04_0100, None));
    files
}

#[test]
fn a_conventional_function_has_no_acs_if_its_space_was_read() {
    let mut files = without_root();
    let acs = |files: &BTreeMap<_, _>, place: &str| {
        Pci::new(&subject(files.clone(), None)).acs(at(place))
    };
    assert_eq!(acs(&files, "0000:05:00.0"), AcsKnown::Unknown);
    let mut short = |place: &str, buses: Option<[u8; 3]>, express: bool| {
        let mut space = header(if buses.is_some() { 0x06_0400 } else { 0x04_0100 }, buses);
        if express {
            (space[6], space[0x34]) = (0x10, 64);
            space.extend([0x10, 0, 0x42, 0]);
        }
        space.resize(256, 0);
        put(&mut files, place, "config", &space);
    };
    short("0000:05:00.0", None, false);
    short("0000:00:01.0", Some([0, 1, 5]), true);
    assert_eq!(acs(&files, "0000:05:00.0"), AcsKnown::Absent);
    assert_eq!(acs(&files, "0000:00:01.0"), AcsKnown::Unknown);
}

#[test]
fn kinds_without_root_follow_from_the_place_of_a_port() {
    let pci = Pci::new(&subject(without_root(), None));
    let kind = |place: &str| pci.node(at(place)).unwrap().kind;
    assert_eq!(kind("0000:00:01.0"), PciKind::RootPort);
    assert_eq!(kind("0000:01:00.0"), PciKind::UpstreamPort);
    assert_eq!(kind("0000:02:04.0"), PciKind::DownstreamPort);
    assert_eq!(kind("0000:04:00.0"), PciKind::ExpressToPci);
    assert_eq!(kind("0000:03:00.0"), PciKind::Endpoint);
    assert_eq!(kind("0000:05:00.0"), PciKind::Conventional);
    assert_eq!(pci.acs(at("0000:00:01.0")), AcsKnown::Unknown);
    let way: Vec<String> =
        pci.way_up(at("0000:03:00.0")).iter().map(|one| one.at.to_string()).collect();
    assert_eq!(way, ["0000:02:04.0", "0000:01:00.0", "0000:00:01.0"]);
}

#[test]
fn a_list_tells_space_driver_group_and_windows() {
    let mut row = String::new();
    for at in (0..256).step_by(16) {
        let bytes = if at == 0 {
            "de 10 04 22 06 00 10 00 a1 00 00 03 00 00 80 00"
        } else {
            &"00 ".repeat(16)
        };
        row += &format!("{at:02x}: {}\n", bytes.trim());
    }
    let text = format!(
        "01:00.0 VGA compatible controller: one\n\tRegion 1: Memory at 6000000000 (64-bit, prefetchable) [size=32G]\n\
         \tKernel driver in use: nvidia\n\tIOMMU group: 14\n{row}"
    );
    let pci = Pci::new(&subject(BTreeMap::new(), Some(&text)));
    let one = pci.function(at("01:00.0")).unwrap();
    assert_eq!(
        (one.id_text().as_str(), one.class(), one.extent),
        ("10de:2204", 0x03_0000, Extent::Short)
    );
    assert_eq!((one.driver.as_deref(), one.group), (Some("nvidia"), Some(14)));
    assert_eq!(one.windows, [BarWindow { number: 1, start: 0x60_0000_0000, bytes: 32 << 30 }]);
}

#[test]
fn files_go_before_a_shorter_list() {
    let mut files = BTreeMap::new();
    let mut space = header(0x02_0000, None);
    space.resize(4096, 0);
    put(&mut files, "0000:01:00.0", "config", &space);
    let text = "01:00.0 x\n00: de 10 04 22 06 00 10 00 a1 00 00 03 00 00 80 00\n";
    let pci = Pci::new(&subject(files, Some(text)));
    let one = pci.function(at("01:00.0")).unwrap();
    assert_eq!((one.id_text().as_str(), one.extent), ("1022:1483", Extent::Whole));
}

/// A function without configuration space is known by its other files, or not at all.
#[test]
fn functions_that_are_half_there() {
    let mut files = BTreeMap::new();
    for (name, text) in [("vendor", "0x8086\n"), ("device", "0x1572\n"), ("class", "0x020000\n")] {
        put(&mut files, "0000:01:00.0", name, text.as_bytes());
    }
    files.insert(format!("{FOLDER}/0000:01:00.0/config"), KeptFile::Denied);
    put(&mut files, "0000:02:00.0", "config", b"\xff");
    put(&mut files, "no function", "config", b"");
    put(
        &mut files,
        "0000:03:00.0",
        "resource",
        b"0xffffffffffffffff 0x0 0x200\n0x0 0xffffffffffffffff 0x200\nx\n",
    );
    let pci = Pci::new(&subject(files, None));
    assert_eq!(pci.functions().count(), 3);
    assert_eq!(pci.function(at("01:00.0")).unwrap().id_text(), "8086:1572");
    assert_eq!(pci.function(at("02:00.0")).unwrap().id_text(), "ffff:ffff");
    assert!(pci.function(at("03:00.0")).unwrap().windows.is_empty());
    assert!(
        Pci::new(&subject(BTreeMap::new(), Some("\u{1b}[2J 00: zz\n00: 00")))
            .functions()
            .next()
            .is_none()
    );
}

#[test]
fn functions_beyond_the_most_are_left_out() {
    let mut files = BTreeMap::new();
    for segment in 0..=MOST_FUNCTIONS {
        put(&mut files, &format!("{segment:04x}:00:00.0"), "numa_node", b"0\n");
    }
    let pci = Pci::new(&subject(files, None));
    assert_eq!((pci.functions().count(), pci.left_out()), (MOST_FUNCTIONS, 1));
}

#[test]
fn a_disk_is_named_by_its_block_device_and_no_other_file() {
    let mut files = without_root();
    let target =
        "../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:04.0/0000:03:00.0/ata1/sda";
    files.insert("sys/class/block/sda".to_owned(), KeptFile::Link(target.to_owned()));
    files.insert("sys/class/block/../x".to_owned(), KeptFile::Link(target.to_owned()));
    let files = subject(files, None);
    let pci = Pci::new(&files);
    assert_eq!(pci.named(&files.files, "sda").unwrap().at, at("03:00.0"));
    assert!(pci.named(&files.files, "../x").is_none());
    assert_eq!(pci.host(at("03:00.0")).to_string(), "0000:00");
    let from = Subject { files: Files::Below(PathBuf::from("/no/such/folder")), ..files };
    assert!(Pci::new(&from).functions().next().is_none());
}
