//! Clocks of CPUs that differ: by their times, what one CPU did later comes before what another did earlier.
//!
//! Two signs of it. Lines are in another order than their times, while each CPU's own times go forward. Or they are in
//! the order of their times, and an unmap comes before its map: it finds none, at an address that this device had
//! before and has again next, by a map of another CPU. Neither is replayed. Not seen: the first unmap of an address,
//! which may be of memory that was mapped before the trace; unmaps of lists, which name no address; and clocks that
//! differ by less than it takes until an address is unmapped.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

use super::mappings::MappingKey;
use super::op::{DeviceId, Mix, Origin, PAGE};

/// Addresses that are remembered; unmaps of others are not looked at.
const MOST_ADDRESSES: usize = 1 << 16;

/// The latest time of each CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuTimes(Vec<u64>);

impl CpuTimes {
    /// Notes a time of `cpu`; returns `true` if it is not earlier than its previous one.
    pub(super) fn note(&mut self, cpu: u16, now_ns: u64) -> bool {
        let index = usize::from(cpu);
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        let latest = &mut self.0[index];
        let goes_forward = now_ns >= *latest;
        *latest = now_ns.max(*latest);
        goes_forward
    }
}

/// An unmap that came before its map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EarlyUnmap {
    pub(super) line: u64,
    /// Time until the map.
    pub(super) early_ns: u64,
}

/// Unmaps that found no map, until their addresses are mapped.
#[derive(Default)]
pub(super) struct EarlyUnmaps {
    /// Mapped pages; a buffer may begin in the middle of a page.
    mapped: HashSet<MappingKey, BuildHasherDefault<Mix>>,
    unmapped: HashMap<MappingKey, Origin, BuildHasherDefault<Mix>>,
}

impl EarlyUnmaps {
    /// Notes an unmap of `dma` that finds no map.
    pub(super) fn note_orphan(&mut self, device: DeviceId, dma: u64, origin: Origin) {
        let page = MappingKey::of_address(device, dma - dma % PAGE);
        if self.mapped.contains(&page) && self.unmapped.len() < MOST_ADDRESSES {
            let key = MappingKey::of_address(device, dma);
            self.unmapped.insert(key, origin);
        }
    }

    /// Notes a map of `dma` in a table: the unmap that it should have had after it, if one came before it.
    pub(super) fn note_map(
        &mut self,
        device: DeviceId,
        dma: u64,
        origin: Origin,
    ) -> Option<EarlyUnmap> {
        if self.mapped.len() < MOST_ADDRESSES {
            let page = MappingKey::of_address(device, dma - dma % PAGE);
            self.mapped.insert(page);
        }
        if self.unmapped.is_empty() {
            return None;
        }
        let unmap = self.unmapped.remove(&MappingKey::of_address(device, dma))?;
        (unmap.cpu != origin.cpu).then_some(EarlyUnmap {
            line: unmap.line,
            early_ns: origin.time_ns.saturating_sub(unmap.time_ns),
        })
    }
}
