//! Wall time of serving one I/O page fault on this machine: from the request to the response.
//!
//! Requests go through the dispatcher to a container whose memory is this process's own; each is
//! the first access to its page (of a file in memory, so that no huge page comes at once), and the
//! system populates it. That time is measured as well and
//! taken off, as the published figures are of handlers without it. The domain's hardware costs
//! nothing.

use crate::raw::no_device;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use portolan::addr::{CpuId, InvalTag, Iova, IovaRange, PageSize, StreamId};
use portolan::demand::{
    Frames, Ioas, IoasOptions, Pager, PopulateError, RegionOptions, Residency, Unreached,
};
use portolan::inval::{Capabilities, InvalidationQueue, Quirks, Step, TablesLeft};
use portolan::iommu::{IommuError, PagedDomain, TagPool};
use portolan::iopf::{
    Bounds, Dispatcher, Flow, Permissions, RawPageRequest, ReplyTo, RequestKind, Responder,
    Response, StallTag,
};
use portolan::platform::{Clock, HostTables, Nanos, SpinCpus};
use portolan::table::format::{Armv8Config, Armv8Stage2, DirtyTracking, SplitRule};
use portolan::table::{Access, PageTable};
use portolan_cli::display;
use portolan_cli::progress::Progress;
use portolan_linux::guest::GuestMemory;
use portolan_linux::memory::{Backing, Base, HostMemory};
use serde::Serialize;

use crate::spread::Spread;

/// The name of this benchmark.
pub const NAME: &str = "fault";
const PAGE: u64 = PageSize::SIZE_4K.bytes();
/// Pages of the guest: 64 MiB.
const PAGES: u64 = 16 * 1024;
/// Number of rounds; in each of them all pages fault once.
const ROUNDS: u64 = 8;
const BASE: u64 = 1 << 30;
const STREAM: StreamId = StreamId::new(1);
/// Nanoseconds that the median has to stay below.
const TARGET_NS: f64 = 1000.0;

/// The document that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct FaultReport {
    /// Rows of the report.
    pub benchmarks: Vec<FaultRow>,
}

/// Serving a fault.
#[derive(Clone, Debug, Serialize)]
pub struct FaultRow {
    /// `fault`.
    pub name: &'static str,
    /// Operation that was measured.
    pub what: &'static str,
    /// Bytes that a fault maps.
    pub size_bytes: u64,
    /// Threads at work.
    pub threads: u32,
    /// Unit of the figures.
    pub unit: &'static str,
    /// Number of samples.
    pub samples: usize,
    /// Time from the request to the response, without population.
    pub ours: Spread,
    /// Populating: the system's own page fault.
    pub population: Spread,
    /// Faults a second, population included.
    pub faults_per_s: f64,
    /// Nanoseconds that the median has to stay below.
    pub target_ns: f64,
    /// Published mean nanoseconds of others, on other machines.
    pub published: BTreeMap<&'static str, f64>,
}

#[derive(Debug)]
struct Free;

impl InvalidationQueue for Free {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        black_box(steps.count());
        Ok(())
    }
}

impl TagPool for Free {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

struct Wall(Instant);

impl Clock for Wall {
    fn now(&self) -> Nanos {
        Nanos::new(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

type Cpus = Arc<SpinCpus<Wall, fn() -> CpuId>>;

/// Memory that notes the time that populating took.
struct TimedPager {
    guest: Arc<GuestMemory>,
    ns: AtomicU64,
}

impl Pager for TimedPager {
    fn populate(
        &self,
        range: IovaRange,
        access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        let start = Instant::now();
        let done = self.guest.populate(range, access, frames);
        self.ns.store(nanos(start), Ordering::Relaxed);
        done
    }

    fn pin(
        &self,
        range: IovaRange,
        access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        self.guest.pin(range, access, frames)
    }

    fn unpin(&self, pinned: &Unreached) {
        self.guest.unpin(pinned);
    }
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Counts responses that say that all is well.
#[derive(Debug, Default)]
struct Answers(AtomicU64);

impl Responder for Answers {
    type Error = core::convert::Infallible;

    fn respond(&self, _to: ReplyTo, response: Response) -> Result<(), Self::Error> {
        if response == Response::Success {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

type Domain = PagedDomain<Armv8Stage2<12>, HostTables, Free>;
type Container = Ioas<Domain, Arc<TimedPager>, Cpus>;

struct Bench {
    guest: Arc<GuestMemory>,
    owner: Arc<TimedPager>,
    container: Arc<Container>,
    dispatcher: Dispatcher<Cpus, Answers>,
    range: IovaRange,
}

fn domain() -> Result<Domain> {
    let format = Armv8Stage2::<12>::new(Armv8Config {
        input_lg2: 48,
        output_lg2: 48,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    })?;
    let table = PageTable::new(format, HostTables::new(PageSize::SIZE_4K, 256))?;
    let caps = Capabilities::new(PageSize::SIZE_4K);
    let (context, quirks) = (InvalTag::new(1), Quirks::default());
    Ok(PagedDomain::new(table, context, caps, quirks, Free))
}

impl Bench {
    fn new() -> Result<Self> {
        let memory = HostMemory::new(PAGES * PAGE, Backing::File, Base::Host)?;
        let guest = Arc::new(GuestMemory::new(memory, Iova::new(BASE)));
        let range = guest.range().context("an empty guest")?;
        let owner = Arc::new(TimedPager { guest: guest.clone(), ns: AtomicU64::new(0) });
        let current: fn() -> CpuId = || CpuId::new(0);
        let cpus = Arc::new(SpinCpus::new(1, Wall(Instant::now()), current));
        let options = IoasOptions::default();
        let container =
            Arc::new(Ioas::new(Arc::new(domain()?), cpus.clone(), options, no_device())?);
        let region = RegionOptions {
            range,
            access: Access::READ | Access::WRITE,
            hold: Residency::OnDemand,
        };
        container.add_region(&region, owner.clone())?;
        let bounds = Bounds { flow: Flow::UNBOUNDED, ..Bounds::default() };
        let dispatcher = Dispatcher::new(cpus, Answers::default(), bounds)?;
        dispatcher.register(STREAM, None, range, container.clone())?;
        Ok(Self { guest, owner, container, dispatcher, range })
    }

    /// Nanoseconds of one fault, and of populating for it.
    fn one(&self, page: u64) -> Result<(u64, u64)> {
        let request = RawPageRequest {
            stream: STREAM,
            pasid: None,
            iova: Iova::new(BASE + page * PAGE),
            wants: Permissions::READ | Permissions::WRITE,
            kind: RequestKind::Stall { tag: StallTag::new(page as u16) },
        };
        let start = Instant::now();
        let Ok(_) = self.dispatcher.accept(black_box(request));
        let Ok(_) = self.dispatcher.serve();
        Ok((nanos(start), self.owner.ns.load(Ordering::Relaxed)))
    }
}

/// Measures.
///
/// # Errors
/// If the system has no memory, or a fault is not served.
pub fn measure() -> Result<FaultReport> {
    let bench = Bench::new()?;
    let bar = Progress::new(ROUNDS);
    let (mut ours, mut population) = (Vec::new(), Vec::new());
    let mut total_ns = 0;
    for round in 0..=ROUNDS {
        for page in 0..PAGES {
            let (all, populating) = bench.one(page)?;
            // The first round warms up.
            if round != 0 {
                ours.push(all.saturating_sub(populating) as f64);
                population.push(populating as f64);
                total_ns += all;
            }
        }
        let notify = |range| bench.container.invalidate(range);
        let taken = bench.guest.reclaim(bench.range, notify)?;
        if taken != PAGES {
            bail!("{taken} of {PAGES} pages were mapped");
        }
        bar.add(1);
    }
    drop(bar);
    let answered = bench.dispatcher.responder().0.load(Ordering::Relaxed);
    if answered != (ROUNDS + 1) * PAGES {
        bail!("{answered} faults were served");
    }
    let samples = ours.len();
    Ok(FaultReport {
        benchmarks: vec![FaultRow {
            name: NAME,
            what: "a page fault of a device: request, handler, map, response",
            size_bytes: PAGE,
            threads: 1,
            unit: "ns per fault, population excluded",
            samples,
            ours: Spread::of(&mut ours).context("no samples")?,
            population: Spread::of(&mut population).context("no samples")?,
            faults_per_s: samples as f64 * 1e9 / total_ns.max(1) as f64,
            target_ns: TARGET_NS,
            published: BTreeMap::from([
                ("vfio_iommu_dev_fault_handler on Kunpeng 920", 1600.0),
                ("iopf_handle_group on Kunpeng 920", 2000.0),
            ]),
        }],
    })
}

/// The report for people, in lines of `columns`.
pub fn text(report: &FaultReport, columns: usize) -> String {
    let header = [("benchmark", 0), ("median ns", 0), ("p10 ns", 1), ("p90 ns", 2), ("p99 ns", 3)];
    let ns = |ns: f64| format!("{ns:.0}");
    let spread = |name: &str, of: &Spread| {
        let numbers = [of.median, of.p10, of.p90, of.p99].map(ns);
        [vec![name.to_owned()], numbers.to_vec()].concat()
    };
    let mut out = String::new();
    for row in &report.benchmarks {
        let rows = vec![
            spread("request to response, population excluded", &row.ours),
            spread("population", &row.population),
        ];
        out += &display::table(&header, &[1, 2, 3, 4], rows, columns);
        let _ = writeln!(
            out,
            "\n{} faults a second on one CPU, population included; the median is to be at most {} ns.",
            display::grouped(row.faults_per_s as u64),
            row.target_ns
        );
        for (name, mean) in &row.published {
            let _ = writeln!(out, "published, mean: {mean:.0} ns, {name}");
        }
    }
    display::wrapped(&out, columns)
}
