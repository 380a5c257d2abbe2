//! Random and mutated tables: every walk ends, nothing panics, errors point into the table.
//!
//! Seeds are printed; `PORTOLAN_SEED` takes one.

extern crate std;

use std::vec::Vec;

use fastrand::Rng;
use portolan::addr::StreamId;

use super::golden::bytes::{
    dmar_bytes, iort_bytes, ivrs_bytes, reseal, rimt_bytes, table, viot_bytes,
};
use super::lookup;
use crate::TableError;
use crate::dmar::{Dmar, Structure};
use crate::iort::{Iort, IortBody};
use crate::ivrs::{Ivrs, SpecialKind};
use crate::reserved::{Reserved, Streams};
use crate::rimt::{self, Rimt};
use crate::sdt::{Sdt, Tables};
use crate::viot::Viot;
use portolan::addr::{PciSegment, RequesterId};

const ROUNDS: u32 = 20_000;

fn rng() -> Rng {
    Rng::with_seed(portolan_chips::fixture::seed())
}

/// Checks that an error's offset is in a table of `bytes`.
fn inside(error: TableError, bytes: usize) {
    let offset = match error {
        TableError::Truncated { offset, .. }
        | TableError::Length { offset, .. }
        | TableError::Reference { offset, .. }
        | TableError::Loop { offset }
        | TableError::TooMany { offset, .. }
        | TableError::Nonsense { offset, .. } => offset,
        TableError::Signature { .. }
        | TableError::Checksum { .. }
        | TableError::NoReader { .. } => 0,
    };
    // A mapping's array or a table's first node may be said to be anywhere.
    assert!(
        offset <= bytes
            || matches!(error, TableError::Truncated { .. } | TableError::Reference { .. }),
        "{error:?} in {bytes} bytes"
    );
}

/// Reads everything that there is; returns the number of things read.
fn read_all(bytes: &[u8]) -> usize {
    let mut read = 0;
    let mut see = |error| inside(error, bytes.len());
    for found in Tables::new(bytes) {
        read += found.map_err(&mut see).map_or(0, |(_, sdt)| sdt.as_slice().len());
    }
    let _ = Sdt::parse(bytes).map_err(&mut see);
    read += Dmar::parse(bytes).map_err(&mut see).map_or(0, |dmar| read_dmar(&dmar, &mut see));
    read += Iort::parse(bytes).map_err(&mut see).map_or(0, |iort| read_iort(&iort, &mut see));
    read += Ivrs::parse(bytes).map_err(&mut see).map_or(0, |ivrs| read_ivrs(&ivrs, &mut see));
    if let Ok(viot) = Viot::parse(bytes).map_err(&mut see) {
        read += viot.nodes().flatten().count();
        let found = lookup::viot_endpoint(&viot, PciSegment::new(2), RequesterId::new(0x123));
        let _ = found.map_err(&mut see);
    }
    if let Ok(rimt) = Rimt::parse(bytes).map_err(&mut see) {
        read += read_rimt(&rimt, &mut see);
    }
    read
}

fn read_rimt(rimt: &Rimt<'_>, mut see: impl FnMut(TableError)) -> usize {
    let mut read = 0;
    for node in rimt.nodes() {
        read += match node.map_err(&mut see).map(|node| node.body) {
            Ok(rimt::RimtBody::RootComplex { mappings, .. }) => mappings.count(),
            Ok(rimt::RimtBody::Device { name, mappings }) => name.len() + mappings.count(),
            Ok(rimt::RimtBody::Unit(_)) => 1,
            Err(_) => 0,
        };
    }
    let found = lookup::rimt_stream(
        rimt,
        portolan::addr::PciFunction { segment: PciSegment::new(2), requester: RequesterId::new(3) },
    );
    let _ = found.map_err(&mut see);
    read
}

fn read_dmar(dmar: &Dmar<'_>, mut see: impl FnMut(TableError)) -> usize {
    let mut read = 0;
    let found = dmar.reserved(PciSegment::new(0), Streams::ALL, |_| Some(1));
    take_over(found, Some(dmar.address_lg2()), &mut see);
    for structure in dmar.structures() {
        let scopes = match structure.map_err(&mut see) {
            Ok(Structure::Drhd(unit)) => unit.scopes,
            Ok(Structure::Reserved(reserved)) => reserved.scopes,
            Ok(Structure::RootPorts(ports)) => ports.scopes,
            Ok(Structure::TranslationCaches(devices) | Structure::Properties(devices)) => {
                devices.scopes
            }
            _ => continue,
        };
        for scope in scopes.flatten() {
            read += usize::from(scope.requester(|bridge| Some(bridge.bus())).is_some());
        }
    }
    read
}

fn read_iort(iort: &Iort<'_>, mut see: impl FnMut(TableError)) -> usize {
    let mut read = 0;
    for node in iort.nodes() {
        let Ok(node) = node.map_err(&mut see) else {
            continue;
        };
        match node.body {
            IortBody::ItsGroup(its) => read += its.ids().count(),
            IortBody::ReservedMemory(reserved) => read += reserved.ranges().flatten().count(),
            _ => {}
        }
        let _ = lookup::iort_end(iort, &node, 0x100).map_err(&mut see);
        read += take_over(iort.reserved(&node, Streams::ALL), None, &mut see);
    }
    let found = lookup::iort_stream(iort, PciSegment::new(2), RequesterId::new(0x42));
    let _ = found.map_err(&mut see);
    read
}

fn read_ivrs(ivrs: &Ivrs<'_>, mut see: impl FnMut(TableError)) -> usize {
    let mut read = ivrs.blocks().flatten().count();
    for unit in ivrs.units() {
        let Ok(unit) = unit.map_err(&mut see) else {
            continue;
        };
        for entry in unit.entries() {
            read += usize::from(entry.map_err(&mut see).is_ok());
        }
    }
    let (segment, requester) = (PciSegment::new(0), RequesterId::new(0x200));
    let _ = lookup::ivrs_device(ivrs, segment, requester).map_err(&mut see);
    let _ = ivrs.special(SpecialKind::Timer, 0).map_err(&mut see);
    let found = ivrs.reserved(segment, Streams::ALL);
    take_over(found, ivrs.physical_lg2(), &mut see);
    read
}

/// Reads the memory that a table reserves, and returns the number of its regions: they lie in addresses of so
/// many bits.
fn take_over(
    found: impl Iterator<Item = Result<Reserved, TableError>>,
    address_lg2: Option<u32>,
    mut see: impl FnMut(TableError),
) -> usize {
    let regions = found.filter_map(|item| item.map_err(&mut see).ok());
    let inside = regions.inspect(|one| {
        let last = one.region.range.last().get();
        let above = address_lg2.and_then(|lg2| last.checked_shr(lg2));
        assert!(above.is_none_or(|above| above == 0), "{one}");
    });
    inside.count()
}

#[test]
fn random_bytes() {
    let mut rng = rng();
    for _ in 0..ROUNDS {
        let signature = rng.choice([*b"DMAR", *b"IORT", *b"IVRS", *b"VIOT", *b"XSDT"]).unwrap();
        // Small numbers make structures that go on for a while.
        let most = rng.choice([3, 40, 255]).unwrap();
        let body: Vec<u8> = (0..rng.usize(..200)).map(|_| rng.u8(..=most)).collect();
        read_all(&table(signature, &body));
        read_all(&body);
    }
}

#[test]
fn mutated_tables() {
    let mut rng = rng();
    let tables = [dmar_bytes(), iort_bytes(), ivrs_bytes(), rimt_bytes(), viot_bytes()];
    let mut survived = 0;
    for _ in 0..ROUNDS {
        let mut bytes = tables[rng.usize(..tables.len())].clone();
        for _ in 0..rng.usize(1..5) {
            let at = rng.usize(10..bytes.len());
            bytes[at] = match rng.u8(..4) {
                0 => 0,
                1 => u8::MAX,
                2 => bytes[at] ^ 1 << rng.u8(..8),
                _ => rng.u8(..),
            };
        }
        reseal(&mut bytes);
        survived += usize::from(read_all(&bytes) > 0);
    }
    // The checksum is made anew: most tables are still read.
    assert!(survived > ROUNDS as usize / 2, "{survived}");
}

/// Each table cut at each byte: by the slice, and by its own length.
#[test]
fn truncated_tables() {
    for whole in [dmar_bytes(), iort_bytes(), ivrs_bytes(), rimt_bytes(), viot_bytes()] {
        for end in 0..whole.len() {
            read_all(&whole[..end]);
            assert!(Sdt::parse(&whole[..end]).is_err(), "{end}");
            let mut short = whole.clone();
            short[4..8].copy_from_slice(&(end as u32).to_le_bytes());
            reseal(&mut short);
            read_all(&short);
        }
    }
}

/// Every reference of every node redirected to every node: circles of all lengths end.
#[test]
fn looping_tables() {
    let whole = iort_bytes();
    let iort = Iort::parse(&whole).unwrap();
    let offsets: Vec<usize> = iort.nodes().map(|node| node.unwrap().offset).collect();
    let mut loops = 0;
    for &to in &offsets {
        let mut bytes = whole.clone();
        for &from in &offsets {
            let mappings = u32::from_le_bytes(whole[from + 8..from + 12].try_into().unwrap());
            let array = u32::from_le_bytes(whole[from + 12..from + 16].try_into().unwrap());
            for i in 0..mappings as usize {
                let at = from + array as usize + 20 * i + 12;
                bytes[at..at + 4].copy_from_slice(&(to as u32).to_le_bytes());
            }
        }
        reseal(&mut bytes);
        let iort = Iort::parse(&bytes).unwrap();
        let found = lookup::iort_stream(&iort, PciSegment::new(9), RequesterId::new(0x10));
        match found {
            Err(TableError::Loop { .. }) => loops += 1,
            Ok(Some(found)) => assert_eq!(found.stream, StreamId::new(0x10)),
            Ok(None) | Err(_) => {}
        }
    }
    assert!(loops >= 1);
}
