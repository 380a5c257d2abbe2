//! Every interleaving, and every order that C11 allows, of CPUs that share the parts of which the
//! drivers are built: the crate's sources, over atomics that a model checker follows.
#![allow(missing_docs)]

extern crate alloc;

/// Items that the crate's files find above themselves.
mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
}
#[allow(dead_code)]
#[path = "../src/chassis/lists.rs"]
mod lists;
#[path = "../../portolan/tests/support/loom_cpus.rs"]
mod loom_cpus;
#[path = "../src/chassis/published.rs"]
mod published;
#[allow(dead_code)]
#[path = "../src/chassis/sets.rs"]
mod sets;

use lists::{Sorted, with_room};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom_cpus::{LoomCpus, explore};
use published::Published;
use sets::Sets;

/// One CPU takes an entry out of a table and asks for the devices that have to be told; another
/// adds a device with a TLB, and lets it read the table.
#[test]
fn a_device_that_read_an_entry_is_told_that_it_left() {
    explore(3, || {
        let sets = Arc::new(Sets::<LoomCpus, u8, u8>::default());
        let entry = Arc::new(AtomicU64::new(1));
        let (others, others_entry) = (Arc::clone(&sets), Arc::clone(&entry));
        let adder = loom::thread::spawn(move || {
            others.add(1, 7);
            others_entry.load(Ordering::Relaxed)
        });
        entry.store(0, Ordering::Relaxed);
        let told = sets.members(1).next().is_some();
        let read = adder.join().unwrap();
        assert!(told || read == 0, "the device keeps what it read");
    });
}

/// A value, and an earlier write of its publisher: the model checker fails a test in which another
/// reads that without it being done before.
struct Written {
    published: Published,
    before: UnsafeCell<u64>,
}

impl Written {
    fn new() -> Arc<Self> {
        Arc::new(Self { published: Published::new(0), before: UnsafeCell::new(0) })
    }

    fn write(&self) {
        self.before.with_mut(|_| ());
    }

    fn read(&self) {
        self.before.with(|_| ());
    }
}

fn look_beside(write: fn(&Written), look: fn(&Written)) {
    explore(3, move || {
        let written = Written::new();
        let other = Arc::clone(&written);
        let looker = loom::thread::spawn(move || look(&other));
        write(&written);
        looker.join().unwrap();
    });
}

fn publish(written: &Written) {
    written.write();
    written.published.publish(1);
}

fn publish_first(written: &Written) {
    written.write();
    assert!(written.published.publish_first(1));
}

fn get(written: &Written) {
    if written.published.get() != 0 {
        written.read();
    }
}

fn withdraw(written: &Written) {
    if written.published.withdraw() != 0 {
        written.write();
    }
}

#[test]
fn what_stands_behind_a_value_is_done_for_who_gets_it() {
    look_beside(publish, get);
    look_beside(publish_first, get);
}

#[test]
fn what_stands_behind_a_value_is_done_for_who_takes_it_back() {
    look_beside(publish, withdraw);
    look_beside(publish_first, withdraw);
}
