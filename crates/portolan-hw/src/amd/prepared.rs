//! Tables for memory that firmware names.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2 and 5.2.2.8.
//! Streams that firmware wants to reach memory from the first moment on (IVMD blocks) share tables if they
//! have the same ranges; overlapping ranges are mapped once, with every access that one of them allows.
//!
//! *Context.* Task.

use super::config::Config;
use super::features::Features;
use super::tables::{DeviceTable, entry_of};
use crate::ids::Ids;
use crate::reservations::Reserved;
use alloc::vec::Vec;
use portolan::addr::{InvalTag, PageSize, PhysAddr, RequesterId};
use portolan::inval::Gather;
use portolan::iommu::{IommuError, ReservedRegion, disjoint};
use portolan::platform::UnitPlatform;
use portolan::table::format::{AmdLevels, AmdV1};
use portolan::table::{Access, PageTable, TableMapError, TableView};
use portolan_tables::ivrs::Devices;

/// Tables that are named in entries, of a domain that is yet to be made.
pub(super) struct Prepared<P: UnitPlatform> {
    pub(super) context: InvalTag,
    pub(super) table: PageTable<AmdV1, P::Memory>,
    pub(super) streams: Vec<Devices>,
}

/// Ranges of streams, and the maps of `all` that they share, by number.
type Shares = (Vec<usize>, Vec<Devices>);

/// Makes tables for all of `config.reserved` and sets the entries of their streams in `entries`, of
/// which the unit does not know yet.
pub(super) fn prepare<P: UnitPlatform>(
    mem: &P::Memory,
    features: &Features,
    ids: &Ids<P>,
    entries: &DeviceTable,
    config: &Config,
) -> Result<Vec<Prepared<P>>, IommuError> {
    let format = format(features, config);
    let mut prepared = Vec::new();
    let maps = config.reserved.iter();
    let maps: Vec<Reserved> =
        maps.filter(|one| one.region.kind.direct().is_some()).copied().collect();
    if !maps.is_empty() && features.levels == 0 {
        return Err(IommuError::Unsupported);
    }
    for (shared, streams) in shares(&maps) {
        let its = shared.iter().filter_map(|at| maps.get(*at));
        let regions: Vec<ReservedRegion> = its.map(|one| one.region).collect();
        let table = PageTable::new(format, mem.clone())?;
        let pieces = disjoint(&regions, PageSize::SIZE_4K);
        for piece in pieces.map_err(|_| IommuError::Unsupported)? {
            map::<P>(&table, piece)?;
        }
        let id = ids.take().ok_or(IommuError::OutOfContexts)?;
        let context = InvalTag::new(id);
        for &streams in &streams {
            for stream in entries.within(streams) {
                let entry = entry_of(&TableView::new(&table), context, config.dirty);
                entries.prepare(mem, stream, entry);
            }
        }
        prepared.push(Prepared { context, table, streams });
    }
    Ok(prepared)
}

/// Width of the addresses that can be mapped to themselves.
pub(super) fn address_lg2(features: &Features, config: &Config) -> u32 {
    let AmdV1 { levels, output_lg2, .. } = format(features, config);
    let most = match levels {
        AmdLevels::Five => output_lg2,
        _ => output_lg2.min(48),
    };
    most.min(features.input_lg2())
}

/// The format of the tables.
fn format(features: &Features, config: &Config) -> AmdV1 {
    let wide = features.walks(AmdLevels::Five) && features.output_lg2(config) > 48;
    let levels = if wide { AmdLevels::Five } else { AmdLevels::Four };
    features.format(config, levels)
}

fn map<P: UnitPlatform>(
    table: &PageTable<AmdV1, P::Memory>,
    piece: ReservedRegion,
) -> Result<(), IommuError> {
    // The debt is paid before the streams are counted as attached: all is forgotten by then.
    let mut owed = Gather::new();
    let (iova, last) = (piece.range.start(), piece.range.last());
    let both = Access::READ_WRITE;
    let access = piece.kind.direct().map(|access| access & both);
    let bytes = last.get() - iova.get() + 1;
    let pa = PhysAddr::new(iova.get());
    match table.map(iova, pa, bytes, access.unwrap_or(both), &mut owed) {
        Ok(_) => Ok(()),
        Err(TableMapError::Memory(error)) => Err(error.into()),
        Err(_) => Err(IommuError::Unsupported),
    }
}

/// The streams that some of `maps` name, by the indices of those.
fn shares(maps: &[Reserved]) -> Vec<Shares> {
    let most = u32::from(u16::MAX);
    let bounds = |map: &Reserved| {
        let (first, last) = (map.streams.first().get(), map.streams.last().get());
        (first.min(most), last.min(most))
    };
    let mut cuts: Vec<u32> = Vec::new();
    for (first, last) in maps.iter().map(bounds) {
        cuts.extend([first, last + 1]);
    }
    cuts.sort_unstable();
    cuts.dedup();
    let mut shares: Vec<Shares> = Vec::new();
    for (&first, &after) in cuts.iter().zip(cuts.iter().skip(1)) {
        let names = |map: &Reserved| {
            let (from, to) = bounds(map);
            map.streams.first().get() <= most && from <= first && after - 1 <= to
        };
        let of: Vec<usize> =
            (0..).zip(maps).filter(|(_, map)| names(map)).map(|(n, _)| n).collect();
        let [first, last] = [first, after - 1].map(|id| RequesterId::new(id as u16));
        let Some(range) = Devices::new(first, last).filter(|_| !of.is_empty()) else {
            continue;
        };
        match shares.iter_mut().find(|(same, _)| *same == of) {
            Some((_, streams)) => streams.push(range),
            None => shares.push((of, Vec::from([range]))),
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reservations::Streams;
    use portolan::addr::{Iova, IovaRange, StreamId};
    use portolan::iommu::ReservedKind;

    fn devices(first: u16, last: u16) -> Devices {
        Devices::new(RequesterId::new(first), RequesterId::new(last)).unwrap()
    }

    fn unity(streams: Streams, start: u64, last: u64) -> Reserved {
        let range = IovaRange::new(Iova::new(start), Iova::new(last)).unwrap();
        let kind = ReservedKind::Direct(Access::READ);
        let region = ReservedRegion { range, kind };
        Reserved { streams, region }
    }

    #[test]
    fn streams_with_the_same_memory_share_tables() {
        let all = [unity(Streams::ALL, 0, 0xfff), unity(devices(8, 9).streams(), 0x1000, 0x1fff)];
        let everybody = [devices(0, 7), devices(10, u16::MAX)];
        let wanted = [
            (Vec::from([0]), Vec::from(everybody)),
            (Vec::from([0, 1]), Vec::from([devices(8, 9)])),
        ];
        assert_eq!(shares(&all), wanted);
    }

    #[test]
    fn streams_that_no_requester_has_get_no_tables() {
        let (first, last) = (StreamId::new(0x1_0000), StreamId::new(u32::MAX));
        let none = unity(Streams::new(first, last).unwrap(), 0, 0xfff);
        assert_eq!(shares(&[none]), []);
    }
}
