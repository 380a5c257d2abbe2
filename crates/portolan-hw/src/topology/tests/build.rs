//! Tables put together from their structures, and surveys as text.

extern crate std;

use std::fmt::Write as _;
use std::string::String;
use std::vec;
use std::vec::Vec;

use portolan::addr::PciFunction;

use crate::table_bytes::table;
use crate::topology::pci::PciOverrides;
use crate::topology::pci::tests::Fake;
use crate::topology::{Survey, Topology};

/// A scope of DMAR: a function of a bus, by one step.
pub(super) fn scope(kind: u8, number: u8, bus: u8, device: u8, function: u8) -> Vec<u8> {
    vec![kind, 8, 0, 0, number, bus, device, function]
}

pub(super) fn endpoint(bus: u8, device: u8, function: u8) -> Vec<u8> {
    scope(1, 0, bus, device, function)
}

pub(super) fn bridge(bus: u8, device: u8, function: u8) -> Vec<u8> {
    scope(2, 0, bus, device, function)
}

fn structure(kind: u16, fixed: Vec<u8>, scopes: &[Vec<u8>]) -> Vec<u8> {
    let rest = [fixed, scopes.concat()].concat();
    let length = 4 + rest.len() as u16;
    [kind.to_le_bytes().to_vec(), length.to_le_bytes().to_vec(), rest].concat()
}

/// A unit of segment 0; flag 1: it serves all that no other unit names.
pub(super) fn drhd(flags: u8, base: u64, scopes: &[Vec<u8>]) -> Vec<u8> {
    let fixed = [vec![flags, 0, 0, 0], base.to_le_bytes().to_vec()].concat();
    structure(0, fixed, scopes)
}

pub(super) fn rmrr(start: u64, last: u64, scopes: &[Vec<u8>]) -> Vec<u8> {
    let range = [start.to_le_bytes(), last.to_le_bytes()].concat();
    structure(1, [vec![0; 4], range].concat(), scopes)
}

pub(super) fn atsr(scopes: &[Vec<u8>]) -> Vec<u8> {
    structure(2, vec![0; 4], scopes)
}

pub(super) fn rhsa(base: u64, domain: u32) -> Vec<u8> {
    let fixed = [vec![0; 4], base.to_le_bytes().to_vec(), domain.to_le_bytes().to_vec()];
    structure(3, fixed.concat(), &[])
}

/// DMAR whose host address width is `width` (less one) and whose flags are `flags`.
pub(super) fn dmar(width: u8, flags: u8, structures: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![width, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend(structures.concat());
    table(*b"DMAR", &body)
}

/// A unit of IVRS at 0:0.2 with its capability at 0x40.
pub(super) fn ivhd(
    kind: u8,
    flags: u8,
    base: u64,
    attributes: u32,
    entries: &[Vec<u8>],
) -> Vec<u8> {
    let mut block = vec![kind, flags, 0, 0, 2, 0, 0x40, 0];
    block.extend(base.to_le_bytes());
    block.extend([0; 4]);
    block.extend(attributes.to_le_bytes());
    if kind != 0x10 {
        block.extend([0; 16]);
    }
    block.extend(entries.concat());
    let length = block.len() as u16;
    block[2..4].copy_from_slice(&length.to_le_bytes());
    block
}

pub(super) fn ivrs(info: u32, blocks: &[Vec<u8>]) -> Vec<u8> {
    let body = [info.to_le_bytes().to_vec(), vec![0; 8], blocks.concat()].concat();
    table(*b"IVRS", &body)
}

/// Words of 32 bits.
pub(super) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(in crate::topology) fn survey(table: &[u8], fake: &Fake) -> Survey {
    let topology = Topology::from_acpi([table]).unwrap();
    topology.survey(PciOverrides::KNOWN, |of, at| fake.read(of, at))
}

/// Units with their devices and their reserved memory; functions with unit, streams and group;
/// remarks.
pub(super) fn text(survey: &Survey) -> String {
    let mut out = String::new();
    for (number, unit) in survey.units().iter().enumerate() {
        writeln!(out, "unit {number}: {}, {}", unit.kind.name(), unit.place).unwrap();
        for claim in &unit.claims {
            writeln!(out, "  serves {claim}").unwrap();
        }
        for reserved in unit.reserved.iter() {
            writeln!(out, "  reserves {reserved}").unwrap();
        }
    }
    for served in survey.served() {
        write!(out, "{}", served.function).unwrap();
        match served.unit {
            Some(unit) => write!(out, ": unit {unit}, streams").unwrap(),
            None => write!(out, ": no unit").unwrap(),
        }
        for stream in &served.streams {
            write!(out, " {:#x}", stream.get()).unwrap();
        }
        let first = survey.groups().first(survey.tree(), served.function);
        if first != served.function {
            write!(out, ", with {first}").unwrap();
        }
        out.push('\n');
    }
    for remark in survey.remarks() {
        writeln!(out, "remark: {remark}").unwrap();
    }
    out
}

/// Compares line by line, so that differences are seen.
pub(in crate::topology) fn is(survey: &Survey, expected: &str) {
    let found = text(survey);
    let lines = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.trim().into())
            .filter(|line: &String| !line.is_empty())
            .collect()
    };
    assert_eq!(lines(&found), lines(expected), "{found}");
}

pub(super) const fn at(bus: u8, device: u8, function: u8) -> PciFunction {
    PciFunction::of(bus, device, function)
}
