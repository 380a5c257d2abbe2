//! Own state of an AMD-Vi unit.

use std::sync::atomic::AtomicU64;

use std::collections::{BTreeMap, VecDeque};

use portolan::addr::{PhysAddr, StreamId};

use super::commands::Invalidate;
use super::entries::Entry;
use super::events::Refusal;
use super::registers::Registers;
use super::{AmdCounts, AmdEvent, AmdRegisters, AmdSetup, State, queue};
use crate::inject::DmaFault;
use crate::stage::Stage;
use crate::unit::Design;
use portolan_sim::adversary::Rank;
use portolan_sim::request::Request;

/// AMD-Vi.
#[derive(Debug)]
pub enum AmdVi {}

#[derive(Debug)]
pub struct Own {
    pub(super) registers: Registers,
    /// Device table entries, or the refusals that reading them ended in.
    pub(super) entries: BTreeMap<u16, Result<Entry, Refusal>>,
    /// Words on interrupts of those entries, and entries of interrupt tables.
    pub(super) interrupt_words: BTreeMap<u16, u64>,
    pub(super) interrupts: BTreeMap<(u16, u16), u32>,
    pub(super) pages: Stage,
    pub(super) events: Vec<AmdEvent>,
    /// Records that are still to be written: the nanosecond from which on they are due, the address, and the words.
    pub(super) late: VecDeque<(u64, PhysAddr, [u64; 2])>,
}

impl Design for AmdVi {
    type Word = AtomicU64;
    type Setup = AmdSetup;
    type Own = Own;
    type Counts = AmdCounts;
    type Invalidate = Invalidate;
    type Refusal = Refusal;

    const WINDOW: usize = 0x4000;

    fn reset(setup: &AmdSetup) -> Own {
        Own {
            registers: Registers::reset(&setup.identification),
            entries: BTreeMap::new(),
            interrupt_words: BTreeMap::new(),
            interrupts: BTreeMap::new(),
            pages: Stage::new(&setup.temper),
            events: Vec::new(),
            late: VecDeque::new(),
        }
    }

    fn stages(own: &mut Own) -> Vec<&mut Stage> {
        vec![&mut own.pages]
    }

    fn others(own: &Own) -> usize {
        own.entries.len() + own.interrupt_words.len() + own.interrupts.len()
    }

    fn evict(own: &mut Own) {
        own.entries.clear();
        own.interrupt_words.clear();
        own.interrupts.clear();
    }

    fn go_on(unit: &AmdRegisters, state: &mut State) {
        unit.fetch_all(state);
    }

    fn translate(unit: &AmdRegisters, state: &mut State, of: Request) -> Result<PhysAddr, Refusal> {
        unit.translate(state, of)
    }

    fn refuse(unit: &AmdRegisters, state: &mut State, refusal: Refusal, of: Request) -> DmaFault {
        unit.refuse(state, refusal, of)
    }

    fn rank(what: &Invalidate) -> Rank {
        queue::rank(what)
    }

    fn invalidate(state: &mut State, what: Invalidate) {
        queue::invalidate(state, what);
    }

    fn lets_translate(unit: &AmdRegisters, state: &mut State, stream: StreamId) -> bool {
        unit.gives_translations(state, stream)
    }
}
