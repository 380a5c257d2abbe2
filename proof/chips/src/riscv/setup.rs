//! Setup of a unit, and its identification.

use std::collections::BTreeMap;

use super::CommandKind;
use crate::inject::Pace;
use crate::unit::{counts, setup};

/// Identification of a unit, as a driver reads it and as the model behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RiscvIdentification {
    /// The register `capabilities`.
    pub capabilities: u64,
    /// Allowed numbers of levels of a device directory: bit `n` means `n` levels.
    pub levels: u8,
    /// Longest queue, as an exponent of entries.
    pub queue_lg2: u32,
    /// Hardware counters, of 31 at most.
    pub counters: u8,
}

/// Version 1.0, and physical addresses of 56 bits.
const PLAIN: u64 = 0x10 | 56 << 32;
/// Sv39, Sv48 and Sv57, and the second stages of the same depths.
const TABLES: u64 = 7 << 9 | 7 << 17;
/// `Svpbmt`.
const MEMORY_TYPES: u64 = 1 << 15;
/// `MSI_FLAT`: contexts of 64 bytes.
const FLAT: u64 = 1 << 22;
/// `IGS`: interrupts by messages and by wires.
const BOTH: u64 = 2 << 28;
/// `NL` and `S`.
const NON_LEAF: u64 = 1 << 42;
const RANGES: u64 = 1 << 43;

impl RiscvIdentification {
    /// More features than any published unit has: tables of all depths, contexts in base format, interrupts of either
    /// kind. Addresses are invalidated one by one, and only leaves.
    #[must_use]
    pub fn able() -> Self {
        Self { capabilities: PLAIN | TABLES | BOTH, levels: 0b1110, queue_lg2: 15, counters: 0 }
    }

    /// Adds contexts in extended format, memory types, and invalidation of ranges and of entries above the leaves.
    #[must_use]
    pub fn extended(mut self) -> Self {
        self.capabilities |= FLAT | MEMORY_TYPES | NON_LEAF | RANGES;
        self
    }

    /// Adds process directories of one, two and three levels.
    #[must_use]
    pub fn pasids(mut self) -> Self {
        self.capabilities |= 7 << 38;
        self
    }

    /// Adds devices with TLBs and page requests.
    #[must_use]
    pub fn ats(mut self) -> Self {
        self.capabilities |= 1 << 25;
        self
    }

    /// Adds accessed and dirty bits that the unit sets (`AMO_HWAD`).
    #[must_use]
    pub fn updates(mut self) -> Self {
        self.capabilities |= 1 << 24;
        self
    }

    /// Adds memory-resident interrupt files that it updates by atomic operations (`MSI_MRIF`, `AMO_MRIF`).
    #[must_use]
    pub fn interrupt_files(mut self) -> Self {
        self.capabilities |= 1 << 23 | 1 << 21;
        self
    }

    /// Adds hardware counters.
    #[must_use]
    pub fn counters(mut self, count: u8) -> Self {
        self.capabilities |= 1 << 30;
        self.counters = count.min(31);
        self
    }

    /// Removes first stages, and so process directories.
    #[must_use]
    pub fn second_stage_only(mut self) -> Self {
        self.capabilities &= !(7 << 38);
        self.capabilities &= !(7 << 9);
        self
    }

    fn has(&self, bit: u32) -> bool {
        self.capabilities >> bit & 1 == 1
    }

    /// Tells if it walks first-stage tables of `levels` levels.
    pub(super) fn walks_first(&self, levels: u8) -> bool {
        (3..=5).contains(&levels) && self.has(6 + u32::from(levels))
    }

    /// Tells if it walks second-stage tables of `levels` levels.
    pub(super) fn walks_second(&self, levels: u8) -> bool {
        (3..=5).contains(&levels) && self.has(14 + u32::from(levels))
    }

    /// Tells if it has process directories of `levels` levels.
    pub(super) fn has_processes(&self, levels: u32) -> bool {
        self.has(37 + levels)
    }

    pub(super) fn has_message_tables(&self) -> bool {
        self.has(22)
    }

    pub(super) fn has_interrupt_files(&self) -> bool {
        self.has(23) && self.has(21)
    }

    pub(super) fn has_updates(&self) -> bool {
        self.has(24)
    }

    pub(super) fn has_ats(&self) -> bool {
        self.has(25)
    }

    pub(super) fn has_monitor(&self) -> bool {
        self.has(30)
    }

    pub(super) fn has_non_leaf(&self) -> bool {
        self.has(42)
    }

    pub(super) fn has_ranges(&self) -> bool {
        self.has(43)
    }

    /// `IGS`: 0 messages, 1 wires, 2 either.
    pub(super) fn interrupts(&self) -> u64 {
        self.capabilities >> 28 & 3
    }

    /// Bits of a device's number that a page of contexts resolves.
    pub(super) fn leaf_lg2(&self) -> u32 {
        if self.has_message_tables() { 6 } else { 7 }
    }
}

setup! {
    /// All that a unit is made from.
    RiscvSetup of RiscvIdentification, default: "Adversarial and fast." {
        /// Pace of its queue.
        pace: Pace = Pace::AtOnce,
    }
}

counts! {
    RiscvCounts {
        /// Commands carried out, by kind; a refused one is not.
        commands: BTreeMap<CommandKind, u64>,
        /// IOFENCE.C with data that does not order devices' reads and writes before it.
        unordered: u64,
        /// Events that hardware counters count, by the event's number and the device.
        events: BTreeMap<(u16, u32), u64>,
        /// Translations answered by a cache.
        hits: u64,
        /// Contexts and entries above them read.
        configuration_reads: u64,
        /// Interrupts for faults. One covers all faults until the last is acknowledged.
        fault_interrupts: u64,
        /// Faults that found no room, or no queue.
        lost_faults: u64,
        /// Interrupts for page requests, likewise.
        request_interrupts: u64,
        /// Page requests that found no room.
        lost_requests: u64,
    }
}
