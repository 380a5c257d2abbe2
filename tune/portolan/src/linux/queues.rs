//! The flush queues of one domain, a ring for each CPU, and the memory that stays reachable until they are flushed.
//!
//! Read from Linux 6.12 and 7.3, `drivers/iommu/dma-iommu.c`: `queue_iova`, `fq_full`, `fq_ring_free`,
//! `fq_flush_timeout`.
//!
//! * A CPU's queue is a ring of 256 places, of which one stays empty. An unmap that finds it full flushes the domain
//!   first.
//! * A flush makes all entries of all CPUs quiet: each counts the flushes that had begun when it was added. A CPU
//!   frees its own when it next adds one; the timer frees those of all.
//! * The first entry after the timer has run starts it again; a flush of a full queue does not stop it.

use std::collections::HashMap;

use super::kernel::Kernel;

/// Work of adding an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// No flush: the queue had room.
    Room,
    /// A flush of the domain.
    Flush,
}

#[derive(Default)]
struct Ring {
    entries: u64,
    /// Flushes of the domain when the last entry was added.
    flushes: u64,
    /// Number of entries that were ever added.
    added: u64,
}

/// The rings of all CPUs.
#[derive(Default)]
struct Rings {
    cpus: HashMap<u16, Ring>,
    flushes: u64,
}

impl Rings {
    fn add(&mut self, cpu: u16, holds: u64) -> Added {
        let ring = self.cpus.entry(cpu).or_default();
        if ring.flushes < self.flushes {
            ring.entries = 0;
        }
        let full = ring.entries >= holds;
        if full {
            self.flushes += 1;
            ring.entries = 0;
        }
        ring.entries += 1;
        ring.added += 1;
        ring.flushes = self.flushes;
        if full { Added::Flush } else { Added::Room }
    }
}

/// The queues of one domain.
pub(super) struct Queues {
    kernel: Kernel,
    rings: Rings,
    /// Queues of the same kernel, if the timer never ran.
    untimed: Rings,
    /// True if the timer has been started and has not run yet.
    started: bool,
    /// Bytes that are unmapped and not yet invalidated.
    bytes: u64,
    oldest_ns: Option<u64>,
    last_ns: Option<u64>,
    busy_ns: u64,
    max_bytes: u64,
    /// Most bytes since [`Queues::take_peak`] asked for them.
    peak_bytes: u64,
    max_ns: u64,
}

/// The least and the most that a domain's queues are flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) least: u64,
    pub(super) most: u64,
}

impl Queues {
    pub(super) fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            rings: Rings::default(),
            untimed: Rings::default(),
            started: false,
            bytes: 0,
            oldest_ns: None,
            last_ns: None,
            busy_ns: 0,
            max_bytes: 0,
            peak_bytes: 0,
            max_ns: 0,
        }
    }

    /// The timer runs: it flushes the domain.
    pub(super) fn run(&mut self, now_ns: u64) {
        self.started = false;
        self.rings.flushes += 1;
        self.quiet(now_ns);
    }

    /// Adds an unmap of `bytes` bytes on `cpu`.
    pub(super) fn add(&mut self, now_ns: u64, cpu: u16, bytes: u64) -> Added {
        let holds = self.kernel.queue_holds;
        self.untimed.add(cpu, holds);
        let added = self.rings.add(cpu, holds);
        if added == Added::Flush {
            self.quiet(now_ns);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.max_bytes = self.max_bytes.max(self.bytes);
        self.peak_bytes = self.peak_bytes.max(self.bytes);
        self.oldest_ns.get_or_insert(now_ns);
        let before = self.last_ns.replace(now_ns).unwrap_or(now_ns);
        self.busy_ns += now_ns.saturating_sub(before).min(self.kernel.timeout_ns);
        added
    }

    /// Starts the timer; false if that has been done and it has not run since.
    pub(super) fn start(&mut self) -> bool {
        !std::mem::replace(&mut self.started, true)
    }

    /// Most bytes exposed at once, and the longest time of any, in nanoseconds.
    pub(super) fn exposed(&self) -> (u64, u64) {
        (self.max_bytes, self.max_ns)
    }

    /// Most bytes exposed at once by an unmap since the last call.
    pub(super) fn take_peak(&mut self) -> u64 {
        std::mem::take(&mut self.peak_bytes)
    }

    /// Sum of the times from each unmap to the next while the timer was running, in nanoseconds.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// Limits of the number of flushes: the least, if the load took no time, and the most, if the timer ran as often
    /// as possible.
    pub(super) fn bounds(&self) -> Bounds {
        if self.last_ns.is_none() {
            return Bounds::default();
        }
        let rings = self.rings.cpus.values();
        let full: u64 = rings.map(|ring| ring.added / self.kernel.queue_holds.max(1)).sum();
        let added: u64 = self.rings.cpus.values().map(|ring| ring.added).sum();
        let periods = self.busy_ns / self.kernel.timeout_ns.max(1);
        Bounds {
            // The timer flushes the entries behind the last flush.
            least: self.untimed.flushes + 1,
            most: added.min(full.saturating_add(periods).saturating_add(1)),
        }
    }

    fn quiet(&mut self, now_ns: u64) {
        self.bytes = 0;
        if let Some(oldest) = self.oldest_ns.take() {
            self.max_ns = self.max_ns.max(now_ns.saturating_sub(oldest));
        }
    }
}
