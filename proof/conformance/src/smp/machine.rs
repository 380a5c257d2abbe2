//! A machine from start to end: its CPUs, its IOMMU, memory for tables, and the work of each CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use portolan::addr::{InvalTag, PageSize, PhysAddr, StreamId};
use portolan::inval::Quirks;
use portolan::iommu::{PagedDomain, TagPool};
use portolan::platform::{Clock as _, Cpus as _, SlabTables};
use portolan::table::PageTable;
use portolan::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
use portolan_sim::cpus::{
    CommandServer, Hardware, LockKind, Schedule, SharingPrices, Submission, SubmissionPrices,
    VirtualCpus,
};
use portolan_sim::decode::{TableFormat, TableReader, TableRoot};
use portolan_sim::iommu::{CommandPrices, Iommu, Setup, StreamConfig};
use portolan_sim::profile::QueueLimits;

use super::buffers::{Buffers, Hands};
use super::failing::{FailingHardware, Failures, Health};
use super::region::FaultingRegion;
use super::world::FrameWorld;
use super::{SmpLoad, SmpPlan};
use crate::record::Tally;

/// Table pages, more than all need.
const PLENTY: u32 = 4096;
/// Table pages for buffers, few enough to run out at times.
const SCARCE: u32 = 24;
/// Table pages for a region: a root, two tables on the way, and leaf tables for half of it.
const SCARCE_REGION: u32 = 5;
/// Longest computation of a CPU between two steps, in nanoseconds.
pub(super) const BETWEEN_NS: f64 = 400.0;
/// Longest random delay of an access to what CPUs share, in nanoseconds.
const RAGGED_NS: f64 = 40.0;

type Tables = Arc<SlabTables<AtomicU64>>;
/// The IOMMU.
pub type Model = Iommu<TableReader<AtomicU64, Tables>>;
/// Queue of the unit.
pub(super) type Server = Arc<CommandServer<FailingHardware>>;
pub(super) type Domain<Q> = PagedDomain<VtdSecondStage, Tables, Q>;

/// A machine.
pub(super) struct SmpMachine {
    /// The round's, with its own seed.
    pub(super) plan: SmpPlan,
    pub(super) cpus: VirtualCpus,
    pub(super) model: Arc<Model>,
    pub(super) server: Server,
    pub(super) failures: Arc<Failures>,
    pub(super) world: Arc<FrameWorld>,
    pub(super) tally: Arc<Tally>,
    tables: Tables,
    /// CPUs that are done.
    finished: AtomicU64,
}

/// State of one CPU.
pub(super) struct SmpCpu {
    pub(super) number: u64,
    pub(super) rng: Rng,
    pub(super) hands: Hands,
    /// The page of a region that its device uses next.
    pub(super) next: u64,
}

/// Makes a queue with prices for each kind of command.
fn server(cpus: &VirtualCpus, hardware: FailingHardware) -> Server {
    let commands = CommandPrices {
        page: 150.0,
        range: 150.0,
        context: 150.0,
        sync: 400.0,
        ..CommandPrices::default()
    };
    let way = Submission::LockFree;
    let submission =
        SubmissionPrices { descriptor: 5.0, doorbell: 50.0, latency: 100.0, today: way };
    let limits = QueueLimits { depth: 256, deadline_ns: 10_000_000 };
    Arc::new(CommandServer::new(cpus.clone(), commands, submission, limits, way, hardware))
}

/// Prices of what CPUs share.
const SHARING: SharingPrices = SharingPrices {
    hit: 1.0,
    transfer: 60.0,
    share: 15.0,
    handover: 60.0,
    relax: 20.0,
    lock: LockKind::Queued,
};

/// Runs a machine from start to end.
pub(super) fn run(
    plan: SmpPlan,
    tally: &Arc<Tally>,
    wrap: &dyn Fn(Arc<Model>) -> Box<dyn Hardware>,
) {
    let (load, hardware) = (plan.load.name(), plan.health.name());
    tally.begin(format!("{load}, {hardware} hardware, seed {}", plan.seed));
    let machine = SmpMachine::new(plan, tally, wrap);
    let buffers = plan.load.buffers().map(|mode| Buffers::new(&machine, mode));
    let region = plan.load.faults().then(|| FaultingRegion::new(&machine));
    let end = tally.operations() + plan.operations;
    let work = Work { machine: &machine, buffers: buffers.as_ref(), region: region.as_ref(), end };
    let schedule = Schedule::of_seed(plan.seed).ragged(RAGGED_NS);
    if let Err(error) = machine.cpus.run(&schedule, |cpu| work.run(cpu.get().into())) {
        return tally.violation(error);
    }
    if let Some(buffers) = buffers {
        buffers.take_down();
    }
    let used = region.as_ref().map_or(0, FaultingRegion::take_down);
    tally.add("syncs", machine.model.counters().syncs);
    let live = machine.tables.live();
    if live != used {
        tally.violation(format!("{live} table pages are out of memory, {used} in use"));
    }
}

impl SmpMachine {
    fn new(
        plan: SmpPlan,
        tally: &Arc<Tally>,
        wrap: &dyn Fn(Arc<Model>) -> Box<dyn Hardware>,
    ) -> Self {
        let cpus = VirtualCpus::new(plan.cpus as usize, SHARING);
        let pages = match (plan.health, plan.load) {
            (Health::Sound, _) => PLENTY,
            (Health::Failing, SmpLoad::Buffers(_)) => SCARCE,
            (Health::Failing, SmpLoad::Faults) => SCARCE_REGION,
            (Health::Failing, SmpLoad::Both(_)) => SCARCE + SCARCE_REGION,
        };
        let tables: Tables =
            Arc::new(SlabTables::new(PhysAddr::new(1 << 33), PageSize::SIZE_4K, pages));
        let reader = TableReader::new(tables.clone(), PageSize::SIZE_4K);
        let setup = Setup::adversarial(Setup::able(PageSize::SIZE_4K));
        let model = Arc::new(Iommu::new(setup, reader));
        let failures = Failures::new(plan.health, plan.seed, tally.clone());
        let hardware =
            FailingHardware { hardware: wrap(model.clone()), failures: failures.clone() };
        Self {
            plan,
            server: server(&cpus, hardware),
            world: FrameWorld::new(cpus.clone(), plan.seed),
            cpus,
            model,
            failures,
            tally: tally.clone(),
            tables,
            finished: AtomicU64::new(0),
        }
    }

    /// A domain of an empty table; the model reads that for the domain's `streams`.
    pub(super) fn domain<Q: TagPool>(
        &self,
        context: InvalTag,
        dirty: DirtyTracking,
        queue: Q,
        streams: impl Iterator<Item = StreamId>,
    ) -> Domain<Q> {
        let format = VtdSecondStage { levels: VtdLevels::Four, output_lg2: 46, dirty };
        let table = PageTable::new(format, self.tables.clone()).expect("memory for a root");
        let format = TableFormat::vtd_second_stage(4).expect("a format of the model's");
        let root = TableRoot { root: table.root(), format };
        for stream in streams {
            self.model.attach(stream, StreamConfig::Translate { context, table: root });
        }
        let caps = Setup::able(PageSize::SIZE_4K);
        PagedDomain::new(table, context, caps, Quirks::default(), queue)
    }

    /// Notes a violation, with the CPU that found it.
    pub(super) fn violation(&self, text: impl std::fmt::Display) {
        self.tally.violation(format!("CPU {}: {text}", self.cpus.current().get()));
    }
}

/// The work of all CPUs.
struct Work<'m> {
    machine: &'m SmpMachine,
    buffers: Option<&'m Buffers<'m>>,
    region: Option<&'m FaultingRegion<'m>>,
    /// Operations of the run after which it ends.
    end: u64,
}

impl Work<'_> {
    /// Runs one CPU's part.
    fn run(&self, number: u64) {
        let SmpMachine { plan, cpus, tally, .. } = self.machine;
        let mut rng = Rng::with_seed(plan.seed ^ (number << 40));
        let next = rng.u64(..);
        let mut cpu = SmpCpu { number, rng, hands: Hands::default(), next };
        while tally.operations() < self.end {
            cpus.work(cpu.rng.f64() * BETWEEN_NS);
            let begin = cpus.now().get();
            match (self.buffers, self.region) {
                (Some(buffers), None) => buffers.step(&mut cpu),
                (Some(buffers), Some(_)) if cpu.rng.bool() => buffers.step(&mut cpu),
                (_, Some(region)) => region.step(&mut cpu),
                (None, None) => return,
            }
            tally.most("longest_step_ns", cpus.now().get() - begin);
        }
        if let Some(buffers) = self.buffers {
            buffers.finish(&mut cpu);
        }
        if self.machine.finished.fetch_add(1, Ordering::Relaxed) + 1 < plan.cpus {
            return;
        }
        // The last: the hardware works again, and nothing has an excuse.
        self.machine.failures.heal();
        if let Some(region) = self.region {
            region.finish();
        }
    }
}
