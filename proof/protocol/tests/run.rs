//! Runs that are of the protocol, and runs that are not.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr, TableId};
use portolan::inval::{Capabilities, Gather, InvalidationQueue, Quirks, Step, TablesLeft};
use portolan::platform::{OutOfTableMemory, ProtocolStep, SlabTables, TableMem};
use portolan::table::format::{VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};
use portolan_protocol::protocol::address_space;
use portolan_protocol::run::{Checker, Refusal, Run};

const PAGE: u64 = 0x1000;

/// Completes at once, or fails as often as it is told to.
struct Queue(Mutex<u32>);

impl InvalidationQueue for Queue {
    type Error = ();

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), ()> {
        steps.for_each(drop);
        let mut failing = self.0.lock().unwrap();
        let fails = *failing > 0;
        *failing = failing.saturating_sub(1);
        if fails { Err(()) } else { Ok(()) }
    }
}

/// Table memory that notes what its run says.
#[derive(Clone)]
struct Noting {
    memory: Arc<SlabTables<AtomicU64>>,
    run: Arc<Mutex<(Run, Option<Refusal>)>>,
}

impl Noting {
    fn new() -> Self {
        let memory = SlabTables::new(PhysAddr::new(1 << 32), PageSize::SIZE_4K, 64);
        let run = Arc::new(Mutex::new((Run::default(), None)));
        Self { memory: Arc::new(memory), run }
    }

    fn refused(&self) -> Option<Refusal> {
        self.run.lock().unwrap().1.clone()
    }
}

impl TableMem<AtomicU64> for Noting {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.memory.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.memory.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.memory.table(table, size)
    }

    fn clean(&self, _: portolan::addr::PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: portolan::addr::PhysRange) {}

    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        let (run, refused) = &mut *self.run.lock().unwrap();
        let made = run.step(of, step);
        *refused = refused.take().or(made.err());
    }
}

type Table = PageTable<VtdSecondStage, Noting>;

fn table(memory: &Noting) -> Table {
    PageTable::new(VtdSecondStage::new(VtdLevels::Four, 46), memory.clone()).unwrap()
}

fn pages(first: u64, count: u64) -> IovaRange {
    IovaRange::from_len(Iova::new(first * PAGE), count * PAGE).unwrap()
}

fn map(table: &Table, first: u64, count: u64) {
    let (pa, bytes) = (PhysAddr::new((1 << 30) + first * PAGE), count * PAGE);
    let iova = Iova::new(first * PAGE);
    table.map(iova, pa, bytes, Access::READ, &mut Gather::new()).unwrap();
}

fn sync(table: &Table, queue: &Queue, owed: &mut Gather) -> bool {
    let caps = Capabilities::new(PageSize::SIZE_4K);
    let synced = table.sync(queue, InvalTag::new(1), &caps, &Quirks::default(), owed);
    synced.map(|quiesced| table.reclaim(quiesced).unwrap()).is_ok()
}

/// The last refusal's step and guard.
fn refusal(memory: &Noting) -> Option<(&'static str, &'static str)> {
    memory.refused().map(|refusal| (refusal.step, refusal.guard))
}

#[test]
fn maps_unmaps_and_tables_that_leave_are_a_run() {
    let (memory, queue) = (Noting::new(), Queue(Mutex::new(0)));
    let table = table(&memory);
    for count in [1, 3, 512, 1024, 5000] {
        map(&table, 512, count);
        let mut owed = Gather::new();
        table.unmap(pages(512, count), &mut owed).unwrap();
        table.prune(table.input_range(), &mut owed).unwrap();
        assert!(sync(&table, &queue, &mut owed));
    }
    drop(table);
    assert_eq!(memory.refused(), None);
    assert!(memory.run.lock().unwrap().0.tally().made > 100);
}

/// A mapping that goes in parts, a block that is split, and hardware that fails in between.
#[test]
fn parts_splits_and_failures_are_a_run() {
    let (memory, queue) = (Noting::new(), Queue(Mutex::new(1)));
    let table = table(&memory);
    map(&table, 512, 512);
    let mut owed = Gather::new();
    let pending = table.split(Iova::new(512 * PAGE), &mut owed).unwrap();
    let caps = Capabilities::new(PageSize::SIZE_4K);
    let (tag, quirks) = (InvalTag::new(1), Quirks::default());
    assert!(table.sync(&queue, tag, &caps, &quirks, &mut owed).is_err());
    let quiesced = table.sync(&queue, tag, &caps, &quirks, &mut owed).unwrap();
    table.complete_split(pending, &quiesced, &mut owed).unwrap();
    table.reclaim(quiesced).unwrap();
    for part in [pages(520, 8), pages(512, 8), pages(528, 496)] {
        *queue.0.lock().unwrap() = 2;
        table.unmap(part, &mut owed).unwrap();
        assert!(!sync(&table, &queue, &mut owed));
        assert!(!sync(&table, &queue, &mut owed));
        assert!(sync(&table, &queue, &mut owed));
        map(&table, part.start().get() / PAGE, 8);
        table.unmap(pages(part.start().get() / PAGE, 8), &mut owed).unwrap();
        assert!(sync(&table, &queue, &mut owed));
    }
    assert_eq!(memory.refused(), None);
}

#[test]
fn an_address_that_is_mapped_before_it_is_quiet_is_refused() {
    let memory = Noting::new();
    let table = table(&memory);
    map(&table, 512, 4);
    let mut owed = Gather::new();
    table.unmap(pages(512, 4), &mut owed).unwrap();
    map(&table, 513, 1);
    let expected = ("find a table that hangs there", "the address is quiet");
    assert_eq!(refusal(&memory), Some(expected));
}

#[test]
fn a_page_that_comes_back_before_its_debt_is_settled_is_refused() {
    let (memory, queue) = (Noting::new(), Queue(Mutex::new(0)));
    let table = table(&memory);
    map(&table, 512, 512 * 2);
    let (mut first, mut second) = (Gather::new(), Gather::new());
    table.unmap(pages(512, 512), &mut first).unwrap();
    table.unmap(pages(1024, 512), &mut second).unwrap();
    assert!(sync(&table, &queue, &mut first));
    assert_eq!(memory.refused(), None);
    // A proof that is made of nothing: the pages of the one debt, the payment of an empty one.
    let mut none = Gather::new();
    table.absorb(&mut none, &mut second).unwrap();
    assert_eq!(memory.refused(), None);
    let free = |page| memory.protocol_step(table.id(), ProtocolStep::Free { table: page });
    free(PhysAddr::new(1 << 32));
    let expected = ("give back what a settled debt held", "the page has left, once");
    assert_eq!(refusal(&memory), Some(expected));
    drop(none);
}

/// Steps by hand, of which the last is refused.
fn told(checker: &Checker, steps: &[ProtocolStep]) -> Result<(), Refusal> {
    let (mut run, of) = (checker.run(), TableId::fresh());
    steps.iter().try_for_each(|step| run.step(of, *step))
}

const ROOT: PhysAddr = PhysAddr::new(0x1000);
const LEAVES: PhysAddr = PhysAddr::new(0x2000);
const OTHER: PhysAddr = PhysAddr::new(0x3000);

/// Steps up to a page that is mapped in a leaf table.
fn mapped() -> Vec<ProtocolStep> {
    let (spans, range) = (pages(512, 512), pages(512, 4));
    vec![
        ProtocolStep::Find { table: ROOT, range: pages(0, 512) },
        ProtocolStep::Write { table: ROOT, range: pages(0, 512) },
        ProtocolStep::Link { table: LEAVES, spans },
        ProtocolStep::Find { table: LEAVES, range },
        ProtocolStep::Write { table: LEAVES, range },
    ]
}

/// Steps after those of [`mapped`], of which the last is refused.
struct Wrong {
    steps: Vec<ProtocolStep>,
    step: &'static str,
    guard: &'static str,
}

impl Wrong {
    fn of(
        before: &[ProtocolStep],
        last: ProtocolStep,
        step: &'static str,
        guard: &'static str,
    ) -> Self {
        Self { steps: before.iter().copied().chain([last]).collect(), step, guard }
    }

    fn told(&self, checker: &Checker) -> Result<(), Refusal> {
        told(checker, &[mapped(), self.steps.clone()].concat())
    }
}

const FIND: &str = "find a table that hangs there";
const LINK: &str = "link a new table";
const WRITE: &str = "write an entry";
const CLEAR: &str = "clear an entry";
const TAKE: &str = "take all addresses of a table";
const GIVE_BACK: &str = "give back what a settled debt held";
const SETTLED: &str = "the debt is settled";
const UNUSED: &str = "no address is in use";

/// All pages of the leaf table, those that are mapped, and some of them.
fn ranges() -> (IovaRange, IovaRange, IovaRange) {
    (pages(512, 512), pages(512, 4), pages(513, 2))
}

/// Steps by which the leaf table leaves.
fn left() -> [ProtocolStep; 3] {
    let (spans, range, _) = ranges();
    let take = ProtocolStep::Take { range: spans };
    [ProtocolStep::Clear { range }, take, ProtocolStep::TakeOut { table: LEAVES }]
}

fn wrong_maps() -> Vec<Wrong> {
    let (spans, _, part) = ranges();
    let left = left();
    let find = ProtocolStep::Find { table: LEAVES, range: part };
    let link = |table, spans| ProtocolStep::Link { table, spans };
    let write = |range| ProtocolStep::Write { table: LEAVES, range };
    let other = ProtocolStep::Find { table: OTHER, range: pages(600, 1) };
    vec![
        Wrong::of(&[], find, FIND, "the entry is in no use"),
        Wrong::of(&left[..1], find, FIND, "the address is quiet"),
        Wrong::of(&left, find, FIND, "the address is quiet"),
        Wrong::of(&[], other, FIND, "the table hangs there"),
        Wrong::of(&[], link(LEAVES, pages(1024, 512)), LINK, "the page is free"),
        Wrong::of(&[], link(OTHER, spans), LINK, "no table hangs there"),
        Wrong::of(&left, link(OTHER, spans), LINK, "the address is not taken with its table"),
        Wrong::of(&[], write(part), WRITE, "the map has the address and the table"),
        Wrong::of(&[], write(pages(600, 1)), WRITE, "a map has found the entry"),
    ]
}

fn wrong_unmaps() -> Vec<Wrong> {
    let (spans, range, part) = ranges();
    let left = left();
    let clear = |range| ProtocolStep::Clear { range };
    let take_out = ProtocolStep::TakeOut { table: LEAVES };
    let free = ProtocolStep::Free { table: LEAVES };
    let give_back = |range| ProtocolStep::GiveBack { range };
    vec![
        Wrong::of(&left[..1], clear(range), CLEAR, "the entry is written"),
        Wrong::of(&[], clear(pages(600, 1)), CLEAR, "some entry is written"),
        Wrong::of(&[], ProtocolStep::Take { range: spans }, TAKE, UNUSED),
        Wrong::of(&[], take_out, TAKE, UNUSED),
        Wrong::of(&left, take_out, TAKE, "the table hangs there"),
        Wrong::of(&left, free, GIVE_BACK, SETTLED),
        Wrong::of(&[], free, GIVE_BACK, "the page has left, once"),
        Wrong::of(&left[..1], give_back(part), GIVE_BACK, SETTLED),
        Wrong::of(&left, give_back(pages(700, 1)), GIVE_BACK, SETTLED),
        Wrong::of(&[], give_back(part), GIVE_BACK, "addresses that go back are in no use"),
    ]
}

fn wrongs() -> impl Iterator<Item = Wrong> {
    wrong_maps().into_iter().chain(wrong_unmaps())
}

#[test]
fn the_first_step_that_does_not_fit_is_refused_with_its_guard() {
    let checker = Checker::of(&address_space()).unwrap();
    assert_eq!(told(&checker, &mapped()), Ok(()));
    for wrong in wrongs() {
        let refused = wrong.told(&checker).expect_err(wrong.guard);
        let last = (mapped().len() + wrong.steps.len()) as u64;
        let found = (refused.number, refused.step, refused.guard);
        assert_eq!(found, (last, wrong.step, wrong.guard), "{refused}");
    }
}

/// Guards are the protocol's own: without one, the step that it refuses is accepted.
#[test]
fn a_guard_that_is_left_out_of_the_protocol_refuses_nothing() {
    let mut left_out = 0;
    for wrong in wrongs() {
        let mut open = address_space();
        let edited = open.step(wrong.step).unwrap();
        let before = edited.guards.len();
        edited.guards.retain(|claim| claim.says != wrong.guard);
        if edited.guards.len() == before {
            continue;
        }
        left_out += 1;
        let told = wrong.told(&Checker::of(&open).unwrap());
        let same = told.as_ref().is_err_and(|refused| refused.guard == wrong.guard);
        assert!(!same, "{told:?}");
    }
    assert!(left_out > 10, "{left_out}");
}

#[test]
fn a_protocol_without_a_step_of_runs_is_refused() {
    let mut protocol = address_space();
    protocol.steps.retain(|step| step.name != "write an entry");
    let error = Checker::of(&protocol).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some("there is no such step: write an entry"));
}

/// One that makes all steps of another has none to check; one that goes on wrongly is refused each time.
#[test]
fn runs_that_begin_alike_are_checked_from_where_they_part() {
    let checker = Checker::of(&address_space()).unwrap();
    let (table, range) = (PhysAddr::new(1 << 32), pages(512, 1));
    let begin = [
        ProtocolStep::Find { table, range },
        ProtocolStep::Write { table, range },
        ProtocolStep::Clear { range },
    ];
    let run = |more: Option<ProtocolStep>| {
        let (mut run, of) = (checker.run().of_many(), TableId::fresh());
        let made = begin.into_iter().chain(more).try_for_each(|step| run.step(of, step));
        (made.map_err(|refusal| (refusal.number, refusal.guard)), run.tally().made)
    };
    let (first, made) = run(None);
    assert_eq!(first, Ok(()));
    assert_eq!(run(None), (Ok(()), 0));
    let wrong = Some(ProtocolStep::GiveBack { range });
    let (refused, again) = run(wrong);
    assert_eq!(refused, Err((4, "the debt is settled")));
    assert!(again > made && made > 0);
    assert_eq!(run(wrong), (refused, again));
    let other = Some(ProtocolStep::Find { table, range });
    assert_eq!(run(other).0, Err((4, "the address is quiet")));
}
