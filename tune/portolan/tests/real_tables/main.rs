//! Firmware's tables of real machines (`data/firmware`): decoded as `iasl` or a dump by hand has them, each device
//! served or refused with a reason, and whatever is cut off, padded or wrong in them, no panic.

mod iasl;
mod iort;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use portolan::addr::PciFunction;
use portolan_hw::smmuv2::{Implementation, WaitForSafe};
use portolan_hw::topology::pci::PciOverrides;
use portolan_hw::topology::{Claim, Place, Served, Survey, SurveyedUnit, Topology, UnitKind};
use portolan_tables::dmar::{Dmar, Structure};
use portolan_tables::iort::{Iort, IortBody};

/// A table with the name of its file.
struct Table {
    name: String,
    bytes: Vec<u8>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/firmware")
}

/// The tables of one signature, by name.
fn tables(signature: &str) -> Vec<Table> {
    if signature == "iort" {
        let text = fs::read_to_string(folder().join("iort.txt")).expect("the facts");
        let all =
            iort::all(&text).into_iter().map(|iort::Rebuilt { name, bytes }| Table { name, bytes });
        return all.collect();
    }
    let files = fs::read_dir(folder().join(signature)).expect("a folder");
    let mut all: Vec<Table> = files
        .map(|file| {
            let path = file.expect("a file").path();
            Table {
                name: path.file_name().expect("a name").display().to_string(),
                bytes: fs::read(&path).expect("a table"),
            }
        })
        .collect();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

/// Makes the bytes of a table add up to 0 again.
fn seal(bytes: &mut [u8]) {
    bytes[9] = 0;
    let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[9] = sum.wrapping_neg();
}

fn word(table: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(table[at..at + 4].try_into().expect("four bytes"))
}

fn survey(topology: &Topology) -> Survey {
    topology.survey(PciOverrides::KNOWN, |_, _| None)
}

/// The functions that a table names singly, or as the first of a range.
fn named(unit: &SurveyedUnit) -> Vec<PciFunction> {
    let function = |claim: &Claim| match *claim {
        Claim::Function(at) => Some(at),
        Claim::Range { segments: (segment, _), first: requester, .. }
        | Claim::Alias { segment, first: requester, .. } => {
            Some(PciFunction { segment, requester })
        }
        _ => None,
    };
    unit.claims.iter().filter_map(function).collect()
}

/// Numbers of devices and units, and of those that are refused.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    units: usize,
    units_refused: usize,
    functions: usize,
    functions_refused: usize,
    limits: usize,
    reserved: usize,
}

/// Every unit and every function that the tables name is served or refused with a reason.
fn counts(signature: &str) -> Counts {
    let mut counts = Counts::default();
    for table in tables(signature) {
        let topology = Topology::from_acpi([&table.bytes[..]]).expect(&table.name);
        let survey = survey(&topology);
        for (number, unit) in survey.units().iter().enumerate() {
            counts.units += 1;
            let refused = survey.refused(number).map(|error| error.to_string());
            counts.units_refused += usize::from(refused.is_some());
            assert!(refused.is_none_or(|why| why.len() > 20), "{}", table.name);
            counts.limits += unit.limits.len();
            counts.reserved += unit.reserved.iter().count();
            assert_eq!(unit.reserved.left_out().count, 0, "{}", table.name);
            for function in named(unit) {
                counts.functions += 1;
                let served = Served { function, unit: Some(number), streams: Vec::new() };
                match topology.addresses(&survey, &served) {
                    Ok(range) => assert!(range.last().get() > u32::MAX.into(), "{}", table.name),
                    Err(why) => {
                        counts.functions_refused += 1;
                        let why = why.to_string();
                        assert!(why.contains(&function.to_string()), "{why}");
                    }
                }
            }
        }
    }
    counts
}

#[test]
fn each_device_of_real_machines_is_served_or_refused_with_a_reason() {
    let of = ["dmar", "ivrs", "iort"].map(counts);
    let dmar = Counts {
        units: 293,
        // A unit at address 0.
        units_refused: 1,
        functions: 139,
        functions_refused: 0,
        limits: 0,
        reserved: 588,
    };
    let ivrs = Counts {
        units: 55,
        units_refused: 0,
        functions: 154,
        functions_refused: 0,
        limits: 0,
        reserved: 118,
    };
    let iort = Counts {
        units: 31,
        units_refused: 0,
        functions: 70,
        functions_refused: 0,
        limits: 204,
        reserved: 0,
    };
    assert_eq!(of, [dmar, ivrs, iort]);
}

#[test]
fn explain_says_what_is_refused_and_which_addresses_arrive_and_ends_with_1() {
    let explained = |table: &Table| {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.table", table.name));
        fs::write(&file, &table.bytes).expect("a file");
        let output = Command::new(env!("CARGO_BIN_EXE_portolan"))
            .args(["explain", "--wide", "--firmware"])
            .arg(&file)
            .output()
            .expect("it runs");
        let said = String::from_utf8(output.stdout).expect("text");
        (output.status.code(), said)
    };
    let of = |signature, name: &str| {
        let mut all = tables(signature).into_iter();
        all.find(|table| table.name.starts_with(name)).expect(name)
    };
    // A ThinkPad X13s.
    let (code, said) = explained(&of("iort", "39ad16a609"));
    assert_eq!(code, Some(0), "{said}");
    for line in [
        "SMMUv1 or v2, registers at 0x15000000",
        "streams from 0x10000 on",
        // Its root complexes are of a revision that says nothing.
        "reached by device 8 of the ACPI name space: addresses 0x0..=0xfffffffff",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let (code, said) = explained(&of("ivrs", "77b0271449"));
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("refused"), "{said}");
    assert!(said.contains("AMDI0020 \\_SB.FUR1, stream 0xa5"), "{said}");
    let ends = tables("dmar").into_iter().filter(|table| explained(table).0 == Some(1));
    assert_eq!(ends.count(), 1);
}

/// Linux knows the chip of 2019, by the first of these makers; the others are as in their laptops.
#[test]
fn each_smmu_of_version_2_of_these_laptops_is_qualcomm_s() {
    let mut units = 0;
    for table in tables("iort") {
        let parsed = Iort::parse(&table.bytes).expect(&table.name);
        for node in parsed.nodes() {
            let IortBody::Smmu(unit) = node.expect(&table.name).body else {
                continue;
            };
            let found = Implementation::of_iort(parsed.maker(), unit.model, 0);
            let qualcomm = Implementation::Qualcomm(WaitForSafe::Off);
            assert_eq!(found, Some(qualcomm), "{}", table.name);
            units += 1;
        }
    }
    assert_eq!(units, 22);
}

/// The places of units, in the table's order.
fn places(survey: &Survey) -> Vec<u64> {
    let place = |unit: &SurveyedUnit| match unit.place {
        Place::Registers(window) => window.start().get(),
        Place::Nowhere(at) => at.get(),
        other => panic!("{other:?}"),
    };
    survey.units().iter().map(place).collect()
}

#[test]
fn dmar_is_decoded_as_iasl_has_it() {
    let Some(iasl) = iasl::find() else { return };
    for table in tables("dmar") {
        let said = iasl.disassembled("dmar", &table);
        let parsed = Dmar::parse(&table.bytes).expect(&table.name);
        let mut expected: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for structure in parsed.structures() {
            let mut add = |name, value| expected.entry(name).or_default().push(value);
            match structure.expect(&table.name) {
                Structure::Drhd(unit) => {
                    add("Register Base Address", unit.registers.start().get());
                }
                Structure::Reserved(block) => {
                    add("Base Address", block.range.start().get());
                    add("End Address (limit)", block.range.last().get());
                }
                _ => {}
            }
        }
        for name in ["Register Base Address", "Base Address", "End Address (limit)"] {
            // Affinity of units has their addresses as well.
            let rhsa = name == "Base Address" && said.has("Hardware Static Affinity");
            let found = said.values(name);
            let expected = expected.remove(name).unwrap_or_default();
            if rhsa {
                assert!(expected.iter().all(|one| found.contains(one)), "{}", table.name)
            } else {
                assert_eq!(found, expected, "{}: {name}", table.name)
            }
        }
        let width = u64::from(parsed.address_lg2()) - 1;
        assert_eq!(said.values("Host Address Width"), [width], "{}", table.name);
        let topology = Topology::from_acpi([&table.bytes[..]]).expect(&table.name);
        assert_eq!(places(&survey(&topology)), said.values("Register Base Address"));
    }
}

/// A block of IVRS by its type, where its unit's registers are or its memory begins, and that memory's length.
type Block = (u8, u64, u64);

/// The blocks of IVRS, cut by hand (48882, section 5.2.2).
fn blocks(table: &[u8]) -> Vec<Block> {
    let mut found = Vec::new();
    let mut at = 48;
    while at < table.len() {
        let wide = |at| u64::from(word(table, at)) | u64::from(word(table, at + 4)) << 32;
        match table[at] {
            kind @ 0x20..=0x22 => found.push((kind, wide(at + 16), wide(at + 24))),
            kind => found.push((kind, wide(at + 8), 0)),
        }
        at += usize::from(table[at + 2]) | usize::from(table[at + 3]) << 8;
    }
    found
}

#[test]
fn ivrs_is_decoded_as_iasl_or_a_dump_by_hand_has_it() {
    let iasl = iasl::find();
    for table in tables("ivrs") {
        let all = blocks(&table.bytes);
        let known = |kind: &u8| matches!(kind, 0x10 | 0x11 | 0x20..=0x22);
        if let Some(iasl) = &iasl {
            // It knows neither 40h nor what it does not know how to skip.
            let said = iasl.disassembled("ivrs", &table);
            let of = |units: bool| {
                let all = all
                    .iter()
                    .take_while(|block| known(&block.0))
                    .filter(move |block| (block.0 < 0x20) == units);
                all.map(|block| block.1).collect::<Vec<_>>()
            };
            assert!(said.values("Base Address").starts_with(&of(true)), "{}", table.name);
            assert!(said.values("Start Address").starts_with(&of(false)), "{}", table.name);
        }
        let topology = Topology::from_acpi([&table.bytes[..]]).expect(&table.name);
        let survey = survey(&topology);
        // Of the blocks of one unit the highest type counts.
        let mut units: Vec<u64> = Vec::new();
        for (_, base, _) in all.iter().filter(|block| matches!(block.0, 0x10 | 0x11 | 0x40)) {
            if !units.contains(base) {
                units.push(*base);
            }
        }
        let mut found = places(&survey);
        found.sort_unstable();
        units.sort_unstable();
        assert_eq!(found, units, "{}", table.name);
        let memory = all.iter().filter(|block| matches!(block.0, 0x20..=0x22));
        for (_, start, bytes) in memory {
            let mut reserved = survey.units()[0].reserved.iter();
            let there = reserved.any(|one| {
                let range = one.region.range;
                range.start().get() <= *start && range.last().get() >= start + (bytes.max(&1) - 1)
            });
            assert!(there, "{}: {start:#x}", table.name);
        }
    }
}

#[test]
fn iort_is_decoded_as_iasl_has_it() {
    let Some(iasl) = iasl::find() else { return };
    for table in tables("iort") {
        let said = iasl.disassembled("iort", &table);
        let topology = Topology::from_acpi([&table.bytes[..]]).expect(&table.name);
        let survey = survey(&topology);
        assert_eq!(places(&survey), said.values("Base Address"), "{}", table.name);
        let v3 = survey.units().iter().filter(|unit| unit.kind == UnitKind::SmmuV3);
        let complexes: Vec<u64> = v3.flat_map(streams).collect();
        let outputs = said.values("Output Base");
        assert!(complexes.iter().all(|one| outputs.contains(one)), "{}", table.name);
        let limited = said.values("Memory Size Limit").iter().filter(|lg2| **lg2 < 64).count();
        let limits = survey.units().iter().map(|unit| unit.limits.len()).sum::<usize>();
        assert!(limits >= limited.min(1), "{}: {limits} of {limited}", table.name);
    }
}

/// The first streams of the functions that a unit serves.
fn streams(unit: &SurveyedUnit) -> impl Iterator<Item = u64> {
    unit.claims.iter().filter_map(|claim| match claim {
        Claim::Range { stream, .. } => Some(u64::from(stream.get())),
        _ => None,
    })
}

/// A survey as text, to compare.
fn shown(survey: &Survey) -> String {
    let unit = |unit: &SurveyedUnit| {
        let claims: Vec<String> = unit.claims.iter().map(ToString::to_string).collect();
        format!("{} {claims:?}", unit.place)
    };
    survey.units().iter().map(unit).collect()
}

/// Reads a table that may be anything; it is refused with a reason or has a survey.
fn tried(bytes: &[u8]) -> Option<String> {
    match Topology::from_acpi([bytes]) {
        Ok(topology) => Some(shown(&survey(&topology))),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

#[test]
fn tables_that_end_anywhere_do_not_panic() {
    for table in ["dmar", "ivrs", "iort"].into_iter().flat_map(tables) {
        for length in 0..table.bytes.len() {
            let mut cut = table.bytes[..length].to_vec();
            tried(&cut);
            if length >= 36 {
                // The same with a length field that matches.
                cut[4..8].copy_from_slice(&(length as u32).to_le_bytes());
                seal(&mut cut);
                tried(&cut);
            }
        }
    }
}

#[test]
fn padding_and_a_wrong_sum_take_no_iommu_away() {
    for signature in ["dmar", "ivrs", "iort"] {
        for table in tables(signature) {
            let whole = tried(&table.bytes);
            assert!(whole.is_some(), "{}", table.name);
            // Behind its end; IORT says how many nodes it has.
            for byte in [0, 0xff] {
                let behind = [&table.bytes[..], &[byte; 20]].concat();
                assert_eq!(tried(&behind), whole, "{}", table.name);
            }
            let mut within = [&table.bytes[..], &[0; 20]].concat();
            let length = within.len() as u32;
            within[4..8].copy_from_slice(&length.to_le_bytes());
            seal(&mut within);
            let padded = tried(&within);
            assert_eq!(padded, whole, "{}", table.name);
            let mut wrong = table.bytes.clone();
            wrong[9] ^= 0x55;
            // Linux believes no IVRS with a wrong sum either.
            let expected = whole.filter(|_| signature != "ivrs");
            assert_eq!(tried(&wrong), expected, "{}", table.name);
        }
    }
}

#[test]
fn the_index_names_each_table() {
    let index = fs::read_to_string(folder().join("index.csv")).expect("an index");
    for signature in ["dmar", "ivrs"] {
        for table in tables(signature) {
            let line = format!("{signature}/{},{},", table.name, table.bytes.len());
            assert!(index.contains(&line), "{line}");
        }
    }
}
