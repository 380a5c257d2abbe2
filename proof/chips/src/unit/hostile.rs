//! A hostile machine: devices do DMA at every register access and at every command, and eight-byte writes arrive in
//! two halves, with DMA in between.
//!
//! Chips do both: AMD's turn the write of a register of 64 bits into two (LKML, November 2016, "kdump on AMD
//! IOMMU"), and no DMA waits for a driver. A driver's tests hold on an obliging machine and on a hostile one:
//! `PORTOLAN_MACHINE=hostile cargo test -p portolan-hw --lib`.

use std::sync::OnceLock;

use portolan::addr::{Iova, Pasid, PhysAddr, StreamId};

use super::{Conditions, Design, DesignState, Unit};
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

/// Behaviour of a machine towards its driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// Devices rest while registers are accessed, and wide registers change at once.
    #[default]
    Obliging,
    /// Devices go on, and wide registers change in halves.
    Hostile,
}

impl Manner {
    /// Default of all units: hostile if the environment has `PORTOLAN_MACHINE=hostile`.
    pub fn of_this_run() -> Self {
        static OF_THIS_RUN: OnceLock<Manner> = OnceLock::new();
        let told = || std::env::var("PORTOLAN_MACHINE").is_ok_and(|word| word == "hostile");
        *OF_THIS_RUN.get_or_init(|| if told() { Self::Hostile } else { Self::Obliging })
    }
}

/// Places that devices try again and again, and what they reached.
#[derive(Debug, Default)]
pub(super) struct Observed {
    places: Vec<Request>,
    /// Outcomes by place, without repetitions.
    outcomes: Vec<Vec<Option<PhysAddr>>>,
}

impl<D: Design> Unit<D> {
    /// Treats the driver so from now on.
    pub fn behave(&self, manner: Manner) {
        self.lock().manner = manner;
    }

    /// Lets a device access `iova` repeatedly from now on: at every access to a register, between the halves of a
    /// wide one, and before every command; each time with the caches as they are, and again with empty caches, as
    /// after an eviction. [`Unit::observed`] returns the results.
    pub fn observe(&self, stream: StreamId, pasid: Option<Pasid>, iova: Iova, access: AccessKind) {
        let observed = &mut self.lock().observed;
        observed.places.push(Request::new(stream, pasid, iova, access));
        observed.outcomes.push(Vec::new());
    }

    /// Addresses that each device which keeps trying reached since the last call, in the order of
    /// [`Unit::observe`]; an outcome that is the one before it is left out.
    pub fn observed(&self) -> Vec<Vec<Option<PhysAddr>>> {
        let mut state = self.lock();
        self.look(&mut state);
        let outcomes = state.observed.outcomes.iter_mut();
        outcomes.map(std::mem::take).collect()
    }

    /// Lets devices continue: the observed ones, and on a hostile machine all, with their earlier accesses.
    pub(crate) fn disturb(&self, state: &mut DesignState<D>) {
        if state.is_gone() {
            return;
        }
        self.look(state);
        if state.manner == Manner::Hostile {
            self.try_again(state);
        }
    }

    fn look(&self, state: &mut DesignState<D>) {
        if state.observed.places.is_empty() {
            return;
        }
        let (counts, steps) = (state.counts.clone(), state.steps());
        self.try_each(state);
        self.evict(state);
        self.try_each(state);
        state.restore(counts, &steps);
    }

    fn try_each(&self, state: &mut DesignState<D>) {
        for n in 0..state.observed.places.len() {
            let of = state.observed.places[n];
            let outcome = D::translate(self, state, of).ok();
            let outcomes = &mut state.observed.outcomes[n];
            if outcomes.last() != Some(&outcome) {
                outcomes.push(outcome);
            }
        }
    }

    /// Empties all caches of the unit's.
    fn evict(&self, state: &mut DesignState<D>) {
        let temper = self.setup.conditions().0;
        for stage in D::stages(&mut state.own) {
            stage.clear(temper);
        }
        D::evict(&mut state.own);
    }

    /// Writes eight bytes by `half`, which is given the offset of each half: at once on an obliging machine;
    /// on a hostile one now this half first, now that, with DMA in between.
    pub(crate) fn in_halves(
        &self,
        state: &mut DesignState<D>,
        offset: usize,
        whole: impl FnOnce(&mut DesignState<D>),
        mut half: impl FnMut(&mut DesignState<D>, usize),
    ) {
        if state.manner == Manner::Obliging {
            whole(state);
            return;
        }
        let first = offset + 4 * usize::from(state.touched.is_multiple_of(2));
        for at in [first, first ^ 4] {
            half(state, at);
            self.disturb(state);
        }
    }
}
