//! Own state of a RISC-V IOMMU.

use std::sync::atomic::AtomicU64;

use std::collections::BTreeMap;

use portolan::addr::{PhysAddr, StreamId};

use super::commands::RiscvInvalidation;
use super::contexts::{Context, TranslationControl};
use super::faults::RiscvRefusal;
use super::messages::{MessageEntry, RiscvDelivered, SentMessage};
use super::registers::Registers;
use super::{RiscvCounts, RiscvFault, RiscvRegisters, RiscvSetup, State, queue};
use crate::inject::DmaFault;
use crate::stage::Stage;
use crate::unit::Design;
use portolan_sim::adversary::Rank;
use portolan_sim::request::Request;

/// The RISC-V IOMMU.
#[derive(Debug)]
pub enum Riscv {}

/// Registers, queues and caches of the unit.
#[derive(Debug)]
pub struct RiscvUnitState {
    pub(super) registers: Registers,
    /// Contexts that count, or the refusals that reading them ended in.
    pub(super) contexts: BTreeMap<u32, Result<(Context, TranslationControl), RiscvRefusal>>,
    /// Pages of the directory, by their level and by the part of the number that is resolved above them.
    pub(super) pages: BTreeMap<(u32, u32), u64>,
    /// Process contexts that count, by device and address space.
    pub(super) processes: BTreeMap<(u32, u32), Result<Context, RiscvRefusal>>,
    /// Pages of process directories, by device, level and the part of the number that is resolved above them.
    pub(super) process_pages: BTreeMap<(u32, u32, u32), u64>,
    /// Entries of MSI page tables, by the second stage's tag and the page's number.
    pub(super) messages: BTreeMap<(u32, u64), MessageEntry>,
    /// Messages that have read the second word of their entry, and nothing else.
    pub(super) sent: Vec<SentMessage>,
    /// Ends of messages, oldest first.
    pub(super) delivered: Vec<Result<RiscvDelivered, DmaFault>>,
    pub(super) first: Stage,
    pub(super) second: Stage,
    pub(super) faults: Vec<RiscvFault>,
    /// True if a device that cannot answer was sent an invalidation.
    pub(super) has_unanswered: bool,
}

impl Design for Riscv {
    type Word = AtomicU64;
    type Setup = RiscvSetup;
    type Own = RiscvUnitState;
    type Counts = RiscvCounts;
    type Invalidate = RiscvInvalidation;
    type Refusal = RiscvRefusal;

    const WINDOW: usize = 0x1000;

    fn reset(setup: &RiscvSetup) -> RiscvUnitState {
        RiscvUnitState {
            registers: Registers::reset(&setup.identification),
            contexts: BTreeMap::new(),
            pages: BTreeMap::new(),
            processes: BTreeMap::new(),
            process_pages: BTreeMap::new(),
            messages: BTreeMap::new(),
            sent: Vec::new(),
            delivered: Vec::new(),
            first: Stage::new(&setup.temper),
            second: Stage::new(&setup.temper),
            faults: Vec::new(),
            has_unanswered: false,
        }
    }

    fn stages(own: &mut RiscvUnitState) -> Vec<&mut Stage> {
        vec![&mut own.first, &mut own.second]
    }

    fn others(own: &RiscvUnitState) -> usize {
        let processes = own.processes.len() + own.process_pages.len();
        own.contexts.len() + own.pages.len() + processes + own.messages.len()
    }

    fn evict(own: &mut RiscvUnitState) {
        own.contexts.clear();
        own.pages.clear();
        own.processes.clear();
        own.process_pages.clear();
        own.messages.clear();
    }

    fn go_on(unit: &RiscvRegisters, state: &mut State) {
        unit.fetch_all(state);
    }

    fn translate(
        unit: &RiscvRegisters,
        state: &mut State,
        of: Request,
    ) -> Result<PhysAddr, RiscvRefusal> {
        unit.translate(state, of)
    }

    fn refuse(
        unit: &RiscvRegisters,
        state: &mut State,
        refusal: RiscvRefusal,
        of: Request,
    ) -> DmaFault {
        unit.refuse(state, refusal, of)
    }

    fn lets_translate(unit: &RiscvRegisters, state: &mut State, stream: StreamId) -> bool {
        let remote = unit.remote_of(state, stream);
        remote.is_ok_and(TranslationControl::translates)
    }

    fn rank(what: &RiscvInvalidation) -> Rank {
        queue::rank(what)
    }

    fn invalidate(state: &mut State, what: RiscvInvalidation) {
        queue::invalidate(state, what);
    }
}
