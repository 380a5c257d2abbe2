//! Every interleaving, and every order that C11 allows, of a unit that posts interrupts and a monitor that takes them:
//! the library's source, over atomics that a model checker follows.
#![allow(missing_docs, dead_code)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// Items that the library's file finds in its crate.
mod platform {
    pub mod atomic {
        pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
    }
}

mod interrupt {
    pub struct Vector(pub u8);

    impl Vector {
        pub const fn get(&self) -> u8 {
            self.0
        }
    }
}

#[path = "../src/iommu/posted.rs"]
mod posted;

use interrupt::Vector;
use posted::PostedDescriptor;

/// Posts an interrupt as section 5.2.3 says, and tells if the unit sends a notification.
fn post(words: &[&AtomicU64; 2], vector: u8) -> bool {
    let [requests, control] = words;
    requests.fetch_or(1 << vector, Ordering::AcqRel);
    // The unit reads and writes all of the descriptor at once.
    fence(Ordering::SeqCst);
    let mut now = control.load(Ordering::Acquire);
    loop {
        if now & 0b11 != 0 {
            return false;
        }
        match control.compare_exchange(now, now | 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(found) => now = found,
        }
    }
}

#[test]
fn an_interrupt_is_taken_or_notifies_again() {
    loom::model(|| {
        let descriptor = Arc::new(PostedDescriptor::default());
        let (first, _) = (post(&descriptor.words(), 3), ());
        assert!(first, "the first notifies");
        let unit = Arc::clone(&descriptor);
        let beside = loom::thread::spawn(move || post(&unit.words(), 5));
        let taken = descriptor.take();
        let notified = beside.join().unwrap();
        assert!(taken.words()[0] & 1 << 3 != 0);
        let came = taken.words()[0] & 1 << 5 != 0;
        assert!(came || notified, "an interrupt is lost");
    });
}

#[test]
fn a_virtual_cpu_that_moves_loses_no_notification() {
    loom::model(|| {
        let descriptor = Arc::new(PostedDescriptor::default());
        let unit = Arc::clone(&descriptor);
        let beside = loom::thread::spawn(move || post(&unit.words(), 5));
        descriptor.notify(Vector(0xf2), 7);
        let notified = beside.join().unwrap();
        assert!(notified);
        let control = descriptor.words()[1].load(Ordering::Relaxed);
        assert_eq!(control, 7 << 32 | 0xf2 << 16 | 1);
    });
}

#[test]
fn what_came_while_notifications_were_suppressed_is_pending() {
    loom::model(|| {
        let descriptor = Arc::new(PostedDescriptor::default());
        descriptor.suppress(true);
        let unit = Arc::clone(&descriptor);
        let beside = loom::thread::spawn(move || post(&unit.words(), 5));
        descriptor.suppress(false);
        let pending = descriptor.is_pending();
        let notified = beside.join().unwrap();
        assert!(pending || notified, "an interrupt is lost");
        assert!(descriptor.is_pending());
    });
}
