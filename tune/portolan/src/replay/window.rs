//! Memory that devices can still reach after its unmap: it waits in the library's flush queues.

use portolan::dma::Deferred;
use portolan_sim::cpus::VirtualCpus;

use super::timeline::EndRegions;
use crate::buffers::Memory;

/// Unmaps that wait in one CPU's flush queue.
#[derive(Default)]
pub(super) struct Window {
    /// Time at which the oldest was unmapped, in virtual nanoseconds; none if nothing waits.
    pub(super) since: Option<f64>,
    pub(super) bytes: u64,
    /// Regions of their addresses.
    pub(super) ends: Vec<EndRegions>,
    /// Buffers to be returned.
    pub(super) deferred: Vec<Deferred<VirtualCpus, Memory>>,
}

impl Window {
    fn absorb(&mut self, other: Self) {
        self.since = match (self.since, other.since) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        self.bytes += other.bytes;
        self.ends.extend(other.ends);
        self.deferred.extend(other.deferred);
    }
}

/// The windows of all CPUs.
pub(super) struct Windows {
    by_cpu: Vec<Window>,
    age_ns: f64,
    reachable: u64,
    most_bytes: u64,
    longest_ns: f64,
}

impl Windows {
    /// Makes `cpus` queues, which are flushed when their oldest entry is `age_ns` old.
    pub(super) fn new(cpus: usize, age_ns: f64) -> Self {
        Self {
            by_cpu: (0..cpus).map(|_| Window::default()).collect(),
            age_ns,
            reachable: 0,
            most_bytes: 0,
            longest_ns: 0.0,
        }
    }

    /// Most bytes that were reachable at once, and longest time.
    pub(super) fn worst(&self) -> (u64, f64) {
        (self.most_bytes, self.longest_ns)
    }

    /// `bytes` have been, or are about to be, unmapped.
    pub(super) fn open(&mut self, bytes: u64) {
        self.reachable += bytes;
        self.most_bytes = self.most_bytes.max(self.reachable);
    }

    /// Bytes that are reachable.
    pub(super) fn reachable(&self) -> u64 {
        self.reachable
    }

    /// `bytes` at `ends` that were unmapped at `since` wait in the queue of `cpu`.
    pub(super) fn queue(&mut self, cpu: usize, bytes: u64, ends: Option<EndRegions>, since: f64) {
        let window = &mut self.by_cpu[cpu];
        window.since.get_or_insert(since);
        window.bytes += bytes;
        window.ends.extend(ends);
        self.open(bytes);
    }

    /// Notes a buffer in the queue of `cpu`.
    pub(super) fn keep(&mut self, cpu: usize, deferred: Deferred<VirtualCpus, Memory>) {
        self.by_cpu[cpu].deferred.push(deferred);
    }

    /// Time by which the queue of `cpu` has to be flushed, in virtual nanoseconds.
    pub(super) fn due_ns(&self, cpu: usize) -> Option<f64> {
        Some(self.by_cpu[cpu].since? + self.age_ns)
    }

    /// Takes the unmaps that wait in the queue of `cpu`.
    pub(super) fn take(&mut self, cpu: usize) -> Window {
        std::mem::take(&mut self.by_cpu[cpu])
    }

    /// Takes the waiting unmaps of all queues that have to be flushed by `now`.
    pub(super) fn take_due(&mut self, now: f64) -> Window {
        let mut due = Window::default();
        for cpu in 0..self.by_cpu.len() {
            if self.due_ns(cpu).is_some_and(|at| at <= now) {
                let window = self.take(cpu);
                due.absorb(window);
            }
        }
        due
    }

    /// Notes that `bytes` have been invalidated, the oldest of which were unmapped at `since`. Returns the longest
    /// time that they were reachable, in virtual nanoseconds.
    pub(super) fn close(&mut self, bytes: u64, since: Option<f64>, now: f64) -> f64 {
        self.reachable -= bytes;
        let reachable_ns = since.map_or(0.0, |since| now - since);
        self.longest_ns = self.longest_ns.max(reachable_ns);
        reachable_ns
    }
}
