//! Counts of events: one number for each kind.

use std::collections::BTreeMap;

use serde::Serialize;

/// Commands that a VT-d driver writes before it rings the doorbell, if no sync comes earlier; the same number as in
/// this library's driver.
const PUBLISHED: u64 = 16;

/// Number of doorbells for this number of commands and the sync after them.
pub fn doorbells(commands: u64) -> u64 {
    commands.div_ceil(PUBLISHED).max(1)
}

/// Numbers of events since the start or the last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Accesses that the IOTLB answered, with a translation or with the absence of one.
    pub iotlb_hits: u64,
    /// Accesses that it did not answer.
    pub iotlb_misses: u64,
    /// Table entries read by walks.
    pub walk_steps: u64,
    /// Walks that a walk cache shortened.
    pub walk_cache_hits: u64,
    /// Accesses whose stream's configuration had to be read.
    pub config_misses: u64,
    /// Invalidations by kind.
    pub invalidations: Invalidations,
    /// Power-of-two range invalidations by exponent of their number of granules.
    pub range_masks: BTreeMap<u8, u64>,
    /// IOTLB entries that an invalidation dropped although the tables still say the same.
    pub collateral: u64,
    /// Completed syncs.
    pub syncs: u64,
    /// Number of doorbells, as by [`doorbells`]. If a hypervisor emulates the unit, each is an exit.
    pub doorbells: u64,
    /// Times that a command found the queue full and waited for it to drain.
    pub queue_drains: u64,
    /// Flushes of the write buffer.
    pub write_buffer_flushes: u64,
    /// Accesses that faulted.
    pub faults: u64,
    /// Accesses that went through; one for each page of a transfer.
    pub dma_accesses: u64,
    /// Bytes that went through.
    pub dma_bytes: u64,
}

/// Numbers of invalidations by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Invalidations {
    /// Invalidations by page.
    pub page: u64,
    /// Invalidations by page that a map alone owed; `page` includes them.
    pub page_after_map: u64,
    /// Invalidations by range.
    pub range: u64,
    /// Invalidations by context.
    pub context: u64,
    /// Invalidations of everything.
    pub global: u64,
    /// Invalidations of configuration.
    pub configuration: u64,
}
