//! Streams that firmware wants to reach memory from the first moment on (IVMD blocks).
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 5.2.2.8.
//! Firmware's word is input: ranges may overlap, be huge, or name streams that there are not. What
//! overlaps is mapped once, with what any of the ranges allows; what lies beyond the physical
//! address space is left out; streams with the same ranges share their tables.

use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use portolan::addr::{ContextId, Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::Gather;
use portolan::platform::{Cpus, TableMem};
use portolan::table::format::{AmdLevels, AmdV1};
use portolan::table::{Access, MapError, PageTable};
use portolan::unit::{ReservedKind, ReservedRegion, UnitError};

use super::attach::entry_of;
use super::config::{Config, UnityMap};
use super::device_table::DeviceTable;
use super::features::Features;
use crate::firmware::ivrs::Devices;
use crate::firmware::pci::RequesterId;
use crate::ids::Ids;

/// Tables that are named in entries, of a domain that is yet to be made.
pub(super) struct Prepared<M: TableMem<AtomicU64>> {
    pub(super) context: ContextId,
    pub(super) table: PageTable<AmdV1, M>,
    pub(super) streams: Vec<Devices>,
}

/// Ranges of streams, and the maps of `all` that they share, by number.
type Shares = (Vec<usize>, Vec<Devices>);

/// Memory from the first address to the last, and what is allowed.
type Piece = (u64, u64, Access);

/// Makes tables for all of `config.unity` and sets the entries of their streams in `entries`, of
/// which the unit does not know yet.
pub(super) fn prepare<M: TableMem<AtomicU64> + Clone, C: Cpus>(
    mem: &M,
    features: &Features,
    ids: &Ids<C>,
    entries: &DeviceTable,
    config: &Config,
) -> Result<Vec<Prepared<M>>, UnitError> {
    let (format, last) = format(features, config);
    let mut prepared = Vec::new();
    for (shared, streams) in shares(&config.unity) {
        let maps: Vec<&UnityMap> = shared
            .iter()
            .filter_map(|at| config.unity.get(*at))
            .collect();
        let pieces = pieces(&maps, last);
        if pieces.is_empty() {
            continue;
        }
        let table = PageTable::new(format, mem.clone())?;
        for piece in pieces {
            map(&table, piece)?;
        }
        let id = ids.take().ok_or(UnitError::OutOfContexts)?;
        let context = ContextId::new(id);
        for &streams in &streams {
            for stream in entries.within(streams) {
                entries.prepare(mem, stream, entry_of(&table, context));
            }
        }
        prepared.push(Prepared {
            context,
            table,
            streams,
        });
    }
    Ok(prepared)
}

/// The memory that `stream` has to reach at its own addresses.
pub(super) fn of_stream(
    features: &Features,
    config: &Config,
    stream: u16,
    each: &mut dyn FnMut(ReservedRegion),
) {
    let (_, last) = format(features, config);
    let names = |map: &&UnityMap| map.streams.contains(RequesterId::new(stream));
    let maps: Vec<&UnityMap> = config.unity.iter().filter(names).collect();
    for (start, last, access) in pieces(&maps, last) {
        if let Some(range) = IovaRange::new(Iova::new(start), Iova::new(last)) {
            let kind = ReservedKind::Direct(access);
            each(ReservedRegion { range, kind });
        }
    }
}

/// The format of the tables, and the last address that they can map to itself.
fn format(features: &Features, config: &Config) -> (AmdV1, u64) {
    let output_lg2 = features.output_lg2(config);
    let levels = match features.walks(AmdLevels::Five) && output_lg2 > 48 {
        true => AmdLevels::Five,
        false => AmdLevels::Four,
    };
    let width = match levels {
        AmdLevels::Five => output_lg2,
        _ => output_lg2.min(48),
    };
    let last = PageSize::of_lg2(width).bytes() - 1;
    (AmdV1 { levels, output_lg2 }, last)
}

fn map<M: TableMem<AtomicU64>>(
    table: &PageTable<AmdV1, M>,
    (start, last, access): Piece,
) -> Result<(), UnitError> {
    // What is owed is paid before the streams are counted as attached: all is forgotten by then.
    let mut owed = Gather::new();
    let bytes = last - start + 1;
    let (iova, pa) = (Iova::new(start), PhysAddr::new(start));
    match table.map(iova, pa, bytes, access, &mut owed) {
        Ok(_) => Ok(()),
        Err(MapError::Memory(error)) => Err(error.into()),
        Err(_) => Err(UnitError::Unsupported),
    }
}

/// The streams that some of `maps` name, by which of them do.
fn shares(maps: &[UnityMap]) -> Vec<Shares> {
    let bounds = |map: &UnityMap| {
        let (first, last) = (map.streams.first(), map.streams.last());
        (u32::from(first.get()), u32::from(last.get()))
    };
    let mut cuts: Vec<u32> = Vec::new();
    for (first, last) in maps.iter().map(bounds) {
        cuts.extend([first, last + 1]);
    }
    cuts.sort_unstable();
    cuts.dedup();
    let mut shares: Vec<Shares> = Vec::new();
    for (&first, &after) in cuts.iter().zip(cuts.iter().skip(1)) {
        let names = |map: &UnityMap| {
            let (from, to) = bounds(map);
            from <= first && after - 1 <= to
        };
        let of: Vec<usize> = (0..)
            .zip(maps)
            .filter(|(_, map)| names(map))
            .map(|(n, _)| n)
            .collect();
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

/// Whole pages of memory up to `limit` that `maps` name, in order and without overlaps.
fn pieces(maps: &[&UnityMap], limit: u64) -> Vec<Piece> {
    let page = PageSize::SIZE_4K.bytes() - 1;
    let whole = |map: &UnityMap| {
        let (start, last) = (map.memory.start().get(), map.memory.last().get());
        let access = map.access.intersection(Access::READ | Access::WRITE);
        let there = start <= limit && !access.is_empty();
        there.then_some((start & !page, (last | page).min(limit), access))
    };
    let whole: Vec<Piece> = maps.iter().filter_map(|map| whole(map)).collect();
    let mut cuts: Vec<u64> = Vec::new();
    for (start, last, _) in &whole {
        cuts.extend([*start, *last + 1]);
    }
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces: Vec<Piece> = Vec::new();
    for (&start, &after) in cuts.iter().zip(cuts.iter().skip(1)) {
        let over = whole
            .iter()
            .filter(|(from, to, _)| *from <= start && after - 1 <= *to);
        let access = over.fold(Access::empty(), |all, (_, _, access)| all | *access);
        match pieces.last_mut() {
            _ if access.is_empty() => {}
            Some((_, last, same)) if *last + 1 == start && *same == access => *last = after - 1,
            _ => pieces.push((start, after - 1, access)),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan::addr::PhysRange;

    fn devices(first: u16, last: u16) -> Devices {
        Devices::new(RequesterId::new(first), RequesterId::new(last)).unwrap()
    }

    fn unity(streams: Devices, memory: (u64, u64), access: Access) -> UnityMap {
        UnityMap {
            streams,
            memory: PhysRange::new(PhysAddr::new(memory.0), PhysAddr::new(memory.1)).unwrap(),
            access,
        }
    }

    #[test]
    fn overlapping_memory_is_mapped_once_and_what_is_not_there_is_left_out() {
        let (r, w) = (Access::READ, Access::WRITE);
        let limit = (1 << 40) - 1;
        let all = [
            unity(devices(0, 0), (0x1800, 0x3fff), r),
            unity(devices(0, 0), (0x3000, 0x4001), w),
            unity(devices(0, 0), (0x6000, 0x6fff), Access::empty()),
            unity(devices(0, 0), (0xff_ffff_f000, u64::MAX), r),
            unity(devices(0, 0), (1 << 50, 1 << 51), r | w),
        ];
        let all: Vec<&UnityMap> = all.iter().collect();
        let wanted = [
            (0x1000, 0x2fff, r),
            (0x3000, 0x3fff, r | w),
            (0x4000, 0x4fff, w),
            (0xff_ffff_f000, limit, r),
        ];
        assert_eq!(pieces(&all, limit), wanted);
    }

    #[test]
    fn streams_with_the_same_memory_share_tables() {
        let r = Access::READ;
        let all = [
            unity(Devices::ALL, (0, 0xfff), r),
            unity(devices(8, 9), (0x1000, 0x1fff), r),
        ];
        let everybody = [devices(0, 7), devices(10, u16::MAX)];
        let wanted = [
            (Vec::from([0]), Vec::from(everybody)),
            (Vec::from([0, 1]), Vec::from([devices(8, 9)])),
        ];
        assert_eq!(shares(&all), wanted);
    }
}
