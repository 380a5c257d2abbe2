//! Callers that submit together: handlers that submit while the code that they have interrupted is
//! submitting.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use spin::Mutex;

use super::{BatchPlace, CombineGroup, CombineOptions, Combined};
use crate::addr::{CpuId, InvalTag};
use crate::inval::{Command, InvalidationQueue, Ranges, Step, TablesLeft};
use crate::iommu::IommuError;
use crate::platform::{Clock, Nanos, SpinCpus};

type Handler = Box<dyn FnOnce() + Send>;

/// Time passes where a caller waits, after the handler that the test lets run first.
#[derive(Default)]
struct Hand {
    now: AtomicU64,
    meanwhile: Mutex<Option<Handler>>,
}

impl Clock for Hand {
    fn now(&self) -> Nanos {
        Nanos::new(self.now.load(Ordering::Relaxed))
    }

    fn relax(&self) {
        let meanwhile = self.meanwhile.lock().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        self.now.fetch_add(1000, Ordering::Relaxed);
    }
}

/// Notes the contexts of each submission, in the order in which those end.
#[derive(Default)]
struct Hardware {
    ended: Mutex<Vec<Vec<u32>>>,
    /// Values of [`TablesLeft`], submission by submission.
    tables: Mutex<Vec<TablesLeft>>,
    strikes: Mutex<Option<Handler>>,
    broken: AtomicBool,
}

#[derive(Clone)]
struct Queue(Arc<Hardware>);

impl core::fmt::Debug for Queue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Queue")
    }
}

impl InvalidationQueue for Queue {
    type Error = IommuError;

    fn pay(
        &self,
        steps: &mut dyn Iterator<Item = Step>,
        tables: TablesLeft,
    ) -> Result<(), IommuError> {
        let contexts = steps.filter_map(|step| match step {
            Step::Invalidate(Command::Context { context }) => Some(context.get()),
            _ => None,
        });
        let contexts = contexts.collect();
        let handler = self.0.strikes.lock().take();
        if let Some(handler) = handler {
            handler();
        }
        self.0.ended.lock().push(contexts);
        self.0.tables.lock().push(tables);
        match self.0.broken.load(Ordering::Relaxed) {
            true => Err(BROKEN),
            false => Ok(()),
        }
    }
}

const BROKEN: IommuError = IommuError::Stopped;

fn steps(context: u32) -> impl Iterator<Item = Step> {
    let context = InvalTag::new(context);
    [Step::Invalidate(Command::Context { context }), Step::Sync].into_iter()
}

type TestCpus = SpinCpus<Arc<Hand>, Box<dyn Fn() -> CpuId + Send + Sync>>;

/// A queue of four CPUs, of which the test says which one calls.
struct Machine {
    hardware: Arc<Hardware>,
    clock: Arc<Hand>,
    cpu: Arc<AtomicU32>,
    combined: Arc<Combined<TestCpus, Queue>>,
}

impl Machine {
    fn new(options: CombineOptions) -> Self {
        let hardware = Arc::new(Hardware::default());
        let clock = Arc::new(Hand::default());
        let cpu = Arc::new(AtomicU32::new(0));
        let of = cpu.clone();
        let current = move || CpuId::new(of.load(Ordering::Relaxed));
        let cpus: TestCpus = SpinCpus::new(4, clock.clone(), Box::new(current));
        let combined =
            Arc::new(Combined::new(cpus, Queue(hardware.clone()), Ranges::ABSENT, options));
        Self { hardware, clock, cpu, combined }
    }

    /// CPU `cpu` submits, and CPU `other` meanwhile; returns the time that that one waited.
    fn interrupt(&self, cpu: u32, other: u32) -> Nanos {
        let (inner, current) = (self.combined.clone(), self.cpu.clone());
        *self.hardware.strikes.lock() = Some(Box::new(move || {
            current.store(other, Ordering::Relaxed);
            inner.pay(&mut steps(2), TablesLeft::ByDepth).unwrap();
        }));
        let before = self.clock.now();
        self.cpu.store(cpu, Ordering::Relaxed);
        self.combined.pay(&mut steps(1), TablesLeft::ByDepth).unwrap();
        self.clock.now().since(before)
    }

    fn ended(&self) -> Vec<Vec<u32>> {
        self.hardware.ended.lock().clone()
    }
}

#[test]
fn who_may_submit_beside_a_batch_does_not_wait_for_it() {
    let options = CombineOptions { beside: 1, ..CombineOptions::default() };
    let machine = Machine::new(options);
    // Again and again.
    for turn in 1..4 {
        assert_eq!(machine.interrupt(0, 0), Nanos::new(0));
        assert_eq!(machine.ended(), [[2], [1]].repeat(turn));
    }
    let machine = Machine::new(CombineOptions::default());
    assert!(machine.interrupt(0, 0) > Nanos::new(0));
}

#[test]
fn no_more_callers_are_beside_the_batches_than_may_be() {
    let group = CombineGroup::<TestCpus>::new();
    assert!(!group.step_beside(0));
    assert!(group.step_beside(1) && !group.step_beside(1));
    assert!(group.step_beside(2) && !group.step_beside(2));
    group.step_back();
    assert!(!group.step_beside(1) && group.step_beside(2));
    group.step_back();
    group.step_back();
    assert!(group.step_beside(1));
}

#[test]
fn cpus_of_different_groups_do_not_wait_for_each_other() {
    let options = CombineOptions { cpus_per_group: 2, ..CombineOptions::default() };
    for (cpu, other, waits) in
        [(0, 1, true), (3, 2, true), (0, 2, false), (0, 3, false), (2, 1, false)]
    {
        let waited = Machine::new(options).interrupt(cpu, other);
        assert_eq!(waited > Nanos::new(0), waits, "{cpu} {other}");
    }
}

#[test]
fn a_batch_of_one_caller_that_fails_is_not_submitted_again() {
    let machine = Machine::new(CombineOptions::default());
    let group = machine.combined.combiner.group(&machine.combined.cpus);
    assert!(matches!(group.enter(), BatchPlace::Submit(1)));
    // Another CPU's submission ends while this one's commands wait.
    let inner = machine.combined.clone();
    *machine.clock.meanwhile.lock() = Some(Box::new(move || {
        inner.combiner.group(&inner.cpus).finish(1, &Ok::<(), IommuError>(()));
    }));
    machine.hardware.broken.store(true, Ordering::Relaxed);
    assert_eq!(machine.combined.pay(&mut steps(5), TablesLeft::ByDepth), Err(BROKEN));
    assert_eq!(machine.ended(), [[5]]);
}

#[test]
fn a_handler_on_the_cpu_that_is_submitting_submits_alone() {
    let machine = Machine::new(CombineOptions::default());
    assert!(machine.interrupt(0, 0) <= Nanos::from_millis(2));
    assert_eq!(machine.ended(), [[2], [1]]);
    // No caller waits for the commands that the handler had left in a batch.
    let before = machine.clock.now();
    machine.combined.pay(&mut steps(3), TablesLeft::ByDepth).unwrap();
    assert_eq!(machine.ended(), [[2], [1], [3]]);
    assert_eq!(machine.clock.now(), before);
}

/// A debt's tables are known to the queue, from any submitter.
#[test]
fn the_queue_hears_of_tables_that_a_debt_holds() {
    for said in [TablesLeft::No, TablesLeft::Yes, TablesLeft::ByDepth] {
        // Alone; beside a batch; in a batch.
        let beside = |beside| CombineOptions { beside, ..CombineOptions::default() };
        for options in [beside(0), beside(1)] {
            let machine = Machine::new(options);
            machine.combined.pay(&mut steps(1), said).unwrap();
            let group = machine.combined.combiner.group(&machine.combined.cpus);
            assert!(matches!(group.enter(), BatchPlace::Submit(2)));
            let inner = machine.combined.clone();
            *machine.clock.meanwhile.lock() = Some(Box::new(move || {
                let group = inner.combiner.group(&inner.cpus);
                group.finish(2, &Ok::<(), IommuError>(()));
            }));
            machine.combined.pay(&mut steps(5), said).unwrap();
            assert_eq!(machine.ended(), [[1], [5]]);
            assert_eq!(*machine.hardware.tables.lock(), [said; 2]);
        }
    }
}

#[test]
fn a_combined_queue_prints_its_groups() {
    let options = CombineOptions { cpus_per_group: 1, ..CombineOptions::default() };
    let printed = alloc::format!("{:?}", Machine::new(options).combined);
    assert!(printed.contains("groups: 4"), "{printed}");
}

/// A caller that waits longer than the time-out may come when the batch's first caller has taken
/// it.
#[test]
fn a_batch_that_was_taken_is_taken_by_no_other_caller() {
    let group = CombineGroup::<TestCpus>::new();
    assert!(matches!(group.enter(), BatchPlace::Submit(1)));
    assert!(group.take(2).is_some());
    assert!(group.take(2).is_none(), "it would be submitted again, and the next one lost");
    assert!(group.take(3).is_some());
}
