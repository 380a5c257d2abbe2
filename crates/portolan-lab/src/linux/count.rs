//! Counts what Linux would submit, operation by operation.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;

use anyhow::Result;
use portolan::dma::{Policy, Stage};
use portolan::inval::Caching;
use portolan_model::iommu::CommandPrices;
use portolan_model::profile::Profile;
use serde::Serialize;

use super::Rules;
use super::queues::{Added, Queues};
use crate::counts::{Exposed, Invalidations};
use crate::trace::{At, DeviceId, Mix, Op, OpKind};

/// What Linux would have submitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinuxReport {
    /// What the kernel was told: `strict` or `lazy`.
    pub asked: String,
    /// What it does: `strict` or `lazy`.
    pub policy: String,
    /// The reason, as a sentence.
    pub reason: String,
    /// Whether the unit reports caching mode: `on` or `off`.
    pub caching_mode: String,
    /// Which tables: `first` or `second`.
    pub stage: String,
    /// Commands by kind; a page-selective one is a range whatever its mask.
    pub invalidations: Invalidations,
    /// Page-selective commands by address mask (exponent of the number of pages).
    pub masks: BTreeMap<u8, u64>,
    /// How many of them were for maps.
    pub after_map: u64,
    /// Waits for completion.
    pub syncs: u64,
    /// Flushes because a CPU's queue was full.
    pub flushes_full: u64,
    /// Flushes by the timer.
    pub flushes_timer: u64,
    /// Microseconds of the machine for the commands.
    pub invalidation_us: f64,
    /// Microseconds of the machine for the waits, exits included.
    pub sync_wait_us: f64,
    /// Time in which lazy's unmaps follow each other: from each to its domain's next at most the 10 ms of the timer,
    /// summed over domains.
    pub busy_us: f64,
    /// What stayed reachable; strict leaves nothing but the wait itself, which is not counted here.
    pub exposed: Exposed,
    /// Each device's domain.
    pub domains: Vec<DomainReport>,
}

/// One device's domain.
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

struct Domain {
    queues: Queues,
    report: DomainReport,
}

/// The count, as it goes.
pub struct Counter {
    rules: Rules,
    lazy: bool,
    prices: CommandPrices,
    page: u64,
    domains: BTreeMap<DeviceId, Domain>,
    live: HashMap<u64, u64, BuildHasherDefault<Mix>>,
    report: LinuxReport,
}

impl Counter {
    /// Begins a count with the prices of `profile`.
    ///
    /// # Errors
    /// If one is missing.
    pub fn new(rules: Rules, profile: &Profile) -> Result<Self> {
        Ok(Self {
            lazy: rules.is_lazy(),
            rules,
            prices: CommandPrices::of(profile)?,
            page: profile.granule().bytes(),
            domains: BTreeMap::new(),
            live: HashMap::default(),
            report: LinuxReport::default(),
        })
    }

    /// Lets the timers run that are due.
    fn see(&mut self, at: At) {
        if !self.lazy {
            return;
        }
        let domains = self.domains.values_mut();
        let fired = domains.filter_map(|domain| {
            domain.queues.see(at)?;
            domain.report.invalidations += 1;
            Some(())
        });
        self.report.flushes_timer += fired.count() as u64;
    }

    fn domain(&mut self, device: DeviceId) -> &mut Domain {
        let timer = self.rules.timer;
        self.domains.entry(device).or_insert_with(|| Domain {
            queues: Queues::new(timer),
            report: DomainReport::default(),
        })
    }

    /// One invalidation for an operation of `bytes` bytes. Its addresses are aligned to its size
    /// rounded up to a power of two, so that one mask covers it.
    fn submit(&mut self, device: DeviceId, bytes: u64) {
        let pages = bytes.div_ceil(self.page).max(1);
        let mask = pages.next_power_of_two().trailing_zeros() as u8;
        if mask <= self.rules.max_mask {
            self.report.invalidations.range += 1;
            *self.report.masks.entry(mask).or_default() += 1;
        } else {
            self.report.invalidations.context += 1;
        }
        self.domain(device).report.invalidations += 1;
    }

    /// Counts an operation; `padded` are the bytes of a map's pages, if it can be carried out.
    pub(crate) fn note(&mut self, op: &Op<'_>, at: At, padded: Option<u64>) {
        match op.kind {
            OpKind::Unmap { id, .. } => self.unmap(at, op.device, id.0),
            OpKind::Map { id, .. } => {
                if let Some(padded) = padded {
                    self.map(at, op.device, id.0, padded);
                }
            }
        }
    }

    /// Counts a map of whole pages, `bytes` bytes in all, named `id`.
    pub fn map(&mut self, at: At, device: DeviceId, id: u64, bytes: u64) {
        self.see(at);
        self.live.insert(id, bytes);
        self.domain(device).report.maps += 1;
        if self.rules.shadowed() {
            self.report.after_map += 1;
            self.submit(device, bytes);
        }
    }

    /// Counts the unmap of `id`.
    pub fn unmap(&mut self, at: At, device: DeviceId, id: u64) {
        self.see(at);
        let Some(bytes) = self.live.remove(&id) else {
            return;
        };
        self.domain(device).report.unmaps += 1;
        if !self.lazy {
            self.submit(device, bytes);
            return;
        }
        let domain = self.domain(device);
        if domain.queues.add(at.now_ns, at.cpu, bytes) == Added::Flush {
            domain.report.invalidations += 1;
            self.report.flushes_full += 1;
        }
    }

    /// Lets all timers run and reports; `devices` are the trace's names.
    pub fn finish(mut self, devices: &[String]) -> LinuxReport {
        for domain in self.domains.values_mut() {
            if domain.queues.end().is_some() {
                domain.report.invalidations += 1;
                self.report.flushes_timer += 1;
            }
        }
        let mut report = self.report;
        report.invalidations.context += report.flushes_full + report.flushes_timer;
        report.syncs = report.invalidations.total();
        let decision = self.rules.decision();
        report.asked = self.rules.asked.to_string();
        report.policy = match decision.policy {
            Policy::Lazy => "lazy",
            Policy::Strict | Policy::Deferred => "strict",
        }
        .to_owned();
        decision.reason.clone_into(&mut report.reason);
        report.caching_mode = match self.rules.caching {
            Caching::NotPresentToo => "on",
            Caching::PresentOnly => "off",
        }
        .to_owned();
        report.stage = match self.rules.stage {
            Stage::First => "first",
            Stage::Second => "second",
        }
        .to_owned();
        let us = |count: u64, ns: f64| count as f64 * ns / 1000.0;
        let done = report.invalidations;
        report.invalidation_us =
            us(done.range, self.prices.range) + us(done.context, self.prices.context);
        report.sync_wait_us = us(report.syncs, self.prices.sync + self.prices.exit);
        // Domains are exposed at the same time, at worst.
        for (device, domain) in self.domains {
            let (bytes, ns) = domain.queues.exposed();
            report.busy_us += us(1, domain.queues.busy_ns() as f64);
            report.exposed.max_bytes += bytes;
            report.exposed.max_us = report.exposed.max_us.max(us(1, ns as f64));
            let name = devices.get(device.0 as usize).cloned().unwrap_or_default();
            report.domains.push(DomainReport {
                device: name,
                ..domain.report
            });
        }
        report
    }
}
