//! The pieces that a device reaches, as one list.

use alloc::vec::Vec;

use arrayvec::ArrayVec;

use super::error::MapError;
use super::policy::MayBlock;
use crate::addr::PhysRange;

/// Pieces that are gathered on the stack: those of a contiguous buffer with its ends copied.
const FEW: usize = 4;

/// A list, as it is or gathered.
///
/// *Context.* Interrupt; [`List::gather`] takes heap memory where it may wait.
pub(super) enum List<'l> {
    There(&'l [PhysRange]),
    Few(ArrayVec<PhysRange, FEW>),
    Many(Vec<PhysRange>),
}

impl List<'_> {
    /// The list of `pieces`, which are `count`.
    #[cold]
    pub fn gather(
        pieces: impl Iterator<Item = PhysRange>,
        count: usize,
        may_block: MayBlock,
    ) -> Result<Self, MapError> {
        if count <= FEW {
            return Ok(Self::Few(pieces.collect()));
        }
        if may_block == MayBlock::No {
            return Err(MapError::WouldWait);
        }
        let mut list = Vec::new();
        let room = list.try_reserve_exact(count);
        room.map_err(|_| MapError::Records)?;
        list.extend(pieces);
        Ok(Self::Many(list))
    }

    #[inline]
    pub fn as_slice(&self) -> &[PhysRange] {
        match self {
            Self::There(list) => list,
            Self::Few(list) => list,
            Self::Many(list) => list,
        }
    }
}
