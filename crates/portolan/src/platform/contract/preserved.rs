//! Memory that a former kernel left to this one, and the claims to pages of it.

use alloc::collections::BTreeMap;
use core::fmt;

use crate::addr::{PageSize, PhysAddr, PhysRange};
use crate::platform::AllMemory;

/// Memory that a former kernel left to this one, by the embedder's word.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug)]
pub struct PreservedMemory<'r> {
    tables: &'r [PhysRange],
    buffers: &'r [PhysRange],
    passing: Option<AllMemory>,
}

impl<'r> PreservedMemory<'r> {
    /// Names the memory of a former kernel's tables, and the memory that these may lead devices to.
    ///
    /// # Safety
    /// For the platform with which it is handed over:
    ///
    /// * each page of `tables` counts as one that the platform's `alloc` has returned, with any
    ///   contents and of any size to which it is aligned; nothing else writes or frees it, and once it
    ///   was adopted, the platform's `free` takes it back;
    /// * for all of `buffers`, [`DmaMemory::new`](super::DmaMemory::new)'s promise is kept for the
    ///   devices of the former kernel, until the domains that lead there are gone.
    pub const unsafe fn new(tables: &'r [PhysRange], buffers: &'r [PhysRange]) -> Self {
        Self { tables, buffers, passing: None }
    }

    /// The same with leave for streams that passed through to go on doing so.
    #[must_use]
    pub const fn passing(mut self, all: AllMemory) -> Self {
        self.passing = Some(all);
        self
    }

    /// Leave for streams to pass through, if there is such.
    pub const fn passes(&self) -> Option<AllMemory> {
        self.passing
    }

    /// Tells if devices of the former kernel may reach all of `memory`.
    pub fn lends(&self, memory: PhysRange) -> bool {
        self.buffers.iter().any(|range| range.covers(memory))
    }
}

/// Memory that has the tables of a kernel that crashed, for reading, by the embedder's word.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy)]
pub struct FormerMemory<'r> {
    read: &'r dyn Fn(PhysAddr) -> Option<u64>,
    passing: Option<AllMemory>,
}

impl<'r> FormerMemory<'r> {
    /// Reads a former kernel's tables by `read`: eight aligned bytes, or `None` where there is no memory.
    ///
    /// # Safety
    /// * `read` returns what the memory holds;
    /// * as long as a stream is kept on these tables, nothing writes to them or frees them, and for all memory to which
    ///   they lead, [`DmaMemory::new`](super::DmaMemory::new)'s promise is kept for the devices of the former kernel.
    pub const unsafe fn new(read: &'r dyn Fn(PhysAddr) -> Option<u64>) -> Self {
        Self { read, passing: None }
    }

    /// The same with leave for streams that passed through to go on doing so.
    #[must_use]
    pub const fn passing(mut self, all: AllMemory) -> Self {
        self.passing = Some(all);
        self
    }

    /// Leave for streams to pass through, if there is such.
    pub const fn passes(&self) -> Option<AllMemory> {
        self.passing
    }

    /// Eight bytes at `at`, or `None` if there is no memory.
    pub fn word(&self, at: PhysAddr) -> Option<u64> {
        (self.read)(at)
    }
}

impl fmt::Debug for FormerMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormerMemory").field("passing", &self.passing).finish_non_exhaustive()
    }
}

/// Pages of a [`PreservedMemory`] that are in use, each of one table.
///
/// *Context.* Task: a claim takes heap memory.
#[derive(Debug)]
pub struct TableClaims<'r> {
    memory: PreservedMemory<'r>,
    /// Last addresses of the pages that were claimed, by their first ones.
    taken: BTreeMap<PhysAddr, PhysAddr>,
}

impl<'r> TableClaims<'r> {
    /// No claims yet.
    pub const fn new(memory: PreservedMemory<'r>) -> Self {
        Self { memory, taken: BTreeMap::new() }
    }

    /// The memory.
    pub const fn memory(&self) -> &PreservedMemory<'r> {
        &self.memory
    }

    /// Claims the page of `size` at `at`.
    ///
    /// # Errors
    /// See [`ClaimError`].
    pub fn claim(&mut self, at: PhysAddr, size: PageSize) -> Result<(), ClaimError> {
        if !at.is_aligned(size) {
            return Err(ClaimError::Unaligned { at, size });
        }
        let page = PhysRange::page(at, size);
        if !self.memory.tables.iter().any(|range| range.covers(page)) {
            return Err(ClaimError::Outside { at, size });
        }
        let before = self.taken.range(..=page.last()).next_back();
        if before.is_some_and(|(_, last)| *last >= page.start()) {
            return Err(ClaimError::Twice { at });
        }
        self.taken.insert(page.start(), page.last());
        Ok(())
    }

    /// The pages that were claimed, in order of address: the other preserved pages are in no use.
    pub fn claimed(&self) -> impl Iterator<Item = PhysRange> {
        self.taken.iter().filter_map(|(first, last)| PhysRange::new(*first, *last))
    }
}

/// Reason for which a page cannot be a table's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Its address is no multiple of its size.
    #[error("a table of {bytes} bytes at {at}, which is not aligned to that", bytes = size.bytes())]
    Unaligned {
        /// The address.
        at: PhysAddr,
        /// The size.
        size: PageSize,
    },
    /// It is not in the preserved memory.
    #[error("a table of {bytes} bytes at {at}, which was not preserved", bytes = size.bytes())]
    Outside {
        /// The address.
        at: PhysAddr,
        /// The size.
        size: PageSize,
    },
    /// Another table is there, or a loop leads to it.
    #[error("two tables at {at}")]
    Twice {
        /// The address.
        at: PhysAddr,
    },
}
