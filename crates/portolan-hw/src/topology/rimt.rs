//! RISC-V IOMMUs by the RIMT table.
//!
//! Not supported: messages of devices through MSI page tables, as the interrupt files are in another table
//! (MADT); windows of PCI hosts that processors reach at other addresses.

use alloc::vec::Vec;

use portolan::addr::{PciFunction, PhysAddr, PhysRange, RequesterId, StreamId};
use portolan::platform::Platform;

use super::claim::Claim;
use super::riscv::{self, WINDOW};
use super::survey::{Place as Where, Survey, UnitKind};
use super::{EnableError, Enabling, Outcome, TopologyError, enable_all, streams_lg2, window};
use crate::riscv::{Config, Signal};
use portolan_tables::rimt::{Body, Mapping, Place, Rimt, Unit, Wire};

/// The units, each with the offset of its node.
fn units<'t>(
    table: &Rimt<'t>,
) -> impl Iterator<Item = Result<(usize, Unit), TopologyError>> + use<'t> {
    table.nodes().filter_map(|node| match node {
        Ok(node) => match node.body {
            Body::Unit(unit) => Some(Ok((node.offset, unit))),
            _ => None,
        },
        Err(error) => Some(Err(error.into())),
    })
}

/// All mappings, of root complexes and of devices.
fn mappings<'t>(table: &Rimt<'t>) -> impl Iterator<Item = Mapping> + use<'t> {
    let nodes = table.nodes().flatten();
    nodes.flat_map(|node| {
        let mappings = match node.body {
            Body::RootComplex { mappings, .. } | Body::Device { mappings, .. } => Some(mappings),
            Body::Unit(_) => None,
        };
        mappings.into_iter().flatten()
    })
}

/// Number of units in `table`, damaged ones included.
pub(super) fn count(table: &[u8]) -> Result<usize, TopologyError> {
    Ok(units(&Rimt::parse(table)?).count())
}

/// Settings of a unit, whose node is at `offset`.
fn config(table: &Rimt<'_>, offset: usize, unit: &Unit) -> Config {
    let mut config = Config::default();
    let its = mappings(table).filter(|mapping| usize::try_from(mapping.unit) == Ok(offset));
    let last = its.filter_map(|mapping| {
        let above = mapping.count.checked_sub(1)?;
        Some(mapping.stream.get().saturating_add(above))
    });
    if let Some(last) = last.max() {
        config.streams_lg2 = streams_lg2(last);
    }
    if unit.wire.is_some() {
        config.signal = Signal::Wired;
    }
    config
}

fn window_of(platform: &impl Platform, unit: &Unit) -> Result<PhysRange, EnableError> {
    let base = match unit.place {
        Place::Registers(base) => base,
        Place::Function(at) => PhysAddr::new(riscv::base(platform, at)?),
    };
    window(base, WINDOW)
}

/// Takes over and enables all units of `table`.
pub(super) fn enable<P: Platform>(
    table: &[u8],
    by: &Enabling<'_, P>,
) -> Result<Vec<Outcome>, EnableError> {
    let table = Rimt::parse(table)?;
    enable_all(units(&table), by.survey, |(offset, unit), added| {
        let window = window_of(by.platform, &unit)?;
        let mut config = config(&table, offset, &unit);
        config.combining = by.options.combining;
        config.reserved.believe(by.description);
        let _ = config.reserved.read(added.iter().copied().map(Ok));
        riscv::enable(by, window, config)
    })
}

/// The wire by which a unit tells of faults.
pub(super) fn wire(table: &[u8], unit: usize) -> Result<Option<Wire>, TopologyError> {
    let table = Rimt::parse(table)?;
    let unit = units(&table).nth(unit).transpose()?;
    Ok(unit.and_then(|(_, unit)| unit.wire))
}

/// The number of the unit of `function`, and its stream there.
pub(super) fn find(
    table: &[u8],
    function: PciFunction,
) -> Result<Option<(usize, StreamId)>, TopologyError> {
    let table = Rimt::parse(table)?;
    let Some((offset, stream)) = table.resolve(function)? else {
        return Ok(None);
    };
    for (number, unit) in units(&table).enumerate() {
        if unit?.0 == offset {
            return Ok(Some((number, stream)));
        }
    }
    Ok(None)
}

/// Surveys the units of `table`, and the functions and devices that they serve.
pub(super) fn survey(table: &[u8], into: &mut Survey) -> Result<(), TopologyError> {
    let table = Rimt::parse(table)?;
    let mut offsets = Vec::new();
    for unit in units(&table) {
        let Some((offset, unit)) = into.described(UnitKind::Riscv, unit) else {
            offsets.push(usize::MAX);
            continue;
        };
        let (place, segment) = match unit.place {
            Place::Registers(base) => (Where::of(base, WINDOW), None),
            Place::Function(at) => (Where::Function(at), None),
        };
        into.unit(UnitKind::Riscv, place, segment);
        offsets.push(offset);
    }
    let mut devices = 0;
    for node in table.nodes().flatten() {
        let (segment, mappings) = match node.body {
            Body::RootComplex { segment, mappings } => (Some(segment), mappings),
            Body::Device { mappings, .. } => (None, mappings),
            Body::Unit(_) => continue,
        };
        for mapping in mappings.filter(|mapping| mapping.count > 0) {
            if into.is_full() {
                return Ok(());
            }
            let last = mapping.first.saturating_add(mapping.count - 1);
            let last = last.min(u16::MAX.into()) as u16;
            let claim = match (segment, u16::try_from(mapping.first)) {
                (Some(segment), Ok(first)) => Claim::Range {
                    segments: (segment, segment),
                    first: RequesterId::new(first),
                    last: RequesterId::new(last),
                    stream: mapping.stream,
                },
                _ => Claim::Named(devices),
            };
            let unit = usize::try_from(mapping.unit).ok();
            match unit.and_then(|unit| offsets.iter().position(|at| *at == unit)) {
                Some(unit) => into.claim(unit, claim),
                None => into.astray(claim),
            }
        }
        devices += u64::from(segment.is_none());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table_bytes::{reseal, rimt_bytes};
    use crate::topology::tests::{Fake, Has, Is, is, survey as surveyed};
    use crate::topology::{FaultInterrupt, Topology};
    use portolan::addr::PciSegment;

    fn function(requester: RequesterId) -> PciFunction {
        PciFunction { segment: PciSegment::new(2), requester }
    }

    #[test]
    fn units_root_complexes_and_devices_of_a_table() {
        let disk = function(RequesterId::of(0, 1, 0));
        let card = function(RequesterId::of(1, 0, 0));
        let fake = [disk, card]
            .into_iter()
            .fold(Fake::default(), |fake, at| fake.with(at, Is::Endpoint, None, Has::Nothing));
        let mut bytes = rimt_bytes();
        is(
            &surveyed(&bytes, &fake),
            "unit 0: RISC-V IOMMU, registers at 0x3010000..=0x3010fff
               serves 0002:00:01.3 to ff:1f.7, streams from 0xb on
               serves device 0 of the ACPI name space
             unit 1: RISC-V IOMMU, PCI function 0002:00:01.2
               serves 0002:00:00.0 to 00:01.1, streams from 0x100 on
             0002:00:01.0: unit 1, streams 0x108
             0002:01:00.0: unit 0, streams 0x100",
        );
        let topology = Topology::from_acpi([&bytes[..]]).unwrap();
        let Ok(FaultInterrupt::Global(wire)) = topology.fault_interrupt(0) else {
            panic!("{:?}", topology.fault_interrupt(0));
        };
        assert_eq!(wire.interrupt, 36);
        assert_eq!(topology.fault_interrupt(1), Ok(FaultInterrupt::Absent));
        // The second mapping refers to no unit.
        bytes[148 + 40 + 12] = 49;
        reseal(&mut bytes);
        let found = surveyed(&bytes, &Fake::default());
        assert_eq!(found.units()[0].claims.len(), 1);
        assert_eq!(found.remarks().len(), 1);
    }

    /// 10 streams from 0x100 on, and up to 0x4_0000.
    #[test]
    fn a_directory_has_room_for_the_last_stream() {
        let bytes = rimt_bytes();
        let table = Rimt::parse(&bytes).unwrap();
        let lg2 = units(&table).map(|unit| {
            let (offset, unit) = unit.unwrap();
            config(&table, offset, &unit).streams_lg2
        });
        assert_eq!(lg2.collect::<Vec<_>>(), [19, 9]);
    }
}
