//! Interface of a driver to its unit's ring.

use core::sync::atomic::AtomicU64;

use portolan::addr::PhysAddr;
use portolan::iommu::IommuError;
use portolan::platform::{Cpus, Nanos, TableMem};

/// The words of a command. A ring of wider slots leaves the others zero.
pub(crate) type Words = [u64; 2];

/// Sizes of a ring, as exponents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingShape {
    /// Of the number of slots.
    pub(crate) lg2_slots: u32,
    /// Of a slot's bytes.
    pub(crate) lg2_bytes: u32,
}

impl RingShape {
    pub(super) const fn slots(self) -> u64 {
        1 << self.lg2_slots
    }
}

/// Reason of a stop of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// Value of its registers, for [`Unit::resume`].
    pub(crate) seen: u32,
    /// It refused the command at its head, with this code.
    pub(crate) refused: Option<u32>,
    /// A device did not answer: `Some(None)` if the unit does not say which, and, where the unit
    /// [aborts syncs](Unit::ABORTS_SYNCS), if it aborted the commands under way for another reason.
    pub(crate) silent: Option<Option<u16>>,
}

/// Unit of a driver, as its ring needs it. Everything here waits for nothing.
pub(crate) trait Unit {
    type Memory: TableMem<AtomicU64>;
    type Cpus: Cpus;
    type Command: Copy;

    /// Bits of the unit's index beyond those that tell slots apart: with one, full is told from
    /// empty, and all slots can be used.
    const TURN_BITS: u32;
    /// Set if the index moves behind a sync only once that is complete.
    const INDEX_COMPLETES: bool;
    /// Set if a device that does not answer aborts the syncs under way, or commands that no sync
    /// has confirmed.
    const ABORTS_SYNCS: bool;
    /// Register of the head.
    const HEAD: usize;
    /// Code for a refusal whose record was overwritten.
    const OVERWRITTEN: u32;

    /// Memory, time, and the longest wait.
    fn machine(&self) -> (&Self::Memory, &Self::Cpus, Nanos);
    /// An error once commands are no longer accepted.
    fn running(&self) -> Result<(), IommuError> {
        Ok(())
    }

    fn words(command: &Self::Command) -> Words;
    /// Counts a command that is written.
    fn count(&self, command: &Self::Command);
    /// Writes `number` to `at` once everything in front is complete; without `at` the index alone
    /// tells.
    fn sync(at: Option<PhysAddr>, number: u32) -> Self::Command;
    /// Replaces a refused command; may write to `spare`.
    fn harmless(spare: Option<PhysAddr>) -> Self::Command;

    /// Makes sure that the unit reads the stores at `at`.
    fn clean(&self, _at: PhysAddr, _bytes: u64) {}
    /// Orders the stores before everything that comes after.
    fn barrier(&self) {}

    /// The register of the head.
    fn head(&self) -> Result<u64, IommuError>;
    /// The index in it.
    fn index(head: u64, shape: RingShape) -> u64;
    fn set_tail(&self, index: u64, shape: RingShape);

    /// Returns the stop of the unit, if it has stopped with `head` in its register.
    fn stopped(&self, head: u64) -> Result<Option<Stop>, IommuError>;
    /// More about `code`, with which the unit refused the command at `at`; without the ring's lock.
    fn why(&self, code: u32, _at: PhysAddr) -> u32 {
        code
    }
    /// The error of a producer whose commands failed with `error`: the unit's state may say more.
    fn reason(&self, error: IommuError) -> IommuError {
        error
    }
    /// Acknowledges `stop`, and sets the unit going again between two indices.
    fn resume(&self, stop: Stop, shape: RingShape, head: u64, tail: u64) -> Result<(), IommuError>;
}
