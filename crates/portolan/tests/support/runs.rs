//! Runs of tests: each step that the library tells is checked against the protocol. Included by its path, in other
//! crates too.
#![allow(dead_code)] // Each test binary uses its part.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use portolan::addr::{CpuId, PageSize, PhysAddr, PhysRange, TableId};
use portolan::platform::{
    Clock, Cpus, LeftBehind, Nanos, OutOfTableMemory, ProtocolStep, TableMem, Word,
};
use portolan_protocol::run::Run;

/// The run of a machine, whose parts share it.
#[derive(Clone, Default)]
pub struct CheckedRun(Arc<Mutex<Run>>);

impl CheckedRun {
    /// Makes a step.
    ///
    /// # Panics
    /// If it is none of the protocol.
    pub fn tell(&self, of: TableId, step: ProtocolStep<'_>) {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner).step(of, step);
        if let Err(refusal) = told {
            // What is dropped while the test fails tells as well.
            assert!(std::thread::panicking(), "{refusal}");
        }
    }
}

thread_local! {
    static CURRENT: RefCell<CheckedRun> = RefCell::default();
}

/// Begins a run for all that [`current`] and [`tell`] mean by this thread, which is all threads of a model checker's.
pub fn begin() {
    CURRENT.set(CheckedRun::default());
}

/// The run that has begun.
pub fn current() -> CheckedRun {
    CURRENT.with_borrow(Clone::clone)
}

/// Makes a step of the run that has begun.
pub fn tell(of: TableId, step: ProtocolStep<'_>) {
    current().tell(of, step);
}

/// Ends the run, and prints the counts of all runs so far.
pub fn say(source: &str) {
    begin();
    portolan_protocol::run::say(source);
}

/// Table memory whose steps are of a run.
#[derive(Clone)]
pub struct CheckedMemory<M>(pub M, pub CheckedRun);

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

    fn protocol_step(&self, of: TableId, step: ProtocolStep<'_>) {
        self.1.tell(of, step);
    }
}

/// CPUs whose steps are of a run.
#[derive(Clone)]
pub struct CheckedCpus<C>(pub C, pub CheckedRun);

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

    fn protocol_step(&self, of: TableId, step: ProtocolStep<'_>) {
        self.1.tell(of, step);
    }
}
