//! An SMMUv2 of the MMU-500 class behind its registers.
//!
//! Arm System Memory Management Unit Architecture Specification, SMMU architecture version 2.0 (IHI
//! 0062, issue D.c), non-secure programming interface. Written from the architecture, with no code
//! of the driver's.
//!
//! Modelled: stream matching and indexing, with what a stream matched cached until the translations
//! of its context are invalidated; context banks with AArch64 tables of stage 1 or stage 2; a micro
//! TLB for each 1024 streams, the main TLB and walk caches, tagged by ASID and VMID, global entries
//! apart; invalidations that take effect at the synchronisation behind them (adversarial) or at
//! once (realistic); synchronisations that take their time, or for ever; global and context
//! faults, one record each; stalled accesses; firmware that bends writes.
//!
//! Not modelled: nested stages, AArch32 tables (both end in a fault of format), TTBR1, secure state,
//! hypervisor banks, address translation operations, interrupts.

mod banks;
mod faults;
mod maintenance;
mod registers;
mod setup;
#[cfg(test)]
mod tests;
mod translate;

pub use setup::{Firmware, SmmuV2Counts, SmmuV2Identification, SmmuV2Setup};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{Iova, StreamId};

use crate::adversary::{Visit, Visits, Way};
use crate::cache::Cache;
use crate::clock::{Tick, VirtualClock};
use crate::decode::{AccessKind, Leaf};
use crate::inject::{DmaFault, Piece, RegisterFaults, Violation, pieces};
use crate::memory::ModelMemory;
use crate::stage::{Held, Stage};
use banks::BankRegisters;
use maintenance::{Invalidate, Sync};

/// An SMMUv2 over the memory of a machine.
#[derive(Debug)]
pub struct SmmuV2Registers {
    memory: Arc<ModelMemory>,
    setup: SmmuV2Setup,
    state: Mutex<State>,
}

/// Whose translations: VMID and ASID, or the VMID alone of a stage 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Space {
    One { vmid: u16, asid: u16 },
    Two { vmid: u16 },
}

impl Space {
    fn vmid(self) -> u16 {
        match self {
            Self::One { vmid, .. } | Self::Two { vmid } => vmid,
        }
    }
}

/// Where a stream's accesses go, as it was matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Bypass,
    Bank(usize),
}

#[derive(Debug)]
struct GlobalRegisters {
    cr0: u32,
    acr: u32,
    gfar: u64,
    gfsr: u32,
    gfsynr0: u32,
    gfsynr1: u32,
    smr: [u32; 128],
    s2cr: [u32; 128],
}

#[derive(Debug)]
struct State {
    global: GlobalRegisters,
    banks: Vec<BankRegisters>,
    faults: RegisterFaults,
    register_accesses: u64,
    safe: Safe,
    /// Invalidations of global registers that no synchronisation has covered.
    pending: Vec<Invalidate>,
    sync: Sync,
    /// Where devices got to.
    visits: Visits,
    /// What streams matched, and whose translations that made.
    matched: BTreeMap<u32, (Target, Option<Space>)>,
    micro: BTreeMap<u32, Cache<Held<Leaf>>>,
    stage1: Stage,
    globals: Stage,
    stage2: Stage,
    counts: SmmuV2Counts,
    resumed: Vec<Result<Piece, DmaFault>>,
    violations: Vec<Violation>,
    cleaned: Cleaned,
}

/// Whether invalidations wait for real-time devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Safe {
    Off,
    On,
}

/// Whether everything was invalidated since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cleaned {
    NotYet,
    Done,
}

impl State {
    fn is_gone(&self) -> bool {
        let gone = self.faults.gone_from;
        gone.is_some_and(|from| self.register_accesses >= from)
    }
}

impl SmmuV2Registers {
    /// An SMMU after reset, and after what a boot loader did to it.
    pub fn new(setup: SmmuV2Setup, memory: Arc<ModelMemory>) -> Self {
        let mut global = GlobalRegisters {
            cr0: 1,
            acr: 0,
            gfar: 0,
            gfsr: 0,
            gfsynr0: 0,
            gfsynr1: 0,
            smr: [0; 128],
            s2cr: [0; 128],
        };
        for (slot, (id, mask)) in setup.inherited.iter().enumerate().take(128) {
            global.smr[slot] = 1 << 31 | u32::from(*mask) << 16 | u32::from(*id);
            global.s2cr[slot] = 1 << 16;
        }
        let banks = setup.identification.bank_count();
        let state = State {
            global,
            banks: (0..banks).map(|_| BankRegisters::default()).collect(),
            faults: RegisterFaults::default(),
            register_accesses: 0,
            safe: if setup.safe_ns == 0 {
                Safe::Off
            } else {
                Safe::On
            },
            pending: Vec::new(),
            sync: Sync::default(),
            visits: Visits::default(),
            matched: BTreeMap::new(),
            micro: BTreeMap::new(),
            stage1: Stage::new(&setup.temper),
            globals: Stage::new(&setup.temper),
            stage2: Stage::new(&setup.temper),
            counts: SmmuV2Counts::default(),
            resumed: Vec::new(),
            violations: Vec::new(),
            cleaned: Cleaned::NotYet,
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

    /// Sets what is to go wrong from now on. With [`crate::inject::Drain::Never`] no
    /// synchronisation comes to its end; control registers have no acknowledgement that could fail,
    /// and no command can be refused.
    pub fn inject(&self, faults: RegisterFaults) {
        self.lock().faults = faults;
    }

    /// The call of the machine's firmware after which invalidations do not wait for real-time
    /// devices any more.
    pub fn turn_off_wait_for_safe(&self) {
        self.lock().safe = Safe::Off;
    }

    /// What happened so far.
    pub fn counts(&self) -> SmmuV2Counts {
        let state = self.lock();
        let mut counts = state.counts.clone();
        counts.walk_steps = state.stage1.walk_steps + state.stage2.walk_steps;
        counts
    }

    /// What the driver did that it must not do.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Register accesses so far.
    pub fn accesses(&self) -> u64 {
        self.lock().register_accesses
    }

    /// Entries in the main TLB and the walk caches.
    pub fn cached_translations(&self) -> usize {
        let state = self.lock();
        state.stage1.len() + state.stage2.len() + state.globals.len()
    }

    /// What became of stalled accesses that were answered since the last call.
    pub fn take_resumed(&self) -> Vec<Result<Piece, DmaFault>> {
        std::mem::take(&mut self.lock().resumed)
    }

    /// Lets a device access `bytes` bytes at `iova`: where each piece of it goes. An access that
    /// stalls is refused with [`SmmuV2Registers::STALLED`], and goes on when it is answered.
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
        self.go_on(&mut state);
        if state.is_gone() {
            // What streams match is in registers: they are gone as well.
            return Err(Self::told(stream, iova, access, 0));
        }
        let mut done = Vec::new();
        for (iova, bytes) in pieces(iova, bytes) {
            let pa = self.access(&mut state, stream, iova, access)?;
            state.visits.note(Visit {
                stream,
                pasid: None,
                iova,
                access,
                way: Way::Untranslated,
            });
            done.push(Piece { iova, pa, bytes });
        }
        Ok(done)
    }

    /// Code of an access that waits for an answer.
    pub const STALLED: u32 = 1 << 30;

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tick for SmmuV2Registers {
    fn tick(&self) {
        self.go_on(&mut self.lock());
    }
}
