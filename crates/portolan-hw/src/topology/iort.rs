//! SMMUs by the IORT table. Those of version 3 are enabled; those of version 1 and 2 are refused by name, as are
//! their devices: their driver enables them.

use alloc::vec::Vec;

use portolan::addr::{Iova, IovaRange, PciFunction, RequesterId, StreamId};
use portolan::platform::Platform;

use super::claim::Claim;
use super::survey::{Place, Survey, UnitKind};
use super::{
    EnableError, Enabling, FirmwareMemory, Outcome, TopologyError, enable_all, enable_at,
    streams_lg2, window,
};
use crate::firmware::iort::{Body, Interrupts, Iort, Node, Single, Smmu, SmmuV3};
use crate::firmware::reservations::{Reservations, Streams};
use crate::promise::{self, TrustedDescription};
use crate::smmuv3::{self, AtWork, Config, Features, RegisterPages, TableUpdate, Want};

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
    enable_all(units(&table), by.survey, |(node, unit), added| {
        let unit = match unit {
            AnySmmu::V3(unit) => unit,
            AnySmmu::Older(unit) => {
                let window = unit.registers;
                return Err(EnableError::OtherDriver { window });
            }
        };
        let (pages, bytes) = registers(&unit);
        let mut config = Config {
            coherency: unit.coherency(),
            update: Some(update(unit.flags)),
            pages,
            // A line without a listener is not heard.
            interrupts: Want::IfThere,
            combining: by.options.combining,
            stream_lg2: last_stream(&table, &node).map_or(0, streams_lg2),
            ..Config::default()
        };
        config.reserved.believe(by.description);
        if by.options.reserved == FirmwareMemory::Reached {
            // What makes no sense is left out, and counted there.
            let _ = config.reserved.read(table.reserved(&node, Streams::ALL));
            // They pass through until they are opened, as Linux has it.
            config.at_work = at_work(&config.reserved, by.description)?;
        }
        let _ = config.reserved.read(added.iter().copied().map(Ok));
        let window = window(unit.base, bytes)?;
        enable_at(by, window, |registers, memory, clock| {
            let lg2 = Features::read(&registers)?.output_lg2;
            smmuv3::Smmu::enable(registers, memory.below(lg2), clock, config)
        })
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
    Ok(below(
        found.and_then(|found| found.address_lg2).unwrap_or(64),
    ))
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
            AnySmmu::Older(unit) => (UnitKind::Smmu, Place::Registers(unit.registers)),
        };
        let number = into.unit(kind, place, None);
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
