//! Banks whose accesses stall.
//!
//! IHI 0062, fault handling: a bank may stall an access instead of ending it; it then waits for an
//! answer.
//!
//! *Context.* Interrupt, but [`Stalling::new`], which takes memory.

use super::machine::Bank;
use alloc::vec::Vec;

/// State of a bank's stalled access: held by a caller, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    No,
    Yes,
}

/// Banks whose accesses stall.
#[derive(Debug)]
pub(super) struct Stalling {
    pub(super) banks: Vec<(Bank, u64, Held)>,
    /// Tells one use of a bank from the next.
    pub(super) serial: u64,
}

impl Stalling {
    /// Room for `banks` banks, which never grows: handlers of interrupts wait for its lock.
    pub fn new(banks: usize) -> Self {
        Self { banks: Vec::with_capacity(banks), serial: 0 }
    }

    pub fn add(&mut self, bank: Bank) {
        self.serial += 1;
        self.banks.push((bank, self.serial, Held::No));
    }

    pub fn remove(&mut self, bank: Bank) {
        self.banks.retain(|(other, ..)| *other != bank);
    }

    pub(super) fn has(&self, bank: Bank) -> bool {
        self.banks.iter().any(|(other, ..)| *other == bank)
    }
}
