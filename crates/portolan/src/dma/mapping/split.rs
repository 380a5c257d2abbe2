//! Mappings that are cut in two, each half of which ends by itself.
//!
//! The halves keep their addresses, which were given out as one range: it goes back when the last part is no
//! device's any more. So the part that comes back from a mapping leads to the range ([`MappedPart`]).
//!
//! Not supported: buffers that are copied; mappings with free addresses between pieces.

use alloc::sync::{Arc, Weak};
use core::mem::ManuallyDrop;

use super::{Mapping, MappingParts, MappingPlace};
use crate::addr::{Iova, IovaRange, PageSize};
use crate::dma::error::{DivideError, Failed};
use crate::dma::layout::Layout;
use crate::dma::policy::DataDirection;
use crate::dma::space::DmaSpace;
use crate::platform::Cpus;
use crate::platform::contract::{Buffer, MappedPart, PartShare, SplitBuffer, bytes_of};

/// The addresses of all parts of a mapping.
struct SharedAddresses<P: Cpus + Clone> {
    space: Weak<DmaSpace<P>>,
    range: IovaRange,
}

impl<P: Cpus + Clone> Drop for SharedAddresses<P> {
    fn drop(&mut self) {
        // Each part has come back, and so is quiet; of one that was lost, a share is left for good.
        if let Some(space) = self.space.upgrade() {
            space.give_back_unused(self.range);
        }
    }
}

impl<P: Cpus + Clone, B: SplitBuffer, D: DataDirection> Mapping<P, B, D> {
    /// Makes it a mapping that can be cut.
    ///
    /// ```no_run
    /// # use portolan::dma::{Buffer, Device, Direction, SplitBuffer};
    /// # use portolan::platform::Platform;
    /// /// Two requests of a disk in one mapping, of which the first is done first.
    /// fn read<P: Platform, B: SplitBuffer>(disk: &Device<P>, memory: B) -> Option<[B; 2]> {
    ///     let both = disk.map(memory, Direction::FromDevice).ok()?.divisible().ok()?;
    ///     let (first, second) = both.split(4096).ok()?;
    ///     // ... the disk writes at first.iova() and at second.iova() ...
    ///     let first = first.unmap().ok()?.into_buffer();
    ///     let second = second.unmap().ok()?.into_buffer();
    ///     Some([first, second])
    /// }
    /// ```
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// With the mapping; see [`DivideError`].
    pub fn divisible(self) -> Result<DivisibleMapping<P, B, D>, Failed<Self, DivideError>> {
        let parts = self.into_parts();
        let space = parts.context.space.as_ref();
        let shared = |space: &Arc<DmaSpace<P>>| -> Option<PartShare> {
            let space = Arc::downgrade(space);
            Some(Arc::new(SharedAddresses { space, range: parts.range }))
        };
        let share = match (parts.place, space) {
            _ if parts.copies.is_some() => Err(DivideError::Copied),
            (MappingPlace::Space, Some(space)) => {
                match Layout::is_dense_for(&parts.context.constraints, space.granule()) {
                    true => Ok(shared(space)),
                    false => Err(DivideError::Apart),
                }
            }
            _ => Ok(None),
        };
        let share = match share {
            Ok(share) => share,
            Err(error) => return Err(Failed { error, value: Self::of(parts) }),
        };
        let place = match share {
            Some(_) => MappingPlace::Part,
            None => MappingPlace::Identity,
        };
        let MappingParts { context, range, copies, buffer, direction, .. } = parts;
        let buffer = ManuallyDrop::new(MappedPart::new(ManuallyDrop::into_inner(buffer), share));
        Ok(Mapping::of(MappingParts { context, place, range, copies, buffer, direction }))
    }
}

/// A mapping that can be cut.
pub type DivisibleMapping<P, B, D> = Mapping<P, MappedPart<B>, D>;

impl<P: Cpus + Clone, B: SplitBuffer, D: DataDirection> DivisibleMapping<P, B, D> {
    /// Cuts it before the byte at offset `at`: at the end of a piece, or where a page begins. Both keep their
    /// addresses.
    ///
    /// *Context.* Interrupt, as far as the buffer's own cut is.
    ///
    /// # Errors
    /// With the mapping, which is as it was: [`DivideError::NotThere`].
    pub fn split(self, at: u64) -> Result<(Self, Self), Failed<Self, DivideError>> {
        let parts = self.into_parts();
        let granule = parts.context.space.as_ref().map_or(PageSize::SIZE_4K, |s| s.granule());
        let Some(pages) = pages_before(&*parts.buffer, at, granule) else {
            return Err(Failed { error: DivideError::NotThere { at }, value: Self::of(parts) });
        };
        let MappingParts { context, place, range, copies, buffer, direction } = parts;
        // What is in no space has no range.
        let (low, high) = match place {
            MappingPlace::Part => cut(range, pages * granule.bytes()),
            _ => (range, range),
        };
        let (one, other) = ManuallyDrop::into_inner(buffer).split_at(at);
        let half = |buffer, range, context| {
            let (copies, buffer) = (None, ManuallyDrop::new(buffer));
            Mapping::of(MappingParts { context, place, range, copies, buffer, direction })
        };
        debug_assert!(copies.is_none());
        Ok((half(one, low, context.clone()), half(other, high, context)))
    }
}

/// Pages of `granule` bytes that the first `at` bytes of `buffer` have to themselves; `None` if a page that they
/// have goes on behind them, or all or none of its bytes are before `at`.
fn pages_before<B: Buffer>(buffer: &B, at: u64, granule: PageSize) -> Option<u64> {
    if at == 0 || at >= bytes_of(buffer) {
        return None;
    }
    let (mut before, mut pages) = (0u64, 0u64);
    for piece in buffer.pieces() {
        let inside = at - before;
        if inside == 0 {
            return Some(pages);
        }
        let length = piece.len_minus_one().saturating_add(1);
        if inside < length {
            let cut = piece.start().get().checked_add(inside)?;
            let first = piece.start().get() & !(granule.bytes() - 1);
            let aligned = cut & (granule.bytes() - 1) == 0;
            return aligned.then(|| pages + ((cut - first) >> granule.lg2()));
        }
        before += length;
        pages += piece.pages(granule);
    }
    None
}

/// The first `bytes` bytes of `range`, and the others.
fn cut(range: IovaRange, bytes: u64) -> (IovaRange, IovaRange) {
    let start = range.start().get();
    let low = IovaRange::from_len(range.start(), bytes);
    let high = IovaRange::new(Iova::new(start.saturating_add(bytes)), range.last());
    // Pages of both are in it.
    (low.unwrap_or(range), high.unwrap_or(range))
}
