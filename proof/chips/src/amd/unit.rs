//! Own state of an AMD-Vi unit.

use std::sync::atomic::AtomicU64;

use std::collections::{BTreeMap, VecDeque};

use portolan::addr::{PhysAddr, StreamId};

use super::commands::AmdInvalidation;
use super::entries::Entry;
use super::events::AmdRefusal;
use super::guest::Guests;
use super::registers::Registers;
use super::{AmdCounts, AmdEvent, AmdInterrupt, AmdRegisters, AmdSetup, State, counters, queue};
use crate::inject::DmaFault;
use crate::stage::Stage;
use crate::unit::Design;
use portolan_sim::adversary::Rank;
use portolan_sim::request::Request;

/// AMD-Vi.
#[derive(Debug)]
pub enum AmdVi {}

/// Registers, queues and caches of the unit.
#[derive(Debug)]
pub struct AmdUnitState {
    pub(super) registers: Registers,
    /// Device table entries, or the refusals that reading them ended in.
    pub(super) entries: BTreeMap<u16, Result<Entry, AmdRefusal>>,
    /// Words about interrupts in device table entries, and entries of interrupt tables.
    pub(super) interrupt_words: BTreeMap<u16, u64>,
    pub(super) interrupts: BTreeMap<(u16, u16), [u64; 2]>,
    /// Interrupts of the unit's own.
    pub(super) sent: Vec<Option<AmdInterrupt>>,
    pub(super) pages: Stage,
    pub(super) guests: Guests,
    pub(super) events: Vec<AmdEvent>,
    /// Records that are not written yet: their time, address and words.
    pub(super) late: VecDeque<(u64, PhysAddr, [u64; 2])>,
}

impl Design for AmdVi {
    type Word = AtomicU64;
    type Setup = AmdSetup;
    type Own = AmdUnitState;
    type Counts = AmdCounts;
    type Invalidate = AmdInvalidation;
    type Refusal = AmdRefusal;

    /// With that of the counters.
    const WINDOW: usize = 0x8_0000;

    fn reset(setup: &AmdSetup) -> AmdUnitState {
        AmdUnitState {
            registers: Registers::reset(&setup.identification),
            entries: BTreeMap::new(),
            interrupt_words: BTreeMap::new(),
            interrupts: BTreeMap::new(),
            sent: Vec::new(),
            pages: Stage::new(&setup.temper),
            guests: Guests::new(&setup.temper),
            events: Vec::new(),
            late: VecDeque::new(),
        }
    }

    fn stages(own: &mut AmdUnitState) -> Vec<&mut Stage> {
        vec![&mut own.pages, &mut own.guests.pages]
    }

    fn others(own: &AmdUnitState) -> usize {
        own.entries.len()
            + own.interrupt_words.len()
            + own.interrupts.len()
            + own.guests.roots.len()
    }

    fn evict(own: &mut AmdUnitState) {
        own.entries.clear();
        own.interrupt_words.clear();
        own.interrupts.clear();
        own.guests.roots.clear();
    }

    fn go_on(unit: &AmdRegisters, state: &mut State) {
        unit.fetch_all(state);
    }

    fn translate(
        unit: &AmdRegisters,
        state: &mut State,
        of: Request,
    ) -> Result<PhysAddr, AmdRefusal> {
        state.own.registers.counters.count(counters::ACCESS, Some(of));
        unit.translate(state, of)
    }

    fn refuse(
        unit: &AmdRegisters,
        state: &mut State,
        refusal: AmdRefusal,
        of: Request,
    ) -> DmaFault {
        unit.refuse(state, refusal, of)
    }

    fn rank(what: &AmdInvalidation) -> Rank {
        queue::rank(what)
    }

    fn invalidate(state: &mut State, what: AmdInvalidation) {
        queue::invalidate(state, what);
    }

    fn lets_translate(unit: &AmdRegisters, state: &mut State, stream: StreamId) -> bool {
        unit.gives_translations(state, stream)
    }
}
