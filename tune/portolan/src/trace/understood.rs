//! Share of a trace's words on DMA that was understood.

use serde::{Deserialize, Serialize};

use super::event::Unseen;
use super::list::List;

/// Understood percentages of a trace's DMA, with the keys of `--json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnderstoodPct {
    /// Percentage of the events.
    pub events_pct: f64,
    /// Percentage of the bytes.
    pub bytes_pct: f64,
}

impl Default for UnderstoodPct {
    fn default() -> Self {
        Understood::default().pct()
    }
}

/// Events about DMA and the bytes of their operations: all of the trace, and those that became operations.
///
/// Counted are `iommu:map`, `iommu:unmap`, `swiotlb_bounced` and the `dma:*` events that map, unmap, allocate and free.
/// Not understood are those that cannot be read, that are lost in the middle of the trace, whose map is missing, and
/// entries that the kernel left out of a list. Events that the ring buffer overwrote before the trace begins are no
/// part of it; unmaps of memory that was mapped before are understood, and not replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Understood {
    /// Events.
    pub events: u64,
    /// Understood events.
    pub events_understood: u64,
    /// Bytes of operations.
    pub bytes: u64,
    /// Understood bytes.
    pub bytes_understood: u64,
}

impl Understood {
    /// Percentage of the events; 100 of none.
    pub fn events_pct(&self) -> f64 {
        share(self.events_understood, self.events)
    }

    /// Percentage of the bytes; 100 of none.
    pub fn bytes_pct(&self) -> f64 {
        share(self.bytes_understood, self.bytes)
    }

    /// Both percentages.
    pub fn pct(&self) -> UnderstoodPct {
        UnderstoodPct { events_pct: self.events_pct(), bytes_pct: self.bytes_pct() }
    }

    /// Adds an event that was read.
    pub(super) fn note_read(&mut self) {
        self.events += 1;
        self.events_understood += 1;
    }

    /// Adds events that were not.
    pub(super) fn note_unread(&mut self, events: u64) {
        self.events = self.events.saturating_add(events);
    }

    /// Adds the bytes of an operation.
    pub(super) fn note_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.bytes_understood = self.bytes_understood.saturating_add(bytes);
    }

    /// Takes back `events` that were read and have no place in an operation, which has `bytes`.
    pub(super) fn miss(&mut self, events: u64, bytes: u64) {
        self.events_understood = self.events_understood.saturating_sub(events);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds again the events and bytes that [`miss`](Self::miss) took back.
    pub(super) fn note_found(&mut self, events: u64, bytes: u64) {
        self.events_understood = self.events_understood.saturating_add(events);
        self.bytes_understood = self.bytes_understood.saturating_add(bytes);
    }

    /// Takes back the part of a list of `bytes` that its event does not print.
    pub(super) fn note_unseen(
        &mut self,
        unseen: Unseen,
        sizes: List<'_>,
        pas: List<'_>,
        bytes: u64,
    ) {
        let part = |unseen: u64, of: u64| {
            let part = u128::from(bytes) * u128::from(unseen) / u128::from(of.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        if unseen.ranges > 0 {
            // The sizes of the rest are not told: the same as those that are.
            let shown = sizes.iter().count() as u64;
            self.bytes = self.bytes.saturating_add(part(unseen.ranges, shown));
        } else if unseen.pieces > 0 {
            let shown = pas.iter().count() as u64;
            let full = shown.saturating_add(unseen.pieces);
            let missing = part(unseen.pieces, full);
            self.bytes_understood = self.bytes_understood.saturating_sub(missing);
        }
    }
}

fn share(part: u64, of: u64) -> f64 {
    match of {
        0 => 100.0,
        of => part.min(of) as f64 * 100.0 / of as f64,
    }
}
