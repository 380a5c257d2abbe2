//! Memory that the CPU and a device share as long as it lives.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;

use super::Constraints;
use super::error::MapError;
use super::quieting::Left;
use super::space::DmaSpace;
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use crate::platform::{Cpus, TableMem};
use crate::table::Access;

/// Memory for descriptor rings and the like, mapped for reading and writing.
///
/// The memory comes from `M`; for a device that does not snoop that has to be memory which the CPU
/// does not cache.
///
/// *Context.* Interrupt, but for [`CoherentMemory::new`].
///
/// *Drop.* Task. It is unmapped, waited for whatever the policy, and freed; if the hardware does not
/// complete, the memory is never freed and
/// [`DmaSpace::quarantine`](super::DmaSpace::quarantine) counts it.
pub struct CoherentMemory<P: Cpus + Clone, M: TableMem<AtomicU64>> {
    space: Arc<DmaSpace<P>>,
    memory: M,
    pa: PhysAddr,
    size: PageSize,
    range: Option<IovaRange>,
}

impl<P: Cpus + Clone, M: TableMem<AtomicU64>> CoherentMemory<P, M> {
    /// Zeroed memory of `size`, which is rounded up to whole pages of the space.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`MapError`]; without memory it is that of a table.
    pub fn new(
        space: Arc<DmaSpace<P>>,
        memory: M,
        size: PageSize,
        constraints: &Constraints,
    ) -> Result<Self, MapError> {
        let size = size.max(space.granule());
        let unmapped = |error| MapError::Domain(crate::table::MapError::Memory(error).into());
        let pa = memory.alloc(size).map_err(unmapped)?;
        let bytes = PhysRange::page(pa, size);
        let access = Access::READ | Access::WRITE;
        match space.place_one(bytes, access, constraints) {
            Ok((range, _)) => Ok(Self {
                space,
                memory,
                pa,
                size,
                range: Some(range),
            }),
            Err(failed) => {
                match failed.held {
                    // A device may have reached it.
                    Some(wait) => {
                        space.abandon(&wait);
                        space.count_dropped(size.bytes());
                    }
                    None => memory.free(pa, size),
                }
                Err(failed.error)
            }
        }
    }

    /// Where the device sees it.
    pub fn iova(&self) -> Iova {
        let range = self.range.as_ref();
        range.map_or(Iova::new(0), |range| range.start())
    }

    /// What the CPU sees of it: words that the device may change at any time.
    pub fn words(&self) -> &[AtomicU64] {
        self.memory.table(self.pa, self.size)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.size.bytes()
    }
}

impl<P: Cpus + Clone, M: TableMem<AtomicU64>> Drop for CoherentMemory<P, M> {
    fn drop(&mut self) {
        let Some(range) = self.range.take() else {
            return;
        };
        match self.space.take_down(range) {
            Ok(()) => self.memory.free(self.pa, self.size),
            Err((_, left)) => {
                if let Left::Held(wait) = left {
                    self.space.abandon(&wait);
                }
                self.space.count_dropped(self.size.bytes());
            }
        }
    }
}
