//! A guest whose disk goes through a bounce pool, in virtual time.
//!
//! Jobs keep requests in flight; each takes slots from the pool, is worked on, goes to a device that
//! serves one after another, is worked on again and gives its slots back. The pool is the library's.
//! Jobs are spread over the virtual CPUs evenly and stay; those of one CPU count as one with more
//! requests in flight. A CPU is idle only while all of its requests are at the device.
//!
//! Not modelled: the copies apart from other work, interrupts, CPUs other than those with jobs.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use fastrand::Rng;
use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::bounce::{Need, PoolOptions, Slots};
use portolan_sim::cpus::{Schedule, SharingPrices, VirtualCpus};
use portolan_sim::swiotlb::{self, AnyPool, Strategy};

use crate::buffers::of_pool;

/// Bytes of a request.
pub const BLOCK: u64 = 4096;
/// Requests that a job keeps in flight.
const DEPTH: usize = 256;
/// Bytes of the pool: the default of Linux.
const POOL: u64 = 64 << 20;
/// Virtual nanoseconds; the first quarter does not count.
const HORIZON: f64 = 20e6;
/// Nanoseconds by which a clock can be earlier than the time slept for, because it counts picoseconds.
const RESOLUTION: f64 = 1e-3;
/// Nanoseconds that a CPU waits if it finds the pool full and has nothing in flight.
const PATIENCE: f64 = 10e3;

/// Load of the guest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuestLoad {
    /// Strategy of its pool's search for slots.
    pub strategy: Strategy,
    /// Virtual CPUs.
    pub cpus: usize,
    /// Jobs.
    pub jobs: usize,
    /// Nanoseconds that a CPU works on one request, besides waits and the costs of sharing.
    pub work_ns: f64,
    /// Nanoseconds that the device takes for one request; none if it is never the limit.
    pub device_ns: Option<f64>,
    /// Prices of sharing.
    pub sharing: SharingPrices,
    /// Seed of all that is random.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuestResult {
    /// Requests a second.
    pub requests_per_s: f64,
    /// Busy CPUs, waiting for locks included; 100 is one CPU.
    pub busy_pct: f64,
    /// Times that a lock was found held, by request.
    pub lock_waits: f64,
    /// Times that the pool was full.
    pub full: u64,
    /// Pages of the pool that were in use at one time or another.
    pub pool_pages: u64,
}

impl GuestResult {
    /// Megabytes (10^6) a second.
    pub fn mb_s(&self) -> f64 {
        self.requests_per_s * BLOCK as f64 / 1e6
    }

    /// Nanoseconds from one request to the next.
    pub fn period_ns(&self) -> f64 {
        1e9 / self.requests_per_s
    }
}

/// State that all CPUs share.
struct Guest<'l> {
    load: &'l GuestLoad,
    cpus: VirtualCpus,
    pool: AnyPool<VirtualCpus>,
    /// Time at which the device is free, in nanoseconds.
    device_free: Mutex<f64>,
    sums: Mutex<Sums>,
    /// Pages of the pool that were in use.
    used: Mutex<HashSet<u64>>,
}

#[derive(Default)]
struct Sums {
    counted: u64,
    all: u64,
    busy_ns: f64,
    full: u64,
    failure: Option<anyhow::Error>,
}

/// Computes one row.
///
/// # Errors
/// If the library refuses an operation that it must take, which is a defect.
pub fn simulate(load: &GuestLoad) -> Result<GuestResult> {
    let cpus = VirtualCpus::new(load.cpus, load.sharing);
    let memory = PhysRange::from_len(PhysAddr::new(1 << 32), POOL).context("no pool")?;
    let options = PoolOptions::of_areas(load.cpus as u32);
    let guest = Guest {
        load,
        pool: swiotlb::pool(cpus.clone(), of_pool(memory), options, load.strategy)?,
        cpus,
        device_free: Mutex::new(0.0),
        sums: Mutex::default(),
        used: Mutex::default(),
    };
    let schedule = Schedule::of_seed(load.seed);
    let report = guest.cpus.run(&schedule, |cpu| {
        let done = guest.operate(cpu.get() as usize);
        let mut sums = guest.sums.lock().unwrap_or_else(PoisonError::into_inner);
        match done {
            Ok(one) => {
                sums.counted += one.counted;
                sums.all += one.all;
                sums.busy_ns += one.busy_ns;
                sums.full += one.full;
            }
            Err(error) => sums.failure = Some(error),
        }
    })?;
    let used = guest.used.into_inner();
    let pool_pages = used.unwrap_or_else(PoisonError::into_inner).len() as u64;
    let sums = guest.sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = sums.failure {
        return Err(error);
    }
    let window = HORIZON * 0.75;
    Ok(GuestResult {
        requests_per_s: sums.counted as f64 / (window / 1e9),
        busy_pct: sums.busy_ns / window * 100.0,
        lock_waits: report.counters.lock_waits as f64 / sums.all.max(1) as f64,
        full: sums.full,
        pool_pages,
    })
}

impl Guest<'_> {
    /// The requests of one CPU's jobs, until time is up.
    fn operate(&self, cpu: usize) -> Result<Sums> {
        let mut sums = Sums::default();
        let (jobs, cpus) = (self.load.jobs, self.load.cpus);
        let depth = DEPTH * (jobs / cpus + usize::from(cpu < jobs % cpus));
        if depth == 0 {
            return Ok(sums);
        }
        let mut rng = Rng::with_seed(self.load.seed ^ (cpu as u64 + 1) << 32);
        let mut work = || self.cpus.work(self.load.work_ns / 2.0 * (0.5 + rng.f64()));
        let mut flying: VecDeque<(f64, Slots)> = VecDeque::with_capacity(depth);
        let mut idle = 0.0;
        loop {
            let now = self.cpus.now_exact_ns();
            if now >= HORIZON {
                break;
            }
            let done = flying.front().map(|(at, _)| *at);
            if done.is_some_and(|at| at <= now + RESOLUTION) {
                if let Some((_, slots)) = flying.pop_front() {
                    work();
                    self.give(slots)?;
                }
                let now = self.cpus.now_exact_ns();
                sums.all += 1;
                sums.counted += u64::from((HORIZON / 4.0..HORIZON).contains(&now));
                continue;
            }
            if flying.len() < depth {
                if let Ok(slots) = self.pool.take(&need()) {
                    let page = slots.data().start().get() / BLOCK;
                    let used = self.used.lock();
                    used.unwrap_or_else(PoisonError::into_inner).insert(page);
                    work();
                    flying.push_back((self.transfer(), slots));
                    continue;
                }
                sums.full += 1;
            }
            let until = done.unwrap_or(now + PATIENCE);
            self.cpus.sleep_until(until);
            idle += (until.min(HORIZON) - now.max(HORIZON / 4.0)).max(0.0);
        }
        for (_, slots) in flying {
            self.give(slots)?;
        }
        sums.busy_ns = HORIZON * 0.75 - idle;
        Ok(sums)
    }

    fn give(&self, slots: Slots) -> Result<()> {
        let given = self.pool.give(slots);
        given.map_err(|error| anyhow!("slots were not taken back: {error}"))
    }

    /// Sends a request to the device; returns when that has served it.
    fn transfer(&self) -> f64 {
        // CPUs with an earlier clock run first.
        self.cpus.sleep_until(0.0);
        let now = self.cpus.now_exact_ns();
        let Some(ns) = self.load.device_ns else {
            return now;
        };
        let mut free = self.device_free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = free.max(now) + ns;
        *free
    }
}

/// A block: page-aligned, as NVMe wants the copy to be.
fn need() -> Need {
    Need { keep: PageSize::SIZE_4K, ..Need::bytes(BLOCK) }
}
