//! Blocks of table memory that a unit is told of.

use core::sync::atomic::AtomicU64;

use portolan::addr::{PageSize, PhysAddr};
use portolan::iommu::IommuError;
use portolan::platform::{OutOfTableMemory, TableMem};

use super::entry::At;

/// A block of table memory.
///
/// *Context.* Interrupt, but for the two functions that say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) at: PhysAddr,
    pub(crate) size: PageSize,
}

impl Block {
    /// Zeroed memory of `2^lg2` bytes, aligned to its size, at least 4 KiB. *Context.* Task.
    pub(crate) fn new<M: TableMem<AtomicU64>>(mem: &M, lg2: u32) -> Result<Self, IommuError> {
        let size = PageSize::from_lg2(lg2.max(12)).ok_or(IommuError::Unsupported)?;
        let at = mem.alloc(size)?;
        // The address fields of all units' structures end at bit 51.
        if at.get() >> 52 != 0 || !at.is_aligned(size) {
            mem.free(at, size);
            return Err(OutOfTableMemory { size }.into());
        }
        Ok(Self { at, size })
    }

    /// Gives the memory back. The unit must have stopped using it. *Context.* Task.
    pub(crate) fn free<M: TableMem<AtomicU64>>(self, mem: &M) {
        mem.free(self.at, self.size);
    }

    /// The entry of `words` words from word `first` on.
    pub(crate) fn entry(self, first: usize, words: usize) -> At {
        let (table, size) = (self.at, self.size);
        At { table, size, first, words }
    }

    pub(crate) fn words<M: TableMem<AtomicU64>>(self, mem: &M) -> &[AtomicU64] {
        mem.table(self.at, self.size)
    }
}
