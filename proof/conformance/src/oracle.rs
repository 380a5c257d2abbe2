//! The naive oracle: an ordered map from ranges to memory, which knows nothing of tables.

use std::collections::BTreeMap;

use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan::table::Access;

/// A piece of the address space that leads to consecutive memory with one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Device addresses.
    pub range: IovaRange,
    /// Address that the first of them leads to.
    pub pa: PhysAddr,
    /// Access that a device has.
    pub access: Access,
}

impl Piece {
    /// Memory address of `iova`, which is in the piece.
    pub fn address(&self, iova: Iova) -> PhysAddr {
        PhysAddr::new(self.pa.get() + (iova.get() - self.range.start().get()))
    }

    /// The piece without the addresses below `iova`.
    fn from(&self, iova: Iova) -> Option<Self> {
        let range = IovaRange::new(iova, self.range.last())?;
        Some(Self { range, pa: self.address(iova), access: self.access })
    }
}

/// Mapped pieces, by first address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oracle {
    pieces: BTreeMap<Iova, Piece>,
}

impl Oracle {
    /// Makes an oracle without mappings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells if nothing in `range` is mapped.
    pub fn is_free(&self, range: IovaRange) -> bool {
        self.pieces
            .range(..=range.last())
            .next_back()
            .is_none_or(|(_, piece)| !piece.range.overlaps(range))
    }

    /// Tells if all of `range` is mapped.
    pub fn is_mapped(&self, range: IovaRange) -> bool {
        let mut at = Some(range.start());
        while let Some(iova) = at.filter(|&iova| iova <= range.last()) {
            let Some(piece) = self.find(iova) else {
                return false;
            };
            at = piece.range.last().checked_add(1);
        }
        true
    }

    /// Notes that `range`, which is free, leads to `pa`.
    pub fn map(&mut self, range: IovaRange, pa: PhysAddr, access: Access) {
        debug_assert!(self.is_free(range));
        self.pieces.insert(range.start(), Piece { range, pa, access });
    }

    /// Notes that nothing in `range` is mapped any more.
    pub fn unmap(&mut self, range: IovaRange) {
        self.cut(range.start());
        if let Some(after) = range.last().checked_add(1) {
            self.cut(after);
        }
        let inside: Vec<Iova> =
            self.pieces.range(range.start()..=range.last()).map(|(&start, _)| start).collect();
        for start in inside {
            self.pieces.remove(&start);
        }
    }

    /// The piece that holds `iova`.
    pub fn find(&self, iova: Iova) -> Option<Piece> {
        let (_, piece) = self.pieces.range(..=iova).next_back()?;
        piece.range.contains(iova).then_some(*piece)
    }

    /// Address that `iova` leads to, and the access that a device has there.
    pub fn translate(&self, iova: Iova) -> Option<(PhysAddr, Access)> {
        let piece = self.find(iova)?;
        Some((piece.address(iova), piece.access))
    }

    /// Iterates over all pieces, in order of address.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        self.pieces.values().copied()
    }

    /// The piece that starts at or next after `iova`.
    pub fn next_from(&self, iova: Iova) -> Option<Piece> {
        self.pieces.range(iova..).next().map(|(_, &piece)| piece)
    }

    /// Tells if nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Cuts a piece that contains `iova` in its inside, so that `iova` begins one.
    fn cut(&mut self, iova: Iova) {
        let Some(piece) = self.find(iova) else {
            return;
        };
        if piece.range.start() == iova {
            return;
        }
        let Some(high) = piece.from(iova) else {
            return;
        };
        let low = IovaRange::new(piece.range.start(), Iova::new(iova.get() - 1));
        if let (Some(range), Some(kept)) = (low, self.pieces.get_mut(&piece.range.start())) {
            kept.range = range;
        }
        self.pieces.insert(iova, high);
    }
}

/// Merges neighbours that continue each other, so that two descriptions of one mapping compare equal.
pub fn merged(pieces: impl IntoIterator<Item = Piece>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for piece in pieces {
        if let Some(last) = out.last_mut() {
            let bytes = last.range.len_minus_one().wrapping_add(1);
            let continues = last.range.last().checked_add(1) == Some(piece.range.start())
                && last.pa.checked_add(bytes) == Some(piece.pa)
                && last.access == piece.access;
            if continues {
                last.range = last.range.hull(piece.range);
                continue;
            }
        }
        out.push(piece);
    }
    out
}
