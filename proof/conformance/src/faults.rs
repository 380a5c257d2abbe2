//! Table memory whose n-th allocation fails.

use std::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::platform::{OutOfTableMemory, TableMem, Word};

/// Wraps table memory; the allocation that the countdown points at fails, once.
#[derive(Debug)]
pub struct FailingTables<M> {
    inner: M,
    /// Allocations until one fails; 0 once it has, or if none is to.
    countdown: AtomicU64,
}

/// Tells if the failure that was asked for has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fired {
    /// The machine has it.
    Yes,
    /// Fewer allocations were made.
    No,
}

impl<M> FailingTables<M> {
    /// Memory that does not fail until told.
    pub fn new(inner: M) -> Self {
        Self { inner, countdown: AtomicU64::new(0) }
    }

    /// Makes the `n`-th allocation from now on fail, counted from 1.
    pub fn fail_at(&self, n: u64) {
        self.countdown.store(n, Ordering::Relaxed);
    }

    /// Calls the failure off; returns if it has happened.
    pub fn disarm(&self) -> Fired {
        match self.countdown.swap(0, Ordering::Relaxed) {
            0 => Fired::Yes,
            _ => Fired::No,
        }
    }

    /// The memory inside.
    pub fn inner(&self) -> &M {
        &self.inner
    }
}

impl<W: Word, M: TableMem<W>> TableMem<W> for FailingTables<M> {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let left = self.countdown.load(Ordering::Relaxed);
        if left > 0 {
            self.countdown.store(left - 1, Ordering::Relaxed);
            if left == 1 {
                return Err(OutOfTableMemory { size });
            }
        }
        self.inner.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.inner.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[W] {
        self.inner.table(table, size)
    }

    fn clean(&self, bytes: PhysRange) {
        self.inner.clean(bytes);
    }

    fn clean_barrier(&self) {
        self.inner.clean_barrier();
    }

    fn invalidate(&self, bytes: PhysRange) {
        self.inner.invalidate(bytes);
    }
}
