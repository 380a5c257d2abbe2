//! Own state of an SMMUv3.

use std::sync::atomic::AtomicU64;

use std::collections::BTreeMap;

use portolan::addr::{PhysAddr, StreamId};
use portolan::iopf::StallTag;

use super::commands::Invalidate;
use super::entries::{ContextDescriptor, StreamTableEntry};
use super::events::{Cached, Refusal, TLB_CONFLICT};
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

#[derive(Debug)]
pub struct Own {
    pub(super) registers: Registers,
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
    type Own = Own;
    type Counts = SmmuCounts;
    type Invalidate = Invalidate;
    type Refusal = Refusal;

    /// Two pages of 64 KiB.
    const WINDOW: usize = 0x2_0000;

    fn reset(setup: &SmmuSetup) -> Own {
        Own {
            registers: Registers::reset(&setup.identification),
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

    fn stages(own: &mut Own) -> Vec<&mut Stage> {
        vec![&mut own.stage1, &mut own.globals, &mut own.stage2]
    }

    fn others(own: &Own) -> usize {
        own.entries.len() + own.spans.len() + own.descriptors.len()
    }

    fn evict(own: &mut Own) {
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
    ) -> Result<PhysAddr, Refusal> {
        unit.translate(state, of)
    }

    fn refuse(unit: &SmmuRegisters, state: &mut State, refusal: Refusal, of: Request) -> DmaFault {
        unit.refuse(state, refusal, of)
    }

    fn is_conflict(refusal: &Refusal) -> bool {
        refusal.code() == TLB_CONFLICT
    }

    fn rank(what: &Invalidate) -> Rank {
        queue::rank(what)
    }

    fn invalidate(state: &mut State, what: Invalidate) {
        queue::invalidate(state, what);
    }

    fn lets_translate(unit: &SmmuRegisters, state: &mut State, stream: StreamId) -> bool {
        unit.lets_translate(state, stream)
    }

    /// Translated accesses are taken on trust, or only while the stream may have translations (CR0.ATSCHK).
    fn checks_translated(own: &Own) -> bool {
        own.registers.checks_translated()
    }
}
