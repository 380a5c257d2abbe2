//! Every interleaving of CPUs that take and give slots of one word and across words.
#![allow(missing_docs)]

#[path = "support/attached.rs"]
mod attached;
mod support;

use std::sync::Mutex;

use attached::unowned;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use portolan::addr::{PhysAddr, PhysRange};
use portolan::bounce::{Need, Pool, PoolOptions};
use support::loom_cpus::{LoomCpus, explore, on_cpu};

const SLOT: u64 = 2048;

fn pool(words: u64) -> Arc<Pool<LoomCpus>> {
    let memory = PhysRange::from_len(PhysAddr::new(1 << 30), words * 64 * SLOT).unwrap();
    let options = PoolOptions::of_areas(1);
    Arc::new(Pool::new(LoomCpus::new(1), unowned(memory), options).unwrap())
}

/// Slots that are held, and a cell for each slot of the pool that its holder writes: the model checker fails
/// a test in which two write without one being done before the other.
#[derive(Clone)]
struct Held {
    out: std::sync::Arc<Mutex<Vec<PhysRange>>>,
    written: std::sync::Arc<Vec<UnsafeCell<()>>>,
}

impl Held {
    #[expect(
        clippy::arc_with_non_send_sync,
        reason = "loom's threads run one at a time, and its cells say if two reach one of them"
    )]
    fn new(pool: &Pool<LoomCpus>) -> Self {
        let slots = (pool.memory().len_minus_one() + 1) / SLOT;
        let written = (0..slots).map(|_| UnsafeCell::new(())).collect();
        Self { out: std::sync::Arc::default(), written: std::sync::Arc::new(written) }
    }

    fn write(&self, pool: &Pool<LoomCpus>, data: PhysRange) {
        let slot = |at: PhysAddr| ((at.get() - pool.memory().start().get()) / SLOT) as usize;
        for cell in &self.written[slot(data.start())..=slot(data.last())] {
            cell.with_mut(|_| ());
        }
    }
}

fn take_and_give(pool: &Pool<LoomCpus>, held: &Held, slots: u64) -> bool {
    let Ok(taken) = pool.take(&Need::bytes(slots * SLOT)) else {
        return false;
    };
    let data = taken.data();
    {
        let mut out = held.out.lock().unwrap();
        assert!(out.iter().all(|other| !other.overlaps(data)), "{data:?}");
        out.push(data);
    }
    held.write(pool, data);
    loom::thread::yield_now();
    held.out.lock().unwrap().retain(|other| *other != data);
    pool.give(taken).unwrap();
    true
}

fn together(words: u64, mine: u64, theirs: u64, fits: bool) {
    explore(3, move || {
        let pool = pool(words);
        let held = Held::new(&pool);
        let other = {
            let (pool, held) = (pool.clone(), held.clone());
            on_cpu(0, move || take_and_give(&pool, &held, theirs))
        };
        let got = take_and_give(&pool, &held, mine);
        let other_got = other.join().unwrap();
        if fits {
            assert!(got && other_got);
        } else {
            assert!(got || other_got);
        }
        let used = pool.in_use();
        assert_eq!((used.used, u64::from(used.longest_free)), (0, words * 64));
    });
}

#[test]
fn two_take_from_one_word() {
    together(1, 32, 32, true);
}

#[test]
fn only_one_gets_what_does_not_fit_twice() {
    together(1, 40, 40, false);
}

#[test]
fn runs_across_words_are_claimed_whole_or_not_at_all() {
    // A slot taken in the middle of the two words leaves no such run.
    together(2, 100, 1, false);
    together(2, 70, 70, false);
}
