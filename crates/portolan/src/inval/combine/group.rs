//! CPUs that share a batch: the batch that is open, and numbers that say which ones have ended.
//!
//! *Context.* Interrupt.

use core::sync::atomic::Ordering;

use crate::inval::batch::{Added, Batch, Debt, Merger};
use crate::platform::{Cpus, Lock, SharedWord};

/// CPUs that share a batch. Only the caller that took the batch that follows `done` writes `failed`
/// and `done`.
pub(super) struct CombineGroup<P: Cpus> {
    pub(super) open: P::Lock<OpenBatch>,
    /// Number of the last batch that has been submitted and has ended, well or not.
    pub(super) done: P::Word,
    /// Number of the last one that failed; stored before `done`, in a turn of the lock of `open`.
    pub(super) failed: P::Word,
    /// Callers that submit beside the batches.
    pub(super) beside: P::Word,
}

/// The batch that commands are added to.
#[derive(Debug)]
pub(super) struct OpenBatch {
    pub(super) number: u64,
    pub(super) callers: usize,
    pub(super) batch: Batch,
}

/// Next step of a caller.
pub(super) enum BatchPlace {
    /// Nothing is under way: submit as this batch.
    Submit(u64),
    /// Something is.
    Busy,
}

/// Place of a caller's commands.
pub(super) enum BatchTicket {
    /// In this batch, as its first.
    First(u64),
    /// In this batch.
    Later(u64),
    /// Nowhere.
    NoRoom,
}

impl<P: Cpus> CombineGroup<P> {
    pub(super) fn new() -> Self {
        Self {
            open: Lock::new(OpenBatch::of(1)),
            done: SharedWord::new(0),
            failed: SharedWord::new(0),
            beside: SharedWord::new(0),
        }
    }

    /// Lets the caller submit beside the batches, if fewer than `most` do, and tells if it may; it
    /// has to call [`CombineGroup::step_back`] when it is done.
    pub(super) fn step_beside(&self, most: usize) -> bool {
        let most = most as u64;
        if most == 0 || self.beside.load(Ordering::Relaxed) >= most {
            return false;
        }
        // One addition, not a loop: many CPUs come at once, and few of them find a place.
        let joined = self.beside.fetch_add(1, Ordering::Relaxed) < most;
        if !joined {
            self.step_back();
        }
        joined
    }

    pub(super) fn step_back(&self) {
        // One less: there is no subtraction among the words.
        self.beside.fetch_add(u64::MAX, Ordering::Relaxed);
    }

    /// Takes the next batch, if nothing is in it or under way.
    pub(super) fn enter(&self) -> BatchPlace {
        self.open.with(|open| {
            // The caller that stored it has had its turn of this lock, if the batch failed.
            let idle = self.done.load(Ordering::Relaxed) + 1 == open.number;
            if !idle || open.callers != 0 {
                return BatchPlace::Busy;
            }
            let number = open.number;
            *open = OpenBatch::of(number + 1);
            BatchPlace::Submit(number)
        })
    }

    pub(super) fn add(&self, own: &Debt, merger: &Merger) -> BatchTicket {
        self.open.with(|open| match open.batch.add(own, merger) {
            Added::NoRoom => BatchTicket::NoRoom,
            Added::All => {
                open.callers += 1;
                match open.callers {
                    1 => BatchTicket::First(open.number),
                    _ => BatchTicket::Later(open.number),
                }
            }
        })
    }

    /// Takes batch `number` unless another caller has; everything before it has ended.
    pub(super) fn take(&self, number: u64) -> Option<OpenBatch> {
        self.open.with(|open| {
            let mine = open.number == number;
            mine.then(|| core::mem::replace(open, OpenBatch::of(number + 1)))
        })
    }

    /// Takes no part any more in batch `number`, if it is not taken yet. Its commands are carried
    /// out with it, or forgotten if it has no other callers.
    pub(super) fn withdraw(&self, number: u64) {
        self.open.with(|open| {
            if open.number == number {
                open.callers -= 1;
            }
        });
    }

    /// Tells all waiting CPUs that `number` has ended.
    pub(super) fn finish<E>(&self, number: u64, outcome: &Result<(), E>) {
        if outcome.is_err() {
            // A caller that finds the batch ended takes the lock before it submits the next one: its
            // failure is stored after this one.
            self.open.with(|_| self.failed.store(number, Ordering::Relaxed));
        }
        self.done.store(number, Ordering::Release);
    }

    /// Tells if batch `number`, which has ended, is known to have been carried out: a later failure
    /// may hide that it was.
    pub(super) fn carried_out(&self, number: u64) -> bool {
        self.failed.load(Ordering::Relaxed) < number
    }
}

impl OpenBatch {
    pub(super) fn of(number: u64) -> Self {
        Self { number, callers: 0, batch: Batch::default() }
    }
}
