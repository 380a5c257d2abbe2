//! Buffers and addresses that are given up rather than reused too early, counted.

use core::sync::atomic::{AtomicU64, Ordering};

/// Numbers of buffers and addresses that were given up instead of being reused too early.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quarantine {
    /// Mappings and deferred buffers that were dropped instead of being unmapped or reclaimed; their
    /// memory is never freed.
    pub dropped: u64,
    /// The bytes of those.
    pub bytes: u64,
    /// Addresses that were not given back: those of which a deferred buffer was dropped that kept
    /// them itself, and those for which the allocator had no memory. Ranges.
    pub addresses: u64,
}

/// The counters behind [`Quarantine`].
///
/// *Context.* Interrupt: counters.
#[derive(Debug, Default)]
pub(super) struct Lost {
    dropped: AtomicU64,
    bytes: AtomicU64,
    addresses: AtomicU64,
}

impl Lost {
    /// One mapping or buffer of so many bytes.
    pub fn count(&self, bytes: u64) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many ranges of addresses.
    pub fn count_addresses(&self, ranges: u64) {
        self.addresses.fetch_add(ranges, Ordering::Relaxed);
    }

    pub fn get(&self) -> Quarantine {
        Quarantine {
            dropped: self.dropped.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            addresses: self.addresses.load(Ordering::Relaxed),
        }
    }
}
