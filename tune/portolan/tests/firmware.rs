//! `portolan explain --firmware`: its output, and its exit codes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn explain(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portolan"))
        .args(["explain", "--firmware"])
        .args(args)
        .output()
        .unwrap()
}

fn ends_with(args: &[&str], code: i32) -> (String, String) {
    let output = explain(args);
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
    (out, err)
}

fn scratch(name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    path
}

/// DMAR with a unit at `base` for 0:2.0, whose memory is reserved, and one for all others.
fn dmar(base: u32) -> Vec<u8> {
    let mut bytes = vec![0; 36];
    bytes[..4].copy_from_slice(b"DMAR");
    bytes[10..16].copy_from_slice(b"NOBODY");
    bytes.extend([38, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let display = [1, 8, 0, 0, 0, 0, 2, 0];
    for (flags, length, base) in [(0, 24, base), (1, 16, 0xfed9_1000)] {
        bytes.extend([0, 0, length, 0, flags, 0, 0, 0]);
        bytes.extend(u64::from(base).to_le_bytes());
        bytes.extend(&display[..usize::from(length) - 16]);
    }
    bytes.extend([1, 0, 32, 0, 0, 0, 0, 0]);
    bytes.extend(0x7000_0000_u64.to_le_bytes());
    bytes.extend(0x7fff_ffff_u64.to_le_bytes());
    bytes.extend(display);
    let length = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[9] = sum.wrapping_neg();
    bytes
}

/// Formats a table like `acpidump`.
fn dump(table: &[u8]) -> String {
    let rows = table.chunks(16).enumerate().map(|(number, row)| {
        let hex: Vec<String> = row.iter().map(|byte| format!("{byte:02X}")).collect();
        format!("    {:04X}: {:<48} ................\n", number * 16, hex.join(" "))
    });
    format!("DMAR @ 0x0000000000000000\n{}\n", rows.collect::<String>())
}

/// A display, and a conventional bridge with two cards, as `lspci -xxx` prints them.
const LSPCI: &str = "\
00:02.0 VGA compatible controller: Nobody's display
00: 86 80 34 12 00 00 00 00 00 00 00 03 00 00 00 00
00:1e.0 PCI bridge: Nobody's bridge
00: 86 80 35 12 00 00 00 00 00 00 04 06 00 00 01 00
10: 00 00 00 00 00 00 00 00 00 01 01 00 00 00 00 00
01:04.0 Ethernet controller: Nobody's card
00: 86 80 36 12 00 00 00 00 00 00 00 02 00 00 00 00
01:05.0 Ethernet controller: Nobody's card
00: 86 80 36 12 00 00 00 00 00 00 00 02 00 00 00 00
";

#[test]
fn a_machine_is_explained() {
    let table = scratch("good/DMAR", dmar(0xfed9_0000));
    let lspci = scratch("lspci.txt", LSPCI);
    let [table, lspci] = [&table, &lspci].map(|path| path.to_str().unwrap());
    let (out, err) = ends_with(&[table, "--pci", lspci, "--wide"], 0);
    assert_eq!(err, "");
    for line in [
        "Unit 0: VT-d, registers at 0xfed90000..=0xfed90fff",
        "  serves 0000:00:02.0",
        "  serves all functions of segment 0000 that no other unit names",
        "firmware's memory: mapped one to one",
        "An IOMMU serves each of the 4 PCI functions.",
        "0000:01:05.0 8086:1236 0200     1 0x128 0xf0 0000:00:1e.0    conventional PCI device",
        "  0000:00:1e.0 0000:01:04.0 0000:01:05.0",
        "  since 0000:01:04.0 is behind 0000:00:1e.0: conventional PCI has no ACS",
        "Functions that are in no group with others: 1.",
        "note: of 4 of 4 functions no more than 256 bytes are known",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    // From a folder and from a dump it is the same machine.
    let folder = Path::new(table).parent().unwrap().to_str().unwrap();
    let text = scratch("dump.txt", dump(&dmar(0xfed9_0000)));
    let units = |out: &str| out.split_once('\n').unwrap().1.to_owned();
    for other in [folder, text.to_str().unwrap()] {
        let (again, _) = ends_with(&[other, "--pci", lspci, "--wide"], 0);
        assert_eq!(units(&again), units(&out));
    }
}

#[test]
fn json_has_the_agreed_keys() {
    let table = scratch("json.bin", dmar(0xfed9_0000));
    let lspci = scratch("json.txt", LSPCI);
    let [table, lspci] = [&table, &lspci].map(|path| path.to_str().unwrap());
    let (out, _) = ends_with(&[table, "--pci", lspci, "--json"], 0);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["table"]["signature"], "DMAR");
    let unit = &report["units"][0];
    assert_eq!((&unit["unit"], &unit["kind"]), (&0.into(), &"VT-d".into()));
    assert_eq!(unit["serves"], serde_json::json!(["0000:00:02.0"]));
    let memory = &unit["reserved"][1];
    assert_eq!(memory["start"], 0x7000_0000);
    assert_eq!((&memory["first_stream"], &memory["last_stream"]), (&16.into(), &16.into()));
    let card = &report["functions"][3];
    assert_eq!(card["streams"], serde_json::json!([0x128, 0xf0]));
    assert_eq!((&card["unit"], &card["group"]), (&1.into(), &"0000:00:1e.0".into()));
    assert_eq!(report["groups"][0]["functions"].as_array().unwrap().len(), 3);
    assert_eq!(report["groups"][0]["reasons"].as_array().unwrap().len(), 2);
    assert_eq!(report["remarks"][0]["wrong"], false);
}

/// Output of `lspci -xxxx` for a function: words of its configuration space, and zeros.
fn function(place: &str, words: &[(usize, u32)]) -> String {
    let mut space = vec![0; 4096];
    for (at, word) in words {
        space[*at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    let rows = space.chunks(16).enumerate().map(|(number, row)| {
        let hex: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:02x}: {}\n", number * 16, hex.join(" "))
    });
    format!("{place} Nobody's\n{}\n", rows.collect::<String>())
}

/// A card of PCI Express with an SR-IOV capability.
fn card(place: &str, [count, most, offset, stride]: [u32; 4]) -> String {
    let words = [
        (0x0, 0x1521_8086),
        (0x4, 1 << 20),
        (0x8, 0x0200_0000),
        (0x34, 0x40),
        (0x40, 0x10),
        (0x100, 0x1_0010),
        (0x108, 1),
        (0x10c, most << 16 | most),
        (0x110, count),
        (0x114, stride << 16 | offset),
        (0x118, 0x1520_0000),
    ];
    function(place, &words)
}

/// A root port with hot-plug that leads to bus 1, a disk there and one on bus 0.
fn thunderbolt() -> String {
    let express = |kind: u32| [(0x4, 1 << 20), (0x34, 0x40), (0x40, kind << 20 | 0x10)];
    let mut port = vec![(0x0, 0x1234_8086), (0xc, 1 << 16), (0x18, 0x1_0100)];
    port.extend(express(4 | 1 << 4));
    port.extend([(0x54, 1 << 6), (0x100, 0xd), (0x104, 0x1d_001d)]);
    let disk: Vec<_> = [(0x0, 0x1235_8086)].into_iter().chain(express(0)).collect();
    let functions = [("00:07.0", &port), ("00:08.0", &disk), ("01:00.0", &disk)];
    functions.map(|(place, words)| function(place, words)).concat()
}

#[test]
fn devices_below_ports_that_lead_out_of_the_machine_are_said_not_to_be_trusted() {
    let mut asking = dmar(0xfed9_0000);
    (asking[37], asking[9]) = (4, asking[9].wrapping_sub(4));
    let silent = scratch("silent.bin", dmar(0xfed9_0000));
    let asking = scratch("asking.bin", asking);
    let lspci = scratch("thunderbolt.txt", thunderbolt());
    let [silent, asking, lspci] = [&silent, &asking, &lspci].map(|path| path.to_str().unwrap());
    let below =
        "  0000:01:00.0 is not trusted: strict, no pass-through, no translations of its own";
    let by_hot_plug = "so the 1 with hot-plug slots count as such";
    let said = |args: &[&str]| {
        let (out, _) = ends_with(&[args, &["--pci", lspci, "--wide"][..]].concat(), 0);
        assert!(!out.contains("0000:00:08.0 is not trusted"), "{out}");
        (out.contains(below), out.contains(by_hot_plug))
    };
    assert_eq!(said(&[silent]), (false, false));
    assert_eq!(said(&[asking]), (true, true));
    assert_eq!(said(&[silent, "--external", "00:07.0"]), (true, false));
    let elsewhere = [asking, "--external", "0:9.0", "--pci", lspci];
    let (out, _) = ends_with(&elsewhere, 1);
    assert!(out.contains("is no port") && !out.contains("not trusted"), "{out}");
    ends_with(&[silent, "--external", "port"], 2);
    let (out, _) = ends_with(&[asking, "--pci", lspci, "--json"], 0);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["wants_dma_protection"], true);
    assert_eq!(report["external_ports"], serde_json::json!(["0000:00:07.0"]));
    let functions = report["functions"].as_array().unwrap();
    let below: Vec<_> = functions.iter().map(|one| &one["below"]).collect();
    assert_eq!(below, [&Value::Null, &Value::Null, &"0000:00:07.0".into()]);
}

#[test]
fn virtual_functions_are_listed_behind_the_unit_of_their_physical_function() {
    let table = scratch("virtual.bin", dmar(0xfed9_0000));
    let explained = |name: &str, cards: String, code| {
        let lspci = scratch(name, cards);
        let args = [&table, &lspci].map(|path| path.to_str().unwrap());
        ends_with(&[args[0], "--pci", args[1]], code).0
    };
    // The display's unit has the virtual functions of the card at 0:2.0.
    let both = card("00:02.0", [2, 4, 0x10, 1]) + &card("00:06.0", [1, 1, 8, 0]);
    let out = explained("virtual.txt", both, 0);
    let words: Vec<&str> = out.split_whitespace().collect();
    let words = words.join(" ");
    for line in [
        "0000:00:04.0 8086:1520 0200 0 0x20 virtual function of 0000:00:02.0",
        "0000:00:04.1 8086:1520 0200 0 0x21 virtual function of 0000:00:02.0",
        "0000:00:07.0 8086:1520 0200 1 0x38 virtual function of 0000:00:06.0",
        "in no group with others: 5.",
    ] {
        assert!(words.contains(line), "{line}: {out}");
    }
    assert!(!out.contains("0000:00:04.2"), "{out}");
    // Of two cards that claim the same one the owner cannot be told.
    let same = card("00:02.0", [1, 1, 0x28, 1]) + &card("00:06.0", [1, 1, 8, 0]);
    let out = explained("same.txt", same, 1);
    assert!(out.contains("wrong: virtual functions of 0000:00:06.0 make no sense"), "{out}");
    assert!(!out.contains("virtual function of"), "{out}");
    // More than anybody reads.
    let out = explained("many.txt", card("00:02.0", [5000, 5000, 8, 1]), 0);
    assert!(out.contains("note: more than 4096 virtual functions"), "{out}");
}

#[test]
fn firmware_that_is_wrong_ends_with_1_and_what_is_no_table_with_2() {
    let lie = scratch("lie.bin", dmar(8));
    let (out, _) = ends_with(&[lie.to_str().unwrap()], 1);
    let wrong = "wrong: unit 0 is said to be at 0x8, where no registers can be";
    assert!(out.contains(wrong), "{out}");
    let mut flipped = dmar(0xfed9_0000);
    flipped[50] ^= 1;
    let two = [dmar(0xfed9_0000), dmar(0xfed9_0000)].concat();
    let mut other = dmar(0xfed9_0000);
    other[..4].copy_from_slice(b"TEST");
    let cases = [
        ("flipped.bin", flipped, "add up to"),
        ("two.bin", two, "two tables describe units"),
        ("empty.bin", Vec::new(), "no ACPI table is in it"),
        ("noise.bin", vec![0xa5; 5000], "no ACPI table is in it"),
    ];
    for (name, content, word) in cases {
        let path = scratch(name, content);
        let (out, err) = ends_with(&[path.to_str().unwrap()], 2);
        assert!(err.contains(word) && out.is_empty(), "{name}: {err}");
    }
    let (_, err) = ends_with(&["/nowhere/at/all"], 2);
    assert!(err.contains("/nowhere/at/all"), "{err}");
    let good = scratch("alone.bin", dmar(0xfed9_0000));
    let empty = scratch("nothing.txt", "");
    let args = [&good, &empty].map(|path| path.to_str().unwrap());
    let (_, err) = ends_with(&[args[0], "--pci", args[1]], 2);
    assert!(err.contains("no configuration space"), "{err}");
}
