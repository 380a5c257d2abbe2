//! A row: some CPUs that repeat the same operation for a while.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use fastrand::Rng;
use portolan::addr::{Iova, PhysAddr, PhysRange, StreamId};
use portolan::dma::{
    Constraints, Deferred, Device, DmaSpace, FromDevice, Policy as Unmaps, SpaceOptions,
    reclaim_all,
};
use portolan::inval::{CombineOptions, Combined, Ranges};
use portolan::iommu::{BoundDomain, TagPool};
use portolan::table::{Format, PageTable};
use portolan_chips::fixture::Attached;
use portolan_sim::cpus::{CommandServer, Schedule, SharedTables, Submission, Taken, VirtualCpus};
use portolan_sim::iommu::CommandPrices;
use portolan_sim::profile::{Event, Profile, Workload};

use super::walks::{Since, Walks};
use super::{Options, ScalePolicy};
use crate::buffers::{buffer, simulated};
use portolan_tune::buffers::Memory;
use portolan_tune::fixture::{self, CONTEXT, LabDomain};
use portolan_tune::machines::MachineFormat;

const STREAM: StreamId = StreamId::new(1);
/// Buffers that are deferred before they are reclaimed.
const BATCH: usize = 32;
/// CPUs that submit together.
const GROUP: usize = 16;
/// CPUs of a group that submit on their own meanwhile.
const BESIDE: usize = 1;

/// An operation, in numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperationLoad {
    /// Bytes mapped and moved.
    pub bytes: f64,
    /// Nanoseconds that a CPU computes, on average.
    pub work_ns: f64,
    /// Nanoseconds that the device takes, one operation at a time.
    pub device_ns: Option<f64>,
}

impl OperationLoad {
    /// Load of a profile.
    pub fn of(workload: &Workload) -> Self {
        Self {
            bytes: workload.bytes as f64,
            work_ns: workload.work.ns,
            device_ns: workload.device.as_ref().map(|price| price.ns),
        }
    }
}

/// Settings of one row.
#[derive(Clone, Debug)]
pub struct RowSettings {
    /// The policy.
    pub policy: ScalePolicy,
    /// CPUs.
    pub cpus: usize,
    /// The price of an exit, if not the profile's.
    pub exit_ns: Option<f64>,
    /// Seed of all that is random.
    pub seed: u64,
    /// Virtual nanoseconds; the first quarter does not count.
    pub horizon_ns: f64,
}

impl RowSettings {
    /// `policy` on `cpus` CPUs.
    pub fn of(policy: ScalePolicy, cpus: usize, options: &Options) -> Self {
        Self {
            policy,
            cpus,
            exit_ns: None,
            seed: options.seed,
            horizon_ns: options.horizon_ms as f64 * 1e6,
        }
    }
}

/// Result of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PointResult {
    /// Operations a second.
    pub operations_per_s: f64,
    /// Syncs by operation.
    pub syncs_per_operation: f64,
    /// Exits to a hypervisor by operation.
    pub exits_per_operation: f64,
    /// Commands by operation.
    pub commands_per_operation: f64,
}

/// Computes one row.
///
/// # Errors
/// If the profile lacks a price, or the library refuses an operation, which is a defect.
pub fn simulate(profile: &Profile, load: &OperationLoad, way: &RowSettings) -> Result<PointResult> {
    // Of machines whose costs of sharing are known.
    match MachineFormat::of(profile.format())? {
        MachineFormat::Armv8Stage1(format) => {
            Bench::new(profile, load, way, SharedTables(format))?.run()
        }
        MachineFormat::VtdFirstStage(format) => {
            Bench::new(profile, load, way, SharedTables(format))?.run()
        }
        other => bail!("throughput is not computed for tables like {other:?}"),
    }
}

type Server = CommandServer<Walks>;

/// Everything that the CPUs of one row share.
struct Bench<'b> {
    way: &'b RowSettings,
    load: &'b OperationLoad,
    cpus: VirtualCpus,
    server: Arc<Server>,
    /// Exits by doorbell.
    exits: u32,
    device: Device<VirtualCpus>,
    /// Nanoseconds of a map and of an unmap.
    calls: [f64; 2],
    /// Time at which the device is free, in nanoseconds.
    device_free: Mutex<f64>,
    counted: AtomicU64,
    all: AtomicU64,
    failure: Mutex<Option<anyhow::Error>>,
}

/// Options of CPUs that submit together to a queue that takes commands in the way of `today`.
fn combining(today: Submission) -> CombineOptions {
    CombineOptions {
        cpus_per_group: GROUP,
        // If submitting takes no lock, a single CPU waits for no other.
        beside: match today {
            Submission::LockFree => BESIDE,
            Submission::HeldAcrossWait | Submission::LockedInsertion => 0,
        },
        ..CombineOptions::default()
    }
}

impl<'b> Bench<'b> {
    fn new<F: Format>(
        profile: &Profile,
        load: &'b OperationLoad,
        way: &'b RowSettings,
        format: F,
    ) -> Result<Self> {
        let lacks = || format!("`{}` does not say what sharing costs", profile.name());
        let sharing = profile.sharing().with_context(lacks)?.prices();
        let submission = profile.submission().with_context(lacks)?.prices();
        let cpus = VirtualCpus::new(way.cpus, sharing);
        let mut commands = CommandPrices::of(profile)?;
        commands.exit = way.exit_ns.unwrap_or(commands.exit);
        let exits = u32::from(commands.exit > 0.0);
        let server = Arc::new(CommandServer::new(
            cpus.clone(),
            commands,
            submission,
            profile.queue(),
            submission.today,
            Walks::new(format.levels(), profile.price(Event::IotlbMissStep)?),
        ));
        let tables =
            fixture::tables(&format, 1024 + 64 * way.cpus as u32, &cpus, commands.clean_line);
        let table = PageTable::new(format, tables)?;
        let (caps, quirks) = (profile.capabilities(), profile.quirks());
        let queue: Arc<dyn TagPool> = match way.policy {
            ScalePolicy::Combined | ScalePolicy::Deferred => {
                let (ranges, options) = (Ranges::of(&caps), combining(submission.today));
                let below = Arc::clone(&server);
                Arc::new(Combined::new(cpus.clone(), below, ranges, options))
            }
            ScalePolicy::Identity | ScalePolicy::Strict | ScalePolicy::Lazy => server.clone(),
        };
        let domain = LabDomain::<F>::new(table, CONTEXT, caps, quirks, queue);
        let mut options = SpaceOptions::default();
        options.policy = match way.policy {
            ScalePolicy::Identity | ScalePolicy::Strict | ScalePolicy::Combined => Unmaps::Strict,
            ScalePolicy::Deferred => Unmaps::Deferred,
            ScalePolicy::Lazy => Unmaps::Lazy,
        };
        let bound = BoundDomain::new(Arc::new(Attached), Arc::new(domain), simulated());
        let space = DmaSpace::with_cpus(bound, cpus.clone(), &options, simulated())?;
        let space = Arc::new(space);
        let device = Device::translated(space, STREAM, Constraints::trusted())?;
        let pages = (load.bytes / F::GRANULE.bytes() as f64).ceil().max(1.0);
        let entry = profile.price(Event::PteWrite)?;
        let leave = profile.price(Event::UnmapPage)?;
        Ok(Self {
            way,
            load,
            cpus,
            server,
            exits,
            device,
            calls: [
                profile.price(Event::MapCall)? + pages * entry,
                profile.price(Event::UnmapCall)? + pages * leave,
            ],
            device_free: Mutex::new(0.0),
            counted: AtomicU64::new(0),
            all: AtomicU64::new(0),
            failure: Mutex::new(None),
        })
    }

    fn run(self) -> Result<PointResult> {
        let schedule = Schedule::of_seed(self.way.seed);
        self.cpus.run(&schedule, |cpu| {
            if let Err(error) = self.operate(cpu.get().into()) {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
            }
        })?;
        let taken: Taken = self.server.taken();
        let failure = self.failure.into_inner();
        if let Some(error) = failure.unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let all = self.all.into_inner().max(1) as f64;
        let kinds = taken.invalidations;
        let commands = kinds.page + kinds.range + kinds.context + kinds.global;
        let span_ns = self.way.horizon_ns * 0.75;
        Ok(PointResult {
            operations_per_s: self.counted.into_inner() as f64 / (span_ns / 1e9),
            syncs_per_operation: taken.syncs as f64 / all,
            exits_per_operation: f64::from(self.exits) * taken.doorbells as f64 / all,
            commands_per_operation: commands as f64 / all,
        })
    }

    /// Runs one CPU's operations until the time is over.
    fn operate(&self, cpu: u64) -> Result<()> {
        let mut rng = Rng::with_seed(self.way.seed ^ (cpu + 1) << 32);
        let bytes = self.load.bytes.round() as u64;
        // Buffers of one CPU, 64 of them, whole pages.
        let stride = bytes.next_multiple_of(1 << 16).max(1 << 16);
        let base = (1 << 40) + cpu * 64 * stride;
        let mut deferred = Vec::new();
        for number in 0u64.. {
            if self.cpus.now_exact_ns() >= self.way.horizon_ns {
                break;
            }
            self.cpus.work(self.load.work_ns * (0.5 + rng.f64()));
            let start = PhysAddr::new(base + number % 64 * stride);
            let memory = PhysRange::from_len(start, bytes).context("no bytes")?;
            self.once(memory, &mut deferred)?;
            self.all.fetch_add(1, Ordering::Relaxed);
            let now = self.cpus.now_exact_ns();
            if (self.way.horizon_ns / 4.0..self.way.horizon_ns).contains(&now) {
                self.counted.fetch_add(1, Ordering::Relaxed);
            }
        }
        reclaim(&mut deferred)
    }

    /// Runs an operation.
    fn once(&self, memory: PhysRange, deferred: &mut Vec<Kept>) -> Result<()> {
        if self.way.policy == ScalePolicy::Identity {
            self.transfer(None);
            return Ok(());
        }
        let walks = self.server.hardware();
        let before = walks.now();
        self.cpus.work(self.calls[0]);
        let mapped = self.device.map(buffer(memory), FromDevice);
        let mapping = mapped.map_err(|failed| anyhow!("a map was refused: {}", failed.error))?;
        if self.way.policy == ScalePolicy::Strict {
            self.server.after_map();
        }
        self.transfer(Some((mapping.iova(), before)));
        self.cpus.work(self.calls[1]);
        if self.way.policy == ScalePolicy::Deferred {
            let Ok(one) = mapping.defer() else {
                bail!("a mapping was not deferred");
            };
            deferred.push(one);
            return if deferred.len() < BATCH { Ok(()) } else { reclaim(deferred) };
        }
        match mapping.unmap() {
            Ok(_) => Ok(()),
            Err(_) => bail!("a mapping was not unmapped"),
        }
    }

    /// Waits for its turn at the device, and for the translations that have to be looked up again.
    fn transfer(&self, mapped: Option<(Iova, Since)>) {
        self.turn();
        if let Some((iova, since)) = mapped {
            let again_ns = self.server.hardware().again_ns(iova, since);
            if again_ns > 0.0 {
                self.cpus.sleep_until(self.cpus.now_exact_ns() + again_ns);
            }
        }
    }

    /// Waits for its turn at the device.
    fn turn(&self) {
        let Some(ns) = self.load.device_ns else {
            return;
        };
        // CPUs with an earlier clock run first.
        self.cpus.sleep_until(0.0);
        let start = {
            let free = self.device_free.lock();
            let mut free = free.unwrap_or_else(PoisonError::into_inner);
            let start = free.max(self.cpus.now_exact_ns());
            *free = start + ns;
            start
        };
        self.cpus.sleep_until(start);
    }
}

type Kept = Deferred<VirtualCpus, Memory>;

fn reclaim(deferred: &mut Vec<Kept>) -> Result<()> {
    let mut kept = 0;
    let done = reclaim_all(deferred.drain(..), |_| {}, |_| kept += 1);
    done.map_err(|error| anyhow!("{kept} buffers did not come back: {error}"))
}
