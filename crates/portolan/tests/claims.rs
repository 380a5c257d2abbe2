//! Every interleaving, and every order that C11 allows, of CPUs that want the one claim on a domain: the library's
//! source, over atomics that a model checker follows.
#![allow(missing_docs)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;

/// Items that the library's file finds in its crate.
mod platform {
    pub mod atomic {
        pub use loom::sync::atomic::{AtomicBool, Ordering};
    }
}

#[allow(dead_code)]
#[path = "../src/iommu/claim.rs"]
mod claim;

use claim::SpaceClaim;

/// A claim, and its holder's use of the domain.
#[derive(Default)]
struct Domain {
    claim: SpaceClaim,
    used: UnsafeCell<()>,
}

impl Domain {
    fn use_once(&self) -> bool {
        let taken = self.claim.take();
        if taken {
            self.used.with_mut(|_| ());
            self.claim.give_back();
        }
        taken
    }
}

#[test]
fn who_has_the_claim_comes_after_who_had_it() {
    loom::model(|| {
        let domain = Arc::new(Domain::default());
        let other = Arc::clone(&domain);
        let beside = loom::thread::spawn(move || other.use_once());
        let mine = domain.use_once();
        assert!(beside.join().unwrap() || mine, "neither had it");
    });
}
