//! Properties of an endpoint: the addresses that it cannot use.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.7 and 5.13.6.7.3.
//!
//! *Context.* Interrupt: everything here is a value.

use alloc::vec::Vec;
use portolan::addr::{Iova, IovaRange};
use portolan::iommu::{IommuError, ReservedKind, ReservedRegion};

use portolan_spec::virtio as spec;

/// The reserved addresses in a list of properties. Properties of other types are passed over;
/// reserved addresses of unknown kind are taken for unusable.
pub(super) fn reserved(properties: &[u8]) -> Result<Vec<ReservedRegion>, IommuError> {
    let mut found = Vec::new();
    let mut rest = properties;
    while let [t0, t1, l0, l1, after @ ..] = rest {
        let kind = u16::from_le_bytes([*t0, *t1]) & spec::PROPERTY_TYPE;
        if kind == spec::P_NONE {
            break;
        }
        let at = properties.len().saturating_sub(rest.len());
        let length = usize::from(u16::from_le_bytes([*l0, *l1]));
        let wrong = IommuError::Nonsense { offset: at, value: length as u64 };
        let value = after.get(..length).ok_or(wrong)?;
        rest = after.get(length..).unwrap_or(&[]);
        if kind == spec::P_RESV_MEM {
            found.push(region(value).ok_or(wrong)?);
        }
    }
    Ok(found)
}

/// The region in a property behind its head.
fn region(value: &[u8]) -> Option<ReservedRegion> {
    let (kind, numbers) = value.get(..spec::RESV_MEM_BYTES)?.split_first()?;
    let number = |at: usize| {
        let bytes = numbers.get(at..at.checked_add(8)?)?;
        bytes.try_into().ok().map(u64::from_le_bytes)
    };
    Some(ReservedRegion {
        range: IovaRange::new(Iova::new(number(3)?), Iova::new(number(11)?))?,
        kind: match *kind {
            // Writes are message-signalled interrupts, without a mapping.
            spec::RESV_MSI => ReservedKind::Interrupts,
            _ => ReservedKind::Unusable,
        },
    })
}
