//! Pieces of tables that no operation has claimed so far.
//!
//! Linux prints one `iommu:map` for each physically contiguous piece. Pieces whose addresses follow each other, mapped
//! in a row on one CPU, are a run. Two domains may have the same address mapped: then the piece that came first goes
//! first.

use std::collections::BTreeMap;

use portolan::addr::PhysAddr;

use super::op::{AddressRange, DeviceId, Origin, Piece};

/// A piece.
#[derive(Clone, Copy)]
pub(super) struct TablePiece {
    pub(super) bytes: u64,
    pub(super) pa: u64,
    pub(super) origin: Origin,
    /// The device that the event names, if it names one.
    pub(super) device: Option<DeviceId>,
}

/// A piece that was taken out, with its address and the number of its place.
#[derive(Clone, Copy)]
pub(super) struct TakenPiece {
    pub(super) iova: u64,
    pub(super) place: u64,
    pub(super) piece: TablePiece,
}

impl TakenPiece {
    pub(super) fn as_memory(&self) -> Piece {
        Piece { pa: PhysAddr::new(self.piece.pa), bytes: self.piece.bytes }
    }

    /// Tells if its addresses are the memory's own.
    pub(super) fn is_direct(&self) -> bool {
        self.iova == self.piece.pa
    }

    fn last(&self) -> u64 {
        last_of(self.iova, self.piece.bytes)
    }
}

fn last_of(start: u64, bytes: u64) -> u64 {
    start.saturating_add(bytes.saturating_sub(1))
}

/// Choice between two pieces at one address.
#[derive(Clone, Copy)]
enum Which {
    /// The oldest, if possible one of this CPU.
    Oldest(Option<u16>),
    /// The newest, if possible one of this CPU.
    Newest(u16),
}

/// The pieces, by address and place.
#[derive(Default)]
pub(super) struct Unclaimed(BTreeMap<(u64, u64), TablePiece>);

impl Unclaimed {
    pub(super) fn add(&mut self, iova: u64, place: u64, piece: TablePiece) {
        self.0.insert((iova, place), piece);
    }

    /// Number of pieces that begin at `iova`.
    pub(super) fn count_at(&self, iova: u64) -> usize {
        self.0.range((iova, 0)..=(iova, u64::MAX)).count()
    }

    fn at(&self, iova: u64, which: Which) -> Option<TakenPiece> {
        let of = |((iova, place), piece): (&(u64, u64), &TablePiece)| TakenPiece {
            iova: *iova,
            place: *place,
            piece: *piece,
        };
        let mut here = self.0.range((iova, 0)..=(iova, u64::MAX)).map(of);
        match which {
            Which::Oldest(None) => here.next(),
            Which::Oldest(Some(cpu)) => {
                let oldest = here.clone().next();
                here.find(|one| one.piece.origin.cpu == cpu).or(oldest)
            }
            Which::Newest(cpu) => {
                let newest = here.clone().next_back();
                here.rfind(|one| one.piece.origin.cpu == cpu).or(newest)
            }
        }
    }

    /// The pieces that make up the addresses from `start` to `last` without a gap, the last perhaps reaching beyond.
    fn chain(&self, start: u64, last: u64, which: Which, found: &mut Vec<TakenPiece>) -> bool {
        found.clear();
        let mut at = start;
        let mut which = which;
        while let Some(piece) = self.at(at, which) {
            if let Which::Oldest(None) = which {
                which = Which::Oldest(Some(piece.piece.origin.cpu));
            }
            found.push(piece);
            if piece.last() >= last {
                return true;
            }
            at = piece.last().saturating_add(1);
        }
        false
    }

    fn remove(&mut self, found: &[TakenPiece]) {
        for one in found {
            self.0.remove(&(one.iova, one.place));
        }
    }

    /// Takes the pieces that a `dma:*` event on `cpu` claims for the addresses `dma` to `last`, if all are found.
    pub(super) fn claim(&mut self, dma: u64, last: u64, cpu: u16, found: &mut Vec<TakenPiece>) {
        // Pages of the unit may be larger than the processor's.
        let before = self.0.range(..=(dma, u64::MAX)).next_back();
        let start = before
            .map(|(key, piece)| (key.0, last_of(key.0, piece.bytes)))
            .filter(|(_, end)| *end >= dma);
        let whole =
            start.is_some_and(|(start, _)| self.chain(start, last, Which::Newest(cpu), found));
        if whole { self.remove(found) } else { found.clear() }
    }

    /// Takes the pieces that an unmap of the addresses from `start` to `last` ends, if they are exactly those.
    pub(super) fn take_exact(&mut self, start: u64, last: u64, found: &mut Vec<TakenPiece>) {
        let whole = self.chain(start, last, Which::Oldest(None), found);
        let exact = whole && found.last().is_some_and(|piece| piece.last() == last);
        if exact { self.remove(found) } else { found.clear() }
    }

    /// Takes the pieces between `start` and `last`. Pieces that extend beyond are cut, and their rests stay; `split`
    /// receives the places that get an additional part.
    pub(super) fn take_within(
        &mut self,
        start: u64,
        last: u64,
        found: &mut Vec<TakenPiece>,
        mut split: impl FnMut(u64),
    ) {
        found.clear();
        let mut at = start;
        // The one that reaches in from before `start`, and those that begin within.
        let before = self.0.range(..(start, 0)).next_back();
        let reaches = before.filter(|(key, piece)| last_of(key.0, piece.bytes) >= start);
        let mut next = reaches.map(|(key, _)| *key);
        loop {
            let key = next.take().or_else(|| {
                let mut within = self.0.range((at, 0)..=(last, u64::MAX));
                within.next().map(|(key, _)| *key)
            });
            let Some(key) = key else { return };
            let Some(piece) = self.0.remove(&key) else {
                return;
            };
            let (iova, end) = (key.0, last_of(key.0, piece.bytes));
            let (from, to) = (iova.max(start), end.min(last));
            if iova < from {
                split(key.1);
                let bytes = from - iova;
                self.0.insert(key, TablePiece { bytes, ..piece });
            }
            if to < end {
                split(key.1);
                let rest = TablePiece {
                    bytes: end - to,
                    pa: piece.pa.saturating_add(to + 1 - iova),
                    ..piece
                };
                self.0.insert((to + 1, key.1), rest);
            }
            let piece = TablePiece {
                bytes: to - from + 1,
                pa: piece.pa.saturating_add(from - iova),
                ..piece
            };
            found.push(TakenPiece { iova: from, place: key.1, piece });
            match to.checked_add(1).filter(|next| *next <= last) {
                Some(next) => at = next,
                None => return,
            }
        }
    }

    /// Takes the run that begins with the piece of `place`, or with the rest of it, which was mapped at `range`.
    pub(super) fn take_run(
        &mut self,
        range: AddressRange,
        place: u64,
        found: &mut Vec<TakenPiece>,
    ) {
        found.clear();
        let mut mapped = self.0.range((range.start, 0)..=(range.last, u64::MAX));
        let first = mapped.find(|(key, _)| key.1 == place);
        let mut next = first.map(|(key, piece)| TakenPiece { iova: key.0, place, piece: *piece });
        while let Some(one) = next {
            found.push(one);
            let Some(after) = one.last().checked_add(1) else {
                break;
            };
            let mut here = self.0.range((after, one.place)..=(after, u64::MAX));
            let follows = here.find(|(_, piece)| piece.origin.cpu == one.piece.origin.cpu);
            next =
                follows.map(|(key, piece)| TakenPiece { iova: key.0, place: key.1, piece: *piece });
        }
        self.remove(found);
    }
}
