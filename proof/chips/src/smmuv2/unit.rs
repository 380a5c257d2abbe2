//! Own state of an SMMUv2.

use std::sync::atomic::AtomicU64;

use std::collections::BTreeMap;

use portolan::addr::PhysAddr;

use super::banks::BankRegisters;
use super::faults::{FaultRegisters, SmmuV2Refusal, context};
use super::maintenance::{self, Safe, SmmuV2Invalidation, Sync};
use super::space::Space;
use super::{SmmuV2Counts, SmmuV2Registers, SmmuV2Setup, State};
use crate::inject::{DmaFault, Piece};
use crate::stage::{OwnedEntry, Stage};
use crate::unit::Design;
use portolan_sim::adversary::Rank;
use portolan_sim::cache::Cache;
use portolan_sim::decode::Leaf;
use portolan_sim::request::Request;

/// SMMUv2.
#[derive(Debug)]
pub enum SmmuV2 {}

/// Matched target of a stream's accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Bypass,
    Bank(usize),
}

#[derive(Debug)]
pub(super) struct GlobalRegisters {
    pub cr0: u32,
    pub acr: u32,
    pub fault: FaultRegisters,
    pub smr: [u32; 128],
    pub s2cr: [u32; 128],
}

/// Registers, queues and caches of the unit.
#[derive(Debug)]
pub struct SmmuV2UnitState {
    pub(super) global: GlobalRegisters,
    pub(super) banks: Vec<BankRegisters>,
    pub(super) safe: Safe,
    pub(super) sync: Sync,
    /// Matches of streams, each with the address space of its translations.
    pub(super) matched: BTreeMap<u32, (Target, Option<Space>)>,
    pub(super) micro: BTreeMap<u32, Cache<OwnedEntry<Leaf>>>,
    pub(super) stage1: Stage,
    pub(super) globals: Stage,
    pub(super) stage2: Stage,
    pub(super) resumed: Vec<Result<Piece, DmaFault>>,
}

impl Design for SmmuV2 {
    type Word = AtomicU64;
    type Setup = SmmuV2Setup;
    type Own = SmmuV2UnitState;
    type Counts = SmmuV2Counts;
    type Invalidate = SmmuV2Invalidation;
    type Refusal = SmmuV2Refusal;

    /// The offsets depend on the identification.
    const WINDOW: usize = usize::MAX;

    fn reset(setup: &SmmuV2Setup) -> SmmuV2UnitState {
        let mut global = GlobalRegisters {
            cr0: 1,
            acr: 0,
            fault: FaultRegisters::default(),
            smr: [0; 128],
            s2cr: [0; 128],
        };
        for (slot, (id, mask)) in setup.inherited.iter().enumerate().take(128) {
            global.smr[slot] = 1 << 31 | u32::from(*mask) << 16 | u32::from(*id);
            global.s2cr[slot] = 1 << 16;
        }
        let banks = setup.identification.bank_count();
        SmmuV2UnitState {
            global,
            banks: (0..banks).map(|_| BankRegisters::default()).collect(),
            safe: match setup.safe_ns {
                0 => Safe::Off,
                _ => Safe::On,
            },
            sync: Sync::default(),
            matched: BTreeMap::new(),
            micro: BTreeMap::new(),
            stage1: Stage::new(&setup.temper),
            globals: Stage::new(&setup.temper),
            stage2: Stage::new(&setup.temper),
            resumed: Vec::new(),
        }
    }

    fn stages(own: &mut SmmuV2UnitState) -> Vec<&mut Stage> {
        vec![&mut own.stage1, &mut own.globals, &mut own.stage2]
    }

    fn others(own: &SmmuV2UnitState) -> usize {
        own.micro.values().map(Cache::len).sum::<usize>() + own.matched.len()
    }

    fn evict(own: &mut SmmuV2UnitState) {
        own.matched.clear();
        own.micro.clear();
    }

    fn go_on(unit: &SmmuV2Registers, state: &mut State) {
        unit.end_syncs(state);
    }

    fn translate(
        unit: &SmmuV2Registers,
        state: &mut State,
        of: Request,
    ) -> Result<PhysAddr, SmmuV2Refusal> {
        unit.translate(state, of)
    }

    fn refuse(
        _: &SmmuV2Registers,
        state: &mut State,
        refusal: SmmuV2Refusal,
        of: Request,
    ) -> DmaFault {
        super::faults::refuse(state, refusal, of)
    }

    fn is_conflict(refusal: &SmmuV2Refusal) -> bool {
        matches!(refusal, SmmuV2Refusal::Context { code, .. } if *code == context::CONFLICT)
    }

    fn rank(what: &SmmuV2Invalidation) -> Rank {
        what.rank()
    }

    fn invalidate(state: &mut State, what: SmmuV2Invalidation) {
        maintenance::apply(state, what);
    }
}
