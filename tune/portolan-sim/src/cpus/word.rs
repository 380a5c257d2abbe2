//! A shared word on a separate cache line.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use portolan::platform::SharedWord;

use super::line::{Line, LineAccess};
use super::scheduler;

/// A word on a separate cache line. Other CPUs may run at every access.
#[derive(Debug)]
pub struct VirtualWord {
    value: AtomicU64,
    line: Mutex<Line>,
}

impl VirtualWord {
    fn touch(&self, access: LineAccess) {
        scheduler::point();
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        scheduler::with(|core| line.touch(core, access, core.ticks.hit));
    }
}

impl SharedWord for VirtualWord {
    fn new(value: u64) -> Self {
        Self { value: AtomicU64::new(value), line: Mutex::default() }
    }

    fn load(&self, order: Ordering) -> u64 {
        self.touch(LineAccess::Read);
        self.value.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.touch(LineAccess::Write);
        self.value.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.touch(LineAccess::Write);
        self.value.swap(value, order)
    }

    fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.touch(LineAccess::Write);
        self.value.compare_exchange(old, new, success, failure)
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.touch(LineAccess::Write);
        self.value.fetch_add(value, order)
    }

    fn fetch_or(&self, mask: u64, order: Ordering) -> u64 {
        self.touch(LineAccess::Write);
        self.value.fetch_or(mask, order)
    }
}
