//! State that the CPUs of a lane share: mappings, unmaps that wait for their invalidation, and the counts of both.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use portolan::dma::{Direction, LazyBounds, Mapping};
use portolan_sim::cpus::VirtualCpus;

use super::tally::Tally;
use super::timeline::{EndRegions, TimelineRecorder};
use super::window::Windows;
use crate::buffers::Memory;
use crate::trace::Mix;

pub(super) type LaneMapping = Mapping<VirtualCpus, Memory, Direction>;

/// A mapping.
pub(super) struct ReplayedMapping {
    pub(super) mapping: LaneMapping,
    /// Bytes of its pages.
    pub(super) padded: u64,
    /// Entries that translate it.
    pub(super) entries: u64,
    /// Regions of its first and last address; none if it is copied.
    pub(super) ends: Option<EndRegions>,
}

/// State that CPUs share.
pub(super) struct LaneState {
    /// Mappings; none where the map was rejected.
    pub(super) live: HashMap<u64, Option<ReplayedMapping>, BuildHasherDefault<Mix>>,
    pub(super) windows: Windows,
    /// End of each CPU's last operation, in virtual nanoseconds.
    pub(super) clocks: Vec<f64>,
    pub(super) table_pages: usize,
    pub(super) tally: Tally,
    pub(super) timeline: TimelineRecorder,
    pub(super) failure: Option<anyhow::Error>,
}

impl LaneState {
    /// Makes the state for `cpus` CPUs.
    pub(super) fn new(cpus: usize) -> Self {
        Self {
            live: HashMap::default(),
            windows: Windows::new(cpus, LazyBounds::default().age.get() as f64),
            clocks: vec![0.0; cpus],
            table_pages: 0,
            tally: Tally::default(),
            timeline: TimelineRecorder::new(),
            failure: None,
        }
    }

    /// A mapping was made at `now`.
    pub(super) fn mapped(&mut self, id: u64, live: ReplayedMapping, now: f64) {
        self.tally.mapped(live.entries);
        self.timeline.map(now, live.padded, live.ends);
        self.live.insert(id, Some(live));
    }

    /// Notes that `live` was unmapped at `now`, which leaves `bytes` reachable. With `queue`, they wait in a CPU's
    /// queue.
    pub(super) fn unmapped(
        &mut self,
        live: &ReplayedMapping,
        bytes: u64,
        now: f64,
        queue: Option<usize>,
    ) {
        self.tally.unmapped(live.entries);
        match queue {
            Some(cpu) => self.windows.queue(cpu, bytes, live.ends, now),
            None => self.windows.open(bytes),
        }
        let reachable = self.windows.reachable();
        self.timeline.unmap(now, live.padded, reachable);
    }

    /// Notes that `bytes` and `ends`, the first of them unmapped at `since`, were invalidated by `now`.
    pub(super) fn close(
        &mut self,
        bytes: u64,
        since: Option<f64>,
        ends: impl IntoIterator<Item = EndRegions>,
        now: f64,
    ) {
        let reachable_ns = self.windows.close(bytes, since, now);
        let left = self.windows.reachable();
        self.timeline.close(now, left, reachable_ns, ends);
    }
}
