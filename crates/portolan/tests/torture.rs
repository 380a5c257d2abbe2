//! Torture: spaces with ragged windows over hardware that fails and remembers all translations that
//! it was not told to forget; threads that look without end; streams of every trust that come and
//! go; devices that never stop asking for pages. Memory stays bounded, nothing is lost, and no
//! address is given out while the hardware remembers an old translation of it.
//!
//! `PORTOLAN_TORTURE=N` makes it N operations (a million), `PORTOLAN_SEED` repeats a run.
#![allow(missing_docs)]

#[path = "support/attached.rs"]
mod attached;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use attached::{Attached, simulated, unowned};
use portolan::addr::{
    CpuId, InvalTag, Iova, IovaRange, PageSize, Pasid, PhysAddr, PhysRange, StreamId,
};
use portolan::dma::{
    Constraints, Device, DmaRange, DmaSpace, LazyBounds, MapError, Policy, SpaceOptions, Trust,
};
use portolan::inval::{Capabilities, Command, InvalidationQueue, Quirks, Step, TablesLeft};
use portolan::iommu::{Awaited, BoundDomain, Domain, IommuError, PagedDomain, TagPool};
use portolan::iopf::{
    self, Dispatcher, Group, GroupId, Handler, Permissions, Place, RawPageRequest, ReplyTo,
    RequestKind, Responder, Response, StallTag, Taken,
};
use portolan::platform::{Clock, Nanos, SlabTables, SpinCpus};
use portolan::table::format::{VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};
use portolan_protocol::run::{CheckedCpus, CheckedMemory, CheckedRun};

const PAGE: u64 = 0x1000;
/// Operations on one space.
const ROUND: u64 = 20_000;
/// Mappings that are held at once, at most.
const HELD: usize = 300;
/// Table pages of a space: for the mappings in a window, and for ranges that wait.
const TABLES: u32 = 2000;
const CPUS: usize = 3;
/// Devices that ask, and the numbers that they give their groups.
const DEVICES: u64 = 5;
const GROUPS: u64 = 8;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

/// Time that passes when a caller waits, and a little with each look.
#[derive(Default)]
struct Time(AtomicU64);

impl Clock for Time {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.fetch_add(50, Ordering::Relaxed))
    }

    fn relax(&self) {
        self.0.fetch_add(100_000, Ordering::Relaxed);
    }
}

static CPU: AtomicU64 = AtomicU64::new(0);

fn current() -> CpuId {
    CpuId::new(CPU.load(Ordering::Relaxed) as u32)
}

type Machine = SpinCpus<Time, fn() -> CpuId>;
type Cpus = CheckedCpus<Arc<Machine>>;

/// Memory of the hardware: where each page that a device used led.
#[derive(Default)]
struct Remembered {
    pages: BTreeMap<u64, u64>,
    /// Syncs of a hundred that are lost.
    lossy: u64,
    state: u64,
}

#[derive(Clone, Default)]
struct Hardware(Arc<Mutex<Remembered>>);

impl Hardware {
    fn uses(&self, page: u64, leads: u64) {
        self.0.lock().unwrap().pages.insert(page, leads);
    }

    /// A page of `range` that is remembered.
    fn remembers(&self, range: IovaRange) -> Option<u64> {
        let remembered = self.0.lock().unwrap();
        let pages = range.start().get() / PAGE..=range.last().get() / PAGE;
        remembered.pages.range(pages).next().map(|(page, _)| *page)
    }
}

impl InvalidationQueue for Hardware {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        let mut remembered = self.0.lock().unwrap();
        let steps: Vec<Step> = steps.collect();
        remembered.state = Random(remembered.state).below(u64::MAX);
        if remembered.state % 100 < remembered.lossy {
            let (awaited, waited) = (Awaited::Completion, Nanos::new(1));
            return Err(IommuError::TimedOut { awaited, waited });
        }
        for step in steps {
            match step {
                Step::Invalidate(Command::Page { iova, size, .. }) => {
                    let gone = IovaRange::page(iova, size);
                    let pages = gone.start().get() / PAGE..=gone.last().get() / PAGE;
                    remembered.pages.retain(|page, _| !pages.contains(page));
                }
                Step::Invalidate(_) => remembered.pages.clear(),
                Step::FlushWriteBuffer | Step::Sync => {}
            }
        }
        Ok(())
    }
}

impl TagPool for Hardware {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

type Memory = Arc<SlabTables<AtomicU64>>;
type Tables = PagedDomain<VtdSecondStage, CheckedMemory<Memory>, Hardware>;

/// One space, and the state that a careful owner knows of it.
struct World<'r> {
    random: &'r mut Random,
    hardware: Hardware,
    memory: Memory,
    domain: Arc<Tables>,
    space: Arc<DmaSpace<Cpus>>,
    policy: Policy,
    window: IovaRange,
    held: Vec<DmaRange>,
    devices: Vec<Device<Cpus>>,
    next_stream: u32,
    most_tables: usize,
    refused: u64,
}

impl<'r> World<'r> {
    fn new(random: &'r mut Random, cpus: &Arc<Machine>) -> Self {
        let run = CheckedRun::default();
        let cpus = CheckedCpus(cpus.clone(), run.clone());
        let hardware = Hardware::default();
        {
            let mut remembered = hardware.0.lock().unwrap();
            remembered.lossy = random.of(&[0, 1, 5, 30]);
            remembered.state = random.below(u64::MAX);
        }
        let memory = Arc::new(SlabTables::new(PhysAddr::new(1 << 40), PageSize::SIZE_4K, TABLES));
        let format = VtdSecondStage::new(VtdLevels::Four, 46);
        let table = PageTable::new(format, CheckedMemory(memory.clone(), run)).unwrap();
        let caps = Capabilities::new(PageSize::SIZE_4K);
        let context = InvalTag::new(1);
        let domain = PagedDomain::new(table, context, caps, Quirks::default(), hardware.clone());
        let (domain, inputs) =
            (Arc::new(domain), IovaRange::page(Iova::new(0), PageSize::of_lg2(48)));
        let mut options = SpaceOptions::default();
        // Ends that are nothing round, at edges of 32 and 48 bits as often as not.
        let edge =
            random.of(&[1 << 20, (1 << 32) - 77 * PAGE, (1 << 39) - PAGE, (1 << 48) - (1 << 24)]);
        let start = edge + random.below(40) * PAGE + random.below(2) * 0x123;
        let bytes =
            random.of(&[40 * PAGE, 333 * PAGE, 5000 * PAGE, 70_000 * PAGE]) + random.below(PAGE);
        options.window = IovaRange::from_len(Iova::new(start), bytes).unwrap();
        options.policy = random.of(&[Policy::Strict, Policy::Lazy, Policy::Deferred]);
        options.trust = random.of(&[None, Some(Trust::Trusted), Some(Trust::Untrusted)]);
        options.bounds = LazyBounds { entries: random.of(&[1, 4, 64]), ..LazyBounds::default() };
        let bound = BoundDomain::new(Arc::new(Attached), domain.clone(), simulated());
        let space = DmaSpace::with_cpus(bound, cpus, &options, simulated()).unwrap();
        Self {
            random,
            hardware,
            memory,
            domain,
            policy: space.policy(),
            window: options.window.intersection(inputs).unwrap(),
            space: Arc::new(space),
            held: Vec::new(),
            devices: Vec::new(),
            next_stream: 1,
            most_tables: 0,
            refused: 0,
        }
    }

    fn map(&mut self) {
        let pages = self.random.of(&[1, 1, 1, 1, 2, 3, 8, 30, 600]);
        // Whole pages: nothing else is in place for a device that is not trusted.
        let first = 1 + self.random.below(1 << 20);
        let memory = PhysRange::from_len(PhysAddr::new(first * PAGE), pages * PAGE).unwrap();
        let mut constraints = Constraints::trusted();
        let limit = self.window.start().get() + self.random.below(8) * 100 * PAGE;
        if self.random.below(4) == 0 {
            constraints.dma_mask = Iova::new(limit);
        }
        match self.space.map_range(unowned(memory), Access::READ_WRITE, &constraints) {
            Ok((range, at)) => {
                let addresses = range.addresses();
                assert!(self.window.covers(addresses) && addresses.last() <= constraints.dma_mask);
                let old = self.hardware.remembers(addresses);
                assert_eq!(old, None, "{addresses} is given out, and an old page is remembered");
                let leads = self.domain.translate(at).map(|found| found.pa);
                assert_eq!(leads, Some(memory.start()));
                self.hardware.uses(at.get() / PAGE, first);
                let last = addresses.last().get() / PAGE;
                self.hardware.uses(last, first + pages - 1);
                self.held.push(range);
            }
            Err(MapError::Iova(_) | MapError::Broken(_)) => self.refused += 1,
            Err(MapError::Domain(error)) => panic!("table memory is enough for all: {error}"),
            Err(MapError::Iommu(_) | MapError::Busy { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn unmap(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.random.below(self.held.len() as u64) as usize;
        let range = self.held.swap_remove(at);
        let addresses = range.addresses();
        match self.space.unmap_range(range) {
            Ok(()) if self.policy != Policy::Lazy => {
                let old = self.hardware.remembers(addresses);
                assert_eq!(old, None, "{addresses} is said to be quiet");
            }
            Ok(()) => {}
            Err(failed) => self.held.extend(failed.value),
        }
    }

    fn streams(&mut self) {
        if self.devices.len() > 5 || self.random.below(2) == 0 && !self.devices.is_empty() {
            let at = self.random.below(self.devices.len() as u64) as usize;
            drop(self.devices.swap_remove(at));
            return;
        }
        let mut constraints = Constraints::trusted();
        constraints.trust = self.random.of(&[Trust::Trusted, Trust::Untrusted]);
        let stream = StreamId::new(self.next_stream);
        self.next_stream += 1;
        // Refused where it would lower the trust of the space, or where that has broken.
        if let Ok(device) = Device::translated(self.space.clone(), stream, constraints) {
            self.devices.push(device);
        }
    }

    fn step(&mut self) {
        CPU.store(self.random.below(CPUS as u64), Ordering::Relaxed);
        match self.random.below(100) {
            0..50 if self.held.len() < HELD => self.map(),
            0..94 => self.unmap(),
            94..97 => self.streams(),
            97 => drop(self.space.tick()),
            98 => drop(self.space.flush()),
            _ => drop(self.space.recover()),
        }
        self.most_tables = self.most_tables.max(self.memory.live());
        let (ranges, _) = self.space.waiting();
        // Ranges that are unmapped and not quiet, in each CPU's queue.
        assert!(ranges <= HELD + 4 * 64 * CPUS, "{ranges} ranges wait");
    }

    /// Everything comes back: addresses, tables, streams.
    fn end(mut self) {
        self.hardware.0.lock().unwrap().lossy = 0;
        self.devices.clear();
        while self.space.recover().is_err() || self.space.flush().is_err() {}
        while !self.held.is_empty() {
            self.unmap();
        }
        self.space.recover().unwrap();
        self.space.flush().unwrap();
        assert_eq!(self.space.waiting(), (0, 0));
        self.space.trim_addresses();
        let whole = self.space.address_stats();
        let granules = |at: u64| at / PAGE;
        let first = granules(self.window.start().get() + PAGE - 1);
        let last = granules(self.window.last().get() + 1);
        let lost = self.space.quarantine();
        assert_eq!(whole.free, last - first, "{lost:?} in {}", self.window);
        let (memory, domain, space) = (self.memory, self.domain, self.space);
        drop(space);
        drop(domain);
        assert_eq!(memory.live(), 0, "table pages are lost");
    }
}

/// Counts responses.
#[derive(Clone, Default)]
struct Answers(Arc<AtomicU64>);

impl Responder for Answers {
    type Error = ();

    fn respond(&self, _to: ReplyTo, _response: Response) -> Result<(), ()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

struct Content;

impl Handler for Content {
    fn handle(&self, _group: &Group<'_>) -> Response {
        Response::Success
    }
}

/// Devices that never stop asking, registered or not.
struct Askers {
    desk: Dispatcher<Arc<Machine>, Answers>,
    answers: Answers,
    /// Groups that were taken in and are to be answered.
    owed: u64,
    groups: usize,
}

impl Askers {
    fn new(cpus: &Arc<Machine>) -> Self {
        let answers = Answers::default();
        let bounds = iopf::Bounds {
            groups: 16,
            groups_of_device: 6,
            requests: 5,
            ..iopf::Bounds::default()
        };
        let groups = bounds.groups;
        let desk = Dispatcher::new(cpus.clone(), answers.clone(), bounds).unwrap();
        Self { desk, answers, owed: 0, groups }
    }

    fn ask(&mut self, random: &mut Random) {
        let stream = StreamId::new(random.below(DEVICES) as u32);
        let pasid = random.of(&[None, Some(Pasid::new(1)), Some(Pasid::new(9))]);
        match random.below(400) {
            0 => {
                let all = IovaRange::new(Iova::new(0), Iova::new(1 << 30)).unwrap();
                let _ = self.desk.register(stream, pasid, all, Arc::new(Content));
            }
            1 => self.owed -= self.desk.unregister(stream, pasid).answered.min(self.owed),
            2 => self.owed -= self.desk.remove_device(stream).answered.min(self.owed),
            3 => self.desk.lost(),
            _ => {}
        }
        let kind = match random.below(3) {
            0 => RequestKind::Stall { tag: StallTag::new(random.below(4) as u16) },
            _ => RequestKind::Pri {
                group: GroupId::new(random.below(GROUPS) as u16),
                place: random.of(&[Place::Last, Place::More]),
            },
        };
        let taken = self.desk.accept(RawPageRequest {
            stream,
            pasid,
            iova: Iova::new(random.below(1 << 31) & !0xfff),
            wants: random.of(&[Permissions::READ, Permissions::WRITE, Permissions::empty()]),
            kind,
        });
        if let Ok(Taken::Ready) = taken {
            self.owed += 1;
        }
        // Those that are open, and for each device a note of each group that was refused a part of.
        let most = self.groups + (DEVICES * GROUPS) as usize;
        let found = self.desk.outstanding();
        assert!(found <= most, "{found} groups where {most} can be");
        // Fewer than are asked for.
        if random.below(3) == 0 {
            let before = self.answers.0.load(Ordering::Relaxed);
            if self.desk.serve().unwrap().is_some() {
                let sent = self.answers.0.load(Ordering::Relaxed) - before;
                assert_eq!(sent, 1, "a group is answered once");
            }
        }
        if random.below(50) == 0 {
            self.desk.expire().unwrap();
        }
    }

    /// No caller waits for an answer for ever.
    fn end(self) {
        while self.desk.serve().unwrap().is_some() {}
        self.desk.close();
        assert_eq!(self.desk.outstanding(), 0);
        assert_eq!(self.desk.counts().unsent, 0);
    }
}

/// Ends the lookers, also where the test fails: else it would not end.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    let said = std::env::var(name).ok();
    said.and_then(|said| said.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn nothing_is_lost_and_nothing_grows() {
    let operations = number("PORTOLAN_TORTURE", 1_000_000);
    let seed = number("PORTOLAN_SEED", 36);
    println!("PORTOLAN_SEED={seed} PORTOLAN_TORTURE={operations}");
    let mut random = Random(seed);
    let cpus = Arc::new(SpinCpus::new(CPUS, Time::default(), current as fn() -> CpuId));
    let (mut done, mut most_tables, mut refused) = (0, 0, 0);
    while done < operations {
        let mut world = World::new(&mut random, &cpus);
        let mut askers = Askers::new(&cpus);
        let mut asking = Random(seed ^ done);
        let over = AtomicBool::new(false);
        let (domain, window) = (world.domain.clone(), world.window);
        thread::scope(|scope| {
            // Overlapping, so that there is a walk at any time.
            for looker in 0..2 {
                let (domain, over) = (&domain, &over);
                scope.spawn(move || {
                    let mut random = Random(looker);
                    while !over.load(Ordering::Relaxed) {
                        for _ in 0..16 {
                            let inside = random.below(window.len_minus_one());
                            let at = Iova::new(window.start().get() + inside);
                            std::hint::black_box(domain.translate(at));
                        }
                        thread::yield_now();
                    }
                });
            }
            let ended = Over(&over);
            let steps = ROUND.min(operations - done);
            for _ in 0..steps / 2 {
                world.step();
                askers.ask(&mut asking);
            }
            done += steps;
            drop(ended);
        });
        drop(domain);
        most_tables = most_tables.max(world.most_tables);
        refused += world.refused;
        world.end();
        askers.end();
    }
    println!("{done} operations, {refused} maps refused, at most {most_tables} table pages");
    assert!(most_tables < TABLES as usize / 2, "{most_tables} table pages");
}
