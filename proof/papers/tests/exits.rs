//! Exits to a hypervisor that plays a VT-d unit: registers that the driver touches, counted by the machine behind
//! them, and words of tables that change.

#[path = "../../../crates/portolan/tests/support/promised.rs"]
mod promised;

use promised::promised;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::{Gather, Preference, Quirks};
use portolan::iommu::Domain;
use portolan::platform::{Mmio, UnitParts};
use portolan::table::Access;
use portolan::table::format::{VtdFirstLevels, VtdLevels};
use portolan_chips::chips::SKYLAKE_SP;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::vtd::{VtdIdentification, VtdMachine, VtdSetup};
use portolan_hw::vtd::{Config, Mode, Vtd};
use portolan_papers::reproduce::TABLE_WRITES;
use portolan_sim::counters::doorbells;
use portolan_sim::profile::Profile;
use portolan_tune::advice::Advice;

const BASE: u64 = 1 << 20;
const PAGES: u32 = 64;
/// Commands that the smallest queue holds: a page of 16 bytes each, but one.
const QUEUE: u64 = 255;

/// Registers that trap, with the number of times that they did.
struct Trapping {
    machine: VtdMachine,
    reads: Arc<AtomicU64>,
    writes: Arc<AtomicU64>,
}

impl Mmio for Trapping {
    fn read32(&self, offset: usize) -> u32 {
        self.reads.fetch_add(1, Relaxed);
        self.machine.read32(offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        self.writes.fetch_add(1, Relaxed);
        self.machine.write32(offset, value);
    }

    fn read64(&self, offset: usize) -> u64 {
        self.reads.fetch_add(1, Relaxed);
        self.machine.read64(offset)
    }

    fn write64(&self, offset: usize, value: u64) {
        self.writes.fetch_add(1, Relaxed);
        self.machine.write64(offset, value);
    }
}

/// A unit, and the machine that counts its exits.
struct Guest {
    machine: VtdMachine,
    unit: Vtd<UnitParts<Trapping, VtdMachine, VtdMachine>>,
    reads: Arc<AtomicU64>,
    writes: Arc<AtomicU64>,
}

impl Guest {
    fn new(identification: VtdIdentification, mode: Mode) -> Self {
        let setup = VtdSetup { identification, ..VtdSetup::default() };
        let memory = ModelMemory::new(PhysAddr::new(BASE), PAGES, Visibility::AtOnce);
        let machine = VtdMachine::new(setup, memory);
        let (reads, writes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let registers =
            Trapping { machine: machine.clone(), reads: reads.clone(), writes: writes.clone() };
        let mut config = Config::default();
        config.mode = mode;
        let unit = Vtd::enable(registers, machine.clone(), UnitParts::new(machine.clone()), config)
            .unwrap();
        Self { machine, unit, reads, writes }
    }

    /// Registers read and written by `work`.
    fn exits(&self, work: impl FnOnce()) -> [u64; 2] {
        let now = || [&self.reads, &self.writes].map(|count| count.load(Relaxed));
        let before = now();
        work();
        let after = now();
        [after[0] - before[0], after[1] - before[1]]
    }
}

fn page(number: u64) -> IovaRange {
    IovaRange::page(Iova::new((1 << 30) + (number << 12)), PageSize::SIZE_4K)
}

fn map(domain: &dyn Domain, number: u64, owed: &mut Gather) {
    let access = Access::READ | Access::WRITE;
    let at = page(number).start();
    domain.map(at, promised(PhysAddr::new(1 << 30), 4096), access, owed).unwrap();
}

/// Maps a page and unmaps it, `times` times, and pays each debt at once.
fn strict(domain: &dyn Domain, times: u64) {
    for _ in 0..times {
        let mut owed = Gather::new();
        map(domain, 1, &mut owed);
        domain.sync(&mut owed).unwrap();
        let mut owed = Gather::new();
        domain.unmap(page(1), &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
    }
}

/// Tells if `writes` are `doorbells` for this number of commands. One more is allowed: at the end of the queue there
/// may be room for the commands but not for the wait.
fn is_told(writes: u64, doorbells: u64, commands: u64) -> bool {
    (doorbells..=doorbells + commands.div_ceil(QUEUE)).contains(&writes)
}

#[test]
fn a_strict_unmap_is_one_exit_and_so_says_every_command() {
    let guest = Guest::new(SKYLAKE_SP.identification.scalable(), Mode::Scalable);
    let domain = guest.unit.first_stage(VtdFirstLevels::Four).unwrap();
    map(&domain, 0, &mut Gather::new());
    let times = 10 * QUEUE;
    // The tail is written once for command and wait; the head is read when the queue seems full.
    let [reads, writes] = guest.exits(|| strict(&domain, times));
    assert!(is_told(writes, times, 2 * times), "{writes}");
    assert!(reads.abs_diff(2 * times / QUEUE) <= 1, "{reads}");
    for name in ["vtd-nested", "spr-vm"] {
        let unmap = Advice::of(&Profile::by_name(name).unwrap()).unmap.unwrap();
        assert_eq!(unmap.exits, 1);
    }
    // A flush of many is one as well.
    let mut owed = Gather::new();
    for number in 1..=200 {
        map(&domain, number, &mut owed);
    }
    domain.sync(&mut owed).unwrap();
    for number in 1..=200 {
        domain.unmap(page(number), &mut owed).unwrap();
    }
    let [_, writes] = guest.exits(|| {
        let _proof = domain.sync(&mut owed).unwrap();
    });
    assert_eq!(writes, 1);
    guest.machine.expect_obedience();
}

#[test]
fn with_caching_mode_a_map_of_second_stage_tables_is_an_exit_too() {
    let guest = Guest::new(SKYLAKE_SP.identification.caching_mode(), Mode::Legacy);
    let domain = guest.unit.second_stage().unwrap();
    map(&domain, 0, &mut Gather::new());
    let [_, writes] = guest.exits(|| strict(&domain, 100));
    assert!(is_told(writes, 200, 400), "{writes}");
}

#[test]
fn a_debt_of_many_commands_is_told_as_often_as_the_model_counts() {
    let guest = Guest::new(SKYLAKE_SP.identification, Mode::Legacy);
    let quirks =
        Quirks { preference: Preference::ByPage, context_above: u64::MAX, ..Quirks::default() };
    let caps = guest.unit.second_capabilities();
    let domain = guest.unit.second_stage_as(VtdLevels::Four, caps, quirks).unwrap();
    for commands in [1, 16, 17, 63, 200] {
        let mut owed = Gather::new();
        for number in 0..=commands {
            map(&domain, number, &mut owed);
        }
        domain.sync(&mut owed).unwrap();
        let last = page(commands - 1).last();
        let range = IovaRange::new(page(0).start(), last).unwrap();
        domain.unmap(range, &mut owed).unwrap();
        let [_, writes] = guest.exits(|| {
            let _proof = domain.sync(&mut owed).unwrap();
        });
        assert!(is_told(writes, doorbells(commands), commands), "{commands}: {writes}");
        domain.unmap(page(commands), &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
    }
}

/// Words that a hypervisor sees change that write-protects tables in place of having caching mode.
#[test]
fn words_of_tables_that_a_page_changes() {
    let guest = Guest::new(SKYLAKE_SP.identification, Mode::Legacy);
    let domain = guest.unit.second_stage().unwrap();
    map(&domain, 0, &mut Gather::new());
    let words = || -> Vec<u64> {
        let all = (BASE..BASE + u64::from(PAGES) * 4096).step_by(8);
        all.map(|at| guest.machine.word(at)).collect()
    };
    let changed = |before: &[u64], after: &[u64]| {
        let pairs = before.iter().zip(after);
        pairs.filter(|(before, after)| before != after).count() as u64
    };
    let mut owed = Gather::new();
    let empty = words();
    map(&domain, 1, &mut owed);
    let mapped = words();
    domain.unmap(page(1), &mut owed).unwrap();
    let writes = changed(&empty, &mapped) + changed(&mapped, &words());
    domain.sync(&mut owed).unwrap();
    assert_eq!(writes, TABLE_WRITES);
}
