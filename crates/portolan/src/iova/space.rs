//! The addresses of one I/O address space, shared by CPUs.

use super::{FreeError, IovaError, RangeAllocator, Request};
use crate::addr::{IovaRange, PageSize};
use crate::platform::{Cpus, Lock};

/// How addresses are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IovaOptions {}

/// A [`RangeAllocator`] behind a lock.
pub struct IovaSpace<P: Cpus> {
    ranges: P::Lock<RangeAllocator>,
}

impl<P: Cpus> IovaSpace<P> {
    /// All of `window` is free.
    ///
    /// # Errors
    /// See [`RangeAllocator::new`].
    pub fn new(
        cpus: P,
        window: IovaRange,
        granule: PageSize,
        options: IovaOptions,
    ) -> Result<Self, IovaError> {
        let (IovaOptions {}, _) = (options, cpus);
        Ok(Self {
            ranges: Lock::new(RangeAllocator::new(window, granule)?),
        })
    }

    /// A range for `request`.
    ///
    /// # Errors
    /// See [`IovaError`].
    pub fn alloc(&self, request: &Request) -> Result<IovaRange, IovaError> {
        self.ranges.with(|ranges| ranges.alloc(*request))
    }

    /// Takes `given` back, and returns how many of them could not be.
    pub fn free_all(&self, given: &[IovaRange]) -> u64 {
        self.ranges.with(|ranges| {
            let failed = given.iter().filter(|range| ranges.free(**range).is_err());
            failed.count() as u64
        })
    }

    /// Sets `range` aside.
    ///
    /// # Errors
    /// See [`FreeError`].
    pub fn reserve(&self, range: IovaRange) -> Result<(), FreeError> {
        self.ranges.with(|ranges| ranges.reserve(range))
    }
}
