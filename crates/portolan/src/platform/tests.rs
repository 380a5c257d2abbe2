//! Pointers to a platform's parts pass every call on, and parts have their defaults.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use spin::Mutex;

use super::{
    Clock, Cpus, Guarded, HostTables, LeftBehind, Nanos, OutOfTableMemory, ProtocolStep,
    SharedWord, SlabTables, SpinCpus, SpinLock, TableMem, TraceEvent, Tracer, UnitParts, Word,
};
use crate::addr::{CpuId, PageSize, PhysAddr, PhysRange, TableId};

const PAGE: PageSize = PageSize::SIZE_4K;
const AT: PhysAddr = PhysAddr::new(0x5000);

/// Notes its calls.
#[derive(Default)]
struct Noting {
    log: Mutex<String>,
    words: [AtomicU64; 3],
}

impl Noting {
    fn note(&self, what: String) {
        let mut log = self.log.lock();
        log.push_str(&what);
        log.push(';');
    }
}

impl TableMem<AtomicU64> for Noting {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.note(format!("alloc {}", size.bytes()));
        Ok(AT)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.note(format!("free {table} {}", size.bytes()));
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.note(format!("table {table} {}", size.bytes()));
        &self.words
    }

    fn clean(&self, bytes: PhysRange) {
        self.note(format!("clean {}", bytes.start()));
    }

    fn clean_barrier(&self) {
        self.note("barrier".into());
    }

    fn invalidate(&self, bytes: PhysRange) {
        self.note(format!("invalidate {}", bytes.start()));
    }
}

fn use_all(memory: impl TableMem<AtomicU64>) {
    let bytes = PhysRange::page(PhysAddr::new(0x7000), PAGE);
    assert_eq!(memory.alloc(PAGE), Ok(AT));
    assert_eq!(memory.table(AT, PAGE).len(), 3);
    memory.clean(bytes);
    memory.clean_barrier();
    memory.invalidate(bytes);
    memory.free(AT, PAGE);
}

#[test]
fn a_pointer_to_table_memory_passes_every_call_on() {
    let all =
        "alloc 4096;table 0x5000 4096;clean 0x7000;barrier;invalidate 0x7000;free 0x5000 4096;";
    let memory = Arc::new(Noting::default());
    use_all(&*memory);
    assert_eq!(*memory.log.lock(), all);
    memory.log.lock().clear();
    use_all(memory.clone());
    assert_eq!(*memory.log.lock(), all);
}

#[derive(Default)]
struct Three {
    relaxed: AtomicUsize,
    wanted: AtomicUsize,
    left: AtomicUsize,
    steps: AtomicUsize,
}

impl Clock for Three {
    fn now(&self) -> Nanos {
        Nanos::new(7)
    }

    fn relax(&self) {
        self.relaxed.fetch_add(1, Relaxed);
    }
}

impl Tracer for Three {
    fn event(&self, _event: &TraceEvent<'_>) {}
}

impl Cpus for Three {
    type Word = AtomicU64;
    type Lock<T: Send> = SpinLock<T>;

    fn count(&self) -> usize {
        3
    }

    fn current(&self) -> CpuId {
        CpuId::new(2)
    }

    fn coarse_now(&self) -> Nanos {
        Nanos::new(6)
    }

    fn flush_wanted(&self) {
        self.wanted.fetch_add(1, Relaxed);
    }

    fn drop_later(&self, left: LeftBehind) {
        assert_eq!(format!("{left:?}"), "LeftBehind");
        self.left.fetch_add(1, Relaxed);
    }

    fn tracer(&self) -> Option<&dyn Tracer> {
        Some(self)
    }

    fn protocol_step(&self, _: TableId, _: ProtocolStep) {
        self.steps.fetch_add(1, Relaxed);
    }
}

struct Item;

impl super::Item for Item {
    fn next(&mut self) -> &mut Option<LeftBehind> {
        unreachable!("it is in no list")
    }
}

#[test]
fn a_pointer_to_cpus_and_a_units_parts_pass_every_call_on() {
    let cpus = Arc::new(Three::default());
    let pointer = cpus.clone();
    fn ask(cpus: impl Cpus) {
        assert_eq!((cpus.count(), cpus.current()), (3, CpuId::new(2)));
        let times = (cpus.now(), cpus.coarse_now());
        assert_eq!(times, (Nanos::new(7), Nanos::new(6)));
        cpus.relax();
        cpus.flush_wanted();
        cpus.drop_later(LeftBehind::new(alloc::boxed::Box::new(Item)));
        assert!(cpus.tracer().is_some());
        cpus.protocol_step(TableId::fresh(), ProtocolStep::End);
    }
    ask(pointer.clone());
    ask(UnitParts::<(), (), _>::new(pointer));
    let counts = [&cpus.relaxed, &cpus.wanted, &cpus.left, &cpus.steps];
    assert_eq!(counts.map(|count| count.load(Relaxed)), [2, 2, 2, 2]);
}

/// A CPU whose time stands still.
#[derive(Debug)]
pub(crate) struct Still;

crate::one_cpu!(Still);

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

/// Says no more than it has to.
struct Terse;

impl Clock for Terse {
    fn now(&self) -> Nanos {
        Nanos::new(9)
    }
}

crate::one_cpu!(Terse);

#[test]
fn the_cheap_time_is_the_time_where_nothing_is_said_and_no_worker_is_told() {
    assert_eq!(Terse.coarse_now(), Nanos::new(9));
    assert!(Terse.tracer().is_none());
    assert_eq!((Terse.count(), Terse.current()), (1, CpuId::new(0)));
}

#[test]
fn spinning_cpus_are_as_many_as_said_and_at_least_one() {
    let cpus = |count, current: u32| SpinCpus::new(count, Terse, move || CpuId::new(current));
    let named = |count, current| {
        let cpus = cpus(count, current);
        (cpus.count(), cpus.current().get())
    };
    assert_eq!(named(4, 3), (4, 3));
    assert_eq!(named(4, 4), (4, 0));
    assert_eq!(named(4, 7), (4, 3));
    assert_eq!(named(0, 5), (1, 0));
    assert_eq!(cpus(2, 0).now(), Nanos::new(9));
}

#[test]
fn a_word_that_cpus_share_holds_what_the_last_call_left() {
    let word: AtomicU64 = SharedWord::new(5);
    assert_eq!(SharedWord::load(&word, Relaxed), 5);
    SharedWord::store(&word, 6, Relaxed);
    assert_eq!(SharedWord::swap(&word, 7, Relaxed), 6);
    assert_eq!(SharedWord::fetch_add(&word, 3, Relaxed), 7);
    assert_eq!(SharedWord::fetch_or(&word, 0x10, Relaxed), 10);
    let other = SharedWord::compare_exchange_weak(&word, 1, 2, Relaxed, Relaxed);
    assert_eq!(other, Err(26));
}

#[test]
fn pages_that_are_out_are_counted() {
    let memory = HostTables::<AtomicU64>::new(PAGE, 3);
    let one = memory.alloc(PAGE).unwrap();
    let two = memory.alloc(PAGE).unwrap();
    assert_eq!(memory.live(), 2);
    memory.free(one, PAGE);
    assert_eq!(memory.live(), 1);
    memory.free(two, PAGE);
    assert_eq!(memory.live(), 0);
}

#[test]
fn what_is_guarded_is_shown_unless_a_caller_holds_it() {
    let guarded = Guarded::<Terse, u32>::new(4);
    assert_eq!(format!("{guarded:?}"), "Guarded(4)");
    let held = guarded.lock();
    assert_eq!(format!("{guarded:?}"), "Guarded(held)");
    assert!(guarded.try_lock().is_none());
    drop(held);
    assert_eq!(guarded.into_inner(), 4);
}

#[test]
fn a_slab_hands_out_each_page_once_and_zeroed() {
    let mem = SlabTables::<AtomicU64>::new(PhysAddr::new(0x8_0000_0000), PageSize::SIZE_4K, 3);
    let size = PageSize::SIZE_4K;
    let a = mem.alloc(size).unwrap();
    let b = mem.alloc(size).unwrap();
    let c = mem.alloc(size).unwrap();
    assert!(a != b && b != c && a != c);
    assert_eq!(mem.alloc(size), Err(OutOfTableMemory { size }));
    Word::store(&mem.table(b, size)[7], 1);
    mem.free(b, size);
    assert_eq!(mem.live(), 2);
    assert_eq!(mem.alloc(size), Ok(b));
    assert!(mem.table(b, size).iter().all(|w| Word::load(w) == 0));
    assert!(mem.table(PhysAddr::new(0), size).is_empty());
}

#[test]
fn a_page_lies_below_a_limit_if_its_last_byte_does() {
    let size = PageSize::SIZE_4K;
    let mem = SlabTables::<AtomicU64>::new(PhysAddr::new(0x8_0000_0000), size, 1);
    let page = mem.alloc(size).unwrap();
    mem.free(page, size);
    let last = page.get() + 0xfff;
    assert_eq!(mem.alloc_below(size, PhysAddr::new(last)), Ok(page));
    mem.free(page, size);
    let refused = mem.alloc_below(size, PhysAddr::new(last - 1));
    assert_eq!(refused, Err(OutOfTableMemory { size }));
    assert_eq!(mem.alloc(size), Ok(page), "given back");
    mem.free(page, size);
}
