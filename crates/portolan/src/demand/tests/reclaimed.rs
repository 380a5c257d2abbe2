//! Tables that another CPU takes out of the tree and gives back during a walk.

use crate::platform::promised::{promised, simulated};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use spin::Mutex;

use super::rig::{BASE, Hand, Hardware, Memory, PAGE, caps, pages_at, request};
use crate::addr::{CpuId, InvalTag, Iova, PageSize, PhysAddr};
use crate::demand::{Ioas, IoasOptions, RegionOptions, Residency};
use crate::inval::{Caching, Gather, Quirks};
use crate::iommu::{Domain as _, PagedDomain};
use crate::platform::{OutOfTableMemory, SlabTables, SpinCpus, TableMem, Word};
use crate::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
use crate::table::{Access, PageTable};

const DIRTY: u64 = 1 << 9;
const TABLES: u64 = 0x80_0000_0000;
const BOTH: Access = Access::READ.union(Access::WRITE);

type Hook = Box<dyn FnOnce() + Send>;

/// Table memory at one of whose looks another CPU does something.
struct Hooked {
    slab: SlabTables<AtomicU64>,
    looks: AtomicUsize,
    at: AtomicUsize,
    hook: Mutex<Option<Hook>>,
}

impl TableMem<AtomicU64> for Hooked {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.slab.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.slab.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        let words = self.slab.table(table, size);
        let look = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        if look == self.at.load(Ordering::Relaxed) {
            if let Some(hook) = self.hook.lock().take() {
                hook();
            }
        }
        words
    }

    fn clean(&self, _: crate::addr::PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: crate::addr::PhysRange) {}
}

type Domain = PagedDomain<VtdSecondStage, Arc<Hooked>, Arc<Hardware>>;
type Cpus = Arc<SpinCpus<Hand, fn() -> CpuId>>;

/// Two domains in one memory for tables. The first is a container's, whose page 5 is mapped; the
/// second has its upper tables.
struct Machine {
    mem: Arc<Hooked>,
    one: Arc<Domain>,
    two: Arc<Domain>,
    container: Arc<Ioas<Domain, Arc<Memory>, Cpus>>,
}

impl Machine {
    fn new() -> Self {
        let mem = Arc::new(Hooked {
            slab: SlabTables::new(PhysAddr::new(TABLES), PageSize::SIZE_4K, 64),
            looks: AtomicUsize::new(0),
            at: AtomicUsize::new(0),
            hook: Mutex::new(None),
        });
        let hardware = Arc::new(Hardware::default());
        let domain = |context| {
            let format = VtdSecondStage {
                levels: VtdLevels::Four,
                output_lg2: 46,
                dirty: DirtyTracking::Hardware,
            };
            let table = PageTable::new(format, mem.clone()).unwrap();
            let context = InvalTag::new(context);
            let (caps, quirks) = (caps(Caching::PresentOnly), Quirks::default());
            Arc::new(PagedDomain::new(table, context, caps, quirks, hardware.clone()))
        };
        let (one, two) = (domain(1), domain(2));
        let current: fn() -> CpuId = || CpuId::new(0);
        let cpus = Arc::new(SpinCpus::new(1, Hand(hardware.clone()), current));
        let options = IoasOptions::default();
        let container = Ioas::new(one.clone(), cpus, options, simulated()).unwrap();
        let options =
            RegionOptions { range: pages_at(0, 512), access: BOTH, hold: Residency::OnDemand };
        container.add_region(&options, Arc::new(Memory::default())).unwrap();
        container.fault(&request(5)).unwrap();
        let machine = Self { mem, one, two, container: Arc::new(container) };
        machine.map_in_two(512);
        machine
    }

    fn map_in_two(&self, page: u64) {
        map(&self.two, page);
    }

    /// At the `look`-th look of `act` the owner takes page 5 and its leaf table back, and the second domain
    /// maps there; a device writes to that. Where its entry is, if that look came.
    fn interrupted(&self, look: usize, act: impl FnOnce(&Self)) -> Option<&AtomicU64> {
        let theirs = Arc::new(AtomicU64::new(0));
        let (one, two, mem) = (self.one.clone(), self.two.clone(), self.mem.clone());
        let container = self.container.clone();
        let noted = theirs.clone();
        *self.mem.hook.lock() = Some(Box::new(move || {
            assert_eq!(container.invalidate(pages_at(5, 1)), Ok(1));
            prune(&one);
            map(&two, 5);
            for number in 0..64 {
                let table = PhysAddr::new(TABLES + number * PAGE);
                let word = &mem.slab.table(table, PageSize::SIZE_4K)[5];
                let raw = Word::load(word);
                if raw & 0x000f_ffff_ffff_f003 == 0x9003 {
                    Word::store(word, raw | DIRTY);
                    noted.store(table.get(), Ordering::Relaxed);
                }
            }
            assert_ne!(noted.load(Ordering::Relaxed), 0);
        }));
        let before = self.mem.looks.load(Ordering::Relaxed);
        self.mem.at.store(before + look, Ordering::Relaxed);
        act(self);
        self.mem.at.store(0, Ordering::Relaxed);
        let table = theirs.load(Ordering::Relaxed);
        let words = self.mem.slab.table(PhysAddr::new(table), PageSize::SIZE_4K);
        (table != 0).then(|| &words[5])
    }
}

fn map(domain: &Domain, page: u64) {
    let mut owed = Gather::new();
    let iova = Iova::new(BASE + page * PAGE);
    let mapped = domain.map(iova, promised(PhysAddr::new(0x9000), PAGE), BOTH, &mut owed);
    mapped.unwrap();
    domain.sync(&mut owed).unwrap();
}

/// Takes out the leaf table of the container, which has nothing mapped any more.
fn prune(domain: &Domain) {
    let mut owed = Gather::new();
    assert_eq!(domain.prune(pages_at(0, 512), &mut owed), Ok(1));
    domain.sync(&mut owed).unwrap();
}

/// Looks of one act at tables, at most.
const LOOKS: usize = 60;

#[test]
fn a_dirty_read_takes_no_mark_out_of_a_table_that_was_given_back() {
    let mut reached = 0;
    for look in 1..LOOKS {
        let machine = Machine::new();
        let word = machine.interrupted(look, |machine| {
            let cleared = machine.container.read_and_clear_dirty(pages_at(0, 512), |_| ());
            cleared.unwrap();
        });
        if let Some(word) = word {
            reached += 1;
            assert_ne!(Word::load(word) & DIRTY, 0, "at look {look}");
        }
        // The dirty read has ended: the page of the table has come back.
        assert_eq!(machine.one.table().pages(), if word.is_some() { 3 } else { 4 });
        let live = machine.one.table().pages() + machine.two.table().pages();
        assert_eq!(machine.mem.slab.live(), live);
    }
    assert!(reached > 3, "{reached}");
}

#[test]
fn a_look_never_finds_what_another_domain_maps() {
    let mut reached = 0;
    for look in 1..LOOKS {
        let machine = Machine::new();
        let word = machine.interrupted(look, |machine| {
            let found = machine.one.translate(Iova::new(BASE + 5 * PAGE));
            assert_ne!(found.map(|found| found.pa), Some(PhysAddr::new(0x9000)));
            let mut found = machine.one.table().mappings(pages_at(0, 512));
            assert!(found.all(|run| run.pa != PhysAddr::new(0x9000)));
        });
        reached += usize::from(word.is_some());
    }
    assert!(reached > 8, "{reached}");
}

/// Each page is parked until the walks have ended that were under way, and no longer.
#[test]
fn parked_pages_are_freed_by_the_last_walk_that_may_read_them() {
    let machine = Machine::new();
    let table = machine.one.table();
    let inside = {
        let first = table.begin_walk();
        assert_eq!(machine.container.invalidate(pages_at(5, 1)), Ok(1));
        prune(&machine.one);
        for page in [5, 6] {
            machine.container.fault(&request(page)).unwrap();
            assert_eq!(machine.container.invalidate(pages_at(page, 1)), Ok(1));
            prune(&machine.one);
        }
        let second = table.begin_walk();
        drop(first);
        let inside = table.pages();
        drop(second);
        inside
    };
    // The first of them was parked before the second walk began.
    assert_eq!((inside, table.pages()), (5, 3));
    let live: Vec<_> =
        [&machine.one, &machine.two].iter().map(|domain| domain.table().pages()).collect();
    assert_eq!(machine.mem.slab.live(), live.iter().sum::<usize>());
}
