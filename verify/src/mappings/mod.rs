//! Buffers mapped, retired and reclaimed by many CPUs in virtual time, against an IOMMU that never
//! forgets a translation until it is told to.
//!
//! Each CPU maps buffers, lets the device read them, unmaps them in one of the ways that the policy
//! has, and lets the device try the old addresses at any time, before and after. A device may get
//! to a buffer that a mapping or a retired buffer holds; what a driver has back it may not reach,
//! but under the lazy policy, there within the bounds and never by way of an address that is
//! somebody else's by now.

mod world;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use portolan::addr::{ContextId, Iova, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::dma::{
    Bounds, Constraints, Device, DmaSpace, Mapping, Policy, Retired, SpaceOptions, ToDevice,
};
use portolan::inval::{CombineOptions, Combined, Quirks};
use portolan::platform::{Clock as _, Nanos, SlabTables};
use portolan::table::PageTable;
use portolan::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
use portolan::unit::{Attach, AttachError, ContextHome, FaultEvent, PagedDomain, Unit, UnitError};
use portolan_model::cpus::{
    CommandServer, Hardware, LockKind, Schedule, SharingPrices, Submission, SubmissionPrices,
    VirtualCpus,
};
use portolan_model::decode::{AccessKind, TableFormat, TableReader, TableRoot};
use portolan_model::iommu::{CommandPrices, Iommu, Setup, StreamConfig};
use portolan_model::profile::QueueLimits;
use serde::Serialize;

use world::{Block, LONGEST, PAGE, Reached, World};

/// How buffers are taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Each unmap waits for its own invalidation.
    Strict,
    /// The same, submitted by one CPU for all.
    Combined,
    /// Buffers are retired and reclaimed later, many at once.
    Retired,
    /// Unmaps return at once.
    Lazy,
}

impl Way {
    /// All.
    pub const ALL: [Self; 4] = [Self::Strict, Self::Combined, Self::Retired, Self::Lazy];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Combined => "combined",
            Self::Retired => "retired",
            Self::Lazy => "lazy",
        }
    }

    fn policy(self) -> Policy {
        match self {
            Self::Strict | Self::Combined => Policy::Strict,
            Self::Retired => Policy::Retired,
            Self::Lazy => Policy::Lazy,
        }
    }
}

/// What a run of one way came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MappingReport {
    /// Which way.
    pub way: Way,
    /// What it can be replayed from.
    pub seed: u64,
    /// CPUs.
    pub cpus: u64,
    /// Buffers mapped and unmapped.
    pub operations: u64,
    /// Accesses to live mappings.
    pub accesses: u64,
    /// Old addresses that were tried.
    pub retries: u64,
    /// Of those, accesses to buffers that were not given back yet.
    pub reached_waiting: u64,
    /// Accesses to buffers that were given back: within the bounds of the lazy policy.
    pub reached_exposed: u64,
    /// The longest time from an unmap to such an access, in virtual nanoseconds.
    pub longest_window_ns: u64,
    /// Syncs that the hardware did.
    pub syncs: u64,
    /// What was wrong, the first few.
    pub violations: Vec<String>,
}

const STREAM: StreamId = StreamId::new(1);
/// Mappings that a CPU holds at most.
const LIVE: usize = 12;
/// Old addresses that a CPU remembers.
const OLD: usize = 64;
/// Operations after which everything is taken down.
const ROUND: u64 = 20_000;
/// Violations that are told.
const TOLD: usize = 5;

/// Bounds of each CPU's queue.
const BOUNDS: Bounds = Bounds {
    entries: 24,
    bytes: 512 << 10,
    age: Nanos::new(40_000),
};

/// What a flush may take, beyond the age at which it begins: waiting for others, and hardware.
const FLUSH_NS: u64 = 60_000;

type Tables = &'static SlabTables<AtomicU64>;
type Model = Iommu<TableReader<'static, AtomicU64, SlabTables<AtomicU64>>>;
type Domain<Q> = PagedDomain<VtdSecondStage, Tables, Q>;
type Space<Q> = DmaSpace<Domain<Q>, VirtualCpus>;

/// Attaches nothing: the model's stream reads the table from the start.
struct Attached;

impl Unit for Attached {
    fn block(&self, _stream: StreamId) -> Result<(), AttachError> {
        Ok(())
    }

    fn pass_through(&self, _stream: StreamId) -> Result<(), AttachError> {
        Ok(())
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, UnitError> {
        Ok(None)
    }
}

impl<Q: ContextHome + 'static> Attach<Domain<Q>> for Attached {
    fn attach(&self, _stream: StreamId, _domain: &Arc<Domain<Q>>) -> Result<(), AttachError> {
        Ok(())
    }
}

/// An address that was unmapped.
struct Old {
    iova: Iova,
    since_ns: u64,
}

#[derive(Default)]
struct Tally {
    operations: AtomicU64,
    accesses: AtomicU64,
    retries: AtomicU64,
    waiting: AtomicU64,
    exposed: AtomicU64,
    longest: AtomicU64,
    violations: Mutex<Vec<String>>,
}

impl Tally {
    fn violation(&self, text: String) {
        let mut all = self
            .violations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if all.len() < TOLD {
            all.push(text);
        }
    }

    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn report(self, way: Way, seed: u64, cpus: u64, syncs: u64) -> MappingReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MappingReport {
            way,
            seed,
            cpus,
            operations: read(&self.operations),
            accesses: read(&self.accesses),
            retries: read(&self.retries),
            reached_waiting: read(&self.waiting),
            reached_exposed: read(&self.exposed),
            longest_window_ns: read(&self.longest),
            syncs,
            violations: (self.violations.into_inner()).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// One machine.
struct Rig<'r, Q: ContextHome + 'static> {
    way: Way,
    cpus: &'r VirtualCpus,
    model: &'r Model,
    space: &'r Space<Q>,
    device: &'r Device<&'r Space<Q>>,
    world: &'r Arc<World>,
    tally: &'r Tally,
}

/// A mapping and the memory of its buffer.
type Live<'r, Q> = (Mapping<&'r Space<Q>, Block, ToDevice>, PhysRange);

/// What one CPU holds.
struct Hands<'r, Q: ContextHome + 'static> {
    live: Vec<Live<'r, Q>>,
    retired: Vec<Retired<&'r Space<Q>, Block>>,
    old: VecDeque<Old>,
    rng: Rng,
    cpu: u64,
}

impl<'r, Q: ContextHome + 'static> Rig<'r, Q> {
    fn context(&self, hands: &Hands<'r, Q>) -> String {
        let operation = self.tally.operations.load(Ordering::Relaxed);
        let (way, cpu) = (self.way.name(), hands.cpu);
        format!("{way}, CPU {cpu}, operation {operation}")
    }

    fn map(&self, hands: &mut Hands<'r, Q>) {
        let rng = &mut hands.rng;
        let pages = match rng.u32(..4) {
            0 => rng.u64(1..=LONGEST),
            _ => 1,
        };
        let offset = rng.u64(..PAGE);
        let bytes = rng.u64(1..=pages * PAGE - offset);
        let Some(block) = self.world.block(offset, bytes) else {
            return;
        };
        let memory = block.range;
        match self.device.map::<ToDevice, _>(block) {
            Ok(mapping) => {
                self.world.map(mapping.iova(), memory);
                hands.live.push((mapping, memory));
            }
            Err(refused) => {
                let context = self.context(hands);
                self.tally
                    .violation(format!("{context}: {}", refused.error));
            }
        }
    }

    /// Reads a place of a live mapping.
    fn read(&self, hands: &mut Hands<'r, Q>) {
        if hands.live.is_empty() {
            return;
        }
        let at = hands.rng.usize(..hands.live.len());
        let Some(segment) = hands.live[at].0.segments().next() else {
            return;
        };
        let inside = hands.rng.u64(..segment.bytes.get());
        let iova = Iova::new(segment.iova.get() + inside);
        Tally::add(&self.tally.accesses);
        match self.model.translate(STREAM, iova, AccessKind::Read) {
            Ok(found) if self.world.judge(iova, found.pa) == Reached::Another => {}
            found => {
                let context = self.context(hands);
                self.tally.violation(format!(
                    "{context}: {iova} is mapped and leads to {found:?}"
                ));
            }
        }
    }

    /// Tries an old address.
    fn retry(&self, hands: &mut Hands<'r, Q>) {
        if hands.old.is_empty() {
            return;
        }
        let at = hands.rng.usize(..hands.old.len());
        let Old { iova, since_ns } = hands.old[at];
        Tally::add(&self.tally.retries);
        let Ok(found) = self.model.translate(STREAM, iova, AccessKind::Read) else {
            return;
        };
        let pa = found.pa;
        match self.world.judge(iova, pa) {
            Reached::Another => {}
            Reached::Waiting => Tally::add(&self.tally.waiting),
            Reached::Exposed if self.way == Way::Lazy => {
                Tally::add(&self.tally.exposed);
                let window = self.cpus.now().get().saturating_sub(since_ns);
                self.tally.longest.fetch_max(window, Ordering::Relaxed);
                let bound = BOUNDS.age.get() + FLUSH_NS;
                let (entries, bytes) = self.space.waiting();
                let cpus = portolan::platform::Cpus::count(self.cpus);
                let most = 2 * BOUNDS.entries * cpus;
                if window > bound || entries > most {
                    let context = self.context(hands);
                    self.tally.violation(format!(
                        "{context}: {iova} was reached {window} ns after its unmap, \
                         {entries} mappings and {bytes} bytes waiting"
                    ));
                }
            }
            wrong @ (Reached::Exposed | Reached::Strange) => {
                let context = self.context(hands);
                self.tally
                    .violation(format!("{context}: {iova} still leads to {pa}: {wrong:?}"));
            }
        }
    }

    fn unmap(&self, hands: &mut Hands<'r, Q>) {
        if hands.live.is_empty() {
            return;
        }
        let at = hands.rng.usize(..hands.live.len());
        let (mapping, memory) = hands.live.swap_remove(at);
        let iova = mapping.iova();
        Tally::add(&self.tally.operations);
        let since_ns = self.cpus.now().get();
        self.world.unmap(iova, memory);
        for page in 0..memory.last().get() / PAGE - memory.start().get() / PAGE + 1 {
            if hands.old.len() == OLD {
                hands.old.pop_front();
            }
            let iova = Iova::new((iova.get() / PAGE + page) * PAGE);
            hands.old.push_back(Old { iova, since_ns });
        }
        let retire = match self.way {
            Way::Retired => true,
            _ => hands.rng.u32(..8) == 0,
        };
        if retire {
            match mapping.retire() {
                Ok(retired) => hands.retired.push(retired),
                Err(failed) => self.failed(hands, &failed.error),
            }
            return;
        }
        match mapping.unmap() {
            Ok(block) => self.world.back(&block),
            Err(_) => self.failed(hands, &"an unmap failed"),
        }
    }

    fn reclaim(&self, hands: &mut Hands<'r, Q>) {
        for retired in std::mem::take(&mut hands.retired) {
            if hands.rng.u32(..4) == 0 {
                match retired.poll() {
                    Ok(block) => self.world.back(&block),
                    Err(retired) => hands.retired.push(retired),
                }
                continue;
            }
            match retired.wait() {
                Ok(block) => self.world.back(&block),
                Err(failed) => self.failed(hands, &failed.error),
            }
        }
    }

    fn failed(&self, hands: &Hands<'r, Q>, error: &dyn std::fmt::Display) {
        let context = self.context(hands);
        self.tally.violation(format!("{context}: {error}"));
    }

    /// One CPU's part: `operations` unmaps.
    fn work(&self, cpu: u64, seed: u64, operations: u64) {
        let mut hands = Hands {
            live: Vec::new(),
            retired: Vec::new(),
            old: VecDeque::new(),
            rng: Rng::with_seed(seed ^ (cpu << 40)),
            cpu,
        };
        let mut done = 0;
        while done < operations {
            self.cpus.work(hands.rng.f64() * 400.0);
            match hands.rng.u32(..10) {
                0..=3 if hands.live.len() < LIVE => self.map(&mut hands),
                0..=5 if !hands.live.is_empty() => {
                    self.unmap(&mut hands);
                    done += 1;
                }
                6 => self.read(&mut hands),
                7 if hands.retired.len() > 8 => self.reclaim(&mut hands),
                // A timer.
                8 if self.way == Way::Lazy => {
                    if let Err(error) = self.space.tick() {
                        self.failed(&hands, &error);
                    }
                }
                _ => self.retry(&mut hands),
            }
        }
        while !hands.live.is_empty() {
            self.unmap(&mut hands);
        }
        while !hands.retired.is_empty() {
            self.reclaim(&mut hands);
        }
    }
}

/// Does `operations` unmaps by `cpus` CPUs in `way`, from `seed`; calls `progress` with the number
/// done.
///
/// # Panics
/// If the machine's own parts cannot be put together, which is a defect.
pub fn mappings(
    way: Way,
    seed: u64,
    cpus: u64,
    operations: u64,
    progress: &mut dyn FnMut(u64),
) -> MappingReport {
    sabotaged(way, seed, cpus, operations, progress, |model| model)
}

/// The same, with hardware that `wrap` makes of the model: for tests of this test.
///
/// # Panics
/// As [`mappings`].
pub fn sabotaged<H: Hardware + 'static>(
    way: Way,
    seed: u64,
    cpus: u64,
    operations: u64,
    progress: &mut dyn FnMut(u64),
    wrap: impl Fn(Arc<Model>) -> H,
) -> MappingReport {
    let tally = Tally::default();
    let mut syncs = 0;
    let mut round = 0;
    let tables: Tables = Box::leak(Box::new(SlabTables::new(
        PhysAddr::new(1 << 30),
        PageSize::SIZE_4K,
        4096,
    )));
    loop {
        let done = tally.operations.load(Ordering::Relaxed);
        progress(done);
        let bad = tally.violations.lock().is_ok_and(|all| !all.is_empty());
        if done >= operations || bad {
            break;
        }
        let each = (operations - done).min(ROUND).div_ceil(cpus);
        let seed = seed.wrapping_add(round);
        round += 1;
        syncs += match way {
            Way::Strict => one_round(way, seed, cpus, each, &tally, tables, &wrap, |_, server| {
                server
            }),
            _ => one_round(
                way,
                seed,
                cpus,
                each,
                &tally,
                tables,
                &wrap,
                |cpus, server| Combined::new(cpus, server, CombineOptions::default()),
            ),
        };
    }
    tally.report(way, seed, cpus, syncs)
}

const SHARING: SharingPrices = SharingPrices {
    hit: 1.0,
    transfer: 60.0,
    share: 15.0,
    handover: 60.0,
    relax: 20.0,
    lock: LockKind::Queued,
};

/// A queue of its own for each of the model's commands.
fn server<H: Hardware>(cpus: &VirtualCpus, hardware: H) -> CommandServer<H> {
    let commands = CommandPrices {
        page: 150.0,
        range: 150.0,
        context: 150.0,
        sync: 400.0,
        ..CommandPrices::default()
    };
    let way = Submission::LockFree;
    let submission = SubmissionPrices {
        descriptor: 5.0,
        doorbell: 50.0,
        latency: 100.0,
        today: way,
    };
    let limits = QueueLimits {
        depth: 256,
        deadline_ns: 10_000_000,
    };
    CommandServer::new(cpus.clone(), commands, submission, limits, way, hardware)
}

/// One machine, from nothing to nothing. Returns its syncs.
#[allow(clippy::too_many_arguments)] // What a round depends on, each of its own kind.
fn one_round<H, Q>(
    way: Way,
    seed: u64,
    count: u64,
    each: u64,
    tally: &Tally,
    tables: Tables,
    wrap: &impl Fn(Arc<Model>) -> H,
    queue: impl FnOnce(VirtualCpus, CommandServer<H>) -> Q,
) -> u64
where
    H: Hardware + 'static,
    Q: ContextHome + Send + Sync + 'static,
{
    let cpus = VirtualCpus::new(count as usize, SHARING);
    let format = VtdSecondStage {
        levels: VtdLevels::Four,
        output_lg2: 46,
        dirty: DirtyTracking::Off,
    };
    let table = PageTable::new(format, tables).expect("memory for a root");
    let caps = Setup::able(PageSize::SIZE_4K);
    let reader = TableReader::new(tables, PageSize::SIZE_4K);
    let model = Arc::new(Iommu::new(Setup::adversarial(caps), reader));
    let context = ContextId::new(1);
    let format = TableFormat::vtd_second_stage(4).expect("a format of the model's");
    let root = table.root();
    let table_root = TableRoot { root, format };
    let config = StreamConfig::Translate {
        context,
        table: table_root,
    };
    model.attach(STREAM, config);
    let queue = queue(cpus.clone(), server(&cpus, wrap(model.clone())));
    let domain = Arc::new(PagedDomain::new(
        table,
        context,
        caps,
        Quirks::default(),
        queue,
    ));
    let window = IovaRange::new(Iova::new(1 << 20), Iova::new((1 << 28) - 1));
    let options = SpaceOptions {
        window: window.expect("a range"),
        policy: way.policy(),
        bounds: BOUNDS,
        ..SpaceOptions::default()
    };
    let space = DmaSpace::new(domain, cpus.clone(), &options).expect("a space");
    let world = World::new(count * (LIVE as u64 + 32));
    {
        let unit = Arc::new(Attached);
        let device = Device::translated(unit, STREAM, &space, Constraints::default());
        let device = device.expect("a device");
        let rig = Rig {
            way,
            cpus: &cpus,
            model: &model,
            space: &space,
            device: &device,
            world: &world,
            tally,
        };
        let schedule = Schedule::of_seed(seed).ragged(40.0);
        let ran = cpus.run(&schedule, |cpu| rig.work(cpu.get().into(), seed, each));
        if let Err(error) = ran {
            tally.violation(error.to_string());
            return 0;
        }
    }
    take_down(&space, &world, tally, way);
    model.counters().syncs
}

/// Nothing may be left: no buffer, no address, nothing that waits.
fn take_down<Q: ContextHome>(space: &Space<Q>, world: &World, tally: &Tally, way: Way) {
    let name = way.name();
    if let Err(error) = space.flush() {
        tally.violation(format!("{name}: the last flush: {error}"));
    }
    let (waiting, out, lost) = (space.waiting(), world.out(), space.quarantine());
    if waiting != (0, 0) || out != 0 || lost != Default::default() {
        tally.violation(format!(
            "{name}: {waiting:?} waiting, {out} blocks out, {lost:?} at the end"
        ));
    }
    space.addresses().trim_all();
    if space.addresses().stats().fragments != 1 {
        tally.violation(format!("{name}: addresses are missing at the end"));
    }
}
