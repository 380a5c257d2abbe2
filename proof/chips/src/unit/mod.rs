//! Common parts of units behind registers.
//!
//! Memory and a clock; faults of a unit on demand, and violations by its driver; commands that take effect at the
//! synchronisation that awaits them, in the order that does most harm, while devices go on; devices that keep
//! translations and ask. A [`Design`] has the parts of one kind of unit.

mod declare;
mod design;
mod hostile;

pub(crate) use declare::{counts, setup};
pub use design::{Conditions, Design, Sums, Told};
pub use hostile::Manner;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{Iova, Pasid, PhysAddr, StreamId};
use portolan::iopf::{ReplyName, ReplyTo, Response};

use crate::asking::{Asking, DeviceTlbs};
use crate::inject::{DmaFault, Drain, Pace, Piece, RegisterFaults, Violation, pieces};
use crate::memory::ModelMemory;
use portolan_sim::adversary::{AddressType, Rank, Visit, Visits, in_classes};
use portolan_sim::clock::{Tick, VirtualClock};
use portolan_sim::decode::AccessKind;
use portolan_sim::iommu::Temper;
use portolan_sim::request::Request;

/// A unit behind its registers, over the memory of a machine.
#[derive(Debug)]
pub struct Unit<D: Design> {
    pub(crate) memory: Arc<ModelMemory<D::Word>>,
    pub(crate) setup: D::Setup,
    state: Mutex<DesignState<D>>,
}

#[derive(Debug)]
pub struct DesignState<D: Design> {
    pub(crate) own: D::Own,
    pub(crate) faults: RegisterFaults,
    pub(crate) violations: Vec<Violation>,
    pub(crate) counts: D::Counts,
    pub(crate) asking: Asking,
    pub(crate) remote: DeviceTlbs,
    /// Invalidations of all configuration and of all translations since the start.
    pub(crate) cleaned: (Invalidated, Invalidated),
    /// Invalidations that take effect at the next synchronisation.
    pub(crate) pending: Vec<D::Invalidate>,
    /// Number of next invalidations in the queue that were carried out early.
    early: usize,
    /// Register accesses.
    touched: u64,
    /// Commands taken.
    consumed: u64,
    /// Virtual nanoseconds from which commands are fetched.
    ready_at: u64,
    /// Places that devices got to.
    visits: Visits,
    /// Accesses that went through.
    went_through: u64,
    overseer: Overseer,
    manner: Manner,
    observed: hostile::Observed,
}

/// The words of a command, lowest first; zero behind its end.
pub type Words = [u64; 4];

/// Inspects a command, and may return the code to refuse it with.
pub type Oversee = Box<dyn FnMut(&Words) -> Option<u32> + Send>;

/// Function that looks at each command that the unit takes.
#[derive(Default)]
struct Overseer(Option<Oversee>);

impl fmt::Debug for Overseer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Overseer")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalidated {
    NotYet,
    Done,
}

impl<D: Design> DesignState<D> {
    /// Tells if the unit does not answer any more.
    pub(crate) fn is_gone(&self) -> bool {
        let RegisterFaults { gone_from, back_at, .. } = self.faults;
        let is_back = back_at.is_some_and(|at| self.touched >= at);
        gone_from.is_some_and(|from| self.touched >= from) && !is_back
    }

    fn cached_translations(&mut self) -> usize {
        let stages = D::stages(&mut self.own).into_iter();
        stages.map(|stage| stage.len()).sum::<usize>() + self.remote.len()
    }

    /// Restores earlier counts, because attempts of devices are not counted.
    fn restore(&mut self, counts: D::Counts, steps: &[u64]) {
        self.counts = counts;
        for (stage, steps) in D::stages(&mut self.own).into_iter().zip(steps) {
            stage.walk_steps = *steps;
        }
    }

    fn steps(&mut self) -> Vec<u64> {
        let stages = D::stages(&mut self.own).into_iter();
        stages.map(|stage| stage.walk_steps).collect()
    }
}

impl<D: Design> Unit<D> {
    /// The unit after reset.
    pub fn new(setup: D::Setup, memory: Arc<ModelMemory<D::Word>>) -> Self {
        let state = DesignState {
            own: D::reset(&setup),
            faults: RegisterFaults::default(),
            violations: Vec::new(),
            counts: D::Counts::default(),
            asking: Asking::default(),
            remote: DeviceTlbs::default(),
            cleaned: (Invalidated::NotYet, Invalidated::NotYet),
            pending: Vec::new(),
            early: 0,
            touched: 0,
            consumed: 0,
            ready_at: 0,
            visits: Visits::default(),
            went_through: 0,
            overseer: Overseer::default(),
            manner: Manner::of_this_run(),
            observed: hostile::Observed::default(),
        };
        let state = Mutex::new(state);
        Self { memory, setup, state }
    }

    /// The memory that it reads.
    pub fn memory(&self) -> &Arc<ModelMemory<D::Word>> {
        &self.memory
    }

    /// Clock for its delays.
    pub fn clock(&self) -> &Arc<VirtualClock> {
        self.setup.conditions().1
    }

    /// Sets the faults on demand from now on.
    pub fn inject(&self, faults: RegisterFaults) {
        self.lock().faults = faults;
    }

    /// Calls `oversee` for each command from the queue from now on. It may refuse the command with one of the unit's
    /// codes. It is called under the unit's lock.
    pub fn oversee(&self, oversee: Oversee) {
        self.lock().overseer = Overseer(Some(oversee));
    }

    /// Counts of events so far.
    pub fn counts(&self) -> D::Counts {
        let mut state = self.lock();
        let sums = Sums {
            accesses: state.went_through,
            walk_steps: state.steps().iter().sum(),
            stray_responses: state.asking.strays(),
        };
        state.counts.told(sums)
    }

    /// Commands taken from the queue so far, refused ones too: [`RegisterFaults::refuse`] counts by this number.
    pub fn consumed(&self) -> u64 {
        self.lock().consumed
    }

    /// Violations by the driver.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Register accesses so far.
    pub fn accesses(&self) -> u64 {
        self.lock().touched
    }

    /// Entries in all translation caches.
    pub fn cached_translations(&self) -> usize {
        self.lock().cached_translations()
    }

    /// Memory address that a device reaches with a translation that it keeps, or requests now. If there is none,
    /// nothing is recorded.
    pub fn ats_access(
        &self,
        stream: StreamId,
        pasid: Option<Pasid>,
        iova: Iova,
        access: AccessKind,
    ) -> Option<PhysAddr> {
        let of = Request::new(stream, pasid, iova, access);
        let mut state = self.lock();
        self.go_on(&mut state);
        let pa = self.by_remote(&mut state, of)?;
        let way = AddressType::Translated;
        state.visits.note(Visit { of, way });
        Some(pa)
    }

    /// Accesses memory by a translation that the device keeps or gets now.
    fn by_remote(&self, state: &mut DesignState<D>, of: Request) -> Option<PhysAddr> {
        let kept = state.remote.lookup(of);
        let trusted = kept.is_some() && !D::checks_translated(&state.own);
        if !trusted && !D::lets_translate(self, state, of.stream) {
            return None;
        }
        if kept.is_some() {
            return kept;
        }
        let pa = D::translate(self, state, of).ok()?;
        state.remote.insert(of, pa);
        Some(pa)
    }

    /// Responses that devices got since the last call: to page requests, and ends of stalls.
    pub fn told(&self) -> Vec<(ReplyTo, Response)> {
        let mut state = self.lock();
        self.go_on(&mut state);
        state.asking.take()
    }

    /// Requests of devices without an answer.
    pub fn unanswered(&self) -> Vec<(StreamId, ReplyName)> {
        self.lock().asking.open()
    }

    /// Resets a device: it forgets its requests and its translations. Requests that wait in the unit are the driver's
    /// affair.
    pub fn reset_device(&self, stream: StreamId) {
        let mut state = self.lock();
        state.asking.reset(stream);
        state.remote.forget_device(stream.get());
    }

    /// Pieces of a transfer from `of` on, each with its memory address.
    pub(crate) fn reach(&self, of: Request, bytes: u64) -> Result<Vec<Piece>, DmaFault> {
        let mut state = self.lock();
        self.go_on(&mut state);
        let reached = self.go_through(&mut state, of, bytes);
        reached.map_err(|(of, refusal)| D::refuse(self, &mut state, refusal, of))
    }

    /// Pieces of a transfer from `of` on, each with its memory address; otherwise the refused request, and the
    /// reason.
    pub(crate) fn go_through(
        &self,
        state: &mut DesignState<D>,
        of: Request,
        bytes: u64,
    ) -> Result<Vec<Piece>, (Request, D::Refusal)> {
        let mut done = Vec::new();
        for (iova, bytes) in pieces(of.iova, bytes) {
            let of = Request { iova, ..of };
            let pa = D::translate(self, state, of).map_err(|refusal| (of, refusal))?;
            state.went_through += 1;
            let way = AddressType::Untranslated;
            state.visits.note(Visit { of, way });
            done.push(Piece { iova, pa, bytes });
        }
        Ok(done)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, DesignState<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an access to a register; `None` if the unit is gone or the access is no access.
    pub(crate) fn arrive(
        &self,
        state: &mut DesignState<D>,
        offset: usize,
        bytes: usize,
    ) -> Option<()> {
        self.disturb(state);
        state.touched += 1;
        if state.is_gone() {
            if state.faults.back_at.is_some() {
                self.lose_power(state);
            }
            return None;
        }
        if !offset.is_multiple_of(bytes) || offset >= D::WINDOW {
            state.violations.push(Violation::BadAccess { offset });
            return None;
        }
        self.go_on(state);
        Some(())
    }

    /// Turns its power off and on again. Devices keep their translations.
    pub fn cut_power(&self) {
        self.lose_power(&mut self.lock());
    }

    /// Everything that it held is lost. Devices keep their translations.
    fn lose_power(&self, state: &mut DesignState<D>) {
        state.own = D::reset(&self.setup);
        state.pending.clear();
        state.early = 0;
        state.cleaned = (Invalidated::NotYet, Invalidated::NotYet);
        state.ready_at = 0;
    }

    pub(crate) fn go_on(&self, state: &mut DesignState<D>) {
        D::go_on(self, state);
    }

    /// Tells if nothing in the queue is looked at for now.
    pub(crate) fn rests(&self, state: &DesignState<D>) -> bool {
        state.faults.drain == Drain::Never || self.clock().now_ns() < state.ready_at
    }

    /// Notes that the driver has announced commands.
    pub(crate) fn wait_for(&self, state: &mut DesignState<D>, pace: Pace) {
        if let Pace::After(ns) = pace {
            state.ready_at = self.clock().now_ns().saturating_add(ns);
        }
    }

    /// Counts a command; returns the code to refuse it with, if it is to be refused.
    pub(crate) fn consume(&self, state: &mut DesignState<D>, words: &Words) -> Option<u32> {
        self.disturb(state);
        state.consumed += 1;
        if let Drain::OneEach(ns) = state.faults.drain {
            self.wait_for(state, Pace::After(ns));
        }
        let overseen = state.overseer.0.as_mut().and_then(|see| see(words));
        let refused = state.faults.refuse.filter(|(nth, _)| *nth == state.consumed);
        overseen.or(refused.map(|(_, code)| code))
    }

    /// Takes an invalidation from the queue.
    pub(crate) fn take(&self, state: &mut DesignState<D>, what: D::Invalidate) {
        match self.setup.conditions().0 {
            _ if state.early > 0 => state.early -= 1,
            Temper::Adversarial => state.pending.push(what),
            Temper::Realistic(_) => D::invalidate(state, what),
        }
    }

    /// Carries commands behind a wait without a fence out before the wait is complete: they may be, and all of them
    /// are.
    pub(crate) fn overtake(&self, state: &mut DesignState<D>, mut behind: Vec<D::Invalidate>) {
        if *self.setup.conditions().0 != Temper::Adversarial {
            return;
        }
        // The first of them may have been by an earlier wait.
        let news = behind.split_off(state.early.min(behind.len()));
        state.early += news.len();
        state.pending.extend(news);
    }

    /// Carries out the invalidations that a synchronisation awaits, in the allowed order that does most harm. Devices
    /// go on before and between.
    pub(crate) fn complete(&self, state: &mut DesignState<D>, awaited: Vec<D::Invalidate>) {
        let awaited = in_classes(awaited, D::class, D::rank);
        let Some(last) = awaited.len().checked_sub(1) else {
            return;
        };
        // If only devices are told, they may have been stopped before.
        let again = awaited.iter().any(|what| D::rank(what) != Rank::Devices);
        if again {
            self.try_again(state);
        }
        let entries =
            |state: &mut DesignState<D>| state.cached_translations() + D::others(&state.own);
        for (at, what) in awaited.into_iter().enumerate() {
            let before = entries(state);
            D::invalidate(state, what);
            if again && at < last && entries(state) < before {
                self.try_again(state);
            }
        }
    }

    /// Lets devices try the places that they reached before. Nothing is counted or recorded, except entries of two
    /// sizes that a driver let coexist in a cache.
    fn try_again(&self, state: &mut DesignState<D>) {
        let (counts, steps) = (state.counts.clone(), state.steps());
        for Visit { of, way } in state.visits.all() {
            match way {
                AddressType::Untranslated => {
                    let found = D::translate(self, state, of);
                    if found.is_err_and(|refusal| D::is_conflict(&refusal)) {
                        let iova = of.iova;
                        state.violations.push(Violation::SizesConflict { iova });
                    }
                }
                AddressType::Translated => {
                    let _ = self.by_remote(state, of);
                }
            }
        }
        state.restore(counts, &steps);
    }
}

impl<D: Design> Tick for Unit<D> {
    fn tick(&self) {
        self.go_on(&mut self.lock());
    }
}

/// Half of a word by the offset of the access.
pub(crate) fn half(word: u64, offset: usize) -> u32 {
    (word >> (8 * (offset as u32 & 4))) as u32
}

/// Sets half of a word by the offset of the access.
pub(crate) fn set_half(word: &mut u64, offset: usize, value: u32) {
    let shift = 8 * (offset as u32 & 4);
    *word = *word & !(0xffff_ffff << shift) | u64::from(value) << shift;
}
