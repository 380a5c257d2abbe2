//! The flush queues of one domain: one a CPU, and one timer.
//!
//! * A CPU's queue is a ring of 256 places, of which one stays empty. An unmap that finds it full
//!   flushes the domain first. A flush makes all entries of all CPUs quiet; a CPU frees its own when it
//!   next adds one.
//! * The first entry after the timer has run starts it again. It is due 10 ms later in ticks, rounded
//!   up, and one more, since timers never run early; it flushes once and frees the entries of all CPUs.
//!   A flush of a full queue does not stop it.
//! * Where a CPU of the guest is idle, timers are on time: an idle CPU's timers run on the one that is up
//!   (the kernel's timer migration), and one that is idle has taken the counting of ticks along.
//! * Where all are busy, a timer waits for its own CPU. When that gets to a tick is read from the trace: at
//!   its next operation, since an emulated CPU that is not being run does none. The first time it looks,
//!   its tick has not been counted yet by whichever CPU counts, and it runs one tick later.
//!
//! Which CPU is idle is the trace's own word: the task that its last operation interrupted.

use std::collections::HashMap;

use super::Timer;
use crate::trace::{At, Running};

/// Entries that a CPU's queue holds.
const HOLDS: u64 = 255;
/// How long a flush may be put off.
const TIMEOUT_NS: u64 = 10_000_000;

/// What it took to add an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// Nothing: there was room.
    Room,
    /// A flush of the domain.
    Flush,
}

#[derive(Default)]
struct Queue {
    entries: u64,
    /// Flushes of the domain when the last entry was added.
    flushes: u64,
}

/// A timer that has been started.
#[derive(Clone, Copy, Debug)]
struct Started {
    /// The CPU that started it.
    cpu: u16,
    /// The last tick of that CPU that it has had.
    tick: u64,
    /// The first tick at which it may run.
    due: u64,
    look: Look,
}

/// Whether a timer of a busy CPU has looked for its tick when it was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// It will find that the tick has not been counted.
    First,
    Again,
}

/// The queues of one domain.
pub(super) struct Queues {
    timer: Timer,
    cpus: HashMap<u16, Queue>,
    /// What each CPU was running when it did something last.
    running: HashMap<u16, Running>,
    flushes: u64,
    started: Option<Started>,
    /// What is unmapped and not yet invalidated.
    bytes: u64,
    oldest_ns: Option<u64>,
    last_ns: Option<u64>,
    busy_ns: u64,
    max_bytes: u64,
    max_ns: u64,
}

impl Queues {
    pub(super) fn new(timer: Timer) -> Self {
        Self {
            timer,
            cpus: HashMap::new(),
            running: HashMap::new(),
            flushes: 0,
            started: None,
            bytes: 0,
            oldest_ns: None,
            last_ns: None,
            busy_ns: 0,
            max_bytes: 0,
            max_ns: 0,
        }
    }

    fn tick_ns(&self) -> u64 {
        self.timer.tick_ns.max(1)
    }

    /// Sees that a CPU does something, and lets the timer run if that is a tick at which it can.
    pub(super) fn see(&mut self, at: At) -> Option<u64> {
        let ran = self.looked(at);
        self.running.insert(at.cpu, at.running);
        ran.then(|| self.run(at.now_ns))
    }

    /// Whether the timer runs before what happens at `at`.
    fn looked(&mut self, at: At) -> bool {
        let tick = at.now_ns / self.tick_ns();
        let idle = self
            .running
            .values()
            .any(|running| *running == Running::Idle);
        let Some(started) = self.started.as_mut() else {
            return false;
        };
        let own = started.cpu == at.cpu && tick > started.tick;
        if started.cpu == at.cpu {
            started.tick = tick;
        }
        if tick < started.due {
            return false;
        }
        if idle {
            return true;
        }
        own && std::mem::replace(&mut started.look, Look::Again) == Look::Again
    }

    /// Lets the timer run if it has been started.
    pub(super) fn end(&mut self) -> Option<u64> {
        let started = self.started?;
        let tick = started.due.max(started.tick);
        Some(self.run(tick.saturating_mul(self.tick_ns())))
    }

    fn run(&mut self, now_ns: u64) -> u64 {
        self.started = None;
        self.flush(now_ns);
        self.cpus.values_mut().for_each(|queue| queue.entries = 0);
        now_ns
    }

    /// Adds an unmap of `bytes` bytes on `cpu`.
    pub(super) fn add(&mut self, now_ns: u64, cpu: u16, bytes: u64) -> Added {
        let queue = self.cpus.entry(cpu).or_default();
        if queue.flushes < self.flushes {
            queue.entries = 0;
        }
        let full = queue.entries >= HOLDS;
        if full {
            self.flush(now_ns);
        }
        let queue = self.cpus.entry(cpu).or_default();
        if full {
            queue.entries = 0;
        }
        queue.entries += 1;
        queue.flushes = self.flushes;
        self.bytes = self.bytes.saturating_add(bytes);
        self.max_bytes = self.max_bytes.max(self.bytes);
        self.oldest_ns.get_or_insert(now_ns);
        let before = self.last_ns.replace(now_ns).unwrap_or(now_ns);
        self.busy_ns += now_ns.saturating_sub(before).min(TIMEOUT_NS);
        if self.started.is_none() {
            self.started = Some(self.start(now_ns, cpu));
        }
        if full { Added::Flush } else { Added::Room }
    }

    /// Most bytes exposed at once, and the longest time of any, in nanoseconds.
    pub(super) fn exposed(&self) -> (u64, u64) {
        (self.max_bytes, self.max_ns)
    }

    /// Time from each unmap to the next, as far as the timer covers it, in nanoseconds.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    fn start(&self, now_ns: u64, cpu: u16) -> Started {
        let tick = now_ns / self.tick_ns();
        // No timer runs early, wherever in its tick it is started.
        let ticks = TIMEOUT_NS.div_ceil(self.tick_ns()) + 1;
        Started {
            cpu,
            tick,
            due: tick.saturating_add(ticks),
            look: Look::First,
        }
    }

    fn flush(&mut self, now_ns: u64) {
        self.flushes += 1;
        self.bytes = 0;
        if let Some(oldest) = self.oldest_ns.take() {
            self.max_ns = self.max_ns.max(now_ns.saturating_sub(oldest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(now_ns: u64, cpu: u16, running: Running) -> At {
        At {
            now_ns,
            cpu,
            running,
        }
    }

    #[test]
    fn the_timer_of_a_busy_cpu_runs_when_that_looks_again() {
        let mut queues = Queues::new(Timer::default());
        let see = |queues: &mut Queues, ms, cpu| queues.see(at(ms * MS, cpu, Running::Task));
        assert_eq!(see(&mut queues, 4, 0), None);
        assert_eq!(queues.add(4 * MS + 1, 0, 4096), Added::Room);
        assert_eq!(see(&mut queues, 40, 1), None);
        assert_eq!(see(&mut queues, 20, 0), None);
        assert_eq!(see(&mut queues, 23, 0), None);
        assert_eq!(see(&mut queues, 24, 0), Some(24 * MS));
        assert_eq!(see(&mut queues, 30, 0), None);
        assert_eq!(queues.exposed(), (4096, 20 * MS - 1));
    }

    #[test]
    fn a_pause_is_busy_for_no_longer_than_the_timer() {
        let mut queues = Queues::new(Timer::default());
        for ms in [5, 8, 8, 1000, 999] {
            queues.add(ms * MS, 0, 4096);
        }
        assert_eq!(queues.busy_ns(), 13 * MS);
    }

    #[test]
    fn where_a_cpu_is_idle_timers_are_on_time() {
        let mut queues = Queues::new(Timer::default());
        // The one that started it, or any other.
        for idle in [0, 1] {
            let now = idle * 100 * MS;
            queues.see(at(now, 0, Running::Task));
            queues.see(at(now, idle as u16, Running::Idle));
            assert_eq!(queues.add(now, 0, 4096), Added::Room);
            assert_eq!(queues.see(at(now + 16 * MS - 1, 2, Running::Task)), None);
            let due = now + 16 * MS;
            assert_eq!(queues.see(at(due, 2, Running::Task)), Some(due));
            queues.see(at(due, idle as u16, Running::Task));
        }
    }

    #[test]
    fn the_256th_entry_of_a_cpu_flushes_and_frees_those_of_others() {
        let mut queues = Queues::new(Timer::default());
        for _ in 0..200 {
            assert_eq!(queues.add(0, 1, 4096), Added::Room);
        }
        for _ in 0..255 {
            assert_eq!(queues.add(1, 0, 4096), Added::Room);
        }
        assert_eq!(queues.add(2, 0, 4096), Added::Flush);
        assert_eq!(queues.exposed(), (455 * 4096, 2));
        // CPU 1 has room for 255 again, CPU 0 for 254.
        for _ in 0..255 {
            assert_eq!(queues.add(3, 1, 4096), Added::Room);
        }
        for _ in 0..254 {
            assert_eq!(queues.add(3, 0, 4096), Added::Room);
        }
        assert_eq!(queues.add(3, 0, 4096), Added::Flush);
        // The timer is still the first one's.
        assert_eq!(queues.end(), Some(16 * MS));
        assert_eq!(queues.end(), None);
    }

    #[test]
    fn any_tick_does_no_harm() {
        let mut odd = Queues::new(Timer { tick_ns: 0 });
        odd.see(at(0, 7, Running::Idle));
        odd.add(u64::MAX - (1 << 40), 0, u64::MAX);
        assert!(odd.see(at(u64::MAX, 7, Running::Idle)).is_some());
        odd.add(u64::MAX, 0, u64::MAX);
        assert!(odd.end().is_some());
    }
}
