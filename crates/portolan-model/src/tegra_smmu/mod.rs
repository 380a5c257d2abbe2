//! The SMMU of a Tegra's memory controller behind its registers.
//!
//! Tegra X1 Technical Reference Manual, chapters 17.5 (SMMU) and 18 (memory controller), and public headers on the
//! older chips. Written with no code of the driver's.
//!
//! Modelled: the flush registers of both caches; a translation buffer (TLB) whose lines hold the
//! four pages of 16 KiB, absent ones included, tagged by address space; a page-table cache (PTC)
//! that holds lines of table memory as they were read, from any table; address spaces with
//! their directories; clients that are translated or not, swgroup by swgroup; walks that do not
//! snoop; the one fault record.
//!
//! Not modelled: sections of 4 MiB beyond being decoded, security, interrupts, the GPU's choice by
//! an address bit, arbitration, bandwidth; more clients than a few for each chip.

mod registers;
mod setup;
#[cfg(test)]
mod tests;
mod translate;

pub use setup::{RegisterUse, TegraChip, TegraClient, TegraCounts, TegraSetup};

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{Iova, StreamId};

use crate::adversary::Visits;
use crate::cache::Cache;
use crate::clock::{Tick, VirtualClock};
use crate::decode::AccessKind;
use crate::inject::{DmaFault, Piece, RegisterFaults, Violation, pieces};
use crate::iommu::Temper;
use crate::memory::ModelMemory;
use crate::profile::CacheGeometry;
use crate::unit::Manner;
use registers::{Flush, Registers};
use translate::{Group, Line};

/// A Tegra SMMU over the memory of a machine.
#[derive(Debug)]
pub struct TegraRegisters {
    memory: Arc<ModelMemory<AtomicU32>>,
    setup: TegraSetup,
    manner: Manner,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    registers: Registers,
    faults: RegisterFaults,
    accesses: u64,
    /// Flushes that take effect when a register is read, each with the number of the line that was cached last when
    /// it was written: later lines stay.
    pending: Vec<(Flush, u64)>,
    /// Number of the line that was cached last.
    now: u64,
    tlb: Cache<Group>,
    ptc: Cache<Line>,
    counts: TegraCounts,
    violations: Vec<Violation>,
    /// Addresses that devices reached.
    visits: Visits,
    /// Flushes of all of the TLB and of all of the PTC since reset.
    cleaned: [Cleaned; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cleaned {
    NotYet,
    Done,
}

impl TegraRegisters {
    /// An SMMU after reset.
    pub fn new(setup: TegraSetup, memory: Arc<ModelMemory<AtomicU32>>) -> Self {
        fn cache<V: Copy>(geometry: Option<CacheGeometry>) -> Cache<V> {
            geometry.map_or_else(Cache::unbounded, Cache::of_size)
        }
        let (tlb, ptc) = match &setup.temper {
            Temper::Adversarial => (None, None),
            Temper::Realistic(sizes) => (Some(sizes.iotlb), Some(sizes.walk)),
        };
        let state = State {
            registers: Registers::default(),
            faults: RegisterFaults::default(),
            accesses: 0,
            pending: Vec::new(),
            now: 0,
            tlb: cache(tlb),
            ptc: cache(ptc),
            counts: TegraCounts::default(),
            violations: Vec::new(),
            visits: Visits::default(),
            cleaned: [Cleaned::NotYet; 2],
        };
        let state = Mutex::new(state);
        Self {
            memory,
            setup,
            manner: Manner::of_this_run(),
            state,
        }
    }

    /// The memory that it reads.
    pub fn memory(&self) -> &Arc<ModelMemory<AtomicU32>> {
        &self.memory
    }

    /// The clock on which callers wait for it.
    pub fn clock(&self) -> &Arc<VirtualClock> {
        &self.setup.clock
    }

    /// Sets the faults on demand from now on. It has no queue, so that nothing can stand still in one or be refused.
    pub fn inject(&self, faults: RegisterFaults) {
        self.lock().faults = faults;
    }

    /// Counts of events so far.
    pub fn counts(&self) -> TegraCounts {
        self.lock().counts.clone()
    }

    /// Violations by the driver.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Register accesses so far.
    pub fn accesses(&self) -> u64 {
        self.lock().accesses
    }

    /// Lines in the translation buffer and in the page-table cache.
    pub fn cached(&self) -> [usize; 2] {
        let state = self.lock();
        [state.tlb.len(), state.ptc.len()]
    }

    /// Lets a client access `bytes` bytes at `iova`: where each piece of it goes.
    ///
    /// # Errors
    /// The first [`DmaFault`]; nothing of the transfer counts as done.
    pub fn dma(
        &self,
        stream: StreamId,
        iova: Iova,
        access: AccessKind,
        bytes: u64,
    ) -> Result<Vec<Piece>, DmaFault> {
        let mut state = self.lock();
        let mut done = Vec::new();
        for (iova, bytes) in pieces(iova, bytes) {
            let pa = self.access(&mut state, stream, iova, access)?;
            done.push(Piece { iova, pa, bytes });
        }
        Ok(done)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tick for TegraRegisters {
    fn tick(&self) {}
}
