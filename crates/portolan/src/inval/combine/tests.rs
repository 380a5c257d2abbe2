//! A handler that submits while the code that it has interrupted is submitting.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;

use super::{CombineOptions, Combined};
use crate::addr::{CpuId, InvalTag};
use crate::inval::{Command, InvalidationQueue, Step};
use crate::iommu::IommuError;
use crate::platform::{Clock, Nanos, SpinCpus};

#[derive(Default)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.load(Ordering::Relaxed))
    }

    fn relax(&self) {
        self.0.fetch_add(1000, Ordering::Relaxed);
    }
}

type Handler = Box<dyn FnOnce() + Send>;

/// Notes the contexts of each submission, in the order in which those end.
#[derive(Default)]
struct Hardware {
    ended: Mutex<Vec<Vec<u32>>>,
    strikes: Mutex<Option<Handler>>,
}

#[derive(Clone)]
struct Queue(Arc<Hardware>);

impl InvalidationQueue for Queue {
    type Error = IommuError;

    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
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
        Ok(())
    }
}

fn steps(context: u32) -> impl Iterator<Item = Step> {
    let context = InvalTag::new(context);
    [Step::Invalidate(Command::Context { context }), Step::Sync].into_iter()
}

/// Submits, and has a handler on the same CPU submit meanwhile; the contexts in the order in which
/// the submissions ended, and the time that passed.
fn interrupted(options: CombineOptions) -> (Vec<Vec<u32>>, Nanos) {
    let hardware = Arc::new(Hardware::default());
    let clock = Arc::new(Hand::default());
    let cpus = SpinCpus::new(2, clock.clone(), || CpuId::new(0));
    let queue = Queue(hardware.clone());
    let combined = Arc::new(Combined::new(cpus, queue, options));
    let inner = combined.clone();
    *hardware.strikes.lock() = Some(Box::new(move || {
        inner.execute(&mut steps(2)).unwrap();
    }));
    combined.execute(&mut steps(1)).unwrap();
    let ended = hardware.ended.lock().clone();
    (ended, clock.now())
}

#[test]
fn who_may_submit_beside_a_batch_does_not_wait_for_it() {
    let options = CombineOptions {
        beside: 1,
        ..CombineOptions::default()
    };
    let (ended, waited) = interrupted(options);
    assert_eq!(
        (ended, waited),
        (alloc::vec![alloc::vec![2], alloc::vec![1]], Nanos::new(0))
    );
    let (_, waited) = interrupted(CombineOptions::default());
    assert!(waited > Nanos::new(0));
}

#[test]
fn a_handler_on_the_cpu_that_is_submitting_submits_alone() {
    let hardware = Arc::new(Hardware::default());
    let clock = Arc::new(Hand::default());
    let cpus = SpinCpus::new(2, clock.clone(), || CpuId::new(0));
    let queue = Queue(hardware.clone());
    let combined = Arc::new(Combined::new(cpus, queue, CombineOptions::default()));
    let inner = combined.clone();
    *hardware.strikes.lock() = Some(Box::new(move || {
        inner.execute(&mut steps(2)).unwrap();
    }));
    combined.execute(&mut steps(1)).unwrap();
    assert_eq!(*hardware.ended.lock(), [[2], [1]]);
    assert!(clock.now() <= Nanos::from_millis(2));
    // Nobody waits for what the handler had left in a batch.
    let before = clock.now();
    combined.execute(&mut steps(3)).unwrap();
    assert_eq!(*hardware.ended.lock(), [[2], [1], [3]]);
    assert_eq!(clock.now(), before);
}
