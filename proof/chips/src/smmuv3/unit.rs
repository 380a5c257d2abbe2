//! Own state of an SMMUv3.

use std::sync::atomic::AtomicU64;

use std::collections::BTreeMap;

use portolan::addr::{PhysAddr, StreamId};
use portolan::iopf::StallTag;

use super::beside::BesideState;
use super::commands::SmmuV3Invalidation;
use super::entries::{ContextDescriptor, StreamTableEntry};
use super::events::{Cached, SmmuV3Refusal, TLB_CONFLICT};
use super::registers::Registers;
use super::requests::Waiting;
use super::{EventRecord, SmmuCounts, SmmuRegisters, SmmuSetup, State, queue};
use crate::asking::Transfer;
use crate::inject::DmaFault;
use crate::stage::Stage;
use crate::unit::Design;
use portolan_sim::adversary::Rank;
use portolan_sim::request::Request;

/// SMMUv3.
#[derive(Debug)]
pub enum SmmuV3 {}

/// Registers, queues and caches of the unit.
#[derive(Debug)]
pub struct SmmuV3UnitState {
    pub(super) registers: Registers,
    pub(super) beside: BesideState,
    /// Commands since the last sync.
    pub(super) unsynced: u64,
    pub(super) entries: BTreeMap<u32, Cached<StreamTableEntry>>,
    /// First-level descriptors of the stream table.
    pub(super) spans: BTreeMap<u64, u64>,
    pub(super) descriptors: BTreeMap<(u32, u32), Cached<ContextDescriptor>>,
    pub(super) stage1: Stage,
    /// First-stage leaves that are global.
    pub(super) globals: Stage,
    pub(super) stage2: Stage,
    pub(super) events: Vec<EventRecord>,
    /// Accesses that wait, by tag.
    pub(super) stalled: BTreeMap<u16, Waiting>,
    /// Stalls that ended, and the results of their accesses.
    pub(super) finished: Vec<(StallTag, Transfer)>,
}

impl Design for SmmuV3 {
    type Word = AtomicU64;
    type Setup = SmmuSetup;
    type Own = SmmuV3UnitState;
    type Counts = SmmuCounts;
    type Invalidate = SmmuV3Invalidation;
    type Refusal = SmmuV3Refusal;

    /// Two pages of 64 KiB, control pages of queues, and CMDQV's window.
    const WINDOW: usize = 0x20_0000;

    fn reset(setup: &SmmuSetup) -> SmmuV3UnitState {
        SmmuV3UnitState {
            registers: Registers::reset(&setup.identification),
            beside: BesideState::reset(setup),
            unsynced: 0,
            entries: BTreeMap::new(),
            spans: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            stage1: Stage::new(&setup.temper),
            globals: Stage::new(&setup.temper),
            stage2: Stage::new(&setup.temper),
            events: Vec::new(),
            stalled: BTreeMap::new(),
            finished: Vec::new(),
        }
    }

    fn stages(own: &mut SmmuV3UnitState) -> Vec<&mut Stage> {
        vec![&mut own.stage1, &mut own.globals, &mut own.stage2]
    }

    fn others(own: &SmmuV3UnitState) -> usize {
        own.entries.len() + own.spans.len() + own.descriptors.len()
    }

    fn evict(own: &mut SmmuV3UnitState) {
        own.entries.clear();
        own.spans.clear();
        own.descriptors.clear();
    }

    fn go_on(unit: &SmmuRegisters, state: &mut State) {
        unit.fetch_all(state);
    }

    fn translate(
        unit: &SmmuRegisters,
        state: &mut State,
        of: Request,
    ) -> Result<PhysAddr, SmmuV3Refusal> {
        unit.translate(state, of)
    }

    fn refuse(
        unit: &SmmuRegisters,
        state: &mut State,
        refusal: SmmuV3Refusal,
        of: Request,
    ) -> DmaFault {
        unit.refuse(state, refusal, of)
    }

    fn is_conflict(refusal: &SmmuV3Refusal) -> bool {
        refusal.code() == TLB_CONFLICT
    }

    fn rank(what: &SmmuV3Invalidation) -> Rank {
        queue::rank(what)
    }

    fn invalidate(state: &mut State, what: SmmuV3Invalidation) {
        queue::invalidate(state, what);
    }

    fn lets_translate(unit: &SmmuRegisters, state: &mut State, stream: StreamId) -> bool {
        unit.lets_translate(state, stream)
    }

    /// Translated accesses are taken on trust, or only while the stream may have translations (CR0.ATSCHK).
    fn checks_translated(own: &SmmuV3UnitState) -> bool {
        own.registers.checks_translated()
    }
}
