//! Every interleaving, and every order that C11 allows, of a unit that stores interrupts in a memory-resident interrupt
//! file and a monitor that takes them: the library's source, over atomics that a model checker follows.
#![allow(missing_docs, dead_code)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Items that the library's file finds in its crate.
mod platform {
    pub mod atomic {
        pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
    }
}

#[path = "../src/iommu/interrupt_file.rs"]
mod interrupt_file;

use interrupt_file::{InterruptIdentity, MemoryInterruptFile};

fn identity(number: u16) -> InterruptIdentity {
    InterruptIdentity::new(number).unwrap()
}

/// A file, and the notice.
struct Posted {
    file: MemoryInterruptFile,
    notice: AtomicBool,
}

impl Posted {
    fn new() -> Arc<Self> {
        let file = MemoryInterruptFile::default();
        Arc::new(Self { file, notice: AtomicBool::new(false) })
    }

    /// Stores an interrupt as the section on MRIF mode says: AMOOR, and the notice once all agents see it.
    fn store(&self, number: u16) {
        let [pending, _]: [&AtomicU64; 2] = self.file.words();
        pending.fetch_or(1 << number, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.notice.store(true, Ordering::Release);
    }

    /// Takes what is pending if there was a notice: the interrupt's handler.
    fn handle(&self) -> u64 {
        match self.notice.swap(false, Ordering::AcqRel) {
            true => self.file.take().words()[0],
            false => 0,
        }
    }
}

#[test]
fn an_interrupt_is_taken_once_and_none_is_lost() {
    loom::model(|| {
        let posted = Posted::new();
        posted.file.enable(identity(3), true);
        posted.file.enable(identity(5), true);
        posted.store(3);
        let unit = Arc::clone(&posted);
        let beside = loom::thread::spawn(move || unit.store(5));
        let first = posted.handle();
        beside.join().unwrap();
        let second = posted.handle();
        assert_eq!((first | second, first & second), (1 << 3 | 1 << 5, 0));
    });
}

#[test]
fn what_the_former_file_had_is_added_while_the_unit_stores() {
    loom::model(|| {
        let posted = Posted::new();
        let unit = Arc::clone(&posted);
        let beside = loom::thread::spawn(move || unit.store(5));
        posted.file.raise(identity(3));
        beside.join().unwrap();
        assert_eq!(posted.file.take_all().words()[0], 1 << 3 | 1 << 5);
    });
}

#[test]
fn one_that_is_enabled_while_it_comes_is_pending_or_taken() {
    loom::model(|| {
        let posted = Posted::new();
        let beside = Arc::clone(&posted);
        let handler = loom::thread::spawn(move || {
            beside.store(5);
            beside.handle()
        });
        posted.file.enable(identity(5), true);
        let pending = posted.file.is_pending();
        let taken = handler.join().unwrap();
        assert!(pending || taken == 1 << 5, "an interrupt is lost");
    });
}

#[test]
fn an_interrupt_that_is_enabled_beside_another_stays_so() {
    loom::model(|| {
        let posted = Posted::new();
        let other = Arc::clone(&posted);
        let beside = loom::thread::spawn(move || other.file.enable(identity(5), true));
        posted.file.enable(identity(3), true);
        beside.join().unwrap();
        let [_, enabled] = posted.file.words();
        assert_eq!(enabled.load(Ordering::Relaxed), 1 << 3 | 1 << 5);
    });
}

#[test]
fn bits_of_no_interrupt_are_no_interrupt() {
    loom::model(|| {
        let posted = Posted::new();
        let [pending, _] = posted.file.words();
        pending.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(posted.file.take().identities().count(), 0);
        let all = posted.file.take_all();
        assert_eq!((all.words()[0], all.identities().count()), (!1, 63));
        assert_eq!(pending.load(Ordering::Relaxed), 0);
    });
}
