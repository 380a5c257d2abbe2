//! A VT-d unit behind its registers.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1: chapters 3 (structures),
//! 6 (caching and invalidation), 7 (faults), 9 (entries) and 11 (registers). Written from the
//! specification, with no code of the driver's.
//!
//! Modelled: legacy and scalable mode; second stage, first stage, nested and pass-through;
//! context cache and PASID cache that keep what they hold until told; translation and walk caches
//! tagged by domain and PASID; caching mode, in which absence is cached as well, except that of a
//! first stage; register-based and queued invalidation, descriptors of 128 and 256 bits; the write
//! buffer; primary fault recording with overflow; queue errors; in scalable mode page requests with
//! overflow, and their responses, and devices that keep translations.
//!
//! What the unit sees of memory is the memory's affair ([`crate::memory`]); the bits that tell a
//! driver of it (`ECAP.C`, `CAP.RWBF`) are the identification's. The queue and the page walks of a
//! PASID entry that asks for it snoop always.
//!
//! Not modelled: interrupts and their remapping (its invalidations are accepted and counted),
//! device TLBs in legacy mode (likewise), advanced fault logging, protected memory regions,
//! accessed and dirty bits, execute and privileged requests.

mod descriptors;
mod entries;
mod faults;
mod queue;
mod registers;
mod requests;
mod setup;
#[cfg(test)]
mod tests;
mod translate;

pub use descriptors::DescriptorKind;
pub use setup::{VtdCounts, VtdFault, VtdIdentification, VtdSetup};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{InvalTag, Iova, Pasid, StreamId};

use crate::adversary::{Visit, Visits, Way};
use crate::asking::{Asking, DeviceTlbs};
use crate::clock::{Tick, VirtualClock};
use crate::decode::AccessKind;
use crate::inject::{DmaFault, Piece, RegisterFaults, Violation, pieces};
use crate::memory::ModelMemory;
use crate::stage::Stage;
use descriptors::Invalidate;
use entries::{ContextEntry, PasidEntry};
use faults::Refusal;
use registers::Registers;

/// A VT-d unit over the memory of a machine.
#[derive(Debug)]
pub struct VtdRegisters {
    memory: Arc<ModelMemory>,
    setup: VtdSetup,
    state: Mutex<State>,
}

/// A cached entry, or the refusal that reading it ended in, and the domain that tags it.
#[derive(Clone, Copy, Debug)]
struct Cached<T> {
    entry: Result<T, Refusal>,
    /// Nothing where an entry names no domain.
    domain: Option<u16>,
}

#[derive(Debug)]
struct State {
    registers: Registers,
    faults: RegisterFaults,
    accesses: u64,
    /// Descriptors taken from the queue and invalidations through registers.
    consumed: u64,
    /// Virtual nanoseconds from which on requests are looked at.
    ready_at: u64,
    /// Invalidations that take effect at the next wait.
    pending: Vec<Invalidate>,
    /// Invalidations to come from the queue that were carried out early.
    early: usize,
    /// Where devices got to.
    visits: Visits,
    /// Tail up to which waits come to nothing after a time-out.
    aborted_to: Option<u64>,
    contexts: BTreeMap<u16, Cached<ContextEntry>>,
    pasids: BTreeMap<(u16, u32), Cached<PasidEntry>>,
    /// First-stage tags, in the order of their first use.
    tags: Vec<(u16, u32)>,
    first: Stage,
    second: Stage,
    asking: Asking,
    remote: DeviceTlbs,
    counts: VtdCounts,
    records: Vec<VtdFault>,
    violations: Vec<Violation>,
    /// Whether the contexts and all translations have been invalidated since the root was set.
    cleaned: (Invalidated, Invalidated),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Invalidated {
    NotYet,
    Done,
}

impl VtdRegisters {
    /// A unit after reset.
    pub fn new(setup: VtdSetup, memory: Arc<ModelMemory>) -> Self {
        let state = State {
            registers: Registers::reset(&setup.identification),
            faults: RegisterFaults::default(),
            accesses: 0,
            consumed: 0,
            ready_at: 0,
            pending: Vec::new(),
            early: 0,
            visits: Visits::default(),
            aborted_to: None,
            contexts: BTreeMap::new(),
            pasids: BTreeMap::new(),
            tags: Vec::new(),
            first: Stage::new(&setup.temper),
            second: Stage::new(&setup.temper),
            asking: Asking::default(),
            remote: DeviceTlbs::default(),
            counts: VtdCounts::default(),
            records: Vec::new(),
            violations: Vec::new(),
            cleaned: (Invalidated::NotYet, Invalidated::NotYet),
        };
        let state = Mutex::new(state);
        Self {
            memory,
            setup,
            state,
        }
    }

    /// The memory that it reads.
    pub fn memory(&self) -> &Arc<ModelMemory> {
        &self.memory
    }

    /// The clock by which it is slow.
    pub fn clock(&self) -> &Arc<VirtualClock> {
        &self.setup.clock
    }

    /// Sets what is to go wrong from now on. The code of a refused command is the bits of the fault
    /// status register that it sets: `IQE` (bit 4), `ICE` (bit 5) or `ITE` (bit 6).
    pub fn inject(&self, faults: RegisterFaults) {
        self.lock().faults = faults;
    }

    /// What happened so far.
    pub fn counts(&self) -> VtdCounts {
        let state = self.lock();
        let mut counts = state.counts.clone();
        counts.walk_steps = state.first.walk_steps + state.second.walk_steps;
        counts.stray_responses = state.asking.strays();
        counts
    }

    /// Every fault so far, recorded or lost, oldest first.
    pub fn faults(&self) -> Vec<VtdFault> {
        self.lock().records.clone()
    }

    /// Commands taken from the queue so far, refused ones too: what [`RegisterFaults::refuse`] counts.
    pub fn consumed(&self) -> u64 {
        self.lock().consumed
    }

    /// What the driver did that it must not do.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Register accesses so far.
    pub fn accesses(&self) -> u64 {
        self.lock().accesses
    }

    /// Entries in all translation caches.
    pub fn cached_translations(&self) -> usize {
        let state = self.lock();
        state.first.len() + state.second.len() + state.remote.len()
    }

    /// Lets the device with source identifier `stream` (its low 16 bits) access `bytes` bytes at
    /// `iova`: where each piece of it goes.
    ///
    /// # Errors
    /// The first [`DmaFault`]; nothing of the transfer counts as done.
    pub fn dma(
        &self,
        stream: StreamId,
        pasid: Option<Pasid>,
        iova: Iova,
        access: AccessKind,
        bytes: u64,
    ) -> Result<Vec<Piece>, DmaFault> {
        let mut state = self.lock();
        self.go_on(&mut state);
        let mut done = Vec::new();
        for (iova, bytes) in pieces(iova, bytes) {
            let pa = self.access(&mut state, stream, pasid, iova, access)?;
            state.visits.note(Visit {
                stream,
                pasid,
                iova,
                access,
                way: Way::Untranslated,
            });
            done.push(Piece { iova, pa, bytes });
        }
        Ok(done)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The tag of a first stage's translations.
    fn first_tag(&mut self, domain: u16, pasid: u32) -> InvalTag {
        let wanted = (domain, pasid);
        let known = self.tags.iter().position(|tag| *tag == wanted);
        let index = known.unwrap_or_else(|| {
            self.tags.push(wanted);
            self.tags.len() - 1
        });
        InvalTag::new(index as u32)
    }
}

impl Tick for VtdRegisters {
    fn tick(&self) {
        self.go_on(&mut self.lock());
    }
}
