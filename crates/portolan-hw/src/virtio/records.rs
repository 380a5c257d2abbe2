//! Mappings of a domain, and the device's knowledge of them: ranges that do not overlap.
//!
//! A map in sorted pieces of bounded length, so that a change takes bounded time under a lock.
//! Memory comes from a [`Stock`] that is filled without the lock; memory that is no longer needed is
//! kept for later. Taking a mapping out needs no memory.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan::iommu::WholeMapping;
use portolan::table::Access;

/// Most mappings of a piece.
const PIECE: usize = 32;

/// State of a mapping that the domain's owner wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Mapped.
    Mapped,
    /// Unmapped. The addresses are in use until the device has forgotten it.
    Unmapped,
}

/// State of a mapping in the device. The device forgets everything at the end of an epoch: when the
/// domain loses its last endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// The device does not have it.
    Absent,
    /// The device has it, in this epoch.
    Present { epoch: u64 },
    /// The device may have it, in this epoch: its answer made no sense.
    Unsure { epoch: u64 },
    /// A caller waits for a request about it.
    Busy,
    /// A request about it was given up and may still be carried out.
    Unanswered,
}

impl Known {
    /// The same in `epoch`.
    pub(super) fn in_epoch(self, epoch: u64) -> Self {
        match self {
            Self::Present { epoch: of } | Self::Unsure { epoch: of } if of != epoch => Self::Absent,
            known => known,
        }
    }
}

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) range: IovaRange,
    pub(super) pa: PhysAddr,
    pub(super) access: Access,
    pub(super) wanted: Wanted,
    pub(super) known: Known,
}

impl Mapping {
    /// A mapping that is wanted, and of which the device does not know yet.
    pub(super) fn absent(mapping: WholeMapping) -> Self {
        let WholeMapping { range, pa, access } = mapping;
        Self { range, pa, access, wanted: Wanted::Mapped, known: Known::Absent }
    }

    /// The part from `start` on, of a mapping that holds `start`.
    pub(super) fn from(self, start: Iova) -> Option<Self> {
        let above = start.get().checked_sub(self.range.start().get())?;
        Some(Self {
            range: IovaRange::new(start, self.range.last())?,
            pa: self.pa.checked_add(above)?,
            ..self
        })
    }

    /// The part below `end`.
    pub(super) fn below(self, end: Iova) -> Option<Self> {
        let last = Iova::new(end.get().checked_sub(1)?);
        let range = IovaRange::new(self.range.start(), last)?;
        Some(Self { range, ..self })
    }
}

type Piece = Vec<Mapping>;

/// Memory for one more mapping, got without the lock. Memory that is left in it after use is freed
/// with it.
#[derive(Debug, Default)]
pub(super) struct Stock {
    piece: Piece,
    pieces: Vec<Piece>,
    spare: Vec<Piece>,
    /// Number of pieces for which room is wanted.
    wanted: usize,
}

impl Stock {
    /// Gets the memory that the last insertion lacked.
    pub(super) fn fill(&mut self) -> Result<(), TryReserveError> {
        self.piece = Vec::new();
        self.piece.try_reserve_exact(PIECE)?;
        self.pieces = Vec::new();
        self.pieces.try_reserve_exact(self.wanted)?;
        self.spare = Vec::new();
        self.spare.try_reserve_exact(self.wanted)
    }
}

/// There is no room: fill the stock and try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

/// The mappings by their first address.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// None is empty, and none has more room than [`PIECE`].
    pieces: Vec<Piece>,
    spare: Vec<Piece>,
}

impl Records {
    /// The piece that `iova` belongs to, and the place in it of the first mapping at or above `iova`.
    fn place(&self, iova: Iova) -> (usize, usize) {
        let behind = |piece: &Piece| piece.first().is_some_and(|m| m.range.start() <= iova);
        let piece = self.pieces.partition_point(behind).saturating_sub(1);
        let at = self
            .pieces
            .get(piece)
            .map_or(0, |piece| piece.partition_point(|mapping| mapping.range.start() < iova));
        (piece, at)
    }

    /// The first mapping that holds `iova` or lies above.
    pub(super) fn next(&self, iova: Iova) -> Option<&Mapping> {
        let (piece, at) = self.place(iova);
        let this = self.pieces.get(piece)?;
        let before = at.checked_sub(1).and_then(|at| this.get(at));
        before
            .filter(|mapping| mapping.range.contains(iova))
            .or_else(|| this.get(at))
            .or_else(|| self.pieces.get(piece + 1)?.first())
    }

    /// The mapping that holds `iova`.
    pub(super) fn at(&self, iova: Iova) -> Option<&Mapping> {
        self.next(iova).filter(|mapping| mapping.range.contains(iova))
    }

    /// The first address of `range` that is in use.
    pub(super) fn first_overlap(&self, range: IovaRange) -> Option<Iova> {
        let next = self.next(range.start())?;
        let at = next.range.start().max(range.start());
        range.contains(at).then_some(at)
    }

    /// The mapping that begins at `start`, to be changed in place: its range stays.
    pub(super) fn get_mut(&mut self, start: Iova) -> Option<&mut Mapping> {
        let (piece, at) = self.place(start);
        let found = self.pieces.get_mut(piece)?.get_mut(at)?;
        (found.range.start() == start).then_some(found)
    }

    /// Adds a mapping, which overlaps none.
    pub(super) fn insert(&mut self, mapping: Mapping, stock: &mut Stock) -> Result<(), NoRoom> {
        let start = mapping.range.start();
        let (piece, _) = self.place(start);
        let full = |piece: &Piece| piece.len() >= PIECE;
        if self.pieces.get(piece).is_none_or(full) {
            self.halve(piece, stock)?;
        }
        let (piece, at) = self.place(start);
        if let Some(piece) = self.pieces.get_mut(piece) {
            piece.insert(at.min(piece.len()), mapping);
        }
        Ok(())
    }

    /// Puts a piece behind the full one at `full`, with half of its mappings; or the first piece.
    fn halve(&mut self, full: usize, stock: &mut Stock) -> Result<(), NoRoom> {
        if self.spare.is_empty() {
            self.take_in(stock)?;
        }
        let mut upper = self.spare.pop().ok_or(NoRoom)?;
        if let Some(lower) = self.pieces.get_mut(full) {
            upper.extend(lower.drain(PIECE / 2..));
        }
        let at = self.pieces.len().min(full + 1);
        self.pieces.insert(at, upper);
        Ok(())
    }

    /// Takes a piece out of `stock` when none is spare, and longer lists of pieces if these are full:
    /// each of the two has room for all pieces.
    fn take_in(&mut self, stock: &mut Stock) -> Result<(), NoRoom> {
        let needed = self.pieces.len() + 1;
        let short = self.pieces.capacity().min(self.spare.capacity()) < needed;
        let stocked = stock.pieces.capacity().min(stock.spare.capacity());
        if stock.piece.capacity() < PIECE || short && stocked < needed {
            stock.wanted = match short {
                true => needed.next_power_of_two(),
                false => 0,
            };
            return Err(NoRoom);
        }
        if short {
            stock.pieces.append(&mut self.pieces);
            stock.spare.append(&mut self.spare);
            core::mem::swap(&mut stock.pieces, &mut self.pieces);
            core::mem::swap(&mut stock.spare, &mut self.spare);
        }
        self.spare.push(core::mem::take(&mut stock.piece));
        Ok(())
    }

    /// Takes the mapping out that begins at `start`.
    pub(super) fn remove(&mut self, start: Iova) {
        let (piece, at) = self.place(start);
        let Some(list) = self.pieces.get_mut(piece) else {
            return;
        };
        if list.get(at).is_some_and(|found| found.range.start() == start) {
            list.remove(at);
        }
        if list.is_empty() {
            let empty = self.pieces.remove(piece);
            self.spare.push(empty);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    fn range(start: u64, last: u64) -> IovaRange {
        IovaRange::new(Iova::new(start), Iova::new(last)).unwrap()
    }

    fn mapping(start: u64, last: u64) -> Mapping {
        Mapping {
            range: range(start, last),
            pa: PhysAddr::new(0x8000),
            access: Access::READ,
            wanted: Wanted::Mapped,
            known: Known::Absent,
        }
    }

    fn insert(records: &mut Records, mapping: Mapping) {
        let mut stock = Stock::default();
        while records.insert(mapping, &mut stock).is_err() {
            stock.fill().unwrap();
        }
    }

    #[test]
    fn overlaps_are_found_at_their_first_address() {
        let mut records = Records::default();
        for (start, last) in [(0x6000, 0x6fff), (0x1000, 0x1fff), (0x2000, 0x4fff)] {
            insert(&mut records, mapping(start, last));
        }
        let overlap = |start, last| records.first_overlap(range(start, last)).map(Iova::get);
        assert_eq!(overlap(0, 0xfff), None);
        assert_eq!(overlap(0, 0x1000), Some(0x1000));
        assert_eq!(overlap(0x4fff, 0x9000), Some(0x4fff));
        assert_eq!(overlap(0x5000, 0x5fff), None);
        assert_eq!(overlap(0x5000, u64::MAX), Some(0x6000));
    }

    #[test]
    fn parts_keep_their_memory() {
        let all = mapping(0x1000, 0x4fff);
        assert_eq!(all.below(Iova::new(0x2000)).unwrap().range, range(0x1000, 0x1fff));
        let above = all.from(Iova::new(0x3000)).unwrap();
        assert_eq!((above.range, above.pa), (range(0x3000, 0x4fff), PhysAddr::new(0xa000)));
        assert_eq!(mapping(0, u64::MAX).below(Iova::new(0)), None);
    }

    #[test]
    fn what_the_device_had_in_another_epoch_it_has_no_more() {
        let present = Known::Present { epoch: 3 };
        assert_eq!((present.in_epoch(3), present.in_epoch(4)), (present, Known::Absent));
        let unsure = Known::Unsure { epoch: 3 };
        assert_eq!((unsure.in_epoch(3), unsure.in_epoch(4)), (unsure, Known::Absent));
        for known in [Known::Busy, Known::Unanswered] {
            assert_eq!(known.in_epoch(9), known);
        }
    }

    /// Against a map of the standard library; memory is got outside only.
    #[test]
    fn random_insertions_and_removals() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut records, mut oracle) = (Records::default(), BTreeMap::new());
        for round in 0..20_000u64 {
            // Grows and shrinks in turn.
            let page = random.u64(..1000) << 12;
            let grows = random.u64(..10) < [7, 3][round as usize / 2000 % 2];
            if grows && records.at(Iova::new(page)).is_none() {
                let capacity = records.pieces.capacity();
                insert(&mut records, mapping(page, page | 0xfff));
                assert!(records.pieces.capacity() >= capacity);
                oracle.insert(page, ());
            } else if !grows {
                records.remove(Iova::new(page));
                oracle.remove(&page);
            }
            assert!(records.pieces.iter().all(|piece| (1..=PIECE).contains(&piece.len())));
            let all = records.pieces.len() + records.spare.len();
            assert!(records.spare.capacity() >= all && records.pieces.capacity() >= all);
            let from = random.u64(..1000 << 12);
            let wanted = oracle.range(from & !0xfff..).next().map(|(start, ())| *start);
            let next = records.next(Iova::new(from));
            assert_eq!(next.map(|m| m.range.start().get()), wanted, "round {round}");
        }
    }
}
