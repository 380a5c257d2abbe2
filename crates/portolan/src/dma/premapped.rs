//! A pool that a translated device reaches at all times.
//!
//! Copies that are mapped and unmapped one by one cost an invalidation each, like buffers in place.
//! A pool that stays mapped costs none: a buffer that is copied there takes slots, and is its owner's
//! again as soon as the device is done.
//!
//! The price: the device reaches all slots, free ones and those of its other buffers, for reading and
//! writing. So it has to be trusted to be done when its driver says so, and the pool should be its
//! own. Buffers themselves are as unreachable as before.

use alloc::sync::Arc;

use super::error::{MapError, PremapError};
use super::segments::Placing;
use super::space::DmaSpace;
use super::{Constraints, Trust};
use crate::addr::{Iova, IovaRange, PhysRange};
use crate::platform::Cpus;
use crate::platform::contract::{Unowned, hidden_from};
use crate::table::Access;

/// A pool's memory in a space, for as long as something is copied there.
///
/// *Context.* Interrupt, but for [`Premapped::new`], which takes heap memory and is for tasks.
pub(super) struct Premapped<P: Cpus + Clone> {
    space: Arc<DmaSpace<P>>,
    memory: PhysRange,
    first: Iova,
    /// There until it is dropped.
    range: Option<IovaRange>,
}

impl<P: Cpus + Clone> Premapped<P> {
    /// Maps the memory of a pool for reading and writing.
    pub fn new(
        space: Arc<DmaSpace<P>>,
        pool: &Unowned,
        constraints: &Constraints,
    ) -> Result<Arc<Self>, PremapError> {
        if constraints.trust == Trust::Untrusted {
            return Err(PremapError::Untrusted);
        }
        if let Some(piece) = hidden_from(constraints.reach, pool) {
            return Err(MapError::Private { piece }.into());
        }
        let (granule, memory) = (space.granule(), pool.memory());
        if constraints.align > granule {
            let align = constraints.align;
            return Err(PremapError::Alignment { align, granule });
        }
        let after = memory.last().get().wrapping_add(1);
        if (memory.start().get() | after) & (granule.bytes() - 1) != 0 {
            return Err(PremapError::Uneven { memory });
        }
        let (range, first) = space.place_kept(memory, Access::READ_WRITE, constraints)?;
        Ok(Arc::new(Self { space, memory, first, range: Some(range) }))
    }

    /// Placing of copies for the device.
    pub fn placing(&self) -> Placing {
        Placing::Moved(self.first.get().wrapping_sub(self.memory.start().get()))
    }
}

impl<P: Cpus + Clone> Drop for Premapped<P> {
    /// Interrupt. It unmaps the pool and waits for nothing: its memory is its owner's to keep until the
    /// space has been flushed.
    fn drop(&mut self) {
        let Some(range) = self.range.take() else {
            return;
        };
        let bytes = range.len_minus_one().saturating_add(1);
        match self.space.defer(range) {
            Ok(wait) => self.space.abandon(&wait),
            Err(_) => self.space.count_dropped(bytes),
        }
    }
}
