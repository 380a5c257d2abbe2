//! Table memory that remembers which lines were written back.
//!
//! The page-table cache keeps lines as it has read them. Lines are noted here as they are written
//! back, and the next flush, of any domain of the unit, covers them.

use alloc::sync::Arc;
use arrayvec::ArrayVec;
use core::sync::atomic::AtomicU32;
use portolan::addr::{PageSize, PhysAddr, PhysRange, TableId};
use portolan::platform::{Guarded, OutOfTableMemory, ProtocolStep, TableMem, UnitPlatform};

/// Runs of lines that are told apart before everything is flushed instead.
const RUNS: usize = 16;

/// Lines that the page-table cache may still hold as they were.
#[derive(Debug, Default)]
#[allow(clippy::large_enum_variant)] // There is one for each unit, and noting must not allocate.
pub(super) enum Stale {
    /// No line.
    #[default]
    Nothing,
    /// These.
    Lines(ArrayVec<PhysRange, RUNS>),
    /// More than can be told apart.
    Anything,
}

impl Stale {
    pub(super) fn note(&mut self, bytes: PhysRange) {
        match self {
            Self::Nothing => {
                let mut lines = ArrayVec::new();
                lines.push(bytes);
                *self = Self::Lines(lines);
            }
            Self::Lines(lines) => {
                if lines.last() != Some(&bytes) && lines.try_push(bytes).is_err() {
                    *self = Self::Anything;
                }
            }
            Self::Anything => {}
        }
    }

    /// The lines of `size`, run by run; `None` if they cannot be told apart.
    pub(super) fn runs(&self) -> Option<&[PhysRange]> {
        match self {
            Self::Nothing => Some(&[]),
            Self::Lines(lines) => Some(lines),
            Self::Anything => None,
        }
    }
}

/// Stale lines that units and their domains share.
pub(super) type Noted<P> = Arc<Guarded<P, Stale>>;

/// Table memory of a domain. Pages beyond the unit's memory addresses are refused.
///
/// *Context.* Interrupt, as the methods of the memory of `P`: nothing is added but a short section under a lock.
pub struct TegraTables<P: UnitPlatform<AtomicU32>> {
    mem: P::Memory,
    noted: Noted<P>,
    memory_lg2: u32,
}

crate::chassis::opaque!(TegraTables, AtomicU32);

impl<P: UnitPlatform<AtomicU32>> TegraTables<P> {
    pub(super) fn new(mem: P::Memory, noted: Noted<P>, memory_lg2: u32) -> Self {
        Self { mem, noted, memory_lg2 }
    }
}

impl<P: UnitPlatform<AtomicU32>> TableMem<AtomicU32> for TegraTables<P> {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        reachable(&self.mem, size, self.memory_lg2)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.mem.free(table, size);
    }

    #[inline]
    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU32] {
        self.mem.table(table, size)
    }

    /// Waits as well: another CPU may flush the noted lines at once, and the cache would read the
    /// line again before it has reached memory.
    fn clean(&self, bytes: PhysRange) {
        self.mem.clean(bytes);
        self.mem.clean_barrier();
        self.noted.lock().note(bytes);
    }

    /// Nothing: [`Self::clean`] has waited.
    fn clean_barrier(&self) {}

    fn invalidate(&self, bytes: PhysRange) {
        self.mem.invalidate(bytes);
    }

    #[inline(always)]
    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        self.mem.protocol_step(of, step);
    }
}

/// A page that a walker with addresses of `memory_lg2` bits reaches.
pub(super) fn reachable(
    mem: &impl TableMem<AtomicU32>,
    size: PageSize,
    memory_lg2: u32,
) -> Result<PhysAddr, OutOfTableMemory> {
    let table = mem.alloc(size)?;
    if table.get() >> memory_lg2 != 0 || !table.is_aligned(size) {
        mem.free(table, size);
        return Err(OutOfTableMemory { size });
    }
    Ok(table)
}
