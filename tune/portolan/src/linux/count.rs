//! Counts the commands that Linux would submit, operation by operation.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;

use anyhow::Result;
use portolan::dma::Policy;
use portolan::inval::Caching;
use portolan_sim::iommu::CommandPrices;
use portolan_sim::profile::Profile;
use serde::Serialize;

use super::Rules;
use super::kernel::Kernel;
use super::queues::{Added, Queues};
use super::timer::Timers;
use super::times::{LinuxPrices, LinuxTimes, PricedCounts};
use crate::counts::{Exposed, Invalidations};
use crate::trace::{At, DeviceId, Mix, Op, OpKind};

/// Commands that Linux would have submitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinuxReport {
    /// Policy that the kernel was asked for: `strict` or `lazy`.
    pub asked: String,
    /// Policy that it follows: `strict` or `lazy`.
    pub policy: String,
    /// The reason, as a sentence.
    pub reason: String,
    /// Caching mode, or `NpCache`, of the unit: `on` or `off`.
    pub caching_mode: String,
    /// Stage of the tables: `first` or `second`; AMD's of version 1 are second.
    pub stage: String,
    /// Name of the unit: `VT-d` or `AMD-Vi`.
    pub unit: String,
    /// Commands by kind; a page-selective one is a range with any mask.
    pub invalidations: Invalidations,
    /// Page-selective commands by address mask (exponent of the number of pages).
    pub masks: BTreeMap<u8, u64>,
    /// Number of commands for maps.
    pub after_map: u64,
    /// Waits for completion.
    pub syncs: u64,
    /// Flushes because a CPU's queue was full.
    pub flushes_full: u64,
    /// Flushes by the timer.
    pub flushes_timer: u64,
    /// Unmaps that a lazy kernel waits for all the same: of the two-step API, since 7.3.
    pub unqueued: u64,
    /// The least and the most waits of a lazy kernel, for all lengths of the load up to the recorded one.
    pub syncs_range: [u64; 2],
    /// Microseconds of the machine for the commands.
    pub invalidation_us: f64,
    /// Microseconds of the machine for the waits, exits included.
    pub sync_wait_us: f64,
    /// Time of all work, if the machine has prices for Linux's own path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_us: Option<LinuxTimes>,
    /// Time in which lazy's timer runs: from each unmap to the next of its domain, at most the timer's 10 ms, summed
    /// over domains.
    pub busy_us: f64,
    /// Memory that stayed reachable; strict leaves it no longer than the wait itself, which is not counted here.
    pub exposed: Exposed,
    /// Each device's domain.
    pub domains: Vec<DomainReport>,
}

/// Report on a device's domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DomainReport {
    /// The device.
    pub device: String,
    /// Maps, coherent ones included.
    pub maps: u64,
    /// Unmaps, coherent ones included.
    pub unmaps: u64,
    /// Commands.
    pub invalidations: u64,
}

/// Work for one device between two looks at a running count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceInterval {
    /// The device.
    pub device: DeviceId,
    /// Commands.
    pub invalidations: u64,
    /// Microseconds of all of Linux's path, if the machine has prices for it.
    pub cpu_us: Option<f64>,
    /// Most bytes at once that were unmapped and still reachable.
    pub exposed_bytes: u64,
}

struct Domain {
    lazy: bool,
    queues: Queues,
    work: PricedCounts,
    /// Work that [`Counter::interval`] has told.
    told: PricedCounts,
}

impl Domain {
    /// Flushes it by its timer.
    fn run(&mut self, now_ns: u64) {
        self.queues.run(now_ns);
        self.work.flush();
    }
}

/// A mapping that lives.
#[derive(Clone, Copy)]
struct LinuxMapping {
    bytes: u64,
    /// True if its unmap joins a flush queue under a lazy kernel.
    queued: bool,
}

/// A running count.
pub struct Counter {
    rules: Rules,
    kernel: Kernel,
    /// Policy of a device of which nothing else was said.
    lazy: bool,
    /// True if some domain has a timer.
    timed: bool,
    prices: CommandPrices,
    /// Prices of all of Linux's path, if the machine has them.
    linux_prices: Option<LinuxPrices>,
    page: u64,
    domains: BTreeMap<DeviceId, Domain>,
    timers: Timers,
    live: HashMap<u64, LinuxMapping, BuildHasherDefault<Mix>>,
    report: LinuxReport,
}

impl Counter {
    /// Begins a count with the prices of `profile`.
    ///
    /// # Errors
    /// If one is missing.
    pub fn new(rules: Rules, profile: &Profile) -> Result<Self> {
        let kernel = rules.kernel.unwrap_or_default();
        let lazy = rules.is_lazy();
        Ok(Self {
            lazy,
            timed: lazy,
            rules,
            kernel,
            prices: CommandPrices::of(profile)?,
            linux_prices: LinuxPrices::of(profile).ok(),
            page: profile.granule().bytes(),
            domains: BTreeMap::new(),
            timers: Timers::new(kernel),
            live: HashMap::default(),
            report: LinuxReport::default(),
        })
    }

    /// Lets the timers run that are due.
    fn see(&mut self, at: At) {
        if !self.timed {
            return;
        }
        let (domains, report) = (&mut self.domains, &mut self.report);
        self.timers.see(at, |device| {
            if let Some(domain) = domains.get_mut(&device) {
                domain.run(at.now_ns);
                report.flushes_timer += 1;
            }
        });
    }

    fn domain(&mut self, device: DeviceId) -> &mut Domain {
        let (kernel, lazy) = (self.kernel, self.lazy);
        self.domains.entry(device).or_insert_with(|| Domain {
            lazy,
            queues: Queues::new(kernel),
            work: PricedCounts::default(),
            told: PricedCounts::default(),
        })
    }

    /// Follows what the kernel says of a device's own domain: lazy, or strict.
    pub(crate) fn set_lazy(&mut self, device: DeviceId, lazy: bool) {
        self.domain(device).lazy = lazy;
        self.timed |= lazy;
    }

    /// Submits the commands of an operation of `bytes` bytes, and one wait; returns their number.
    fn submit(&mut self, device: DeviceId, bytes: u64) -> u64 {
        let (unit, pages) = (self.rules.unit, bytes.div_ceil(self.page));
        let (mut ranges, mut contexts) = (0, 0);
        unit.commands(pages, |mask| match mask {
            Some(mask) => {
                ranges += 1;
                *self.report.masks.entry(mask).or_default() += 1;
            }
            None => contexts += 1,
        });
        let work = &mut self.domain(device).work;
        work.ranges += ranges;
        work.contexts += contexts;
        work.syncs += 1;
        ranges + contexts
    }

    /// Counts an operation; `padded` are the bytes of a map's pages, if it can be carried out.
    pub(crate) fn note(&mut self, op: &Op<'_>, at: At, padded: Option<u64>) {
        self.see(at);
        match op.kind {
            OpKind::Unmap { id, .. } => self.unmap(at, op.device, id.0),
            OpKind::Map { id, api, pieces, .. } => {
                if let Some(bytes) = padded {
                    let pages = bytes.div_ceil(self.page);
                    self.domain(op.device).work.map(pages, pieces.len() as u64);
                    let queued = self.kernel.queues(api, pieces.len());
                    self.map(op.device, id.0, LinuxMapping { bytes, queued });
                }
            }
        }
    }

    /// Counts a map of whole pages, named `id`.
    fn map(&mut self, device: DeviceId, id: u64, live: LinuxMapping) {
        self.live.insert(id, live);
        if self.rules.unit.is_shadowed() {
            self.report.after_map += self.submit(device, live.bytes);
        }
    }

    /// Counts the unmap of `id`.
    fn unmap(&mut self, at: At, device: DeviceId, id: u64) {
        let Some(LinuxMapping { bytes, queued }) = self.live.remove(&id) else {
            return;
        };
        let domain = self.domain(device);
        domain.work.unmaps += 1;
        if !domain.lazy {
            self.submit(device, bytes);
            return;
        }
        if !queued {
            self.report.unqueued += 1;
            self.submit(device, bytes);
            return;
        }
        domain.work.queued += 1;
        let added = domain.queues.add(at.now_ns, at.cpu, bytes);
        let starts = domain.queues.start();
        if added == Added::Flush {
            domain.work.flush();
            self.report.flushes_full += 1;
        }
        if starts {
            self.timers.start(at, device);
        }
    }

    /// Counts `unmaps` of mappings whose maps were not seen, and of whose size nothing is known.
    pub(crate) fn note_unseen(&mut self, device: DeviceId, unmaps: u64) {
        let domain = self.domain(device);
        domain.work.unmaps += unmaps;
        match domain.lazy {
            true => domain.work.queued += unmaps,
            false => {
                for _ in 0..unmaps {
                    self.submit(device, self.page);
                }
            }
        }
    }

    /// Work of each device since the last call.
    pub(crate) fn interval(&mut self) -> Vec<DeviceInterval> {
        let prices = self.linux_prices.as_ref();
        let domains = self.domains.iter_mut().map(|(device, domain)| {
            let work = domain.work.since(std::mem::replace(&mut domain.told, domain.work));
            DeviceInterval {
                device: *device,
                invalidations: work.commands(),
                cpu_us: prices.map(|prices| prices.times(&work).total),
                exposed_bytes: domain.queues.take_peak(),
            }
        });
        domains.collect()
    }

    /// Lets all timers run, which would have run after the last operation.
    pub(crate) fn run_timers(&mut self) {
        let (domains, report) = (&mut self.domains, &mut self.report);
        self.timers.end(|device, now_ns| {
            if let Some(domain) = domains.get_mut(&device) {
                domain.run(now_ns);
                report.flushes_timer += 1;
            }
        });
    }

    /// Lets all timers run and reports; `devices` are the trace's names.
    pub fn finish(mut self, devices: &[String]) -> LinuxReport {
        self.run_timers();
        let work = self.domains.values().map(|domain| domain.work);
        let work = work.fold(PricedCounts::default(), PricedCounts::plus);
        let mut report = self.report;
        report.invalidations.range = work.ranges;
        report.invalidations.context = work.contexts;
        report.syncs = work.syncs;
        let flushes = report.flushes_full + report.flushes_timer;
        report.syncs_range = [report.syncs - flushes; 2];
        let decision = self.rules.decision();
        report.asked = self.rules.asked_name().to_owned();
        report.policy = match decision.policy {
            Policy::Lazy => "lazy",
            Policy::Strict | Policy::Deferred => "strict",
        }
        .to_owned();
        decision.reason.clone_into(&mut report.reason);
        report.caching_mode = match self.rules.unit.caching() {
            Caching::NotPresentToo => "on",
            Caching::PresentOnly => "off",
        }
        .to_owned();
        [report.unit, report.stage] = self.rules.unit.names().map(str::to_owned);
        let us = |count: u64, ns: f64| count as f64 * ns / 1000.0;
        let done = report.invalidations;
        report.invalidation_us =
            us(done.range, self.prices.range) + us(done.context, self.prices.context);
        report.sync_wait_us = us(report.syncs, self.prices.sync + self.prices.exit);
        report.time_us = self.linux_prices.map(|prices| prices.times(&work));
        // Domains are exposed at the same time, at worst.
        for (device, domain) in self.domains {
            let (bytes, ns) = domain.queues.exposed();
            let bounds = domain.queues.bounds();
            report.syncs_range[0] += bounds.least;
            report.syncs_range[1] += bounds.most;
            report.busy_us += us(1, domain.queues.busy_ns() as f64);
            report.exposed.max_bytes += bytes;
            report.exposed.max_us = report.exposed.max_us.max(us(1, ns as f64));
            report.domains.push(DomainReport {
                device: devices.get(device.0 as usize).cloned().unwrap_or_default(),
                maps: domain.work.maps,
                unmaps: domain.work.unmaps,
                invalidations: domain.work.commands(),
            });
        }
        report
    }
}
