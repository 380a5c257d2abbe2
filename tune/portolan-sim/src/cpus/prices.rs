//! Prices of sharing and submission, as a machine's profile has them.

use serde::{Deserialize, Serialize};

use super::Submission;
use crate::profile::{Price, ProfileError};

/// Way in which CPUs wait for a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockKind {
    /// A queue: CPUs get the lock in order, and each waits on a line of its own.
    #[default]
    Queued,
    /// One shared line: any waiting CPU gets the lock, and each of them makes the hand-over longer.
    TestAndSet,
}

/// Prices of sharing between CPUs, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SharingPrices {
    /// An access to a line that the CPU has.
    pub hit: f64,
    /// Bringing a line from another CPU or from memory.
    pub transfer: f64,
    /// Time for which a line with several readers is busy for each further reader.
    pub share: f64,
    /// Time from the release of a lock until a waiting CPU has taken it.
    pub handover: f64,
    /// Time of one turn of a waiting loop.
    pub relax: f64,
    /// Way in which CPUs wait for a lock.
    pub lock: LockKind,
}

/// Prices of submitting commands for a CPU, without the commands themselves, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubmissionPrices {
    /// Writing one command into the queue.
    pub descriptor: f64,
    /// Telling the hardware, which keeps the CPU: a register write, or an exit to a hypervisor.
    pub doorbell: f64,
    /// Time from the completion of a sync until the CPU notices it.
    pub latency: f64,
    /// Linux' way of submission on this machine.
    pub today: Submission,
}

/// `[sharing]` in a profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharingTable {
    hit: Price,
    transfer: Price,
    share: Price,
    handover: Price,
    relax: Price,
    lock: LockKind,
}

/// `[submission]` in a profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmissionTable {
    descriptor: Price,
    doorbell: Price,
    latency: Price,
    today: Submission,
}

impl SharingTable {
    /// The prices with their names and sources.
    pub fn quotes(&self) -> [(&'static str, &Price); 5] {
        [
            ("sharing.hit", &self.hit),
            ("sharing.transfer", &self.transfer),
            ("sharing.share", &self.share),
            ("sharing.handover", &self.handover),
            ("sharing.relax", &self.relax),
        ]
    }

    /// The prices.
    pub fn prices(&self) -> SharingPrices {
        SharingPrices {
            hit: self.hit.ns,
            transfer: self.transfer.ns,
            share: self.share.ns,
            handover: self.handover.ns,
            relax: self.relax.ns,
            lock: self.lock,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ProfileError> {
        self.quotes().into_iter().try_for_each(|(key, price)| price.check(key))
    }
}

impl SubmissionTable {
    /// The prices with their names and sources.
    pub fn quotes(&self) -> [(&'static str, &Price); 3] {
        [
            ("submission.descriptor", &self.descriptor),
            ("submission.doorbell", &self.doorbell),
            ("submission.latency", &self.latency),
        ]
    }

    /// The prices.
    pub fn prices(&self) -> SubmissionPrices {
        SubmissionPrices {
            descriptor: self.descriptor.ns,
            doorbell: self.doorbell.ns,
            latency: self.latency.ns,
            today: self.today,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ProfileError> {
        self.quotes().into_iter().try_for_each(|(key, price)| price.check(key))
    }
}
