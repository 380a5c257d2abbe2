//! Own state of a Tegra SMMU.

use std::sync::atomic::AtomicU32;

use portolan::addr::PhysAddr;

use super::caches::{Cleaned, Flush, Group, Line, forget};
use super::registers::Registers;
use super::translate::TegraRefusal;
use super::{State, TegraCounts, TegraRegisters, TegraSetup};
use crate::inject::DmaFault;
use crate::stage::Stage;
use crate::unit::Design;
use portolan_sim::adversary::Rank;
use portolan_sim::cache::{Cache, Reach};
use portolan_sim::iommu::Temper;
use portolan_sim::profile::CacheGeometry;
use portolan_sim::request::Request;

/// The SMMU of a Tegra.
#[derive(Debug)]
pub enum TegraSmmu {}

/// Registers, queues and caches of the unit.
#[derive(Debug)]
pub struct TegraUnitState {
    pub(super) registers: Registers,
    /// Flushes that take effect when a register is read, each with the number of the line that was cached last when
    /// it was written: later lines stay.
    pub(super) pending: Vec<(Flush, u64)>,
    /// Number of the line that was cached last.
    pub(super) now: u64,
    pub(super) tlb: Cache<Group>,
    pub(super) ptc: Cache<Line>,
    /// Flushes of all of the TLB and of all of the PTC since reset.
    pub(super) cleaned: [Cleaned; 2],
}

fn cache<V: Copy>(geometry: Option<CacheGeometry>) -> Cache<V> {
    geometry.map_or_else(Cache::unbounded, Cache::of_size)
}

impl Design for TegraSmmu {
    type Word = AtomicU32;
    type Setup = TegraSetup;
    type Own = TegraUnitState;
    type Counts = TegraCounts;
    type Invalidate = Flush;
    type Refusal = TegraRefusal;

    const WINDOW: usize = 0x1000;

    fn reset(setup: &TegraSetup) -> TegraUnitState {
        let (tlb, ptc) = match &setup.temper {
            Temper::Adversarial => (None, None),
            Temper::Realistic(sizes) => (Some(sizes.iotlb), Some(sizes.walk)),
        };
        TegraUnitState {
            registers: Registers::default(),
            pending: Vec::new(),
            now: 0,
            tlb: cache(tlb),
            ptc: cache(ptc),
            cleaned: [Cleaned::NotYet; 2],
        }
    }

    /// No stages: the TLB holds groups of pages.
    fn stages(_: &mut TegraUnitState) -> Vec<&mut Stage> {
        Vec::new()
    }

    fn others(own: &TegraUnitState) -> usize {
        own.tlb.len() + own.ptc.len()
    }

    fn evict(own: &mut TegraUnitState) {
        own.tlb.drop_where(Reach::All, |_, _| true, |_, _| {});
        own.ptc.drop_where(Reach::All, |_, _| true, |_, _| {});
    }

    fn go_on(_: &TegraRegisters, _: &mut State) {}

    fn translate(
        unit: &TegraRegisters,
        state: &mut State,
        of: Request,
    ) -> Result<PhysAddr, TegraRefusal> {
        unit.way(state, of)
    }

    fn refuse(
        _: &TegraRegisters,
        state: &mut State,
        refusal: TegraRefusal,
        of: Request,
    ) -> DmaFault {
        super::translate::refuse(state, refusal, of)
    }

    fn rank(_: &Flush) -> Rank {
        Rank::Translations
    }

    fn invalidate(state: &mut State, what: Flush) {
        let now = state.own.now;
        forget(state, what, now);
    }
}
