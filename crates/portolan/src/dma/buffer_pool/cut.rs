//! Cuts of a mapping into slots, each of which is one segment for the device.
//!
//! *Context.* Task.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::addr::{Iova, PageSize};
use crate::dma::error::BufferPoolError;
use crate::dma::mapping::{Mapping, MappingReach};
use crate::dma::policy::{Constraints, Trust};
use crate::dma::reach::{DeviceContext, ONE_BYTE, Stretch};
use crate::platform::Cpus;
use crate::platform::contract::{Buffer, Sharing, bytes_of};
use crate::platform::free_list::FreeList;

/// Place of a slot.
pub(super) struct SlotPlace {
    pub iova: Iova,
    pub stretch: Stretch,
}

/// Places of all slots of `bytes` bytes of `mapping`, and the list of them, all free.
pub(super) fn places<P: Cpus + Clone, B: Buffer>(
    mapping: &Mapping<P, B>,
    bytes: usize,
) -> Result<(Box<[SlotPlace]>, FreeList), BufferPoolError> {
    lendable(mapping.buffer())?;
    let length = bytes_of(mapping.buffer());
    let slot = bytes as u64;
    let count = length.checked_div(slot).filter(|count| *count != 0);
    let count = count.ok_or(BufferPoolError::Length { bytes, length })?;
    let count = u32::try_from(count).map_err(|_| BufferPoolError::Memory)?;
    let free = FreeList::try_new(count).ok_or(BufferPoolError::Memory)?;
    let mut places = Vec::new();
    places.try_reserve_exact(free.len()).map_err(|_| BufferPoolError::Memory)?;

    let MappingReach { context, mut reached, mut placing } = mapping.reach();
    let limits = SlotLimits::of(context, mapping.direction().device_writes());
    let mut begin = 0;
    while let Some(stretch) = reached.next_stretch() {
        let (first, after) = placing.place(stretch.reached);
        placing = after;
        let end = begin + stretch.bytes();
        while places.len() < free.len() {
            let at = places.len() as u64 * slot;
            if at >= end {
                break;
            }
            let inside = at - begin;
            let part = stretch.part(inside, inside + (slot - 1));
            let part = part.filter(|_| at + slot <= end);
            let stretch = part.ok_or(BufferPoolError::Cut { at })?;
            let iova = Iova::new(first.wrapping_add(inside));
            limits.check(iova, stretch, at)?;
            places.push(SlotPlace { iova, stretch });
        }
        begin = end;
    }
    Ok((places.into_boxed_slice(), free))
}

/// Checks that bytes of `buffer` can be lent.
fn lendable<B: Buffer>(buffer: &B) -> Result<(), BufferPoolError> {
    if buffer.sharing() != Sharing::Exclusive {
        return Err(BufferPoolError::Shared);
    }
    if !buffer.device_may_write() {
        return Err(BufferPoolError::ReadOnly);
    }
    match buffer.view() {
        Some(view) if view.len() as u64 == bytes_of(buffer) => Ok(()),
        _ => Err(BufferPoolError::NoView),
    }
}

/// Conditions for a slot.
struct SlotLimits<'c> {
    constraints: &'c Constraints,
    /// Unit that slots must not share.
    line: PageSize,
}

impl<'c> SlotLimits<'c> {
    fn of<P: Cpus + Clone>(context: &'c DeviceContext<P>, device_writes: bool) -> Self {
        let cache = context.cache.as_ref().filter(|_| device_writes);
        let line = cache.map_or(ONE_BYTE, |cache| cache.line());
        Self { constraints: &context.constraints, line }
    }

    fn check(&self, iova: Iova, stretch: Stretch, at: u64) -> Result<(), BufferPoolError> {
        if self.constraints.trust == Trust::Untrusted && !stretch.is_copied() {
            return Err(BufferPoolError::Untrusted);
        }
        let last = iova.get().wrapping_add(stretch.bytes() - 1);
        let crosses = self
            .constraints
            .seg_boundary
            .is_some_and(|boundary| (iova.get() ^ last) & !(boundary.bytes() - 1) != 0);
        if crosses || stretch.bytes() > self.constraints.max_segment.get() {
            return Err(BufferPoolError::Cut { at });
        }
        let line = self.line;
        if (stretch.reached.start().get() | stretch.bytes()) & (line.bytes() - 1) != 0 {
            return Err(BufferPoolError::SharedLine { at, line });
        }
        Ok(())
    }
}
