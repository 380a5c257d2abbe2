//! Memory that was mapped before the trace began, and is unmapped in it.
//!
//! A recording begins while devices are at work: a network card's ring is full of buffers by then, and the first events
//! of these are their unmaps. They are known by addresses at which the trace has mapped nothing so far, and by their
//! number: no more than the trace has mapped at once later on.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use super::op::{AddressRange, Mix, PAGE};
use super::understood::Understood;

/// Pages that are remembered; with more, nothing is taken to be from before.
const MOST_PAGES: usize = 1 << 20;

/// An unmap that finds no map.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrphanUnmap {
    /// Events that say it.
    pub(super) events: u64,
    /// Its bytes, if its events have this number.
    pub(super) bytes: u64,
    /// The trace has mapped nothing there so far.
    at_new_address: bool,
}

impl OrphanUnmap {
    /// An unmap of a list, of which only the memory is known.
    pub(super) const LIST: Self = Self { events: 1, bytes: 0, at_new_address: false };
}

impl OrphanUnmap {
    /// Tells whether the trace had mapped something there before.
    pub(super) fn is_at_known_address(&self) -> bool {
        !self.at_new_address
    }
}

/// Pages that the trace has mapped, and unmaps elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MappedPages {
    pages: HashSet<u64, BuildHasherDefault<Mix>>,
    unmaps: u64,
    events: u64,
    bytes: u64,
}

impl MappedPages {
    /// Remembers the first page of a mapping.
    pub(super) fn note_mapped(&mut self, start: u64) {
        if self.pages.len() < MOST_PAGES {
            self.pages.insert(start / PAGE);
        }
    }

    /// Describes an unmap of `range`, said by `events`, that finds no map.
    pub(super) fn orphan(&self, events: u64, range: AddressRange) -> OrphanUnmap {
        let AddressRange { start, last } = range;
        let known = self.pages.len() >= MOST_PAGES || self.pages.contains(&(start / PAGE));
        OrphanUnmap { events, bytes: (last - start).saturating_add(1), at_new_address: !known }
    }

    /// Counts `orphan`, if it may be of memory that was mapped before.
    pub(super) fn note_orphan(&mut self, orphan: OrphanUnmap) {
        if orphan.at_new_address {
            self.unmaps += 1;
            self.events = self.events.saturating_add(orphan.events);
            self.bytes = self.bytes.saturating_add(orphan.bytes);
        }
    }

    /// Ends the trace, which mapped `max_live` at once: tells `understood` of the unmaps that are explained.
    pub(super) fn settle(&mut self, max_live: u64, understood: &mut Understood) {
        if self.unmaps <= max_live {
            understood.note_found(self.events, self.bytes);
        }
        *self = Self::default();
    }
}
