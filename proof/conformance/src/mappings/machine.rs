//! A machine: a model, a domain over its table, a space, and CPUs in virtual time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize};
use portolan::dma::{Constraints, Device, DmaSpace, SpaceOptions};
use portolan::inval::Quirks;
use portolan::iommu::{BoundDomain, PagedDomain, TagPool};
use portolan::table::PageTable;
use portolan::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
use portolan_chips::fixture::Attached;
use portolan_sim::cpus::{
    CommandServer, Hardware, LockKind, Schedule, SharingPrices, Submission, SubmissionPrices,
    VirtualCpus,
};
use portolan_sim::decode::{TableFormat, TableReader, TableRoot};
use portolan_sim::iommu::{CommandPrices, Iommu, Setup, StreamConfig};
use portolan_sim::profile::QueueLimits;

use super::UnmapMode;
use super::cpu::{BOUNDS, LIVE, MappingRig, MappingTally, Model, STREAM, Space, Tables};
use super::failing::Ailment;
use super::world::BlockWorld;
use crate::promise::simulated;

pub(crate) type Domain<Q> = PagedDomain<VtdSecondStage, Tables, Q>;
pub(crate) const SHARING: SharingPrices = SharingPrices {
    hit: 1.0,
    transfer: 60.0,
    share: 15.0,
    handover: 60.0,
    relax: 20.0,
    lock: LockKind::Queued,
};

/// Makes a command queue with prices for each kind of command.
pub(crate) fn server<H: Hardware>(cpus: &VirtualCpus, hardware: H) -> CommandServer<H> {
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
    CommandServer::new(cpus.clone(), commands, submission, limits, way, hardware)
}

/// An empty table, and a model whose stream reads it.
pub(crate) fn table_and_model(
    tables: Tables,
    dirty: DirtyTracking,
    context: InvalTag,
) -> (PageTable<VtdSecondStage, Tables>, Arc<Model>) {
    let format = VtdSecondStage { levels: VtdLevels::Four, output_lg2: 46, dirty };
    let table = PageTable::new(format, tables).expect("memory for a root");
    let caps = Setup::able(PageSize::SIZE_4K);
    let reader = TableReader::new(tables, PageSize::SIZE_4K);
    let model = Arc::new(Iommu::new(Setup::adversarial(caps), reader));
    let format = TableFormat::vtd_second_stage(4).expect("a format of the model's");
    let root = table.root();
    let config = StreamConfig::Translate { context, table: TableRoot { root, format } };
    model.attach(STREAM, config);
    (table, model)
}

/// A machine from start to end.
pub(super) struct MappingRound<'t> {
    pub(super) way: UnmapMode,
    pub(super) ailment: &'t Ailment,
    pub(super) seed: u64,
    /// CPUs, and the operations of each.
    pub(super) cpus: u64,
    pub(super) each: u64,
    pub(super) tally: &'t MappingTally,
    pub(super) tables: Tables,
}

impl MappingRound<'_> {
    /// Does it with hardware that `wrap` makes and a queue that `queue` makes; returns its syncs.
    pub(super) fn run<H, Q>(
        &self,
        wrap: &impl Fn(Arc<Model>) -> H,
        queue: impl FnOnce(VirtualCpus, CommandServer<H>) -> Q,
    ) -> u64
    where
        H: Hardware + 'static,
        Q: TagPool + Send + Sync + 'static,
    {
        let (way, seed, tally, ailment) = (self.way, self.seed, self.tally, self.ailment);
        let cpus = VirtualCpus::new(self.cpus as usize, SHARING);
        let caps = Setup::able(PageSize::SIZE_4K);
        let context = InvalTag::new(1);
        let (table, model) = table_and_model(self.tables, DirtyTracking::Off, context);
        let queue = queue(cpus.clone(), server(&cpus, wrap(model.clone())));
        let domain = Arc::new(PagedDomain::new(table, context, caps, Quirks::default(), queue));
        let window = IovaRange::new(Iova::new(1 << 20), Iova::new((1 << 28) - 1));
        let mut options = SpaceOptions::default();
        options.window = window.expect("a range");
        options.policy = way.policy();
        options.bounds = BOUNDS;
        let bound = BoundDomain::new(Arc::new(Attached), domain, simulated());
        let space = DmaSpace::with_cpus(bound, cpus.clone(), &options, simulated());
        let space = Arc::new(space.expect("a space"));
        let world = BlockWorld::new(self.cpus * (LIVE as u64 + 32));
        {
            let device = Device::translated(space.clone(), STREAM, Constraints::trusted());
            let device = device.expect("a device");
            let rig = MappingRig {
                way,
                cpus: &cpus,
                model: &model,
                space: &space,
                device: &device,
                world: &world,
                tally,
                ailment,
            };
            let schedule = Schedule::of_seed(seed).ragged(40.0);
            let ran = cpus.run(&schedule, |cpu| rig.work(cpu.get().into(), seed, self.each));
            if let Err(error) = ran {
                tally.violation(error.to_string());
                return 0;
            }
        }
        ailment.heal();
        if let (Some(_), Err(error)) = (space.failure(), space.recover()) {
            tally.violation(format!("{}: not recovered: {error}", way.name()));
        }
        take_down(&space, &world, tally, way);
        model.counters().syncs
    }
}

/// Checks that nothing is left: no buffer, no address, no waiting range.
fn take_down(space: &Space, world: &BlockWorld, tally: &MappingTally, way: UnmapMode) {
    let name = way.name();
    if let Err(error) = space.flush() {
        tally.violation(format!("{name}: the last flush: {error}"));
    }
    let (waiting, out, lost) = (space.waiting(), world.out(), space.quarantine());
    tally.quarantined.fetch_add(lost.bytes, Ordering::Relaxed);
    if waiting != (0, 0) || out != 0 || lost != Default::default() {
        tally.violation(format!(
            "{name}: {waiting:?} waiting, {out} blocks out, {lost:?} at the end"
        ));
    }
    space.trim_addresses();
    if space.address_stats().fragments != 1 {
        tally.violation(format!("{name}: addresses are missing at the end"));
    }
}
