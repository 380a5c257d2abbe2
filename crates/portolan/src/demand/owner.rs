//! Owner of the memory: populating, pinning, and the pieces of memory that come of it.

use arrayvec::ArrayVec;
use thiserror::Error;

use crate::addr::{Iova, IovaRange, PageSize, PhysRange};
use crate::platform::DmaMemory;
use crate::table::{Access, TableMapError};

/// Pieces that one call can hand over.
pub const PIECES: usize = 32;

/// Error of populating memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PopulateError {
    /// The owner has nothing there.
    #[error("the owner has no memory at {iova}")]
    Absent {
        /// The address that the pager was asked for.
        iova: Iova,
    },
    /// The owner does not let devices do that.
    #[error("the owner does not allow that at {iova}")]
    Denied {
        /// The address that the pager was asked for.
        iova: Iova,
    },
    /// The owner has none left.
    #[error("the owner has no memory left for {iova}")]
    OutOfMemory {
        /// The address that the pager was asked for.
        iova: Iova,
    },
    /// It was there and cannot be read any more.
    #[error("memory at {iova} is broken")]
    Broken {
        /// The address that the pager was asked for.
        iova: Iova,
    },
}

/// There is no room for another piece: the owner stops there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no room for another piece of memory")]
pub struct FramesFull;

/// The memory behind the start of a range, in order; pieces that touch are one.
#[derive(Debug, Default)]
pub struct Frames {
    pieces: ArrayVec<PhysRange, PIECES>,
    bytes: u64,
}

impl Frames {
    /// No memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the piece that follows.
    ///
    /// # Errors
    /// If there is no room: nothing is added.
    pub fn push(&mut self, memory: DmaMemory) -> Result<(), FramesFull> {
        let piece = memory.range();
        let bytes = piece.len_minus_one().checked_add(1);
        let total = bytes.and_then(|bytes| self.bytes.checked_add(bytes));
        let total = total.ok_or(FramesFull)?;
        match self.pieces.last_mut() {
            Some(last) if last.last().checked_add(1) == Some(piece.start()) => {
                *last = last.hull(piece)
            }
            _ => (self.pieces.try_push(piece)).map_err(|_| FramesFull)?,
        }
        self.bytes = total;
        Ok(())
    }

    /// The pieces.
    pub fn pieces(&self) -> &[PhysRange] {
        &self.pieces
    }

    /// The pieces, if they are whole granules: a domain would map the memory around them.
    pub(super) fn whole(&self, granule: PageSize) -> Result<&[DmaMemory], TableMapError> {
        let inside = granule.bytes() - 1;
        let after = |piece: &PhysRange| piece.last().get().wrapping_add(1);
        let uneven = |piece: &&PhysRange| (piece.start().get() | after(piece)) & inside != 0;
        match self.pieces.iter().find(uneven) {
            None => Ok(DmaMemory::all_promised(&self.pieces)),
            Some(piece) => Err(TableMapError::UnalignedMemory {
                pa: piece.start(),
                bytes: piece.len_minus_one().saturating_add(1),
            }),
        }
    }

    /// Bytes of all pieces.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Forgets the pieces beyond the first `bytes`.
    pub(super) fn truncate(&mut self, bytes: u64) {
        while let Some(last) = self.pieces.pop() {
            let before = self.bytes - (last.len_minus_one() + 1);
            let left = bytes.min(self.bytes).checked_sub(before);
            let left = left.and_then(|left| PhysRange::from_len(last.start(), left));
            if let Some(left) = left {
                self.bytes = before + left.len_minus_one() + 1;
                self.pieces.push(left);
                return;
            }
            self.bytes = before;
        }
    }
}

/// Addresses of pinned memory that no device reaches any more. The library alone makes one: so no
/// other code makes a pager let go of mapped memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreached(IovaRange);

impl Unreached {
    pub(super) const fn new(range: IovaRange) -> Self {
        Self(range)
    }

    /// The addresses.
    pub const fn range(&self) -> IovaRange {
        self.0
    }
}

/// Memory that devices use and that has another owner: a guest's, or a process's.
///
/// *Implementer's duties.* Ranges are whole granules of the domain and lie in one region; `frames`
/// comes empty. At least the first granule's memory is handed over, and further pieces as far as
/// there are any and they fit, in whole granules and nothing beyond the range. Calls may come from
/// several CPUs at once, for overlapping ranges too; they may sleep, since nothing is locked.
///
/// *Populated memory is not held.* The owner may take it back at any time: it first sees to it that
/// no call hands it over any more, then calls [`Ioas::invalidate`](super::Ioas::invalidate), and
/// reuses it only once that has succeeded: until then the promise of [`DmaMemory::new`] is kept for
/// the memory that was handed over. Pinned memory stays where it is until [`unpin`](Self::unpin).
///
/// ```
/// use portolan::addr::{IovaRange, PhysAddr, PhysRange};
/// use portolan::demand::{Frames, Pager, PopulateError, Unreached};
/// use portolan::platform::DmaMemory;
/// use portolan::table::Access;
///
/// /// A guest whose memory is one block that never moves.
/// struct Block(PhysRange);
///
/// impl Pager for Block {
///     fn populate(&self, range: IovaRange, _: Access, frames: &mut Frames) -> Result<(), PopulateError> {
///         let absent = PopulateError::Absent { iova: range.start() };
///         let at = self.0.start().get().checked_add(range.start().get()).ok_or(absent)?;
///         let bytes = range.len_minus_one() + 1; // regions are smaller than 2^64 bytes
///         let memory = PhysRange::from_len(PhysAddr::new(at), bytes).ok_or(absent)?;
///         if !self.0.covers(memory) {
///             return Err(absent);
///         }
///         // SAFETY: the block is the guest's, and stays as long as this value.
///         let memory = unsafe { DmaMemory::new(memory) };
///         frames.push(memory).map_err(|_| absent)
///     }
///     fn pin(&self, range: IovaRange, access: Access, frames: &mut Frames) -> Result<(), PopulateError> {
///         self.populate(range, access, frames)
///     }
///     fn unpin(&self, _: &Unreached) {}
/// }
/// ```
///
/// *Context.* Task, all methods.
pub trait Pager: Send + Sync {
    /// Sees to it that there is memory behind the start of `range`, good for `access`, and hands it
    /// over without holding it.
    ///
    /// # Errors
    /// See [`PopulateError`].
    fn populate(
        &self,
        range: IovaRange,
        access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError>;

    /// The same, and the memory that is handed over stays where it is until it is unpinned.
    ///
    /// # Errors
    /// See [`PopulateError`]; nothing is pinned then.
    fn pin(
        &self,
        range: IovaRange,
        access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError>;

    /// Unpins memory that was pinned, once.
    fn unpin(&self, pinned: &Unreached);
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<O: Pager + ?Sized> Pager for $pointer {
            fn populate(
                &self,
                range: IovaRange,
                access: Access,
                frames: &mut Frames,
            ) -> Result<(), PopulateError> {
                (**self).populate(range, access, frames)
            }

            fn pin(
                &self,
                range: IovaRange,
                access: Access,
                frames: &mut Frames,
            ) -> Result<(), PopulateError> {
                (**self).pin(range, access, frames)
            }

            fn unpin(&self, pinned: &Unreached) {
                (**self).unpin(pinned);
            }
        }
    )*};
}

forward!(&O, alloc::sync::Arc<O>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::PhysAddr;
    use crate::platform::promised::promised;

    #[test]
    fn pieces_that_touch_are_one() {
        let mut frames = Frames::new();
        for (pa, bytes) in [(0x1000, 0x1000), (0x2000, 0x2000), (0x8000, 0x1000)] {
            frames.push(promised(PhysAddr::new(pa), bytes)).unwrap();
        }
        assert_eq!(frames.pieces().len(), 2);
        assert_eq!(frames.bytes(), 0x4000);
        frames.truncate(0x3000);
        assert_eq!((frames.pieces().len(), frames.bytes()), (1, 0x3000));
        frames.truncate(0x1000);
        assert_eq!(frames.pieces()[0].len_minus_one(), 0xfff);
    }

    #[test]
    fn pieces_begin_and_end_at_granules() {
        for (start, bytes, whole) in [
            (0x1000, 0x1000, true),
            (0x1800, 0x1000, false),
            (0x1800, 0x800, false),
            (0x1000, 0x800, false),
            (0x1400, 0x800, false),
        ] {
            let pa = PhysAddr::new(start);
            let mut frames = Frames::new();
            frames.push(promised(PhysAddr::new(0x10_0000), 0x2000)).unwrap();
            frames.push(promised(pa, bytes)).unwrap();
            let found = frames.whole(PageSize::SIZE_4K).map(<[_]>::len);
            let uneven = Err(TableMapError::UnalignedMemory { pa, bytes });
            assert_eq!(found, if whole { Ok(2) } else { uneven });
        }
    }

    #[test]
    fn room_for_pieces_is_bounded() {
        let mut frames = Frames::new();
        let fits =
            (0..100).take_while(|i| frames.push(promised(PhysAddr::new(i << 20), 0x1000)).is_ok());
        assert_eq!(fits.count(), PIECES);
        assert_eq!(frames.bytes(), 0x1000 * PIECES as u64);
    }
}
