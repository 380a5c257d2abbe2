//! Devices that fault on memory that its owner takes back at any time, on many CPUs in virtual time, with an IOMMU
//! that forgets nothing until it is told to.
//!
//! Each CPU has a device that accesses pages and asks for those that are not there; serves groups
//! of any device; takes memory back; detaches its device, whose groups are answered at once; and
//! one removes and adds the whole region now and then. Some memory cannot be populated, and
//! handlers fail at times. In five rounds of six every second device breaks the rules now and then,
//! each round in its own way. In every second round the hardware fails, each in its own way, and
//! memory for tables is scarce: owners try again to take back pages that they do not have back, a
//! region that cannot be removed stays closed until it can, and at the end the hardware works and
//! everything comes back. Wrong is: a page that leads to memory of another page, or to memory that
//! was given back; a page that is mapped after it was taken back; memory or a table page that does
//! not come back in the end; a group with no response, or two.

mod cpu;
mod devices;
mod failing;
mod manner;
mod world;

use crate::promise::simulated;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use portolan::addr::{InvalTag, PageSize, PhysAddr, StreamId};
use portolan::demand::premap::Adaptive;
use portolan::demand::{Ioas, IoasOptions, Usage, Window};
use portolan::inval::Quirks;
use portolan::iommu::PagedDomain;
use portolan::iopf::{Bounds, Dispatcher, Flow};
use portolan::platform::{Nanos, SlabTables};
use portolan::table::format::DirtyTracking;
use portolan_sim::cpus::{Hardware, Schedule, VirtualCpus};
use portolan_sim::decode::{TableFormat, TableRoot};
use portolan_sim::iommu::{Setup, StreamConfig};
use serde::Serialize;

use crate::mappings::machine::{SHARING, server, table_and_model};
use crate::mappings::{Health, Model, Tables};
use cpu::{Flaky, PagingRig};
use devices::{Manner, PagingDevices, PagingTally, add};
use failing::{FailingHardware, Failures, PendingPages, Temper};
use world::FrameWorld;

/// Requests after which everything is taken down.
const ROUND: u64 = 10_000;

/// Table pages, more than all pages need.
const PLENTY: u32 = 64;
/// Table pages of a round with too few: a root, two tables on the way, and leaf tables for half of the slots.
const SCARCE: u32 = 5;

/// Longest wait for a group's last request, in virtual time.
const PATIENCE: Nanos = Nanos::new(300_000);

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PagingReport {
    /// Seed that replays the run.
    pub seed: u64,
    /// CPUs.
    pub cpus: u64,
    /// Page requests.
    pub requests: u64,
    /// Number of events of each kind, by name.
    pub events: BTreeMap<&'static str, u64>,
    /// Violations that were found, the first few.
    pub violations: Vec<String>,
}

/// Lets devices of `cpus` CPUs send `requests` page requests, from `seed`; calls `progress` with
/// the number sent.
///
/// # Panics
/// If the machine's own parts cannot be put together, which is a defect.
pub fn paging(
    health: Health,
    seed: u64,
    cpus: u64,
    requests: u64,
    progress: &mut dyn FnMut(u64),
) -> PagingReport {
    sabotaged(health, seed, cpus, requests, progress, |model| model)
}

/// Runs the test on hardware that `wrap` makes of the model, to test the test.
///
/// # Panics
/// As [`paging`].
pub fn sabotaged<H: Hardware + 'static>(
    health: Health,
    seed: u64,
    cpus: u64,
    requests: u64,
    progress: &mut dyn FnMut(u64),
    wrap: impl Fn(Arc<Model>) -> H,
) -> PagingReport {
    let tally = Arc::new(PagingTally::default());
    let mut events = BTreeMap::new();
    let mut round = 0;
    loop {
        let done = tally.requests.load(Ordering::Relaxed);
        progress(done);
        let bad = tally.violations.lock().is_ok_and(|all| !all.is_empty());
        if done >= requests || bad {
            break;
        }
        let most = (requests - done).min(ROUND);
        // The hardware's clock stands still outside runs, so that a domain which is dropped there may
        // keep its tables: each round has its own.
        let temper = match health {
            Health::Sound => Temper::Works,
            Health::Failing => Temper::of_round(round),
        };
        let pages = match temper {
            Temper::Works => PLENTY,
            _ => SCARCE,
        };
        let memory = SlabTables::new(PhysAddr::new(1 << 33), PageSize::SIZE_4K, pages);
        let tables: Tables = Box::leak(Box::new(memory));
        let seed = seed.wrapping_add(round);
        let usage = one_round(temper, seed, round, cpus, most, &tally, tables, &wrap);
        round += 1;
        for (name, number) in named(&usage) {
            *events.entry(name).or_default() += number;
        }
    }
    report(seed, cpus, &tally, events)
}

fn named(usage: &Usage) -> [(&'static str, u64); 6] {
    [
        ("faults", usage.faults),
        ("spurious", usage.spurious),
        ("failed", usage.failed),
        ("granules_mapped", usage.granules_mapped),
        ("raced", usage.raced),
        ("granules_taken_back", usage.granules_taken_back),
    ]
}

fn report(
    seed: u64,
    cpus: u64,
    tally: &PagingTally,
    mut events: BTreeMap<&'static str, u64>,
) -> PagingReport {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let [success, invalid, failure] = &tally.responses;
    events.extend([
        ("accesses", read(&tally.accesses)),
        ("reached_leaving", read(&tally.leaving)),
        ("groups", read(&tally.groups)),
        ("responses_success", read(success)),
        ("responses_invalid", read(invalid)),
        ("responses_failure", read(failure)),
        ("invalidations", read(&tally.invalidations)),
        ("detached", read(&tally.detached)),
        ("misbehaved", read(&tally.misbehaved)),
        ("regions_removed", read(&tally.removed)),
        ("harvests", read(&tally.cleared)),
        ("failures", read(&tally.syncs_failed)),
        ("ranges_not_quiet", read(&tally.not_quiet)),
        ("recovered", read(&tally.back)),
        ("regions_not_removed", read(&tally.removed_in_vain)),
    ]);
    let violations = tally.violations.lock().unwrap_or_else(PoisonError::into_inner);
    PagingReport {
        seed,
        cpus,
        requests: read(&tally.requests),
        events,
        violations: violations.clone(),
    }
}

fn window(round: u64) -> Window {
    match round % 4 {
        0 => Window::Adaptive(Adaptive::default()),
        1 => Window::Block,
        2 => NonZeroU32::new(16).map_or(Window::Page, Window::Fixed),
        _ => Window::Page,
    }
}

/// Runs a machine from start to end.
#[allow(clippy::too_many_arguments)] // What a round depends on, each of its own kind.
fn one_round<H: Hardware + 'static>(
    temper: Temper,
    seed: u64,
    round: u64,
    count: u64,
    requests: u64,
    tally: &Arc<PagingTally>,
    tables: Tables,
    wrap: &impl Fn(Arc<Model>) -> H,
) -> Usage {
    let cpus = VirtualCpus::new(count as usize, SHARING);
    let context = InvalTag::new(1);
    let (table, model) = table_and_model(tables, DirtyTracking::Hardware, context);
    let failures = Failures::new(temper);
    let root = TableRoot {
        root: table.root(),
        format: TableFormat::vtd_second_stage(4).expect("a format of the model's"),
    };
    let queue = server(&cpus, failing(wrap(model.clone()), &failures));
    let (caps, quirks) = (Setup::able(PageSize::SIZE_4K), Quirks::default());
    let domain = Arc::new(PagedDomain::new(table, context, caps, quirks, queue));
    let options = IoasOptions { window: window(round), ..IoasOptions::default() };
    let container = Ioas::new(domain.clone(), cpus.clone(), options, simulated());
    let container = Arc::new(container.expect("a domain without another space"));
    let devices = PagingDevices { owed: Arc::default(), tally: tally.clone() };
    let dispatcher = dispatcher(&cpus, &devices);
    let world = Arc::new(FrameWorld::new(cpus.clone(), seed));
    let handler = Arc::new(Flaky { container: container.clone(), groups: AtomicU64::new(0) });
    let rig = PagingRig {
        cpus: &cpus,
        model: &model,
        domain: &domain,
        container: &container,
        handler: &handler,
        dispatcher: &dispatcher,
        devices: &devices,
        world: &world,
        tally,
        manner: Manner::of_round(round),
        failures: &failures,
        waiting: PendingPages::default(),
        closed: AtomicBool::new(false),
        finished: AtomicU64::new(0),
    };
    rig.add_region().expect("a region");
    let table = root;
    for stream in (1..=count).map(|number| StreamId::new(number as u32)) {
        model.attach(stream, StreamConfig::Translate { context, table });
        rig.register(stream);
    }
    let schedule = Schedule::of_seed(seed).ragged(40.0);
    let ran = cpus.run(&schedule, |cpu| rig.work(cpu.get().into(), seed, requests));
    if let Err(error) = ran {
        tally.violation(error.to_string());
        return Usage::default();
    }
    add(&tally.syncs_failed, failures.failed.load(Ordering::Relaxed));
    finish(&devices, &dispatcher, tally);
    count_tables(tables.live(), domain.table().pages(), tally);
    take_down(&container, tally)
}

fn failing<H>(hardware: H, failures: &Arc<Failures>) -> FailingHardware<H> {
    let failures = failures.clone();
    FailingHardware { hardware, failures }
}

fn dispatcher(
    cpus: &VirtualCpus,
    devices: &PagingDevices,
) -> Dispatcher<VirtualCpus, PagingDevices> {
    let bounds = Bounds { flow: Flow::UNBOUNDED, timeout: PATIENCE, ..Bounds::default() };
    Dispatcher::new(cpus.clone(), devices.clone(), bounds).expect("memory for groups")
}

/// Table pages that are out of memory are in use.
fn count_tables(live: usize, used: usize, tally: &PagingTally) {
    if live != used {
        tally.violation(format!("{live} table pages out of memory, {used} in use"));
    }
}

/// Every group has its response, and the dispatcher knows of as many.
fn finish(
    devices: &PagingDevices,
    dispatcher: &Dispatcher<VirtualCpus, PagingDevices>,
    tally: &PagingTally,
) {
    let owed = devices.owed.lock().unwrap_or_else(PoisonError::into_inner);
    let (lost, outstanding) = (owed.left(), dispatcher.outstanding());
    if lost != 0 || outstanding != 0 {
        tally.violation(format!("{lost} groups without response, {outstanding} not done"));
    }
}

/// Checks that nothing is left.
fn take_down<D, O, P>(container: &Ioas<D, O, P>, tally: &PagingTally) -> Usage
where
    D: portolan::iommu::Domain,
    O: portolan::demand::Pager,
    P: portolan::platform::Cpus,
{
    let usage = container.usage();
    if usage.mapped_bytes != 0 {
        let left = usage.mapped_bytes;
        tally.violation(format!("{left} bytes mapped at the end"));
    }
    if usage.leaving_bytes != 0 {
        let left = usage.leaving_bytes;
        tally.violation(format!("{left} bytes not quiet at the end"));
    }
    usage
}
