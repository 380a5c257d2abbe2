//! SMMUs by the IORT table: those of version 3, and of version 2 those that its driver drives.

use core::cell::Cell;

use alloc::vec::Vec;

use portolan::addr::{Iova, IovaRange, PciFunction, RequesterId, StreamId};
use portolan::platform::Platform;

use super::claim::Claim;
use super::survey::{Place, Survey, UnitKind};
use super::{
    EnableError, Enabling, FirmwareMemory, Outcome, TopologyError, enable_all, enable_at,
    streams_lg2, window,
};
use crate::promise::{self, TrustedDescription};
use crate::reservations::{Reservations, Streams};
use crate::smmuv2::{self, Implementation, Inherited};
use crate::smmuv3::{self, AtWork, Config, Features, RegisterPages, TableUpdate, Want};
use portolan_tables::iort::{Body, Interrupts, Iort, Node, Single, Smmu, SmmuV3};

/// Bytes of a unit's registers: two pages of 64 KiB.
const WINDOW: u64 = 0x2_0000;
/// Bytes of those of a unit whose second page is in the first.
const ONE_PAGE: u64 = 0x1_0000;
/// The model of Cavium ThunderX2.
const THUNDERX2: u32 = 2;

/// An SMMU of any version.
enum AnySmmu {
    V3(SmmuV3),
    Older(Smmu),
}

fn units<'t>(
    table: &Iort<'t>,
) -> impl Iterator<Item = Result<(Node<'t>, AnySmmu), TopologyError>> + use<'t> {
    table.nodes().filter_map(|node| match node {
        Ok(node) => match node.body {
            Body::SmmuV3(unit) => Some(Ok((node, AnySmmu::V3(unit)))),
            Body::Smmu(unit) => Some(Ok((node, AnySmmu::Older(unit)))),
            _ => None,
        },
        Err(error) => Some(Err(error.into())),
    })
}

/// Streams whose devices firmware has at work, with leave for them to pass through until they are opened.
pub(super) fn at_work(
    reserved: &Reservations,
    description: TrustedDescription,
) -> Result<Vec<AtWork>, EnableError> {
    let all = promise::of_devices_at_work(description);
    let streams = reserved.at_work().map_err(|_| EnableError::Memory)?;
    let streams = streams.into_iter();
    Ok(streams.map(|stream| AtWork { stream, all }).collect())
}

/// State that a unit may update in table entries, by the flags of its node (HTTU override).
fn update(flags: u32) -> TableUpdate {
    match flags >> 1 & 3 {
        1 => TableUpdate::Access,
        2 => TableUpdate::Dirty,
        _ => TableUpdate::None,
    }
}

/// Pages of a unit's registers, and their number of bytes.
fn registers(unit: &SmmuV3) -> (RegisterPages, u64) {
    match unit.model {
        THUNDERX2 => (RegisterPages::OnlyFirst, ONE_PAGE),
        _ => (RegisterPages::Two, WINDOW),
    }
}

/// Implementation of an SMMU of version 1 or 2, before which units with so many context banks were enabled.
fn implementation(
    table: &Iort<'_>,
    unit: &Smmu,
    banks_before: u16,
) -> Result<Implementation, EnableError> {
    let (model, window) = (unit.model, unit.registers);
    let known = Implementation::of_iort(table.maker(), model, banks_before);
    known.ok_or(EnableError::UnknownModel { window, model })
}

/// The last stream that anything has at `unit`.
fn last_stream(table: &Iort<'_>, unit: &Node<'_>) -> Option<u32> {
    let mappings = table.nodes().flatten().flat_map(|node| node.mappings);
    let to_unit = mappings.filter(|mapping| usize::try_from(mapping.target) == Ok(unit.offset));
    to_unit.map(|mapping| mapping.last_output()).max()
}

/// Number of units in `table`, damaged ones included.
pub(super) fn count(table: &[u8]) -> Result<usize, TopologyError> {
    Ok(units(&Iort::parse(table)?).count())
}

/// Takes over and enables all units of `table`.
pub(super) fn enable<P: Platform>(
    table: &[u8],
    by: &Enabling<'_, P>,
) -> Result<Vec<Outcome>, EnableError> {
    let table = Iort::parse(table)?;
    // Context banks of the units of version 2 so far.
    let banks = Cell::new(0);
    enable_all(units(&table), by.survey, |(node, unit), added| {
        let mut reserved = Reservations::default();
        reserved.believe(by.description);
        let mut working = Vec::new();
        if by.options.reserved == FirmwareMemory::Reached {
            // What makes no sense is left out, and counted there.
            let _ = reserved.read(table.reserved(&node, Streams::ALL));
            // They pass through until they are opened, as Linux has it.
            working = at_work(&reserved, by.description)?;
        }
        let _ = reserved.read(added.iter().copied().map(Ok));
        match unit {
            AnySmmu::V3(unit) => {
                let config = Config {
                    coherency: unit.coherency(),
                    update: Some(update(unit.flags)),
                    pages: registers(&unit).0,
                    // A line without a listener is not heard.
                    interrupts: Want::IfThere,
                    combining: by.options.combining,
                    stream_lg2: last_stream(&table, &node).map_or(0, streams_lg2),
                    reserved,
                    at_work: working,
                    ..Config::default()
                };
                enable_v3(by, &unit, config)
            }
            AnySmmu::Older(unit) => {
                let config = smmuv2::Config {
                    implementation: implementation(&table, &unit, banks.get())?,
                    coherency: unit.coherency(),
                    reserved,
                    at_work: working,
                    ..smmuv2::Config::default()
                };
                enable_older(by, &unit, config, &banks)
            }
        }
    })
}

fn enable_v3<P: Platform>(by: &Enabling<'_, P>, unit: &SmmuV3, config: Config) -> Outcome {
    let window = window(unit.base, registers(unit).1)?;
    enable_at(by, window, |registers, memory, clock| {
        let lg2 = Features::read(&registers)?.output_lg2;
        smmuv3::Smmu::enable(registers, memory.below(lg2), clock, config)
    })
}

/// Enables an SMMU of version 2. Those of version 1 are refused by their registers. `banks` counts
/// context banks of the units that were enabled.
fn enable_older<P: Platform>(
    by: &Enabling<'_, P>,
    unit: &Smmu,
    mut config: smmuv2::Config,
    banks: &Cell<u16>,
) -> Outcome {
    let qualcomm = matches!(config.implementation, Implementation::Qualcomm(_));
    if qualcomm && by.options.reserved == FirmwareMemory::Reached {
        // A display: firmware's tables do not name what it uses.
        config.inherited = Inherited::PassThrough(promise::of_devices_at_work(by.description));
    }
    let bytes = unit.registers.len_minus_one().saturating_add(1);
    let window = window(unit.registers.start(), bytes)?;
    enable_at(by, window, |registers, memory, clock| {
        let features = smmuv2::Features::read(&registers)?;
        features.fits(bytes)?;
        let memory = memory.below(features.output_lg2);
        let unit = smmuv2::SmmuV2::enable(registers, memory, clock, config)?;
        banks.set(banks.get().saturating_add(features.banks as u16));
        Ok(unit)
    })
}

/// The lines of a unit.
pub(super) fn lines(table: &[u8], unit: usize) -> Result<Option<Interrupts>, TopologyError> {
    let table = Iort::parse(table)?;
    let unit = units(&table).nth(unit).transpose()?;
    Ok(match unit {
        Some((_, AnySmmu::V3(unit))) => Some(unit.interrupts),
        Some((_, AnySmmu::Older(_))) | None => None,
    })
}

/// The number of the unit of `function`, and its stream there.
pub(super) fn find(
    table: &[u8],
    function: PciFunction,
) -> Result<Option<(usize, StreamId)>, TopologyError> {
    let table = Iort::parse(table)?;
    let Some(found) = table.resolve(function.segment, function.requester)? else {
        return Ok(None);
    };
    for (number, unit) in units(&table).enumerate() {
        let (node, _) = unit?;
        if node.offset == found.unit.offset {
            return Ok(Some((number, found.stream)));
        }
    }
    Ok(None)
}

/// The addresses of `function` that its root complex passes on; `None` if those are none. Firmware of some
/// machines says so of a component, and Linux leaves it without DMA as well. A node of revision 0 says
/// nothing.
pub(super) fn reach(
    table: &[u8],
    function: PciFunction,
) -> Result<Option<IovaRange>, TopologyError> {
    let table = Iort::parse(table)?;
    let found = table.resolve(function.segment, function.requester)?;
    Ok(below(found.and_then(|found| found.address_lg2).unwrap_or(64)))
}

/// Addresses of so many bits.
fn below(lg2: u8) -> Option<IovaRange> {
    let last = match lg2 {
        0 => return None,
        1..64 => (1 << lg2) - 1,
        _ => u64::MAX,
    };
    IovaRange::new(Iova::new(0), Iova::new(last))
}

/// Surveys the units of `table`, and the memory that streams go on using. The unit that a root
/// complex or a named component reaches is told by the first identifier of each mapping.
pub(super) fn survey(table: &[u8], into: &mut Survey) -> Result<(), TopologyError> {
    let table = Iort::parse(table)?;
    let mut offsets = Vec::new();
    for unit in units(&table) {
        let Some((node, unit)) = into.described(UnitKind::SmmuV3, unit) else {
            offsets.push(usize::MAX);
            continue;
        };
        let (kind, place) = match unit {
            AnySmmu::V3(unit) => (UnitKind::SmmuV3, Place::of(unit.base, registers(&unit).1)),
            AnySmmu::Older(unit) => {
                let bytes = unit.registers.len_minus_one().saturating_add(1);
                (UnitKind::Smmu, Place::of(unit.registers.start(), bytes))
            }
        };
        let number = into.unit(kind, place, None);
        if let AnySmmu::Older(unit) = unit {
            into.refuse(number, implementation(&table, &unit, 0).err());
        }
        offsets.push(node.offset);
        into.reserve(number, table.reserved(&node, Streams::ALL));
    }
    let mut components = 0;
    for node in table.nodes().flatten() {
        let segment = match node.body {
            Body::RootComplex(complex) => Some(complex.segment),
            Body::NamedComponent(_) => None,
            _ => continue,
        };
        for mapping in node.mappings {
            if into.is_full() {
                return Ok(());
            }
            let found = into.note(table.resolve_from(&node, mapping.input).map_err(Into::into));
            let Some(Some(found)) = found else { continue };
            let unit = offsets.iter().position(|at| *at == found.unit.offset);
            let Some(unit) = unit else { continue };
            let count = match mapping.single {
                Single::Single => 0,
                Single::Range => mapping.count_minus_one,
            };
            let last = mapping.input.saturating_add(count).min(u16::MAX.into());
            let claim = match (segment, u16::try_from(mapping.input)) {
                (Some(segment), Ok(first)) => Claim::Range {
                    segments: (segment, segment),
                    first: RequesterId::new(first),
                    last: RequesterId::new(last as u16),
                    stream: found.stream,
                },
                _ => Claim::Named(components),
            };
            into.claim(unit, claim);
            if let Some(lg2) = found.address_lg2.filter(|lg2| *lg2 < 64) {
                into.limit(unit, claim, below(lg2));
            }
        }
        components += u64::from(segment.is_none());
    }
    Ok(())
}
