//! State that the CPUs of a lane share: mappings, unmaps that wait for their invalidation, and the counts of both.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use portolan::dma::{Direction, LazyBounds, Mapping};
use portolan_sim::cpus::VirtualCpus;

use super::tally::Tally;
use super::timeline::{Ends, Recorder};
use super::window::Windows;
use crate::buffers::Memory;
use crate::trace::Mix;

pub(super) type LaneMapping = Mapping<VirtualCpus, Memory, Direction>;

/// A mapping.
pub(super) struct Live {
    pub(super) mapping: LaneMapping,
    /// Bytes of its pages.
    pub(super) padded: u64,
    /// Entries that translate it.
    pub(super) entries: u64,
    /// Regions of its first and last address; none if it is copied.
    pub(super) ends: Option<Ends>,
}

/// State that CPUs share.
pub(super) struct State {
    /// Mappings; none where the map was rejected.
    pub(super) live: HashMap<u64, Option<Live>, BuildHasherDefault<Mix>>,
    pub(super) windows: Windows,
    /// By CPU, the time at which its last operation ended, in virtual nanoseconds.
    pub(super) clocks: Vec<f64>,
    pub(super) table_pages: usize,
    pub(super) tally: Tally,
    pub(super) timeline: Recorder,
    pub(super) failure: Option<anyhow::Error>,
}

impl State {
    /// Of `cpus` CPUs.
    pub(super) fn new(cpus: usize) -> Self {
        Self {
            live: HashMap::default(),
            windows: Windows::new(cpus, LazyBounds::default().age.get() as f64),
            clocks: vec![0.0; cpus],
            table_pages: 0,
            tally: Tally::default(),
            timeline: Recorder::new(),
            failure: None,
        }
    }

    /// A mapping was made at `now`.
    pub(super) fn mapped(&mut self, id: u64, live: Live, now: f64) {
        self.tally.mapped(live.entries);
        self.timeline.map(now, live.padded, live.ends);
        self.live.insert(id, Some(live));
    }

    /// `live` is unmapped at `now`, so that `bytes` of it are reachable; for a queue, they wait in that of a CPU.
    pub(super) fn unmapped(&mut self, live: &Live, bytes: u64, now: f64, queue: Option<usize>) {
        self.tally.unmapped(live.entries);
        match queue {
            Some(cpu) => self.windows.queue(cpu, bytes, live.ends, now),
            None => self.windows.open(bytes),
        }
        let reachable = self.windows.reachable();
        self.timeline.unmap(now, live.padded, reachable);
    }

    /// Bytes that were unmapped, the first of them at a time, were invalidated by `now`, and so were `ends`.
    pub(super) fn close(
        &mut self,
        (bytes, since): (u64, Option<f64>),
        ends: impl IntoIterator<Item = Ends>,
        now: f64,
    ) {
        let reachable_ns = self.windows.close(bytes, since, now);
        let left = self.windows.reachable();
        self.timeline.close(now, (left, reachable_ns), ends);
    }
}
