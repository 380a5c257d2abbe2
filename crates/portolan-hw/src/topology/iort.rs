//! SMMUs of version 3 by the IORT table.

use alloc::vec::Vec;

use portolan::addr::{PciFunction, StreamId};
use portolan::platform::Platform;

use super::{
    EnableError, Enabled, FirmwareMemory, Options, TopologyError, enable_all, enable_at, window,
};
use crate::firmware::iort::{Body, Iort, Node, SmmuV3};
use crate::firmware::reservations::{Reservations, Streams};
use crate::smmuv3::{Config, RegisterPages, Smmu};

/// Bytes of a unit's registers: two pages of 64 KiB.
const WINDOW: u64 = 0x2_0000;
/// Bytes of those of a unit whose second page is in the first.
const ONE_PAGE: u64 = 0x1_0000;
/// Streams of one of firmware's devices, at most.
const MOST_STREAMS: u32 = 16;
/// The model of Cavium ThunderX2.
const THUNDERX2: u32 = 2;

fn units<'t>(
    table: &Iort<'t>,
) -> impl Iterator<Item = Result<(Node<'t>, SmmuV3), TopologyError>> + use<'t> {
    table.nodes().filter_map(|node| match node {
        Ok(node) => match node.body {
            Body::SmmuV3(unit) => Some(Ok((node, unit))),
            _ => None,
        },
        Err(error) => Some(Err(error.into())),
    })
}

/// Streams whose devices firmware has at work, by the memory that it reserves for them: they pass
/// through until they are opened, as Linux has it. A claim to more than a few streams is none of a
/// device, and is left aside.
fn at_work(reserved: &Reservations) -> Result<Vec<StreamId>, EnableError> {
    let mut at_work = Vec::new();
    for item in reserved.iter() {
        let (first, last) = (item.streams.first().get(), item.streams.last().get());
        if last - first >= MOST_STREAMS {
            continue;
        }
        for stream in (first..=last).map(StreamId::new) {
            if !at_work.contains(&stream) {
                at_work.try_reserve(1).map_err(|_| EnableError::Memory)?;
                at_work.push(stream);
            }
        }
    }
    Ok(at_work)
}

/// Takes over and enables all units of `table`.
pub(super) fn enable<P: Platform>(
    table: &[u8],
    platform: &P,
    options: Options,
) -> Result<Vec<Enabled>, EnableError> {
    let table = Iort::parse(table)?;
    enable_all(units(&table), |(node, unit)| {
        let (pages, bytes) = match unit.model {
            THUNDERX2 => (RegisterPages::OnlyFirst, ONE_PAGE),
            _ => (RegisterPages::Two, WINDOW),
        };
        let mut config = Config {
            coherency: unit.coherency(),
            pages,
            ..Config::default()
        };
        if options.reserved == FirmwareMemory::Reached {
            // What makes no sense is left out, and counted there.
            let _ = config.reserved.read(table.reserved(&node, Streams::ALL));
            config.at_work = at_work(&config.reserved)?;
        }
        let window = window(unit.base, bytes)?;
        enable_at(platform, window, |registers, memory, clock| {
            Smmu::enable(registers, memory, clock, config)
        })
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
