//! The flush queues of one domain: one a CPU, and one timer.
//!
//! * A CPU's queue is a ring of 256 places, of which one stays empty. An unmap that finds it full
//!   flushes the domain first. A flush makes all entries of all CPUs quiet; a CPU frees its own when it
//!   next adds one.
//! * The first entry after the timer has run starts it again. It is due 10 ms later in ticks, rounded
//!   up, and one more, since timers never run early; it flushes once and frees the entries of all CPUs.
//!   A flush of a full queue does not stop it.
//! * A timer looks at its CPU's tick whether its tick has been counted yet, which another CPU may do at
//!   the same time. Here that race is lost every second time, and the timer runs one tick later.

use std::collections::HashMap;

use super::Timer;

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

/// The queues of one domain.
pub(super) struct Queues {
    timer: Timer,
    cpus: HashMap<u16, Queue>,
    flushes: u64,
    due_ns: Option<u64>,
    started: u64,
    /// What is unmapped and not yet invalidated.
    bytes: u64,
    oldest_ns: Option<u64>,
    max_bytes: u64,
    max_ns: u64,
}

impl Queues {
    pub(super) fn new(timer: Timer) -> Self {
        Self {
            timer,
            cpus: HashMap::new(),
            flushes: 0,
            due_ns: None,
            started: 0,
            bytes: 0,
            oldest_ns: None,
            max_bytes: 0,
            max_ns: 0,
        }
    }

    /// Lets the timer run if its time has come; the time at which it ran.
    pub(super) fn tick(&mut self, now_ns: u64) -> Option<u64> {
        let due_ns = self.due_ns.filter(|&due| due <= now_ns)?;
        self.due_ns = None;
        self.flush(due_ns);
        self.cpus.values_mut().for_each(|queue| queue.entries = 0);
        Some(due_ns)
    }

    /// Lets the timer run whenever its time may come.
    pub(super) fn end(&mut self) -> Option<u64> {
        self.tick(u64::MAX)
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
        if self.due_ns.is_none() {
            self.due_ns = Some(self.due_after(now_ns));
            self.started += 1;
        }
        if full { Added::Flush } else { Added::Room }
    }

    /// Most bytes exposed at once, and the longest time of any, in nanoseconds.
    pub(super) fn exposed(&self) -> (u64, u64) {
        (self.max_bytes, self.max_ns)
    }

    fn due_after(&self, now_ns: u64) -> u64 {
        let tick = self.timer.tick_ns.max(1);
        let lost_races = self.started % 2;
        let ticks = now_ns / tick + TIMEOUT_NS.div_ceil(tick) + 1 + lost_races;
        ticks
            .saturating_mul(tick)
            .saturating_add(self.timer.late_ns)
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

    #[test]
    fn the_timer_runs_at_the_fourth_tick_or_the_fifth() {
        let mut queues = Queues::new(Timer::default());
        assert_eq!(queues.add(4 * MS + 1, 0, 4096), Added::Room);
        assert_eq!(queues.tick(20 * MS - 1), None);
        assert_eq!(queues.tick(21 * MS), Some(20 * MS));
        assert_eq!(queues.tick(30 * MS), None);
        assert_eq!(queues.add(30 * MS, 1, 4096), Added::Room);
        assert_eq!(queues.end(), Some(48 * MS));
        assert_eq!(queues.exposed(), (4096, 18 * MS));
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
    fn a_late_timer_and_any_tick_do_no_harm() {
        let late_ns = 7 * MS;
        let mut late = Queues::new(Timer {
            late_ns,
            ..Timer::default()
        });
        late.add(0, 0, 1);
        assert_eq!(late.tick(22 * MS), None);
        assert_eq!(late.tick(23 * MS), Some(23 * MS));
        let mut odd = Queues::new(Timer {
            tick_ns: 0,
            late_ns: u64::MAX,
        });
        odd.add(u64::MAX - (1 << 40), 0, u64::MAX);
        assert_eq!(odd.end(), Some(u64::MAX));
    }
}
