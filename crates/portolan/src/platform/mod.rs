//! Traits of a machine, [`Platform`] above all, which an embedder implements, the parts that the
//! library takes it for, and two implementations of table memory.
//!
//! All traits are used through `&self`, so that two machines can live in one process.
//!
//! * [`Platform`]: the machine; it is all of the following but [`TableMem`], which [`RawMemory`] makes
//!   of it.
//! * [`TableMem`]: pages for page tables; [`StorePairs`]: stores of two of their words at once, which [`CpuPairs`] has.
//! * [`SlabTables`]: safe, of fixed capacity; its physical addresses are not host addresses.
//! * [`HostTables`]: the same at host addresses: a table's physical address is its host address.
//! * [`ForeignTables`]: tables of a process, which its kernel built and keeps.
//! * [`DmaMemory`], [`AllMemory`]: memory that devices may be given, by promise.
//! * [`PostedAddress`], [`InterruptFileAddress`], [`ApicPageAddress`]: memory to which interrupts are posted, by
//!   promise.
//! * [`PreservedMemory`]: memory that a former kernel left, by promise; [`TableClaims`]: its pages in use;
//!   [`FormerMemory`]: the tables of one that crashed, for reading, by promise.
//! * [`TrustedBase`]: an implementer's promise for parts that isolation rests on.
//! * [`Mmio`]: the registers of a device; [`MappedRegisters`]: those that a kernel has mapped, with barriers.
//! * [`PhysMemory`]: copies, for bounce pools, as a [`Transfer`] says.
//! * [`DataCache`]: maintenance for devices that do not snoop.
//! * [`UnitPlatform`]: the machine as the driver of an IOMMU needs it, made of a [`Platform`] or of
//!   parts ([`UnitParts`]).
//! * [`Cpus`]: CPUs, and the words and locks that they share; [`IrqLock`] for kernels.
//! * [`Tracer`]: receiver of reports of the library's operations.
//! * [`ProtocolStep`]: a step that a checker of runs takes.
//! * [`Clock`]: time; [`poll`] waits on hardware, and not for ever.

pub(crate) mod atomic;
mod cache;
mod clock;
pub(crate) mod contract;
mod copy;
mod cpus;
pub(crate) mod free_list;
mod host;
mod left;
mod lock;
mod mmio;
mod per_cpu;
mod slab;
mod step;
mod trace;
mod unit;
mod word;

pub use cache::DataCache;
pub use clock::{Clock, Nanos, poll};
pub use contract::{
    AliasedMemory, AllMemory, ApicPageAddress, ClaimError, CpuPairs, DmaMemory, ForeignTables,
    FormerMemory, InterruptFileAddress, MappedRegisters, Platform, PostedAddress, PreservedMemory,
    PromisedMappings, RawMemory, TableClaims, TrustedBase,
};
pub use copy::{Clearing, PhysMemory, Transfer};
pub(crate) use cpus::{CachePadded, count_of};
pub use cpus::{Cpus, SharedWord, SpinCpus};
pub use host::HostTables;
pub(crate) use left::Item;
pub use left::{Leavings, LeftBehind};
pub use lock::{Guarded, Held, Interrupts, IrqGuard, IrqLock, Lock};
pub use mmio::Mmio;
pub(crate) use per_cpu::{PerCpu, PerCpuError};
pub use slab::SlabTables;
/// A lock that spins, for where no interrupt handler calls the library.
pub use spin::Mutex as SpinLock;
pub use step::{DebtName, ProtocolStep, WalkCaches};
pub use trace::{TraceEvent, TraceKind, TraceLine, Tracer};
pub use unit::{UnitParts, UnitPlatform};
pub use word::{StorePairs, Word};

use crate::addr::{PageSize, PhysAddr, PhysRange, TableId};
use thiserror::Error;

/// No page of table memory is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("out of table memory: a table of {bytes} bytes was wanted", bytes = size.bytes())]
pub struct OutOfTableMemory {
    /// Size of the table that was wanted.
    pub size: PageSize,
}

/// Memory for page tables, reached by physical address.
///
/// *Implementer's duties.* A page handed out is aligned to its size, zeroed, and, if the walker
/// does not snoop, written back to memory. It stays readable until it is freed. `table` returns the
/// words of a live page; for an address that is not one it returns an empty slice, never memory of
/// another owner.
///
/// *Context.* Interrupt, where the library is called from interrupt handlers that map or reclaim:
/// then pages come from a reserve, and there may be none. Task otherwise.
///
/// *Caller's duties.* Pages are freed once, with the size they were allocated with, after no walker
/// and no CPU can reach them.
pub trait TableMem<W: Word>: Send + Sync {
    /// A zeroed page of `size`.
    ///
    /// # Errors
    /// [`OutOfTableMemory`] if there is none.
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory>;

    /// A page of `size` with any contents, which need not be in memory: for a caller that writes all of
    /// it before a walker can find it. By default a page from [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// [`OutOfTableMemory`] if there is none.
    fn alloc_unfilled(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.alloc(size)
    }

    /// A zeroed page of `size` of which no byte lies above `last`, for a unit whose registers or tables
    /// have no room for more. By default one from [`alloc`](Self::alloc) that happens to lie there.
    ///
    /// # Errors
    /// [`OutOfTableMemory`] if there is none.
    fn alloc_below(&self, size: PageSize, last: PhysAddr) -> Result<PhysAddr, OutOfTableMemory> {
        let table = self.alloc(size)?;
        if table.get().saturating_add(size.bytes() - 1) <= last.get() {
            return Ok(table);
        }
        self.free(table, size);
        Err(OutOfTableMemory { size })
    }

    /// Takes back a page of `size`.
    fn free(&self, table: PhysAddr, size: PageSize);

    /// The words of the page of `size` at `table`.
    fn table(&self, table: PhysAddr, size: PageSize) -> &[W];

    /// Writes the cache lines that hold `bytes` back to memory, without waiting. Nothing has to be done where
    /// every walker snoops.
    fn clean(&self, bytes: PhysRange);

    /// Waits until everything cleaned before is in memory.
    fn clean_barrier(&self);

    /// Drops the cache lines that hold `bytes`, so that the next read comes from memory: before a
    /// CPU reads records that a unit that does not snoop wrote to a queue. Nothing has to be done
    /// where such memory is not cached, or where every unit snoops.
    fn invalidate(&self, bytes: PhysRange);

    /// Stores of two words at once, if this memory and its CPUs have them: entries of two words change while hardware
    /// uses them then. By default there are none, and such an entry is closed for a moment, or is not to be had.
    fn pairs(&self) -> Option<&dyn StorePairs<W>> {
        None
    }

    /// Called at each step that the table `of` makes, for checkers of runs. By default nothing, which costs nothing.
    #[inline(always)]
    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        let _ = (of, step);
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<W: Word, M: TableMem<W> + ?Sized> TableMem<W> for $pointer {
            #[inline]
            fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
                (**self).alloc(size)
            }

            #[inline]
            fn alloc_unfilled(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
                (**self).alloc_unfilled(size)
            }

            fn alloc_below(
                &self,
                size: PageSize,
                last: PhysAddr,
            ) -> Result<PhysAddr, OutOfTableMemory> {
                (**self).alloc_below(size, last)
            }

            #[inline]
            fn free(&self, table: PhysAddr, size: PageSize) {
                (**self).free(table, size);
            }

            #[inline]
            fn table(&self, table: PhysAddr, size: PageSize) -> &[W] {
                (**self).table(table, size)
            }

            #[inline]
            fn clean(&self, bytes: PhysRange) {
                (**self).clean(bytes);
            }

            #[inline]
            fn clean_barrier(&self) {
                (**self).clean_barrier();
            }

            #[inline]
            fn invalidate(&self, bytes: PhysRange) {
                (**self).invalidate(bytes);
            }

            fn pairs(&self) -> Option<&dyn StorePairs<W>> {
                (**self).pairs()
            }

            #[inline(always)]
            fn protocol_step(&self, of: TableId, step: ProtocolStep) {
                (**self).protocol_step(of, step);
            }
        }
    )*};
}

forward!(&M, alloc::sync::Arc<M>);

#[cfg(test)]
pub(crate) mod promised;
#[cfg(test)]
pub(crate) mod tests;
