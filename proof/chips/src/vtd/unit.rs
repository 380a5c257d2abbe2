//! Own state of a VT-d unit.

use std::sync::atomic::AtomicU64;

use std::collections::BTreeMap;

use portolan::addr::{InvalTag, PhysAddr, StreamId};

use super::descriptors::VtdInvalidation;
use super::entries::{ContextEntry, Lets, PasidEntry};
use super::faults::VtdRefusal;
use super::interrupts::CachedEntry;
use super::registers::Registers;
use super::{State, VtdCounts, VtdFault, VtdRegisters, VtdSetup, forget, queue};
use crate::inject::DmaFault;
use crate::stage::Stage;
use crate::unit::{Design, Invalidated};
use portolan_sim::adversary::Rank;
use portolan_sim::request::Request;

/// VT-d.
#[derive(Debug)]
pub enum Vtd {}

/// A cached entry, or the refusal that reading it ended in, and the domain that tags it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cached<T> {
    pub entry: Result<T, VtdRefusal>,
    /// Domain; `None` if the entry names none.
    pub domain: Option<u16>,
}

/// Registers, queues and caches of the unit.
#[derive(Debug)]
pub struct VtdUnitState {
    pub(super) registers: Registers,
    /// Tail up to which waits are aborted after a time-out.
    pub(super) aborted_to: Option<u64>,
    pub(super) contexts: BTreeMap<u16, Cached<ContextEntry>>,
    pub(super) pasids: BTreeMap<(u16, u32), Cached<PasidEntry>>,
    /// First-stage tags, in the order of their first use.
    tags: Vec<(u16, u32)>,
    pub(super) first: Stage,
    pub(super) second: Stage,
    pub(super) interrupts: BTreeMap<u16, CachedEntry>,
    /// Invalidation of all of them since the table was set.
    pub(super) interrupts_cleaned: Invalidated,
    pub(super) records: Vec<VtdFault>,
}

impl VtdUnitState {
    /// The tag of a first stage's translations.
    pub(super) fn first_tag(&mut self, domain: u16, pasid: u32) -> InvalTag {
        let wanted = (domain, pasid);
        let known = self.tags.iter().position(|tag| *tag == wanted);
        let index = known.unwrap_or_else(|| {
            self.tags.push(wanted);
            self.tags.len() - 1
        });
        InvalTag::new(index as u32)
    }
}

impl Design for Vtd {
    type Word = AtomicU64;
    type Setup = VtdSetup;
    type Own = VtdUnitState;
    type Counts = VtdCounts;
    type Invalidate = VtdInvalidation;
    type Refusal = VtdRefusal;

    const WINDOW: usize = 0x1000;

    fn reset(setup: &VtdSetup) -> VtdUnitState {
        VtdUnitState {
            registers: Registers::reset(&setup.identification),
            aborted_to: None,
            contexts: BTreeMap::new(),
            pasids: BTreeMap::new(),
            tags: Vec::new(),
            first: Stage::new(&setup.temper),
            second: Stage::new(&setup.temper),
            interrupts: BTreeMap::new(),
            interrupts_cleaned: Invalidated::NotYet,
            records: Vec::new(),
        }
    }

    fn stages(own: &mut VtdUnitState) -> Vec<&mut Stage> {
        vec![&mut own.first, &mut own.second]
    }

    fn others(own: &VtdUnitState) -> usize {
        own.contexts.len() + own.pasids.len() + own.interrupts.len()
    }

    fn evict(own: &mut VtdUnitState) {
        own.contexts.clear();
        own.pasids.clear();
        own.interrupts.clear();
    }

    fn go_on(unit: &VtdRegisters, state: &mut State) {
        unit.fetch_all(state);
    }

    fn translate(
        unit: &VtdRegisters,
        state: &mut State,
        of: Request,
    ) -> Result<PhysAddr, VtdRefusal> {
        unit.translate(state, of)
    }

    fn refuse(
        unit: &VtdRegisters,
        state: &mut State,
        refusal: VtdRefusal,
        of: Request,
    ) -> DmaFault {
        unit.refuse(state, refusal, of)
    }

    fn rank(what: &VtdInvalidation) -> Rank {
        queue::rank(what)
    }

    /// Class by section 6.5.2.11: context cache, PASID cache, IOTLB, device TLBs.
    fn class(what: &VtdInvalidation) -> u8 {
        match queue::rank(what) {
            Rank::Streams => 0,
            Rank::Spaces => 1,
            Rank::Devices => 3,
            _ => 2,
        }
    }

    fn invalidate(state: &mut State, what: VtdInvalidation) {
        forget::invalidate(state, what);
    }

    /// Translated accesses, too, need an entry that lets the device translate (3.9).
    fn lets_translate(unit: &VtdRegisters, state: &mut State, stream: StreamId) -> bool {
        unit.remote_of(state, stream).translations == Lets::Yes
    }
}
