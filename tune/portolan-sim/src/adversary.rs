//! Hardware between two synchronisations, at its worst.
//!
//! Commands between two synchronisations have no order, or not the one that they were written in.
//! Meanwhile devices go on: entries that one command has dropped are read again through caches that another
//! command has not reached yet. The order here is the one in which that does most harm: entries that are made
//! from other entries are dropped first, those that they are made from last. Equal calls give equal orders.

use std::collections::VecDeque;

use portolan::addr::PageSize;

use crate::request::Request;

/// Distance of an invalidation from the device: entries that are cached at one rank are made from entries of lower
/// ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Configuration of streams.
    Streams,
    /// Configuration of address spaces of streams.
    Spaces,
    /// Second-stage translations, and pointers at tables.
    SecondStage,
    /// Second-stage translations only.
    SecondStageLeaves,
    /// Translations of a first stage, or of both, and pointers at tables.
    Translations,
    /// Leaf translations only.
    Leaves,
    /// Translations that devices keep.
    Devices,
}

/// Commands that have no order: highest rank first, and the youngest first within a rank.
pub fn unordered<T>(mut commands: Vec<T>, rank: impl Fn(&T) -> Rank) -> Vec<T> {
    commands.reverse();
    commands.sort_by_key(|command| std::cmp::Reverse(rank(command)));
    commands
}

/// Like [`unordered`], but a command may not overtake those of lower classes.
pub fn in_classes<T>(
    commands: Vec<T>,
    class: impl Fn(&T) -> u8,
    rank: impl Fn(&T) -> Rank,
) -> Vec<T> {
    let mut classes = commands.iter().map(&class);
    let first = classes.next();
    if classes.all(|class| Some(class) == first) {
        return unordered(commands, rank);
    }
    let mut left: Vec<Option<T>> = commands.into_iter().map(Some).collect();
    let mut order = Vec::with_capacity(left.len());
    while order.len() < left.len() {
        // Commands of lower classes that are still to come hold up those behind them.
        let mut lowest = u8::MAX;
        let mut best = None;
        for (at, command) in left.iter().enumerate() {
            let Some(command) = command else { continue };
            let (class, rank) = (class(command), rank(command));
            if class <= lowest {
                lowest = class;
                if best.is_none_or(|(known, _)| rank >= known) {
                    best = Some((rank, at));
                }
            }
        }
        let Some((_, at)) = best else { break };
        order.extend(left[at].take());
    }
    order
}

/// Places that devices try again between two commands.
const VISITS: usize = 16;

/// A device reached a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Access that it made.
    pub of: Request,
    /// Kind of address by which it got there.
    pub way: AddressType,
}

/// Kind of address by which a device reached a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressType {
    /// The unit translated.
    Untranslated,
    /// A translated address that the device had asked for.
    Translated,
}

/// The last places that devices reached, page by page.
#[derive(Clone, Debug, Default)]
pub struct Visits(VecDeque<Visit>);

impl Visits {
    /// Remembers a visit; forgets the oldest of many.
    pub fn note(&mut self, visit: Visit) {
        let iova = visit.of.iova.align_down(PageSize::SIZE_4K);
        let of = Request { iova, ..visit.of };
        let visit = Visit { of, ..visit };
        if let Some(at) = self.0.iter().position(|known| *known == visit) {
            self.0.remove(at);
        }
        if self.0.len() == VISITS {
            self.0.pop_front();
        }
        self.0.push_back(visit);
    }

    /// Oldest first.
    pub fn all(&self) -> Vec<Visit> {
        self.0.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use portolan::addr::{Iova, StreamId};

    use super::*;
    use crate::decode::AccessKind;

    #[test]
    fn what_is_made_from_other_entries_goes_first() {
        let commands = vec![
            ("stream", Rank::Streams),
            ("one", Rank::Translations),
            ("leaf", Rank::Leaves),
            ("two", Rank::Translations),
        ];
        let names: Vec<_> = unordered(commands, |of| of.1).into_iter().map(|of| of.0).collect();
        assert_eq!(names, ["leaf", "two", "one", "stream"]);
    }

    #[test]
    fn nothing_overtakes_a_lower_class() {
        let commands = vec![
            ("a", 2, Rank::Translations),
            ("b", 0, Rank::Streams),
            ("c", 2, Rank::Translations),
            ("d", 2, Rank::Leaves),
            ("e", 0, Rank::Streams),
            ("f", 1, Rank::Spaces),
            ("g", 3, Rank::Devices),
        ];
        let names: Vec<_> =
            in_classes(commands, |of| of.1, |of| of.2).into_iter().map(|of| of.0).collect();
        // Commands before all configuration go first; the rest waits for it.
        assert_eq!(names, ["a", "e", "b", "d", "c", "f", "g"]);
    }

    #[test]
    fn the_last_places_are_known_once_each() {
        let mut visits = Visits::default();
        for page in (0..20).chain([10]) {
            let of = Request::new(
                StreamId::new(1),
                None,
                Iova::new(page << 12 | 0x123),
                AccessKind::Read,
            );
            let way = AddressType::Untranslated;
            visits.note(Visit { of, way });
        }
        let all = visits.all();
        let page = |at: usize| all[at].of.iova.get() >> 12;
        assert_eq!((all.len(), page(0), page(15)), (16, 4, 10));
    }
}
