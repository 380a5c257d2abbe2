//! Parts of a test's machine that hand the library's steps to a run.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use portolan::addr::{CpuId, PageSize, PhysAddr, PhysRange, TableId};
use portolan::platform::{
    Clock, Cpus, LeftBehind, Nanos, OutOfTableMemory, ProtocolStep, StorePairs, TableMem, Word,
};

use super::{Run, Tally};

/// The run of a machine, whose parts share it.
#[derive(Clone, Default)]
pub struct CheckedRun(Arc<Mutex<Run>>);

impl CheckedRun {
    /// A run that is one of many: see [`Run::of_many`].
    pub fn of_many() -> Self {
        Self(Arc::new(Mutex::new(Run::default().of_many())))
    }

    /// Numbers of steps so far.
    pub fn tally(&self) -> Tally {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).tally()
    }

    /// Makes a step.
    ///
    /// # Panics
    /// If it is none of the protocol.
    pub fn tell(&self, of: TableId, step: ProtocolStep) {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner).step(of, step);
        if let Err(refusal) = told {
            // What is dropped while a test fails tells as well.
            assert!(std::thread::panicking(), "{refusal}");
        }
    }
}

impl fmt::Debug for CheckedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CheckedRun").field(&self.tally()).finish()
    }
}

/// Table memory whose steps are of a run.
#[derive(Clone, Debug)]
pub struct CheckedMemory<M>(
    /// The memory.
    pub M,
    /// The run.
    pub CheckedRun,
);

impl<W: Word, M: TableMem<W>> TableMem<W> for CheckedMemory<M> {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.0.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.0.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[W] {
        self.0.table(table, size)
    }

    fn clean(&self, bytes: PhysRange) {
        self.0.clean(bytes);
    }

    fn clean_barrier(&self) {
        self.0.clean_barrier();
    }

    fn invalidate(&self, bytes: PhysRange) {
        self.0.invalidate(bytes);
    }

    fn pairs(&self) -> Option<&dyn StorePairs<W>> {
        self.0.pairs()
    }

    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        self.1.tell(of, step);
    }
}

/// CPUs whose steps are of a run.
#[derive(Clone, Debug)]
pub struct CheckedCpus<C>(
    /// The CPUs.
    pub C,
    /// The run.
    pub CheckedRun,
);

impl<C: Clock> Clock for CheckedCpus<C> {
    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn relax(&self) {
        self.0.relax();
    }
}

impl<C: Cpus> Cpus for CheckedCpus<C> {
    type Word = C::Word;
    type Lock<T: Send> = C::Lock<T>;

    fn count(&self) -> usize {
        self.0.count()
    }

    fn current(&self) -> CpuId {
        self.0.current()
    }

    fn flush_wanted(&self) {
        self.0.flush_wanted();
    }

    fn drop_later(&self, left: LeftBehind) {
        self.0.drop_later(left);
    }

    fn coarse_now(&self) -> Nanos {
        self.0.coarse_now()
    }

    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        self.1.tell(of, step);
    }
}
