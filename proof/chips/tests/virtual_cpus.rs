//! Strict invalidation by many CPUs at once, in virtual time, with an IOMMU that forgets nothing until it is told to.
//! Each virtual CPU maps, lets the device read, unmaps, and after a successful sync lets the device try again: that
//! access has to fault, whichever CPU submitted the invalidation. Each seed is another interleaving.

#[path = "../../../crates/portolan/tests/support/promised.rs"]
mod promised;

use promised::promised;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::{
    CombineOptions, Combined, Gather, InvalidationQueue, Ranges, Step, TablesLeft,
};
use portolan::iommu::{Domain, IommuError, PagedDomain, TagPool};
use portolan::platform::{Nanos, SlabTables};
use portolan::table::format::{VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};
use portolan_sim::cpus::{
    CommandServer, Hardware, LockKind, RunReport, Schedule, SharingPrices, Submission,
    SubmissionPrices, VirtualCpus,
};
use portolan_sim::decode::{AccessKind, TableFormat, TableReader, TableRoot};
use portolan_sim::iommu::{CommandPrices, Injection, Iommu, Setup, StreamConfig};
use portolan_sim::profile::QueueLimits;

const STREAM: StreamId = StreamId::new(1);
const PAGE: u64 = 4096;

const SHARING: SharingPrices = SharingPrices {
    hit: 1.0,
    transfer: 60.0,
    share: 15.0,
    handover: 60.0,
    relax: 20.0,
    lock: LockKind::Queued,
};

/// Tables that live as long as the program, so that the model can walk them from anywhere.
type Tables = &'static SlabTables<AtomicU64>;
type Model = Iommu<TableReader<AtomicU64, &'static SlabTables<AtomicU64>>>;
type Server = CommandServer<Arc<Model>>;

/// A machine whose CPUs share one domain behind the queue `Q`.
struct Rig<Q: TagPool> {
    cpus: VirtualCpus,
    model: Arc<Model>,
    domain: PagedDomain<VtdSecondStage, Tables, Q>,
}

fn rig<Q: TagPool>(
    count: usize,
    way: Submission,
    deadline_ns: u64,
    tables: Tables,
    queue: impl FnOnce(VirtualCpus, Server) -> Q,
) -> Rig<Q> {
    let cpus = VirtualCpus::new(count, SHARING);
    let format = VtdSecondStage::new(VtdLevels::Four, 46);
    let table = PageTable::new(format, tables).unwrap();
    let caps = Setup::able(PageSize::SIZE_4K);
    let reader = TableReader::new(tables, PageSize::SIZE_4K);
    let model = Arc::new(Iommu::new(Setup::adversarial(caps), reader));
    let context = InvalTag::new(1);
    let root = TableRoot { root: table.root(), format: TableFormat::vtd_second_stage(4).unwrap() };
    model.attach(STREAM, StreamConfig::Translate { context, table: root });
    let commands = CommandPrices {
        page: 150.0,
        range: 150.0,
        context: 150.0,
        sync: 400.0,
        ..CommandPrices::default()
    };
    let submission =
        SubmissionPrices { descriptor: 5.0, doorbell: 50.0, latency: 100.0, today: way };
    let limits = QueueLimits { depth: 64, deadline_ns };
    let server =
        CommandServer::new(cpus.clone(), commands, submission, limits, way, Arc::clone(&model));
    let queue = queue(cpus.clone(), server);
    let domain = PagedDomain::new(table, context, caps, Default::default(), queue);
    Rig { cpus, model, domain }
}

/// Counts of the CPUs.
#[derive(Debug, Default)]
struct Found {
    rounds: AtomicU64,
    failures: AtomicU64,
    stale: Mutex<Vec<String>>,
}

/// Runs one CPU's part: maps, reads, unmaps, syncs and reads again, `rounds` times.
fn torment<Q: TagPool>(rig: &Rig<Q>, cpu: u64, seed: u64, rounds: u64, found: &Found) {
    let mut rng = Rng::with_seed(seed ^ (cpu << 32));
    let read = |iova| rig.model.translate(STREAM, iova, AccessKind::Read);
    for round in 0..rounds {
        // Ranges of one CPU, two megabytes apart, so that tables come and go as well.
        let pages = rng.u64(1..=9);
        let start = ((1 + cpu * 8 + round % 4) << 21) | (rng.u64(..100) * PAGE);
        let range = IovaRange::from_len(Iova::new(start), pages * PAGE).unwrap();
        let memory = PhysAddr::new((1 << 40) + start);
        let mut owed = Gather::new();
        let bytes = pages * PAGE;
        rig.domain.map(range.start(), promised(memory, bytes), Access::READ, &mut owed).unwrap();
        rig.domain.sync(&mut owed).unwrap();
        let touched: Vec<Iova> =
            (0..pages).map(|page| Iova::new(start + page * PAGE)).filter(|_| rng.bool()).collect();
        for &iova in &touched {
            assert!(read(iova).is_ok(), "{iova} was mapped");
        }
        rig.cpus.work(rng.f64() * 500.0);
        let mut owed = Gather::new();
        rig.domain.unmap(range, &mut owed).unwrap();
        let mut synced = rig.domain.sync(&mut owed);
        while synced.is_err() {
            found.failures.fetch_add(1, Ordering::Relaxed);
            // Commands that were given up are still in the queue, and have to drain.
            rig.cpus.work(20_000.0 + rng.f64() * 20_000.0);
            synced = rig.domain.sync(&mut owed);
        }
        found.rounds.fetch_add(1, Ordering::Relaxed);
        for &iova in touched.iter().filter(|iova| read(**iova).is_ok()) {
            let text = format!("CPU {cpu} round {round}: {iova} is stale");
            found.stale.lock().unwrap().push(text);
        }
    }
}

fn storm<Q: TagPool + Sync>(rig: &Rig<Q>, seed: u64, rounds: u64) -> (RunReport, Found) {
    let found = Found::default();
    let schedule = Schedule { limit_ns: 20_000_000, ..Schedule::of_seed(seed).ragged(40.0) };
    let report = rig.cpus.run(&schedule, |cpu| {
        torment(rig, cpu.get().into(), seed, rounds, &found);
    });
    (report.unwrap_or_else(|error| panic!("{error}")), found)
}

fn tables() -> Tables {
    let slab = SlabTables::new(PhysAddr::new(1 << 30), PageSize::SIZE_4K, 256);
    Box::leak(Box::new(slab))
}

fn combined(
    options: CombineOptions,
) -> impl Fn(VirtualCpus, Server) -> Combined<VirtualCpus, Server> {
    move |cpus, server| Combined::new(cpus, server, Ranges::ABSENT, options)
}

#[test]
fn combined_callers_return_only_when_they_are_quiet() {
    let tables = tables();
    let mut merged = 0;
    for seed in 0..60 {
        let ways = [Submission::HeldAcrossWait, Submission::LockedInsertion, Submission::LockFree];
        let mut options = CombineOptions {
            cpus_per_group: [usize::MAX, 4, 1][seed as usize / 3 % 3],
            ..CombineOptions::default()
        };
        options.merging.context_above = [16, 2, 0][seed as usize % 3];
        let count = 2 + seed as usize % 15;
        let way = ways[seed as usize % 3];
        let rig = rig(count, way, 1_000_000, tables, combined(options));
        let (_, found) = storm(&rig, seed, 12);
        let stale = found.stale.into_inner().unwrap();
        assert!(stale.is_empty(), "seed {seed}: {stale:?}");
        assert_eq!(found.failures.into_inner(), 0, "seed {seed}");
        assert_eq!(found.rounds.into_inner(), 12 * count as u64);
        let syncs = rig.domain.queue().queue().taken().syncs;
        merged += 12 * count as u64 - syncs.min(12 * count as u64);
    }
    assert!(merged > 2000, "nothing was combined: {merged}");
    assert_eq!(tables.live(), 0);
}

#[test]
fn a_refused_command_fails_its_caller_alone() {
    let tables = tables();
    for seed in 0..20 {
        let rig =
            rig(8, Submission::LockFree, 1_000_000, tables, combined(CombineOptions::default()));
        rig.model.inject(Injection { fail_command: Some(20 + seed), stall_sync: None });
        let (_, found) = storm(&rig, seed, 12);
        let stale = found.stale.into_inner().unwrap();
        assert!(stale.is_empty(), "seed {seed}: {stale:?}");
        // One refusal: seen by its caller if it was alone, made good by all if it was in a batch.
        assert!(found.failures.into_inner() <= 1, "seed {seed}");
    }
}

#[test]
fn hardware_that_is_late_is_survived() {
    let tables = tables();
    let mut failures = 0;
    for seed in 0..10 {
        let options = CombineOptions {
            wait_limit: Nanos::new(1000),
            timeout: Nanos::new(300),
            ..CombineOptions::default()
        };
        let rig = rig(5, Submission::LockFree, 1400, tables, combined(options));
        let (_, found) = storm(&rig, seed, 8);
        let stale = found.stale.into_inner().unwrap();
        assert!(stale.is_empty(), "seed {seed}: {stale:?}");
        failures += found.failures.into_inner();
    }
    assert!(failures > 0, "nothing was late");
}

/// A submitter that reports completion too early.
struct Early<H>(H);

impl<H: Hardware> Hardware for Early<H> {
    fn complete(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        // The sync gets lost.
        let mut steps = steps.filter(|step| !matches!(step, Step::Sync));
        self.0.complete(&mut steps)
    }
}

#[test]
fn a_lost_sync_is_seen() {
    let tables = tables();
    let rig = rig(4, Submission::LockFree, 1_000_000, tables, |cpus, server| {
        let early = Early(Arc::clone(server.hardware()));
        let prices = SubmissionPrices {
            descriptor: 0.0,
            doorbell: 0.0,
            latency: 0.0,
            today: Submission::LockFree,
        };
        let limits = QueueLimits { depth: 64, deadline_ns: 1_000_000 };
        let commands = CommandPrices::default();
        let way = Submission::LockFree;
        let server = CommandServer::new(cpus.clone(), commands, prices, limits, way, early);
        Combined::new(cpus, server, Ranges::ABSENT, CombineOptions::default())
    });
    let (_, found) = storm(&rig, 1, 4);
    assert!(!found.stale.into_inner().unwrap().is_empty());
}

#[test]
fn equal_seeds_give_equal_storms() {
    let run = |seed| {
        let way = Submission::LockedInsertion;
        let rig = rig(9, way, 1_000_000, tables(), combined(CombineOptions::default()));
        let (report, _) = storm(&rig, seed, 6);
        (report, rig.domain.queue().queue().taken())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

#[test]
fn combining_pays_where_a_lock_was_held() {
    let storms = |queue: fn(VirtualCpus, Server) -> Arc<dyn TagPool + Send + Sync>| {
        let rig = rig(32, Submission::HeldAcrossWait, 1_000_000, tables(), queue);
        storm(&rig, 3, 8).0.end_ns()
    };
    let before = storms(|_, server| Arc::new(server));
    let after = storms(|cpus, server| {
        Arc::new(Combined::new(cpus, server, Ranges::ABSENT, CombineOptions::default()))
    });
    assert!(after * 2.0 < before, "{before} {after}");
}

/// The queue is also one without a domain around it.
#[test]
fn a_queue_outside_a_run_works_and_costs_nothing() {
    let tables = tables();
    let rig = rig(2, Submission::LockFree, 1000, tables, combined(CombineOptions::default()));
    let context = InvalTag::new(1);
    let steps = [Step::Invalidate(portolan::inval::Command::Context { context }), Step::Sync];
    rig.domain.queue().pay(&mut steps.into_iter(), TablesLeft::ByDepth).unwrap();
    assert_eq!(rig.model.counters().syncs, 1);
}
