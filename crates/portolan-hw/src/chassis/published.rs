//! Values that one CPU publishes once the work for which they stand is done, and by which others
//! act: the state of a unit, the place of its queue.
//!
//! *Context.* Interrupt.

use super::atomic::{AtomicU64, Ordering};

/// Published value. A CPU that gets it sees writes that came before its publication.
#[derive(Debug, Default)]
pub(crate) struct Published(AtomicU64);

impl Published {
    pub(crate) fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    pub(crate) fn publish(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// Publishes `value` in place of 0; says if it was 0.
    pub(crate) fn publish_first(&self, value: u64) -> bool {
        let (done, failed) = (Ordering::Release, Ordering::Relaxed);
        self.0.compare_exchange(0, value, done, failed).is_ok()
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Takes the value back: it is 0 from now on.
    pub(crate) fn withdraw(&self) -> u64 {
        self.0.swap(0, Ordering::Acquire)
    }
}
