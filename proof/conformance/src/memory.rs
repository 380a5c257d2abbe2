//! Table memory for tests: its writes are seen late or at once, its n-th allocation fails, it poisons freed pages, and
//! notices pages that are freed twice.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use portolan::addr::{PageSize, PhysAddr, PhysRange, TableId};
use portolan::inval::{Capabilities, Walker, WriteBuffer};
use portolan::platform::{OutOfTableMemory, ProtocolStep, SlabTables, TableMem, Word};
use portolan::table::Access;
use portolan::table::format::Format;
use portolan_protocol::run::CheckedRun;
use portolan_sim::decode::{TableReader, WalkMemory};
use portolan_sim::tables::{Lag, NonCoherentTables};

/// First physical address of table memory.
const TABLES_AT: PhysAddr = PhysAddr::new(0x1_4000_0000);
/// Address that poisoned entries lead to: nothing is ever mapped to it.
const POISON: PhysAddr = PhysAddr::new(0x2_aaaa_0000);

/// Memory of tables, with caches that are coherent or late.
#[derive(Debug)]
enum MemoryKind<W> {
    Coherent(SlabTables<W>),
    Late(NonCoherentTables<W>),
}

/// Table memory that fails when told, and checks what is given back.
#[derive(Debug)]
pub struct CheckedTables<F: Format> {
    kind: MemoryKind<F::Word>,
    live: Mutex<BTreeSet<PhysAddr>>,
    wrong_frees: AtomicU64,
    /// Allocations until one fails; 0 once it has, or if none is to.
    countdown: AtomicU64,
    poison: u64,
    run: Option<CheckedRun>,
}

impl<F: Format> CheckedTables<F> {
    /// Makes memory of `pages` pages whose writes become visible as late as `caps` allows.
    pub(crate) fn new(format: &F, caps: &Capabilities, pages: u32) -> Self {
        let late = |lag| MemoryKind::Late(NonCoherentTables::new(TABLES_AT, F::ROOT, pages, lag));
        let kind = match (caps.walker, caps.write_buffer) {
            (Walker::NonCoherent, _) => late(Lag::CacheLines),
            (_, WriteBuffer::MustFlush) => late(Lag::WriteBuffer),
            _ => MemoryKind::Coherent(SlabTables::new(TABLES_AT, F::ROOT, pages)),
        };
        let poison = format.template(Access::READ | Access::WRITE, 0);
        Self {
            kind,
            live: Mutex::default(),
            wrong_frees: AtomicU64::new(0),
            countdown: AtomicU64::new(0),
            poison: poison.map_or(0, |template| F::leaf(template, POISON)),
            run: Some(CheckedRun::default()),
        }
    }

    /// The same for threads, whose steps come in no order that all agree on: no run is checked.
    pub(crate) fn for_threads(mut self) -> Self {
        self.run = None;
        self
    }

    /// Makes the `n`-th allocation from now on fail (from 1; 0 for none).
    pub(crate) fn fail_at(&self, n: u64) {
        self.countdown.store(n, Ordering::Relaxed);
    }

    /// Calls the failure off; returns if it has happened.
    pub(crate) fn disarm(&self) -> bool {
        self.countdown.swap(0, Ordering::Relaxed) == 0
    }

    /// Pages handed out.
    pub(crate) fn live(&self) -> usize {
        self.pages().len()
    }

    /// Pages freed that were not handed out.
    pub(crate) fn wrong_frees(&self) -> u64 {
        self.wrong_frees.load(Ordering::Relaxed)
    }

    fn pages(&self) -> std::sync::MutexGuard<'_, BTreeSet<PhysAddr>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inner(&self) -> &dyn TableMem<F::Word> {
        match &self.kind {
            MemoryKind::Coherent(slab) => slab,
            MemoryKind::Late(late) => late,
        }
    }
}

impl<F: Format> TableMem<F::Word> for CheckedTables<F> {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let left = self.countdown.load(Ordering::Relaxed);
        if left > 0 {
            self.countdown.store(left - 1, Ordering::Relaxed);
            if left == 1 {
                return Err(OutOfTableMemory { size });
            }
        }
        let page = self.inner().alloc(size)?;
        self.pages().insert(page);
        Ok(page)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        if !self.pages().remove(&table) {
            self.wrong_frees.fetch_add(1, Ordering::Relaxed);
            return;
        }
        for word in self.inner().table(table, size) {
            word.store(self.poison);
        }
        self.inner().clean(PhysRange::page(table, size));
        self.inner().free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[F::Word] {
        match &self.kind {
            MemoryKind::Coherent(slab) => slab.table(table, size),
            MemoryKind::Late(late) => late.table(table, size),
        }
    }

    fn clean(&self, bytes: PhysRange) {
        self.inner().clean(bytes);
    }

    fn clean_barrier(&self) {
        self.inner().clean_barrier();
    }

    fn invalidate(&self, bytes: PhysRange) {
        self.inner().invalidate(bytes);
    }

    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        if let Some(run) = &self.run {
            run.tell(of, step);
        }
    }
}

impl<F: Format> WalkMemory for CheckedTables<F> {
    fn read_u64(&self, pa: PhysAddr) -> Option<u64> {
        match &self.kind {
            MemoryKind::Coherent(slab) => TableReader::new(slab, F::ROOT).read_u64(pa),
            MemoryKind::Late(late) => late.walker().read_u64(pa),
        }
    }

    fn read_u32(&self, pa: PhysAddr) -> Option<u32> {
        match &self.kind {
            MemoryKind::Coherent(slab) => TableReader::new(slab, F::ROOT).read_u32(pa),
            MemoryKind::Late(late) => late.walker().read_u32(pa),
        }
    }

    fn drain_write_buffer(&self) {
        if let MemoryKind::Late(late) = &self.kind {
            late.walker().drain_write_buffer();
        }
    }
}
