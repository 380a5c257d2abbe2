//! The flush queues of one domain: one a CPU, and one timer.
//!
//! * A CPU's queue is a ring of 256 places, of which one stays empty. An unmap that finds it full
//!   flushes the domain first. A flush makes all entries of all CPUs quiet; a CPU frees its own when it
//!   next adds one.
//! * The first entry after the timer has run starts it again. It is due 10 ms later in ticks, rounded
//!   up, and one more, since timers never run early; it flushes once and frees the entries of all CPUs.
//!   A flush of a full queue does not stop it.
//! * A timer runs at a tick of the CPU that started it. When that CPU gets to its tick is read from the
//!   trace: at its next operation, since an emulated CPU that is not being run does none. A CPU
//!   without any for long is idle, and its timers are on time.
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

/// A timer that has been started.
#[derive(Clone, Copy, Debug)]
struct Started {
    /// The CPU whose ticks it runs at, and when that CPU did something last.
    cpu: u16,
    seen_ns: u64,
    /// The last of those ticks that it has had.
    tick: u64,
    /// The first tick at which it may run.
    due: u64,
    /// Whether it will find that this tick has not been counted yet.
    race: Race,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Race {
    Won,
    Lost,
}

/// The queues of one domain.
pub(super) struct Queues {
    timer: Timer,
    cpus: HashMap<u16, Queue>,
    flushes: u64,
    started: Option<Started>,
    starts: u64,
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
            started: None,
            starts: 0,
            bytes: 0,
            oldest_ns: None,
            max_bytes: 0,
            max_ns: 0,
        }
    }

    fn tick_ns(&self) -> u64 {
        self.timer.tick_ns.max(1)
    }

    /// Sees that `cpu` does something, and lets the timer run if that is a tick at which it can.
    pub(super) fn see(&mut self, now_ns: u64, cpu: u16) -> Option<u64> {
        let tick = now_ns / self.tick_ns();
        let started = self.started.as_mut()?;
        let idle = now_ns.saturating_sub(started.seen_ns) > self.timer.idle_ns;
        if started.cpu == cpu {
            started.seen_ns = now_ns;
        } else if !idle {
            return None;
        }
        if tick <= started.tick {
            return None;
        }
        started.tick = tick;
        if tick < started.due {
            return None;
        }
        if std::mem::replace(&mut started.race, Race::Won) == Race::Lost {
            return None;
        }
        Some(self.run(now_ns))
    }

    /// Lets the timer run if it has been started.
    pub(super) fn end(&mut self) -> Option<u64> {
        let started = self.started?;
        let late = u64::from(started.race == Race::Lost);
        let tick = started.due.max(started.tick).saturating_add(late);
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
        if self.started.is_none() {
            self.started = Some(self.start(now_ns, cpu));
            self.starts += 1;
        }
        if full { Added::Flush } else { Added::Room }
    }

    /// Most bytes exposed at once, and the longest time of any, in nanoseconds.
    pub(super) fn exposed(&self) -> (u64, u64) {
        (self.max_bytes, self.max_ns)
    }

    fn start(&self, now_ns: u64, cpu: u16) -> Started {
        let tick = now_ns / self.tick_ns();
        // No timer runs early, wherever in its tick it is started.
        let ticks = TIMEOUT_NS.div_ceil(self.tick_ns()) + 1;
        Started {
            cpu,
            seen_ns: now_ns,
            tick,
            due: tick.saturating_add(ticks),
            race: match self.starts % 2 {
                0 => Race::Won,
                _ => Race::Lost,
            },
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

    #[test]
    fn the_timer_runs_at_the_fourth_tick_or_the_fifth() {
        let mut queues = Queues::new(Timer::default());
        assert_eq!(queues.add(4 * MS + 1, 0, 4096), Added::Room);
        assert_eq!(queues.see(20 * MS - 1, 0), None);
        assert_eq!(queues.see(20 * MS, 0), Some(20 * MS));
        assert_eq!(queues.see(30 * MS, 0), None);
        // The second one looks too early at the tick at which it is due.
        assert_eq!(queues.add(30 * MS, 1, 4096), Added::Room);
        assert_eq!(queues.see(45 * MS, 1), None);
        assert_eq!(queues.see(47 * MS, 1), None);
        assert_eq!(queues.see(48 * MS, 1), Some(48 * MS));
        assert_eq!(queues.exposed(), (4096, 18 * MS));
    }

    #[test]
    fn the_timer_waits_for_its_cpu_unless_that_is_idle() {
        let mut queues = Queues::new(Timer::default());
        queues.add(0, 0, 4096);
        assert_eq!(queues.see(40 * MS, 1), None);
        assert_eq!(queues.see(50 * MS, 0), Some(50 * MS));
        queues.add(60 * MS, 0, 4096);
        queues.end();
        queues.add(200 * MS, 0, 4096);
        assert_eq!(queues.see(290 * MS, 1), None);
        assert_eq!(queues.see(301 * MS, 1), Some(301 * MS));
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
        let mut odd = Queues::new(Timer {
            tick_ns: 0,
            idle_ns: 0,
        });
        odd.add(u64::MAX - (1 << 40), 0, u64::MAX);
        assert!(odd.see(u64::MAX, 7).is_some());
        odd.add(u64::MAX, 0, u64::MAX);
        assert!(odd.end().is_some());
    }
}
