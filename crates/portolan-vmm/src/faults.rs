//! Accesses that were refused, until the guest reads of them.

use std::collections::VecDeque;

/// Records that wait for the guest at most; later ones are counted and lost.
pub(crate) const MOST_FAULTS: usize = 256;

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
        if self.waiting.len() < MOST_FAULTS {
            self.waiting.push_back(fault);
        } else {
            self.lost = self.lost.saturating_add(1);
        }
    }

    pub(crate) fn next(&mut self) -> Option<T> {
        self.waiting.pop_front()
    }

    /// Those that wait, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter()
    }

    /// Drops those that wait.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Takes records and a number of lost ones in place of its own.
    pub(crate) fn restore(&mut self, waiting: &[T], lost: u64)
    where
        T: Clone,
    {
        self.waiting = waiting.iter().take(MOST_FAULTS).cloned().collect();
        self.lost = lost;
    }

    /// Those for which there was no room.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}
