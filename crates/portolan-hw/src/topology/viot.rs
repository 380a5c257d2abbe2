//! virtio-iommu devices by the VIOT table.

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{PciFunction, StreamId};
use portolan::iommu::IommuError;
use portolan::platform::Platform;

use super::claim::Claim;
use super::survey::{Place as Where, Survey, UnitKind};
use super::{EnableError, Enabled, Outcome, TopologyError, enable_all};
use crate::virtio::{Config, Transport, Viommu};
use portolan_tables::viot::{Node, Viommu as Place, Viot};

/// The units, each with the offset of its node.
fn units<'t>(
    table: &Viot<'t>,
) -> impl Iterator<Item = Result<(usize, Place), TopologyError>> + use<'t> {
    table.nodes().filter_map(|node| match node {
        Ok((offset, Node::Viommu(place))) => Some(Ok((offset, place))),
        Ok(_) => None,
        Err(error) => Some(Err(error.into())),
    })
}

/// Number of units in `table`, damaged ones included.
pub(super) fn count(table: &[u8]) -> Result<usize, TopologyError> {
    Ok(units(&Viot::parse(table)?).count())
}

/// Starts all units of `table`, whose queues `transport` has.
pub(super) fn enable<P: Platform, T: Transport + Send + Sync + 'static>(
    table: &[u8],
    platform: &P,
    transport: impl Fn(Place) -> Result<T, IommuError>,
    survey: &Survey,
) -> Result<Vec<Outcome>, EnableError> {
    let table = Viot::parse(table)?;
    enable_all(units(&table), survey, |(_, place), _| {
        let queues = transport(place);
        let unit =
            queues.and_then(|queues| Viommu::start(queues, platform.clone(), Config::default()));
        let unit = unit.map_err(|error| EnableError::Viommu { place, error })?;
        let unit: Enabled = Arc::new(unit);
        Ok(unit)
    })
}

/// Returns an error for each unit of `table`: none has a transport.
pub(super) fn without_transport(
    table: &[u8],
    survey: &Survey,
) -> Result<Vec<Outcome>, EnableError> {
    let table = Viot::parse(table)?;
    enable_all(units(&table), survey, |(_, place), _| {
        let error = IommuError::Unsupported;
        Err(EnableError::Viommu { place, error })
    })
}

/// The number of the unit of `function`, and its endpoint there.
pub(super) fn find(
    table: &[u8],
    function: PciFunction,
) -> Result<Option<(usize, StreamId)>, TopologyError> {
    let table = Viot::parse(table)?;
    for node in table.nodes() {
        let (_, Node::PciRange(range)) = node? else {
            continue;
        };
        let endpoint = range.endpoint_of(function.segment, function.requester);
        let Some(endpoint) = endpoint else { continue };
        for (number, unit) in units(&table).enumerate() {
            if unit?.0 == usize::from(range.unit) {
                return Ok(Some((number, endpoint)));
            }
        }
    }
    Ok(None)
}

/// Surveys the units of `table`, and the functions that they serve.
pub(super) fn survey(table: &[u8], into: &mut Survey) -> Result<(), TopologyError> {
    let table = Viot::parse(table)?;
    let mut offsets = Vec::new();
    for unit in units(&table) {
        let Some((offset, place)) = into.described(UnitKind::Virtio, unit) else {
            offsets.push(usize::MAX);
            continue;
        };
        let (place, segment) = match place {
            Place::Pci { segment, requester } => {
                (Where::Function(PciFunction { segment, requester }), Some(segment))
            }
            Place::Mmio { base } => (Where::Device(base), None),
        };
        into.unit(UnitKind::Virtio, place, segment);
        offsets.push(offset);
    }
    let unit = |at: u16| offsets.iter().position(|offset| *offset == usize::from(at));
    for (_, node) in table.nodes().flatten() {
        let (at, claim) = match node {
            Node::PciRange(range) => (
                range.unit,
                Claim::Range {
                    segments: (range.first_segment, range.last_segment),
                    first: range.first,
                    last: range.last,
                    stream: range.endpoint,
                },
            ),
            Node::MmioEndpoint(device) => {
                (device.unit, Claim::Device { base: device.base, stream: device.endpoint })
            }
            Node::Viommu(_) => continue,
        };
        match unit(at) {
            Some(unit) => into.claim(unit, claim),
            None => into.astray(claim),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table_bytes::{table, viot_bytes};
    use portolan::addr::{PciSegment, RequesterId};

    #[test]
    fn a_function_is_served_by_the_unit_that_its_range_names() {
        let of = |table: &[u8], segment, id| {
            let function =
                PciFunction { segment: PciSegment::new(segment), requester: RequesterId::new(id) };
            find(table, function)
        };
        let bytes = viot_bytes();
        let first = |endpoint| Ok(Some((0, StreamId::new(endpoint))));
        assert_eq!(of(&bytes, 2, 0x123), first(0x1023));
        assert_eq!(of(&bytes, 3, 0x1ff), first(0x1_10ff));
        assert_eq!(of(&bytes, 0, 0x123), Ok(None));
        // The range names the second unit, or a node that is none.
        for (named, found) in [(64, Some((1, StreamId::new(0x1023)))), (84, None)] {
            let mut body = bytes[36..].to_vec();
            body[84 - 36 + 16] = named;
            let changed = table(*b"VIOT", &body);
            assert_eq!(of(&changed, 2, 0x123), Ok(found), "{named}");
        }
    }

    #[test]
    fn a_unit_without_a_transport_is_named() {
        let place = Place::Pci { segment: PciSegment::new(0), requester: RequesterId::of(0, 1, 0) };
        let error = IommuError::Unsupported;
        let failed = without_transport(&viot_bytes(), &Survey::default());
        let wanted = EnableError::Viommu { place, error };
        assert_eq!(failed.unwrap()[0].as_ref().err(), Some(&wanted));
    }
}
