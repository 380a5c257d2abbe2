//! Accesses that were refused, until the guest reads of them.

use std::collections::VecDeque;

/// Records that wait for the guest at most; later ones are counted and lost.
const MOST: usize = 256;

/// Records, the oldest first.
#[derive(Debug)]
pub(crate) struct Faults<T> {
    waiting: VecDeque<T>,
    lost: u64,
}

impl<T> Default for Faults<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), lost: 0 }
    }
}

impl<T> Faults<T> {
    pub(crate) fn record(&mut self, fault: T) {
        if self.waiting.len() < MOST {
            self.waiting.push_back(fault);
        } else {
            self.lost += 1;
        }
    }

    pub(crate) fn next(&mut self) -> Option<T> {
        self.waiting.pop_front()
    }

    /// Those for which there was no room.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}
