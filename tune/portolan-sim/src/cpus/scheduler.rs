//! The next CPU to run: the one whose clock is the earliest.
//!
//! A CPU that relaxes looks again one tick later if one of its cache lines was taken from it since it
//! relaxed last; otherwise nothing it has looked at can have changed, and it is left out until a line
//! is taken, or until its own clock may have become a reason to go on: after a tick, and then after
//! steps of an eighth of the time it has waited. Without that, waiting would cost as much to compute
//! as working.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;
use serde::Serialize;

use super::{LockKind, SharingPrices};

/// Pace of the CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Pace {
    /// Delays as in the prices.
    #[default]
    Even,
    /// Delays each access by up to so many nanoseconds, depending on the seed, for tests that need many
    /// interleavings.
    Ragged(f64),
}

/// Counts of sharing, over all CPUs of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SharingCounters {
    /// Accesses to a line that the CPU had.
    pub hits: u64,
    /// Accesses that brought a line from elsewhere.
    pub transfers: u64,
    /// Times that a lock was found held.
    pub lock_waits: u64,
    /// Times that a CPU relaxed.
    pub relaxes: u64,
    /// Times that another CPU went on.
    pub switches: u64,
}

/// Prices in picoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticks {
    pub hit: u64,
    pub transfer: u64,
    pub share: u64,
    pub handover: u64,
    pub relax: u64,
    pub lock: LockKind,
}

impl Ticks {
    fn of(prices: &SharingPrices) -> Self {
        Self {
            hit: picoseconds(prices.hit),
            transfer: picoseconds(prices.transfer),
            share: picoseconds(prices.share),
            handover: picoseconds(prices.handover),
            relax: picoseconds(prices.relax).max(1),
            lock: prices.lock,
        }
    }
}

/// Nanoseconds as picoseconds; nonsense is nothing.
pub(super) fn picoseconds(ns: f64) -> u64 {
    (ns * 1000.0).round().max(0.0) as u64
}

/// Position of a CPU in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CpuState {
    /// Queued in the heap, or running.
    Ready,
    /// Queued in the heap; it moves forward when another CPU takes a line that it watches.
    Watching,
    /// Waits for a lock.
    Blocked,
    Finished,
}

#[derive(Clone, Copy, Debug)]
struct Cpu {
    now: u64,
    state: CpuState,
    /// Entries of the heap from before are void.
    epoch: u32,
    /// A line was taken from it since it relaxed last.
    disturbed: bool,
    /// Since when nothing changed for it.
    waits_since: Option<u64>,
}

/// Time, order among equals, CPU, and its epoch.
type Entry = Reverse<(u64, u32, u16, u32)>;

/// A run's state.
#[derive(Debug)]
pub(super) struct Core {
    pub ticks: Ticks,
    pub counters: SharingCounters,
    pace: u64,
    cpus: Vec<Cpu>,
    ready: BinaryHeap<Entry>,
    current: usize,
    rng: Rng,
    limit: u64,
    overrun: bool,
}

thread_local! {
    static RUN: RefCell<Option<Core>> = const { RefCell::new(None) };
}

/// Place of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallPlace {
    Inside,
    Outside,
}

/// Next step of the scheduler's caller.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    GoOn,
    Switch,
}

/// Calls `f` with the run of this thread, if there is one.
pub(super) fn with<R>(f: impl FnOnce(&mut Core) -> R) -> Option<R> {
    RUN.with_borrow_mut(|run| run.as_mut().map(f))
}

/// Begins a run.
pub(super) fn install(core: Core) {
    RUN.set(Some(core));
}

/// Ends it.
pub(super) fn remove() -> Option<Core> {
    RUN.take()
}

/// A point where others run that are earlier. Outside a run, nothing.
pub(super) fn point() -> CallPlace {
    switch(|core| {
        core.late();
        core.yield_to_earlier()
    })
}

/// Blocks the current CPU: lets others run until one of them unblocks it.
pub(super) fn wait_blocked() {
    switch(|_| Then::Switch);
}

pub(super) fn relax() -> CallPlace {
    switch(Core::relax)
}

pub(super) fn sleep_until(at: u64) {
    switch(|core| {
        let cpu = core.current;
        let at = at.max(core.cpus[cpu].now);
        core.schedule(cpu, at);
        Then::Switch
    });
}

#[allow(deprecated)] // The scoped form cannot be reached from inside the code that runs here.
fn switch(f: impl FnOnce(&mut Core) -> Then) -> CallPlace {
    match with(f) {
        None => CallPlace::Outside,
        Some(Then::GoOn) => CallPlace::Inside,
        Some(Then::Switch) => {
            generator::yield_with(());
            CallPlace::Inside
        }
    }
}

impl Core {
    pub(super) fn new(
        count: usize,
        prices: &SharingPrices,
        seed: u64,
        pace: Pace,
        limit: u64,
    ) -> Self {
        let cpu =
            Cpu { now: 0, state: CpuState::Ready, epoch: 0, disturbed: false, waits_since: None };
        let mut core = Self {
            ticks: Ticks::of(prices),
            counters: SharingCounters::default(),
            pace: match pace {
                Pace::Even => 0,
                Pace::Ragged(ns) => picoseconds(ns),
            },
            cpus: vec![cpu; count],
            ready: BinaryHeap::with_capacity(2 * count),
            current: 0,
            rng: Rng::with_seed(seed),
            limit,
            overrun: false,
        };
        for cpu in 0..count {
            core.schedule(cpu, 0);
        }
        core
    }

    pub(super) fn count(&self) -> usize {
        self.cpus.len()
    }

    pub(super) fn current(&self) -> usize {
        self.current
    }

    /// The current CPU's clock.
    pub(super) fn now(&self) -> u64 {
        self.cpus[self.current].now
    }

    pub(super) fn clock_of(&self, cpu: usize) -> u64 {
        self.cpus[cpu].now
    }

    pub(super) fn advance(&mut self, by: u64) {
        let now = &mut self.cpus[self.current].now;
        *now = now.saturating_add(by);
    }

    /// A number below `bound`, by the seed.
    pub(super) fn pick(&mut self, bound: usize) -> usize {
        self.rng.usize(..bound.max(1))
    }

    pub(super) fn is_overrun(&self) -> bool {
        self.overrun
    }

    /// CPUs that wait for locks.
    pub(super) fn blocked(&self) -> Vec<usize> {
        let blocked = |cpu: &usize| self.cpus[*cpu].state == CpuState::Blocked;
        (0..self.cpus.len()).filter(blocked).collect()
    }

    /// The current CPU waits for a lock.
    pub(super) fn block(&mut self) {
        self.cpus[self.current].state = CpuState::Blocked;
    }

    /// `cpu`, which waits for a lock, has it from `at` on.
    pub(super) fn unblock(&mut self, cpu: usize, at: u64) {
        self.schedule(cpu, at);
    }

    pub(super) fn finish(&mut self, cpu: usize) {
        self.cpus[cpu].state = CpuState::Finished;
    }

    /// The next CPU to run, or none: all have finished or wait for each other.
    pub(super) fn next(&mut self) -> Option<usize> {
        if self.overrun {
            return None;
        }
        while let Some(Reverse((at, _, cpu, epoch))) = self.ready.pop() {
            let cpu = usize::from(cpu);
            if self.cpus[cpu].epoch != epoch {
                continue;
            }
            self.cpus[cpu].now = at;
            self.cpus[cpu].state = CpuState::Ready;
            self.current = cpu;
            self.counters.switches += 1;
            return Some(cpu);
        }
        None
    }

    /// `cpu` goes on at `at`.
    fn schedule(&mut self, cpu: usize, at: u64) {
        let order = self.rng.u32(..);
        let entry = &mut self.cpus[cpu];
        entry.epoch = entry.epoch.wrapping_add(1);
        entry.state = CpuState::Ready;
        self.ready.push(Reverse((at, order, cpu as u16, entry.epoch)));
    }

    /// Comes late, if the pace is ragged.
    fn late(&mut self) {
        if self.pace != 0 {
            let by = self.rng.u64(..=self.pace);
            self.advance(by);
        }
    }

    fn yield_to_earlier(&mut self) -> Then {
        let now = self.now();
        if now > self.limit {
            self.overrun = true;
            return Then::Switch;
        }
        while let Some(&Reverse((at, _, cpu, epoch))) = self.ready.peek() {
            if self.cpus[usize::from(cpu)].epoch != epoch {
                self.ready.pop();
                continue;
            }
            if at < now || (at == now && self.rng.bool()) {
                self.schedule(self.current, now);
                return Then::Switch;
            }
            break;
        }
        Then::GoOn
    }

    fn relax(&mut self) -> Then {
        self.counters.relaxes += 1;
        let tick = self.ticks.relax;
        let cpu = self.current;
        let now = self.now();
        if now > self.limit {
            self.overrun = true;
            return Then::Switch;
        }
        let entry = &mut self.cpus[cpu];
        if std::mem::take(&mut entry.disturbed) {
            entry.waits_since = None;
            self.advance(tick);
            return self.yield_to_earlier();
        }
        let since = *entry.waits_since.get_or_insert(now);
        let step = ((now - since) / 8).max(tick);
        self.schedule(cpu, now.saturating_add(step.next_multiple_of(tick)));
        self.cpus[cpu].state = CpuState::Watching;
        Then::Switch
    }

    /// A line that `cpu` had was taken from it at `at`.
    pub(super) fn disturb(&mut self, cpu: usize, at: u64) {
        let tick = self.ticks.relax;
        let entry = &mut self.cpus[cpu];
        entry.disturbed = true;
        if entry.state == CpuState::Watching {
            entry.waits_since = None;
            entry.disturbed = false;
            let later = at.saturating_sub(entry.now).next_multiple_of(tick);
            let at = entry.now.saturating_add(later.max(tick));
            self.schedule(cpu, at);
        }
    }
}
