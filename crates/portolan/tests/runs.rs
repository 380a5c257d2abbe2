//! Runs of one CPU that lead where steps could come in a wrong order: each step is checked against the protocol.
#![allow(missing_docs)]

#[path = "support/attached.rs"]
mod attached;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use attached::{Attached, simulated, unowned};
use portolan::addr::{CpuId, InvalTag, Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::dma::{
    Bidirectional, Constraints, DmaRange, DmaSpace, LazyBounds, Policy, Reservation, SpaceOptions,
};
use portolan::inval::{Capabilities, InvalidationQueue, Quirks, Step, TablesLeft};
use portolan::iommu::{BoundDomain, IommuError, PagedDomain, TagPool};
use portolan::platform::{Clock, Nanos, SlabTables, SpinCpus, TableMem};
use portolan::table::format::{VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};
use portolan_protocol::run::{CheckedCpus, CheckedMemory, CheckedRun};

const PAGE: u64 = 0x1000;
const BLOCK: u64 = 0x20_0000;
/// The first address.
const WINDOW: u64 = 1 << 30;
/// Memory that no block maps.
const ODD: u64 = (1 << 32) + PAGE;

/// Time that passes when a caller waits, so that a test whose run is refused ends.
#[derive(Default)]
struct Time(AtomicU64);

impl Clock for Time {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.load(Ordering::Relaxed))
    }

    fn relax(&self) {
        self.0.fetch_add(100_000_000, Ordering::Relaxed);
    }
}

type Cpus = CheckedCpus<Arc<SpinCpus<Time, fn() -> CpuId>>>;

/// A unit that fails as often as it is told to.
#[derive(Clone, Default)]
struct Unit(Arc<AtomicU32>);

impl Unit {
    fn fail(&self, times: u32) {
        self.0.store(times, Ordering::Relaxed);
    }
}

impl InvalidationQueue for Unit {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        steps.for_each(drop);
        let failing = self.0.load(Ordering::Relaxed);
        self.fail(failing.saturating_sub(1));
        if failing == 0 { Ok(()) } else { Err(IommuError::Stopped) }
    }
}

impl TagPool for Unit {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

struct Machine {
    unit: Unit,
    memory: Arc<SlabTables<AtomicU64>>,
    space: DmaSpace<Cpus>,
}

impl Machine {
    /// With memory for so many tables, of which so many may stay, and addresses of two leaf tables.
    fn new(policy: Policy, pages: u32, keep: usize) -> Self {
        Self::wide(policy, pages, keep, 2)
    }

    /// The same, with addresses of so many leaf tables.
    fn wide(policy: Policy, pages: u32, keep: usize, leaf_tables: u64) -> Self {
        let (unit, run) = (Unit::default(), CheckedRun::default());
        let memory = SlabTables::new(PhysAddr::new(1 << 40), PageSize::SIZE_4K, pages);
        let memory = Arc::new(memory);
        let format = VtdSecondStage::new(VtdLevels::Four, 46);
        let table = PageTable::new(format, CheckedMemory(memory.clone(), run.clone())).unwrap();
        let caps = Capabilities::new(PageSize::SIZE_4K);
        let quirks = Quirks::default();
        let domain = PagedDomain::new(table, InvalTag::new(1), caps, quirks, unit.clone());
        let mut options = SpaceOptions::default();
        options.window = IovaRange::from_len(Iova::new(WINDOW), leaf_tables * BLOCK).unwrap();
        options.policy = policy;
        options.keep_tables = keep;
        options.bounds = LazyBounds { entries: 1000, ..LazyBounds::default() };
        let cpus = SpinCpus::new(1, Time::default(), (|| CpuId::new(0)) as fn() -> CpuId);
        let cpus = CheckedCpus(Arc::new(cpus), run);
        let bound = BoundDomain::new(Arc::new(Attached), Arc::new(domain), simulated());
        let space = DmaSpace::with_cpus(bound, cpus, &options, simulated()).unwrap();
        Self { unit, memory, space }
    }

    fn map(&self, bytes: u64, align: PageSize) -> Option<DmaRange> {
        self.map_from(1 << 32, bytes, align)
    }

    fn map_from(&self, pa: u64, bytes: u64, align: PageSize) -> Option<DmaRange> {
        let memory = PhysRange::from_len(PhysAddr::new(pa), bytes).unwrap();
        let mut constraints = Constraints::trusted();
        constraints.align = align;
        let mapped = self.space.map_range(unowned(memory), Access::READ_WRITE, &constraints);
        mapped.ok().map(|(range, _)| range)
    }

    fn unmap(&self, range: DmaRange) {
        assert!(self.space.unmap_range(range).is_ok());
    }

    /// Pages that are mapped in both leaf tables: those in the lower one, and those in the upper one.
    fn both(&self) -> [Vec<DmaRange>; 2] {
        let mut both = [Vec::new(), Vec::new()];
        while both.iter().any(Vec::is_empty) {
            let range = self.map(PAGE, PageSize::SIZE_4K).unwrap();
            let upper = range.addresses().start().get() >= WINDOW + BLOCK;
            both[usize::from(upper)].push(range);
        }
        both
    }
}

/// Tables above the leaf tables. They span more than the window, and stay.
const ABOVE: usize = 3;
/// Those, and two leaf tables.
const ALL: usize = ABOVE + 2;

/// A machine in which nothing is mapped, one leaf table stays, and there is memory for one more.
fn one_empty_table() -> Machine {
    let machine = Machine::new(Policy::Strict, ALL as u32, ALL - 1);
    let [mut lower, upper] = machine.both();
    upper.into_iter().for_each(|range| machine.unmap(range));
    let last = lower.pop().unwrap();
    lower.into_iter().for_each(|range| machine.unmap(range));
    machine.space.trim_addresses();
    machine.space.tick().unwrap();
    assert_eq!(machine.memory.live(), ALL - 1, "one table stays");
    machine.unmap(last);
    machine
}

/// A block takes the place of an empty table, and then the map fails: walk caches lead to that table until the debt is
/// paid, and so nothing else may be mapped there.
#[test]
fn a_map_that_fails_after_a_table_has_left_keeps_its_addresses() {
    let machine = one_empty_table();
    let taken = machine.memory.alloc(PageSize::SIZE_4K).unwrap();
    assert!(machine.map(BLOCK + PAGE, PageSize::SIZE_2M).is_none(), "there is memory for tables");
    machine.memory.free(taken, PageSize::SIZE_4K);
    machine.space.flush().unwrap();
    let range = machine.map(BLOCK + PAGE, PageSize::SIZE_2M).expect("all came back");
    machine.unmap(range);
    assert_eq!(machine.space.quarantine(), Default::default());
}

/// The same for addresses that are set aside and given up after a link that failed.
#[test]
fn a_reservation_whose_link_failed_after_a_table_has_left_keeps_its_addresses() {
    let machine = one_empty_table();
    machine.space.trim_addresses();
    let Machine { memory, space, .. } = machine;
    let space = Arc::new(space);
    let addresses = IovaRange::from_len(Iova::new(WINDOW), BLOCK + PAGE).unwrap();
    let aside = Reservation::at(space.clone(), addresses, &Constraints::trusted());
    let mut aside = aside.expect("no address is in use");
    let taken = memory.alloc(PageSize::SIZE_4K).unwrap();
    let buffer = PhysRange::from_len(PhysAddr::new(1 << 32), BLOCK + PAGE).unwrap();
    assert!(aside.link(unowned(buffer), Bidirectional).is_err(), "there is memory for tables");
    drop(aside);
    memory.free(taken, PageSize::SIZE_4K);
    // Flushes first, as walk caches lead to a table that has left.
    let mut aside = Reservation::at(space.clone(), addresses, &Constraints::trusted()).unwrap();
    assert!(aside.link(unowned(buffer), Bidirectional).is_ok());
    aside.sync().unwrap();
    assert!(aside.unlink().is_ok());
    assert_eq!(space.quarantine(), Default::default());
}

/// The unit fails while tables leave; their addresses stay out of use until it has recovered.
#[test]
fn tables_leave_while_the_unit_fails() {
    for failing in 1..4 {
        let machine = Machine::new(Policy::Strict, 64, 0);
        let [lower, upper] = machine.both();
        lower.into_iter().chain(upper).for_each(|range| machine.unmap(range));
        machine.unit.fail(failing);
        assert!(machine.space.tick().is_err());
        // Nothing comes back by this as long as the unit fails.
        let _ = machine.space.flush();
        while machine.space.recover().is_err() {}
        machine.space.flush().unwrap();
        let again = machine.both();
        again.into_iter().flatten().for_each(|range| machine.unmap(range));
        machine.space.tick().unwrap();
        assert_eq!(machine.memory.live(), ABOVE);
    }
}

/// Ranges that wait for their invalidation are in tables that are empty already.
#[test]
fn tables_do_not_leave_with_addresses_that_wait() {
    for policy in [Policy::Lazy, Policy::Deferred] {
        let machine = Machine::new(policy, 64, 0);
        for round in 0..3 {
            let [lower, upper] = machine.both();
            lower.into_iter().chain(upper).for_each(|range| machine.unmap(range));
            machine.space.tick().unwrap();
            if round == 1 {
                machine.space.flush().unwrap();
            }
            machine.space.tick().unwrap();
        }
        machine.space.flush().unwrap();
        machine.space.tick().unwrap();
        assert_eq!(machine.memory.live(), ABOVE);
    }
}

/// The unit fails while ranges wait, and others are unmapped meanwhile.
#[test]
fn ranges_of_a_flush_that_failed_wait_for_the_next() {
    for policy in [Policy::Strict, Policy::Lazy, Policy::Deferred] {
        let machine = Machine::new(policy, 64, 0);
        let [lower, upper] = machine.both();
        lower.into_iter().for_each(|range| machine.unmap(range));
        machine.unit.fail(2);
        for range in upper {
            let _ = machine.space.unmap_range(range);
        }
        let _ = machine.space.flush();
        while machine.space.recover().is_err() {}
        machine.space.flush().unwrap();
        let range = machine.map(2 * BLOCK, PageSize::SIZE_2M);
        range.into_iter().for_each(|range| machine.unmap(range));
        machine.space.flush().unwrap();
    }
}

/// Leaf tables that are full leave with what is mapped in them: alone, several at once, and with a part of another.
#[test]
fn full_tables_leave_with_their_pages() {
    for policy in [Policy::Strict, Policy::Lazy, Policy::Deferred] {
        for bytes in [BLOCK, 2 * BLOCK, BLOCK + PAGE, 3 * BLOCK + PAGE] {
            let machine = Machine::wide(policy, 64, 64, 8);
            for _ in 0..3 {
                let range = machine.map_from(ODD, bytes, PageSize::SIZE_2M).unwrap();
                machine.unmap(range);
            }
            machine.space.flush().unwrap();
        }
    }
}

/// Empty tables that lie apart are owed together, with pages that wait, to a unit that fails.
#[test]
fn tables_apart_leave_together() {
    for policy in [Policy::Strict, Policy::Lazy] {
        for failing in 0..3 {
            let machine = Machine::wide(policy, 64, 0, 16);
            let mut ranges: Vec<_> =
                (0..16).map(|_| machine.map_from(ODD, BLOCK / 2, PageSize::SIZE_2M)).collect();
            ranges.sort_by_key(|range| range.as_ref().map(|range| range.addresses().start()));
            // Every second table is empty, and the neighbours of some are about to be.
            let (mut even, mut odd) = (Vec::new(), Vec::new());
            for (number, range) in ranges.into_iter().flatten().enumerate() {
                if number % 2 == 0 { even.push(range) } else { odd.push(range) }
            }
            even.into_iter().for_each(|range| machine.unmap(range));
            machine.space.flush().unwrap();
            odd.drain(..4).for_each(|range| machine.unmap(range));
            machine.unit.fail(failing);
            let _ = machine.space.tick();
            while machine.space.recover().is_err() {}
            odd.into_iter().for_each(|range| machine.unmap(range));
            machine.space.flush().unwrap();
            machine.space.tick().unwrap();
            assert_eq!(machine.memory.live(), ABOVE);
        }
    }
}
