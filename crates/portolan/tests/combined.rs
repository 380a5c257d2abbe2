//! Every interleaving of CPUs that invalidate at once through one submitter.
//!
//! A caller writes a cell before it submits; the hardware notes which cells it has seen invalidated.
//! A caller that returns well without its own cell among them fails the test.
#![allow(missing_docs)]

mod support;

use std::collections::BTreeMap;
use std::sync::Mutex;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use portolan::addr::{InvalTag, Iova, PageSize};
use portolan::inval::{
    CombineOptions, Combined, Command, Depth, InvalidationQueue, Ranges, Step, TablesLeft,
};
use portolan::platform::Cpus;
use support::loom_cpus::{HastyCpus, LoomCpus, explore, on_cpu};

const PAGES: usize = 10;

/// Hardware that refuses the commands for some pages.
struct Hardware {
    refused: &'static [u64],
    /// Invalidations not yet awaited, and numbers of completed ones by page.
    state: Mutex<(Vec<u64>, BTreeMap<u64, u64>)>,
    /// A point at which CPUs interleave.
    turn: AtomicU64,
    /// A word for each page, which has as the state does the number of times that it was
    /// invalidated, and which nothing orders: a CPU that does not come after that invalidation may
    /// read an older number.
    noted: [AtomicU64; PAGES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused(u64);

impl Hardware {
    fn new(refused: &'static [u64]) -> Self {
        Self {
            refused,
            state: Mutex::default(),
            turn: AtomicU64::new(0),
            noted: [(); PAGES].map(|()| AtomicU64::new(0)),
        }
    }

    fn completed(&self, page: u64) -> u64 {
        let state = self.state.lock().unwrap();
        state.1.get(&page).copied().unwrap_or(0)
    }
}

impl InvalidationQueue for Hardware {
    type Error = Refused;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), Refused> {
        let mut mine = Vec::new();
        for step in steps {
            match step {
                Step::Invalidate(Command::Page { iova, .. }) => {
                    let page = iova.get() >> 12;
                    if self.refused.contains(&page) {
                        return Err(Refused(page));
                    }
                    mine.push(page);
                }
                Step::Sync => {
                    self.turn.fetch_add(1, Ordering::Relaxed);
                    for &page in &mine {
                        self.noted[page as usize].fetch_add(1, Ordering::Relaxed);
                    }
                    let mut state = self.state.lock().unwrap();
                    for page in mine.drain(..) {
                        *state.1.entry(page).or_default() += 1;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    }
}

type Queue<C = LoomCpus> = Combined<C, Hardware>;

fn queue(cpus: usize, refused: &'static [u64]) -> Arc<Queue> {
    queue_with(cpus, refused, CombineOptions::default())
}

fn queue_with(cpus: usize, refused: &'static [u64], options: CombineOptions) -> Arc<Queue> {
    Arc::new(Combined::new(LoomCpus::new(cpus), Hardware::new(refused), Ranges::ABSENT, options))
}

fn invalidate<C: Cpus>(queue: &Queue<C>, page: u64) -> Result<(), Refused> {
    let command = Command::Page {
        context: InvalTag::new(1),
        iova: Iova::new(page << 12),
        size: PageSize::SIZE_4K,
        depth: Depth::LeafOnly,
    };
    let before = queue.queue().completed(page);
    let outcome =
        queue.pay(&mut [Step::Invalidate(command), Step::Sync].into_iter(), TablesLeft::ByDepth);
    if outcome.is_ok() {
        assert!(queue.queue().completed(page) > before, "page {page} is stale");
        let noted = queue.queue().noted[page as usize].load(Ordering::Relaxed);
        assert!(noted > before, "page {page} is done, and its CPU need not see it");
    }
    outcome
}

#[test]
fn no_caller_returns_before_its_invalidation_has_completed() {
    explore(3, || {
        let queue = queue(3, &[]);
        let others: Vec<_> = (1..3)
            .map(|cpu| {
                let queue = Arc::clone(&queue);
                on_cpu(cpu, move || invalidate(&queue, cpu.into()).unwrap())
            })
            .collect();
        invalidate(&queue, 0).unwrap();
        for other in others {
            other.join().unwrap();
        }
        // Nothing is left behind: the next one goes through.
        invalidate(&queue, 9).unwrap();
    });
}

#[test]
fn the_queue_goes_from_hand_to_hand() {
    explore(2, || {
        let queue = queue(2, &[]);
        let other = {
            let queue = Arc::clone(&queue);
            on_cpu(1, move || {
                for page in [1, 2, 1] {
                    invalidate(&queue, page).unwrap();
                }
            })
        };
        for page in [3, 4] {
            invalidate(&queue, page).unwrap();
        }
        other.join().unwrap();
    });
}

#[test]
fn an_error_reaches_its_caller_and_no_other() {
    explore(2, || {
        let queue = queue(3, &[1]);
        let others: Vec<_> = (1..3)
            .map(|cpu| {
                let queue = Arc::clone(&queue);
                on_cpu(cpu, move || invalidate(&queue, cpu.into()))
            })
            .collect();
        assert_eq!(invalidate(&queue, 0), Ok(()));
        let outcomes: Vec<_> = others.into_iter().map(|cpu| cpu.join().unwrap()).collect();
        assert_eq!(outcomes, [Err(Refused(1)), Ok(())]);
        assert_eq!(invalidate(&queue, 5), Ok(()));
    });
}

/// Commands that a caller has added to a batch go with it, or the caller sends them once more.
#[test]
fn a_caller_whose_time_runs_out_goes_alone() {
    explore(2, || {
        let queue = Arc::new(Combined::new(
            HastyCpus(LoomCpus::new(3)),
            Hardware::new(&[]),
            Ranges::ABSENT,
            CombineOptions::default(),
        ));
        let others: Vec<_> = (1..3)
            .map(|cpu| {
                let queue = Arc::clone(&queue);
                on_cpu(cpu, move || invalidate(&queue, cpu.into()).unwrap())
            })
            .collect();
        invalidate(&queue, 0).unwrap();
        for other in others {
            other.join().unwrap();
        }
        invalidate(&queue, 9).unwrap();
    });
}

#[test]
fn one_beside_the_batches_returns_no_earlier_than_the_others() {
    explore(2, || {
        let beside = CombineOptions { beside: 1, ..CombineOptions::default() };
        let queue = queue_with(3, &[], beside);
        let others: Vec<_> = (1..3)
            .map(|cpu| {
                let queue = Arc::clone(&queue);
                on_cpu(cpu, move || invalidate(&queue, cpu.into()).unwrap())
            })
            .collect();
        invalidate(&queue, 0).unwrap();
        for other in others {
            other.join().unwrap();
        }
        invalidate(&queue, 9).unwrap();
    });
}
