//! RISC-V IOMMUs by the RIMT table.
//!
//! Not supported: messages of devices through MSI page tables, as the interrupt files are in another table
//! (MADT); windows of PCI hosts that processors reach at other addresses.

use alloc::vec::Vec;

use portolan::addr::RequesterId;

use super::{
    BrokenClaim, Description, Place, RiscvSettings, RiscvWire, TableKind, UnitDescription,
    UnitKind, UnitSettings, last_of,
};
use crate::TableError;
use crate::claim::Claim;
use crate::rimt::{self, Rimt, RimtBody, RimtMapping, Unit};

/// Bytes of a unit's registers.
pub(super) const WINDOW: u64 = 0x1000;

pub(super) fn describe(bytes: &[u8]) -> Result<Description, TableError> {
    let table = Rimt::parse(bytes)?;
    let mut found = Description::new(TableKind::Rimt);
    let mut offsets: Vec<Option<usize>> = Vec::new();
    let mut claims: Vec<(usize, RimtMapping, Claim)> = Vec::new();
    let mut devices = 0;
    for node in table.nodes() {
        let node = match node {
            Ok(node) => node,
            Err(error) => {
                found.damage(error);
                found.units.push(UnitDescription::damaged(UnitKind::Riscv, error));
                offsets.push(None);
                continue;
            }
        };
        let (segment, mappings) = match node.body {
            RimtBody::Unit(one) => {
                found.units.push(unit(&one));
                offsets.push(Some(node.offset));
                continue;
            }
            RimtBody::RootComplex { segment, mappings } => (Some(segment), mappings),
            RimtBody::Device { mappings, .. } => (None, mappings),
        };
        for mapping in mappings.filter(|mapping| mapping.count > 0) {
            let last = mapping.first.saturating_add(mapping.count - 1);
            let last = RequesterId::new(last.min(u16::MAX.into()) as u16);
            let claim = match (segment, u16::try_from(mapping.first)) {
                (Some(segment), Ok(first)) => Claim::Range {
                    segments: (segment, segment),
                    first: RequesterId::new(first),
                    last,
                    stream: mapping.stream,
                },
                _ => Claim::Named(devices),
            };
            claims.push((node.offset, mapping, claim));
        }
        devices += u64::from(segment.is_none());
    }
    for (offset, mapping, claim) in claims {
        let target = usize::try_from(mapping.unit).ok();
        let number = offsets.iter().position(|at| target.is_some() && *at == target);
        let Some(number) = number else {
            let error = TableError::Reference { offset, target: mapping.unit };
            found.broken.push(BrokenClaim { claim, error });
            found.astray(claim);
            continue;
        };
        found.claim(number, claim);
        if let Some(unit) = found.units.get_mut(number) {
            unit.last_stream = unit.last_stream.max(last_of(mapping.stream, mapping.count));
        }
    }
    Ok(found)
}

fn unit(unit: &Unit) -> UnitDescription {
    let place = match unit.place {
        rimt::UnitPlace::Registers(base) => Place::of(base, WINDOW),
        rimt::UnitPlace::Function(at) => Place::Function(at),
    };
    let wire = unit.wire.map(RiscvWire::Global);
    let settings = RiscvSettings { wired: wire.is_some(), wire, files: None, windows: None };
    UnitDescription::new(UnitKind::Riscv, place, UnitSettings::Riscv(settings))
}
