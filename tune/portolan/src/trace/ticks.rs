//! The kernel's ticks, derived from the runs of its timers: CPUs that run them a tick late.
//!
//! Linux, include/trace/events/timer.h: `timer_expire_entry` has the tick for which a timer was due (`baseclk`, since
//! 5.2) and the one that was counted last (`now`), both in jiffies. One CPU counts ticks (kernel/time/tick-sched.c,
//! `tick_sched_do_timer`). Another, whose tick comes at the same moment, may look for due timers before that
//! (kernel/time/timer.c, `run_local_timers`); it then runs them in its next tick. The earliest runs of all CPUs show
//! the time of each tick, and a run is late by its distance from that of its own.
//!
//! The length of a tick is one of those that Linux can be built with (kernel/Kconfig.hz). Runs that are later still say
//! nothing of ticks: those of timers that an idle CPU may put off, and of a CPU that is held up. Not used: runs while a
//! CPU is idle, which may be another CPU's timers.

use super::line::{Clock, Stamped};
use super::op::{Running, TimerRun};

/// Lengths of a tick, in nanoseconds: 1000, 300, 250 and 100 a second.
const LENGTHS_NS: [u64; 4] = [1_000_000, 3_333_333, 4_000_000, 10_000_000];
/// Fewest ticks between two runs that tell the length apart from others: one tick more or less is 4 %.
const ENOUGH: u64 = 25;
/// Largest difference of a mean interval from a tick, as a fraction of the tick.
const NEAR: f64 = 0.06;
/// The clock of a trace may go faster than the kernel's by one part of so many.
const DRIFT: u64 = 10_000;

/// Time at which tick 0 would have been, at most.
#[derive(Clone, Copy)]
struct Zero {
    ns: i128,
    /// Time of the timer run.
    at_ns: u64,
}

/// Ticks of a trace.
#[derive(Default)]
pub(super) struct Ticks {
    /// The first run: its time, and the tick counted last.
    first: Option<(u64, u64)>,
    length_ns: Option<u64>,
    zero: Option<Zero>,
    /// For each CPU, true if its last timer ran a tick late.
    late: Vec<Option<bool>>,
}

impl Ticks {
    /// Notes a run.
    pub(super) fn note(&mut self, at: &Stamped<'_>, run: TimerRun) {
        if at.clock == Clock::Ticks {
            return;
        }
        let (first_ns, first) = *self.first.get_or_insert((at.time_ns, run.now));
        let passed = (at.time_ns.saturating_sub(first_ns), run.now.saturating_sub(first));
        self.length_ns = self.length_ns.or_else(|| length(passed.0, passed.1));
        let Some(length) = self.length_ns else {
            return;
        };
        let offset = i128::from(at.time_ns) - i128::from(run.due) * i128::from(length);
        let zero = self.zero.map_or(offset, |zero| {
            let since = at.time_ns.saturating_sub(zero.at_ns);
            offset.min(zero.ns + i128::from(since / DRIFT))
        });
        self.zero = Some(Zero { ns: zero, at_ns: at.time_ns });
        let half = i128::from(length / 2);
        let is_late = match (offset - zero + half) / i128::from(length) {
            0 => false,
            1 => true,
            _ => return,
        };
        if at.running != Running::Idle {
            let cpu = usize::from(at.cpu);
            self.late.resize(self.late.len().max(cpu + 1), None);
            self.late[cpu] = Some(is_late);
        }
    }

    /// True if the last timer that ran on `cpu` while it was busy was a tick late, false if it was on time; `None` if
    /// the trace shows none.
    pub(super) fn is_late(&self, cpu: u16) -> Option<bool> {
        *self.late.get(usize::from(cpu))?
    }
}

/// Length of a tick, if so many were counted in so many nanoseconds.
fn length(ns: u64, ticks: u64) -> Option<u64> {
    if ticks < ENOUGH {
        return None;
    }
    let mean = ns as f64 / ticks as f64;
    let is_near = |length: &u64| (mean / *length as f64 - 1.0).abs() <= NEAR;
    LENGTHS_NS.into_iter().find(is_near)
}
