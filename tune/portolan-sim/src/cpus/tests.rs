//! Charges, the order of CPUs, and the ends of runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use portolan::addr::{InvalTag, PageSize, PhysAddr};
use portolan::inval::{
    CombineOptions, Combined, Command, InvalidationQueue, Ranges, Step, TablesLeft,
};
use portolan::iommu::IommuError;
use portolan::platform::{Lock, SharedWord, SlabTables, TableMem, Word, poll};

use super::*;
use crate::iommu::CommandPrices;
use crate::profile::QueueLimits;

const PRICES: SharingPrices = SharingPrices {
    hit: 1.0,
    transfer: 100.0,
    share: 10.0,
    handover: 50.0,
    relax: 20.0,
    lock: LockKind::Queued,
};

fn cpus(count: usize) -> VirtualCpus {
    VirtualCpus::new(count, PRICES)
}

fn sorted(mut times: Vec<f64>) -> Vec<f64> {
    times.sort_by(f64::total_cmp);
    times
}

#[test]
fn writers_queue_for_a_line_and_owners_have_it() {
    let word = VirtualWord::new(0);
    let report = cpus(3)
        .run(&Schedule::of_seed(1), |_| {
            word.fetch_add(1, Relaxed);
        })
        .unwrap();
    assert_eq!(sorted(report.finished_ns), [100.0, 200.0, 300.0]);
    assert_eq!(word.load(Relaxed), 3);
    let word = VirtualWord::new(0);
    let alone = cpus(1).run(&Schedule::of_seed(1), |_| {
        for _ in 0..10 {
            word.fetch_add(1, Relaxed);
        }
    });
    assert_eq!(alone.unwrap().end_ns(), 109.0);
}

#[test]
fn readers_of_a_shared_line_overlap() {
    let word = VirtualWord::new(7);
    let report = cpus(4)
        .run(&Schedule::of_seed(1), |_| {
            assert_eq!(word.load(Relaxed), 7);
            assert_eq!(word.load(Relaxed), 7);
        })
        .unwrap();
    assert_eq!(sorted(report.finished_ns), [101.0, 111.0, 121.0, 131.0]);
    assert_eq!((report.counters.hits, report.counters.transfers), (4, 4));
}

/// Two CPUs that write the entries `first` and `second` of a table ten times each, and read them.
fn entries(first: usize, second: usize) -> RunReport {
    let base = PhysAddr::new(1 << 30);
    let tables = SlabTables::<VirtualEntry>::new(base, PageSize::SIZE_4K, 1);
    let words = tables.table(base, PageSize::SIZE_4K);
    let run = cpus(2).run(&Schedule::of_seed(1), |cpu| {
        let entry = &words[if cpu.get() == 0 { first } else { second }];
        for value in 0..10 {
            Word::store(entry, value);
            assert_eq!(Word::load(entry), value);
        }
    });
    run.unwrap()
}

#[test]
fn entries_of_one_line_are_brought_from_the_cpu_that_wrote_last() {
    let apart = entries(7, 8);
    assert_eq!((apart.counters.transfers, apart.end_ns()), (2, 100.0));
    let beside = entries(8, 15);
    // Each write takes it from the other CPU, and so may the read after it.
    assert!(beside.counters.transfers >= 20, "{beside:?}");
    assert!(beside.end_ns() >= 1900.0, "{beside:?}");
}

#[test]
fn a_lock_is_handed_over_in_order() {
    let machine = cpus(4);
    let lock = VirtualLock::new(Vec::new());
    let report = machine
        .run(&Schedule::of_seed(3), |cpu| {
            machine.work(f64::from(cpu.get()));
            lock.with(|order| {
                machine.work(1000.0);
                order.push(cpu.get());
            });
        })
        .unwrap();
    assert_eq!(lock.into_inner(), [0, 1, 2, 3]);
    assert_eq!(report.counters.lock_waits, 3);
    // Each holds it for 1000 ns, and gives it up by a write to a line that another CPU asked for (the last one has
    // it): three hand-overs.
    assert_eq!(report.end_ns(), 100.0 + 4.0 * 1000.0 + 3.0 * 50.0 + 100.0 + 3.0);
}

#[test]
fn a_waiter_sees_a_change_within_a_turn() {
    let machine = cpus(2);
    let word = VirtualWord::new(0);
    let seen = Mutex::new(0.0);
    let run = machine.run(&Schedule::of_seed(5), |cpu| {
        if cpu.get() == 0 {
            machine.work(1_000_000.0);
            word.store(1, Release);
        } else {
            let look = || (word.load(Acquire) == 1).then_some(());
            poll(&machine, Nanos::from_millis(10), look).unwrap();
            *seen.lock().unwrap() = machine.now_exact_ns();
        }
    });
    let report = run.unwrap();
    let late = *seen.lock().unwrap() - report.finished_ns[0];
    assert!((100.0..=120.0).contains(&late), "{late}");
    // Waiting for 50,000 turns was not computed turn by turn.
    assert!(report.counters.relaxes < 200, "{:?}", report.counters);
}

#[test]
fn a_wait_for_what_never_comes_ends_at_its_deadline() {
    let machine = cpus(2);
    let word = VirtualWord::new(0);
    let run = machine.run(&Schedule::of_seed(5), |_| {
        let look = || (word.load(Acquire) == 1).then_some(());
        let waited = poll(&machine, Nanos::from_millis(1), look).unwrap_err();
        assert!((1_000_000..1_200_000).contains(&waited.get()), "{waited:?}");
    });
    run.unwrap();
}

#[test]
fn locks_taken_crosswise_are_a_deadlock() {
    let machine = cpus(2);
    let locks = [VirtualLock::new(()), VirtualLock::new(())];
    let run = machine.run(&Schedule::of_seed(9), |cpu| {
        let first = cpu.get() as usize;
        locks[first].with(|()| locks[1 - first].with(|()| ()));
    });
    let waiting = vec![0, 1];
    assert_eq!(run, Err(RunError::Deadlock { seed: 9, waiting }));
    // The thread can continue.
    cpus(1).run(&Schedule::of_seed(1), |_| ()).unwrap();
}

#[test]
fn waiting_for_ever_is_an_error() {
    let machine = cpus(3);
    let schedule = Schedule { limit_ns: 1_000_000, ..Schedule::of_seed(2) };
    let run = machine.run(&schedule, |_| {
        loop {
            machine.relax();
        }
    });
    let limit_ns = schedule.limit_ns;
    assert_eq!(run, Err(RunError::TooLong { seed: 2, limit_ns }));
    assert_eq!(
        cpus(1).run(&schedule, |_| {
            let nested = machine.run(&schedule, |_| ());
            assert_eq!(nested, Err(RunError::Nested));
        }),
        Ok(RunReport {
            finished_ns: vec![0.0],
            counters: SharingCounters { switches: 1, ..SharingCounters::default() },
        })
    );
}

#[test]
fn a_panic_names_its_cpu_and_seed() {
    let machine = cpus(4);
    let word = VirtualWord::new(0);
    let run = catch_unwind(AssertUnwindSafe(|| {
        machine.run(&Schedule::of_seed(0xabc), |cpu| {
            word.fetch_add(1, Relaxed);
            assert_ne!(cpu.get(), 2, "on purpose");
            word.fetch_add(1, Relaxed);
        })
    }));
    let message = *run.unwrap_err().downcast::<String>().unwrap();
    assert!(message.starts_with("virtual CPU 2 with seed 0xabc: "), "{message}");
    assert!(message.contains("on purpose"), "{message}");
    cpus(1).run(&Schedule::of_seed(1), |_| ()).unwrap();
}

/// Increments that read and write in two steps: returns the sum, and the report.
fn racy(seed: u64) -> (u64, RunReport) {
    let machine = cpus(4);
    let word = VirtualWord::new(0);
    let schedule = Schedule::of_seed(seed).ragged(300.0);
    let run = machine.run(&schedule, |_| {
        for _ in 0..3 {
            let value = word.load(Relaxed);
            word.store(value + 1, Relaxed);
        }
    });
    (word.load(Relaxed), run.unwrap())
}

#[test]
fn equal_seeds_give_equal_runs_and_others_find_races() {
    let results: Vec<_> = (0..50).map(racy).collect();
    for (seed, result) in (0..).zip(&results) {
        assert_eq!(&racy(seed), result, "seed {seed}");
    }
    let mut counts: Vec<u64> = results.iter().map(|(count, _)| *count).collect();
    counts.sort_unstable();
    counts.dedup();
    assert!(counts.len() >= 4 && counts[0] < 12, "{counts:?}");
    let ends = results.iter().map(|(_, report)| report.end_ns().to_bits());
    assert!(ends.collect::<std::collections::BTreeSet<_>>().len() > 40);
}

const COMMANDS: CommandPrices = CommandPrices {
    page: 300.0,
    page_after_map: 300.0,
    range: 300.0,
    context: 300.0,
    global: 300.0,
    sync: 600.0,
    exit: 100.0,
    clean_line: 0.0,
    miss_step: 0.0,
};

fn server(machine: &VirtualCpus, way: Submission, deadline_ns: u64) -> CommandServer<NoCaches> {
    let prices = SubmissionPrices { descriptor: 0.0, doorbell: 0.0, latency: 500.0, today: way };
    let limits = QueueLimits { depth: 8, deadline_ns };
    CommandServer::new(machine.clone(), COMMANDS, prices, limits, way, NoCaches)
}

fn one() -> [Step; 2] {
    let context = InvalTag::new(1);
    [Step::Invalidate(Command::Context { context }), Step::Sync]
}

fn end_of(way: Submission, count: usize) -> f64 {
    let machine = cpus(count);
    let queue = server(&machine, way, 1_000_000);
    let run = machine.run(&Schedule::of_seed(1), |_| {
        queue.pay(&mut one().into_iter(), TablesLeft::ByDepth).unwrap();
    });
    assert_eq!(queue.taken().syncs, count as u64);
    assert_eq!(queue.taken().busy_ns, 1000.0 * count as f64);
    run.unwrap().end_ns()
}

#[test]
fn the_hardware_serves_one_after_another() {
    // Waits outside a lock overlap: only the hardware's own time adds up.
    let free = end_of(Submission::LockFree, 16);
    assert!((16_500.0..17_500.0).contains(&free), "{free}");
    let inserted = end_of(Submission::LockedInsertion, 16);
    assert!((16_500.0..17_500.0).contains(&inserted), "{inserted}");
    let held = end_of(Submission::HeldAcrossWait, 16);
    assert!(held >= 16.0 * 1500.0, "{held}");
}

#[test]
fn hardware_that_takes_too_long_is_an_error_at_the_deadline() {
    let machine = cpus(4);
    let queue = server(&machine, Submission::LockFree, 2500);
    let failures = Mutex::new(0);
    let run = machine.run(&Schedule::of_seed(1), |_| {
        match queue.pay(&mut one().into_iter(), TablesLeft::ByDepth) {
            Ok(()) => {}
            Err(IommuError::TimedOut { .. }) => *failures.lock().unwrap() += 1,
            Err(other) => panic!("{other}"),
        }
    });
    assert!(run.unwrap().end_ns() < 4000.0);
    assert_eq!(*failures.lock().unwrap(), 2);
}

#[test]
fn combining_turns_sixteen_waits_into_three() {
    let machine = cpus(16);
    let queue = server(&machine, Submission::HeldAcrossWait, 1_000_000);
    let combined = Combined::new(machine.clone(), queue, Ranges::ABSENT, CombineOptions::default());
    let run = machine.run(&Schedule::of_seed(1), |_| {
        combined.pay(&mut one().into_iter(), TablesLeft::ByDepth).unwrap();
    });
    let end = run.unwrap().end_ns();
    assert!(end < 0.4 * end_of(Submission::HeldAcrossWait, 16), "{end}");
    assert_eq!(combined.queue().taken().syncs, 3);
}
