//! virtio-iommu devices by the VIOT table.

use alloc::vec::Vec;

use portolan::addr::PciFunction;

use super::{Description, Place, TableKind, UnitDescription, UnitKind, UnitSettings};
use crate::TableError;
use crate::claim::Claim;
use crate::viot::{Viommu, Viot, ViotNode};

pub(super) fn describe(bytes: &[u8]) -> Result<Description, TableError> {
    let table = Viot::parse(bytes)?;
    let mut found = Description::new(TableKind::Viot);
    // The offset of each unit's node, and claims with that of theirs: nodes refer to later ones, too.
    let mut offsets: Vec<Option<usize>> = Vec::new();
    let mut claims: Vec<(u16, Claim)> = Vec::new();
    for node in table.nodes() {
        match node {
            Ok((offset, ViotNode::Viommu(at))) => {
                found.units.push(unit(at));
                offsets.push(Some(offset));
            }
            Ok((_, ViotNode::PciRange(range))) => {
                let segments = (range.first_segment, range.last_segment);
                let (first, last, stream) = (range.first, range.last, range.endpoint);
                claims.push((range.unit, Claim::Range { segments, first, last, stream }));
            }
            Ok((_, ViotNode::MmioEndpoint(device))) => {
                let (base, stream) = (device.base, device.endpoint);
                claims.push((device.unit, Claim::Device { base, stream }));
            }
            Err(error) => {
                found.damage(error);
                found.units.push(UnitDescription::damaged(UnitKind::Virtio, error));
                offsets.push(None);
            }
        }
    }
    for (at, claim) in claims {
        match offsets.iter().position(|offset| *offset == Some(usize::from(at))) {
            Some(unit) => found.claim(unit, claim),
            None => found.astray(claim),
        }
    }
    Ok(found)
}

fn unit(at: Viommu) -> UnitDescription {
    let (place, unit_segment) = match at {
        Viommu::Pci { segment, requester } => {
            (Place::Function(PciFunction { segment, requester }), Some(segment))
        }
        Viommu::Mmio { base } => (Place::Device(base), None),
    };
    let mut unit = UnitDescription::new(UnitKind::Virtio, place, UnitSettings::Virtio(at));
    unit.segment = unit_segment;
    unit
}
