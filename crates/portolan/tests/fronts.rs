//! Every interleaving of two callers at the front of a CPU's cache, explored with a model checker: as the
//! front is, and with its words broken in each way that would hand an address out twice, lose it, or
//! give it out before its last owner is done.
#![allow(missing_docs)]

mod support;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use portolan::addr::{Iova, IovaRange, PageSize};
use portolan::iova::{IovaOptions, IovaSpace, Request};
use portolan::platform::Cpus;
use support::broken_words::{
    Broken, PutInTwoSteps, PutUnordered, PutUnseen, TakenInTwoSteps, TakenUnordered,
};
use support::loom_cpus::{LoomCpus, explore, on_cpu};

const PAGE: u64 = 4096;
const PAGES: u64 = 4;

/// Addresses, and the writes of their owners there: the model checker fails a test in which two
/// write without one being done before the other.
struct Rig<P: Cpus> {
    space: IovaSpace<P>,
    written: [UnsafeCell<()>; PAGES as usize],
    /// A word that both callers change, so that the model checker tries either order: it does not
    /// for a word that one only reads.
    turn: AtomicU64,
}

impl<P: Cpus> Rig<P> {
    fn new(cpus: P, front: u8) -> Arc<Self> {
        let all = IovaRange::from_len(Iova::new(0), PAGES * PAGE).unwrap();
        let options = IovaOptions {
            front,
            depot_magazines: 1,
            refill: 1,
            rounds: 1,
            ..IovaOptions::default()
        };
        let space = IovaSpace::new(cpus, all, PageSize::SIZE_4K, options).unwrap();
        let written = [(); PAGES as usize].map(|()| UnsafeCell::new(()));
        Arc::new(Self { space, written, turn: AtomicU64::new(0) })
    }

    fn write(&self, range: IovaRange) {
        let page = range.start().get() / PAGE;
        self.written[page as usize].with_mut(|_| ());
    }

    fn take(&self) -> Option<IovaRange> {
        self.take_below(Iova::new(u64::MAX))
    }

    fn take_below(&self, limit: Iova) -> Option<IovaRange> {
        self.turn.fetch_add(1, Ordering::Relaxed);
        let range = self.space.alloc(&Request { bytes: PAGE, align: PageSize::SIZE_4K, limit });
        let range = range.ok()?;
        self.write(range);
        Some(range)
    }

    fn give(&self, range: IovaRange) {
        self.write(range);
        self.space.free(range).unwrap();
        self.turn.fetch_add(1, Ordering::Relaxed);
    }

    /// All that is held comes back, and nothing is missing then.
    fn whole_again(&self, held: &[IovaRange]) {
        for (at, range) in held.iter().enumerate() {
            assert!(held[..at].iter().all(|other| other != range), "out twice");
            self.give(*range);
        }
        self.space.trim_all();
        let stats = self.space.stats();
        assert_eq!((stats.free, stats.fragments), (PAGES, 1), "{stats:?}");
    }
}

/// A handler that interrupts, or a task that moves: two callers are one CPU, and both take.
fn two_take<P: Cpus + Copy>(cpus: P) {
    explore(2, move || {
        let rig = Rig::new(cpus, 2);
        let held = [(); 2].map(|()| rig.take().unwrap());
        held.into_iter().for_each(|range| rig.give(range));
        let other = Arc::clone(&rig);
        let beside = on_cpu(0, move || other.take());
        let mine = rig.take();
        let theirs = beside.join().unwrap();
        let held: Vec<_> = mine.into_iter().chain(theirs).collect();
        assert_eq!(held.len(), 2, "refused");
        rig.whole_again(&held);
    });
}

/// The same of two that give.
fn two_give<P: Cpus + Copy>(cpus: P) {
    explore(2, move || {
        let rig = Rig::new(cpus, 2);
        let [mine, theirs] = [(); 2].map(|()| rig.take().unwrap());
        let other = Arc::clone(&rig);
        let beside = on_cpu(0, move || other.give(theirs));
        rig.give(mine);
        beside.join().unwrap();
        rig.whole_again(&[]);
    });
}

/// One gives the addresses that the other takes.
fn one_gives_and_one_takes<P: Cpus + Copy>(cpus: P) {
    explore(2, move || {
        let rig = Rig::new(cpus, 1);
        let given = rig.take().unwrap();
        let other = Arc::clone(&rig);
        let beside = on_cpu(0, move || {
            other.give(given);
        });
        let mine = rig.take();
        beside.join().unwrap();
        rig.whole_again(&mine.into_iter().collect::<Vec<_>>());
    });
}

/// A CPU without addresses empties the front of another, which is taking from it.
fn one_takes_and_one_clears<P: Cpus + Copy>(cpus: P) {
    explore(2, move || {
        let rig = Rig::new(cpus, 1);
        let held = [(); PAGES as usize].map(|()| rig.take().unwrap());
        rig.give(held[0]);
        let other = Arc::clone(&rig);
        let beside = on_cpu(1, move || other.take());
        let mine = rig.take();
        let theirs = beside.join().unwrap();
        let mut all = held[1..].to_vec();
        all.extend(mine.into_iter().chain(theirs));
        assert_eq!(all.len(), PAGES as usize);
        rig.whole_again(&all);
    });
}

/// The same, while its CPU gives.
fn one_gives_and_one_clears<P: Cpus + Copy>(cpus: P) {
    explore(2, move || {
        let rig = Rig::new(cpus, 1);
        let held = [(); PAGES as usize].map(|()| rig.take().unwrap());
        let other = Arc::clone(&rig);
        let beside = on_cpu(1, move || other.take());
        rig.give(held[0]);
        let mut all = held[1..].to_vec();
        all.extend(beside.join().unwrap());
        rig.whole_again(&all);
    });
}

/// A block is seen that lies low enough, and another is taken that does not.
#[test]
fn a_block_that_lies_too_high_for_who_took_it_is_not_lost() {
    explore(2, || {
        let rig = Rig::new(LoomCpus::new(2), 1);
        let mut held = [(); PAGES as usize].map(|()| rig.take().unwrap()).to_vec();
        held.sort_by_key(|range| range.start());
        let (low, high) = (held.remove(0), held.pop().unwrap());
        rig.give(low);
        let other = Arc::clone(&rig);
        let beside = on_cpu(0, move || {
            let taken = other.take();
            other.give(high);
            taken
        });
        let mine = rig.take_below(low.last());
        assert!(mine.is_none_or(|mine| mine == low), "above the limit");
        held.extend(beside.join().unwrap().into_iter().chain(mine));
        rig.whole_again(&held);
    });
}

#[test]
fn callers_take_different_blocks() {
    two_take(LoomCpus::new(2));
}

#[test]
fn callers_give_to_different_words() {
    two_give(LoomCpus::new(2));
}

#[test]
fn what_is_taken_was_done_with_before() {
    one_gives_and_one_takes(LoomCpus::new(2));
}

#[test]
fn a_block_goes_to_its_cpu_or_to_who_clears() {
    one_takes_and_one_clears(LoomCpus::new(2));
}

#[test]
fn what_is_cleared_was_done_with_before() {
    one_gives_and_one_clears(LoomCpus::new(2));
}

#[test]
#[should_panic(expected = "write")]
fn without_one_exchange_to_take_two_callers_take_the_same() {
    two_take(Broken::<TakenInTwoSteps>::new(2));
}

#[test]
#[should_panic(expected = "write")]
fn without_one_exchange_to_take_a_block_goes_to_two_cpus() {
    one_takes_and_one_clears(Broken::<TakenInTwoSteps>::new(2));
}

#[test]
#[should_panic(expected = "free: 3")]
fn without_one_exchange_to_put_a_block_is_lost() {
    two_give(Broken::<PutInTwoSteps>::new(2));
}

#[test]
#[should_panic(expected = "free: 3")]
fn without_a_look_before_putting_a_block_is_lost() {
    two_give(Broken::<PutUnseen>::new(2));
}

#[test]
#[should_panic(expected = "write")]
fn without_acquiring_a_block_is_taken_before_its_owner_is_done() {
    one_gives_and_one_takes(Broken::<TakenUnordered>::new(2));
}

#[test]
#[should_panic(expected = "write")]
fn without_acquiring_a_block_is_cleared_before_its_owner_is_done() {
    one_gives_and_one_clears(Broken::<TakenUnordered>::new(2));
}

#[test]
#[should_panic(expected = "write")]
fn without_releasing_a_block_is_taken_before_its_owner_is_done() {
    one_gives_and_one_takes(Broken::<PutUnordered>::new(2));
}
