//! Every interleaving, and every order that C11 allows, of a unit that posts interrupts to a backing page and a monitor
//! that takes them: the library's source, over atomics that a model checker follows.
#![allow(missing_docs, dead_code)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};

/// Items that the library's files find in their crate.
mod platform {
    pub mod atomic {
        pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
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

#[path = "../src/iommu/guest_apic.rs"]
mod guest_apic;
#[path = "../src/iommu/posted.rs"]
mod posted;

use guest_apic::ApicRequests;
use interrupt::Vector;

struct Raised {
    requests: ApicRequests,
    /// Work of the device that raises the interrupt.
    done: AtomicU32,
}

#[test]
fn work_in_front_of_an_interrupt_is_done_when_it_is_taken() {
    loom::model(|| {
        let raised =
            Arc::new(Raised { requests: ApicRequests::default(), done: AtomicU32::new(0) });
        let device = Arc::clone(&raised);
        let beside = loom::thread::spawn(move || {
            device.done.store(7, Ordering::Relaxed);
            device.requests.raise(Vector(0x61));
        });
        let taken = raised.requests.take();
        if taken.words() != [0; 4] {
            assert_eq!(taken.words(), [0, 1 << 0x21, 0, 0]);
            assert_eq!(raised.done.load(Ordering::Relaxed), 7);
        }
        beside.join().unwrap();
        let all = taken.vectors().chain(raised.requests.take().vectors());
        assert_eq!(all.collect::<Vec<_>>(), [0x61]);
    });
}
