//! A machine: its CPUs, its IOMMU, memory, and memory for tables.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan::addr::{InvalTag, PageSize, PhysAddr, StreamId};
use portolan::inval::Quirks;
use portolan::iommu::{PagedDomain, TagPool};
use portolan::platform::{Cpus as _, SlabTables};
use portolan::table::PageTable;
use portolan::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
use portolan_protocol::run::{CheckedCpus, CheckedMemory, CheckedRun};
use portolan_sim::cpus::{
    CommandServer, Hardware, LockKind, SharingPrices, Submission, SubmissionPrices, VirtualCpus,
};
use portolan_sim::decode::{TableFormat, TableReader, TableRoot};
use portolan_sim::iommu::{CommandPrices, Iommu, Setup, StreamConfig};
use portolan_sim::profile::QueueLimits;

use super::failing::{FailingHardware, Failures, Health};
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
type Tables = CheckedMemory<Arc<SlabTables<AtomicU64>>>;
/// CPUs of a space.
pub(super) type SpaceCpus = CheckedCpus<VirtualCpus>;
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
    pub(super) tables: Tables,
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

impl SmpMachine {
    pub(super) fn new(
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
        let tables = SlabTables::new(PhysAddr::new(1 << 33), PageSize::SIZE_4K, pages);
        let tables: Tables = CheckedMemory(Arc::new(tables), CheckedRun::default());
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

    /// The CPUs of a space, whose steps are of the tables' run.
    pub(super) fn space_cpus(&self) -> SpaceCpus {
        CheckedCpus(self.cpus.clone(), self.tables.1.clone())
    }

    /// Notes a violation, with the CPU that found it.
    pub(super) fn violation(&self, text: impl std::fmt::Display) {
        self.tally.violation(format!("CPU {}: {text}", self.cpus.current().get()));
    }
}
