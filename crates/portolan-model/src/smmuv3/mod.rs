//! An SMMUv3 behind its registers.
//!
//! Arm System Memory Management Unit Architecture Specification, SMMU architecture version 3 (IHI
//! 0070), issue F: sections 3.5 (queues), 4 (commands), 5 (structures), 6 (registers) and 7
//! (events), of the non-secure programming interface. Written from the architecture, with no code
//! of the driver's.
//!
//! Modelled: linear and two-level stream tables and context-descriptor tables; stage 1, stage 2 and
//! both; substreams; caches of stream table entries and context descriptors that keep what they
//! hold until told, malformed and absent ones included; translation and walk caches tagged by ASID
//! and VMID, global entries apart; range and level fields of TLB invalidations as hints that are
//! taken at their word; conflicts between a cached block and the pages that replaced it in a table;
//! event queue with overflow; queue errors; stalls of both stages, retried or ended by command; page
//! requests with overflow, and their responses; devices that keep translations (ATS).
//!
//! Not modelled: secure and realm interfaces, EL2 and EL3 streams, the end of all stalls of a stream
//! (its command is accepted and counted), split-stage ATS, interrupts other than the message of a
//! sync, hardware update of access and dirty flags, the upper half of addresses (TTB1), ECMDQ.

mod commands;
mod entries;
mod events;
mod queue;
mod registers;
mod requests;
mod setup;
#[cfg(test)]
mod tests;
mod translate;

pub use commands::CommandKind;
pub use setup::{EventRecord, SmmuCounts, SmmuIdentification, SmmuSetup};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iopf::StallTag;

use crate::adversary::{Visit, Visits, Way};
use crate::asking::{Asking, DeviceTlbs, Transfer};
use crate::clock::{Tick, VirtualClock};
use crate::decode::AccessKind;
use crate::inject::{DmaFault, Piece, RegisterFaults, Violation, pieces};
use crate::memory::ModelMemory;
use crate::stage::Stage;
use commands::Invalidate;
use entries::{ContextDescriptor, StreamTableEntry};
use registers::Registers;

/// An SMMUv3 over the memory of a machine.
#[derive(Debug)]
pub struct SmmuRegisters {
    memory: Arc<ModelMemory>,
    setup: SmmuSetup,
    state: Mutex<State>,
}

/// What is cached of a structure: its contents, or the event that reading it ends in.
type Cached<T> = Result<T, events::Refusal>;

#[derive(Debug)]
struct State {
    registers: Registers,
    faults: RegisterFaults,
    accesses: u64,
    /// Commands taken from the queue.
    consumed: u64,
    /// Commands since the last sync.
    unsynced: u64,
    /// Virtual nanoseconds from which on the queue is looked at.
    ready_at: u64,
    /// Invalidations that take effect at the next sync.
    pending: Vec<Invalidate>,
    /// Where devices got to.
    visits: Visits,
    entries: BTreeMap<u32, Cached<StreamTableEntry>>,
    /// First-level descriptors of the stream table.
    spans: BTreeMap<u64, u64>,
    descriptors: BTreeMap<(u32, u32), Cached<ContextDescriptor>>,
    stage1: Stage,
    /// First-stage leaves that are global.
    globals: Stage,
    stage2: Stage,
    counts: SmmuCounts,
    events: Vec<EventRecord>,
    /// Accesses that wait, by tag.
    stalled: BTreeMap<u16, requests::Waiting>,
    /// Stalls that ended, and how they went on.
    finished: Vec<(StallTag, Transfer)>,
    asking: Asking,
    remote: DeviceTlbs,
    violations: Vec<Violation>,
    /// Whether all configuration and all translations have been invalidated since the start.
    cleaned: (Invalidated, Invalidated),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Invalidated {
    NotYet,
    Done,
}

impl SmmuRegisters {
    /// An SMMU after reset.
    pub fn new(setup: SmmuSetup, memory: Arc<ModelMemory>) -> Self {
        let state = State {
            registers: Registers::reset(&setup.identification),
            faults: RegisterFaults::default(),
            accesses: 0,
            consumed: 0,
            unsynced: 0,
            ready_at: 0,
            pending: Vec::new(),
            visits: Visits::default(),
            entries: BTreeMap::new(),
            spans: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            stage1: Stage::new(&setup.temper),
            globals: Stage::new(&setup.temper),
            stage2: Stage::new(&setup.temper),
            counts: SmmuCounts::default(),
            events: Vec::new(),
            stalled: BTreeMap::new(),
            finished: Vec::new(),
            asking: Asking::default(),
            remote: DeviceTlbs::default(),
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

    /// The clock by which its queue is slow.
    pub fn clock(&self) -> &Arc<VirtualClock> {
        &self.setup.clock
    }

    /// Sets what is to go wrong from now on.
    pub fn inject(&self, faults: RegisterFaults) {
        self.lock().faults = faults;
    }

    /// What happened so far.
    pub fn counts(&self) -> SmmuCounts {
        let state = self.lock();
        let mut counts = state.counts.clone();
        counts.walk_steps = state.stage1.walk_steps + state.stage2.walk_steps;
        counts.stray_responses = state.asking.strays();
        counts
    }

    /// Every event so far, recorded or lost, oldest first.
    pub fn events(&self) -> Vec<EventRecord> {
        self.lock().events.clone()
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
        state.stage1.len() + state.stage2.len() + state.globals.len() + state.remote.len()
    }

    /// Lets a device access `bytes` bytes at `iova`: where each piece of it goes. An access that
    /// stalls is left waiting, and told as a fault without a code.
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
        match self.transfer(stream, pasid, iova, access, bytes) {
            Transfer::Done(pieces) => Ok(pieces),
            Transfer::Refused(fault) => Err(fault),
            Transfer::Stalled(_) => Err(DmaFault {
                stream,
                pasid,
                iova,
                access,
                code: 0,
            }),
        }
    }

    /// Where each piece of a transfer goes; else which does not, and why.
    fn go_through(
        &self,
        state: &mut State,
        stream: StreamId,
        pasid: Option<Pasid>,
        iova: Iova,
        access: AccessKind,
        bytes: u64,
    ) -> Result<Vec<Piece>, (Iova, events::Refusal)> {
        let mut done = Vec::new();
        for (iova, bytes) in pieces(iova, bytes) {
            let found = self.translate(state, stream, pasid, iova, access);
            let pa = found.map_err(|refusal| (iova, refusal))?;
            state.counts.accesses += 1;
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

impl Tick for SmmuRegisters {
    fn tick(&self) {
        self.go_on(&mut self.lock());
    }
}
