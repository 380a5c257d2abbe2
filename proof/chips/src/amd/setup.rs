//! Setup of a unit, and its identification.

use std::collections::BTreeMap;

use super::CommandKind;
use super::registers::control;
use crate::inject::Pace;
use crate::unit::{counts, setup};

/// The capability block and the extended features, as a driver reads them and as the model behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmdIdentification {
    /// The first five words of the capability block in PCI configuration space (3.2).
    pub capability: [u32; 5],
    /// The extended feature register (3.4.11).
    pub features: u64,
    /// The second register of extended features.
    pub features2: u64,
    /// The register of the numbers of counters, where there are some.
    pub counters: u64,
}

/// Capability, word 0: `IotlbSup`.
const DEVICE_TLB: u32 = 1 << 24;
/// Capability, word 0: `NpCache`.
const NOT_PRESENT: u32 = 1 << 26;
/// Features: `PreFSup`, `PPRSup`, `XTSup`, `IASup`, `GASup`.
const PREFETCH: u64 = 1;
const PAGE_REQUESTS: u64 = 1 << 1;
const X2APIC: u64 = 1 << 2;
const INVALIDATE_ALL: u64 = 1 << 6;
const GUEST_APIC: u64 = 1 << 7;
/// `PCSup`.
const COUNTERS: u64 = 1 << 9;
/// `GAMSup`, and its value for guest virtual APICs.
const POSTING: u64 = 7 << 21;
const POSTS: u64 = 1 << 21;
/// `GAMEn`, `GALogEn`, `GAIntEn`.
const POSTED: u64 =
    control::POSTED | control::OTHER_POSTED | control::GUEST_LOG | control::GUEST_INTERRUPT;
/// `HASup`, `HDSup`.
const MARKS: u64 = 1 << 49 | 1 << 52;
/// Features: `PPRAutoRspSup`, `EPHSup`.
const AUTO_RESPONSE: u64 = 1 << 41;
const REQUESTS_BY_ENTRY: u64 = 1 << 50;
/// `GTSup`, `GIoSup`.
const GUESTS: u64 = 1 << 4;
const GUEST_DEFAULT: u64 = 1 << 48;
/// Features of the second register: `GCR3TRPMode`.
const ROOTS_OVER_HOST: u64 = 1 << 3;

impl AmdIdentification {
    /// Caches absence (`NpCache`).
    #[must_use]
    pub fn caching_absence(mut self) -> Self {
        self.capability[0] |= NOT_PRESENT;
        self
    }

    /// Adds accessed and dirty bits in leaves of host tables (`HASup`, `HDSup`).
    #[must_use]
    pub fn marks(mut self) -> Self {
        self.features |= MARKS;
        self
    }

    /// Has `banks` banks of `counters` performance counters each, or none (`PCSup`).
    #[must_use]
    pub fn counters(mut self, banks: u64, counters: u64) -> Self {
        self.features &= !COUNTERS;
        self.features |= if banks > 0 { COUNTERS } else { 0 };
        self.counters = banks << 12 | counters << 7;
        self
    }

    /// Adds guest tables of up to five levels, in GCR3 tables of three (`GATS`, `GLXSup`, `PASmax`).
    #[must_use]
    pub fn guests(mut self) -> Self {
        self.features &= !(0xf << 12 | 0x1f << 32);
        self.features |= GUESTS | GUEST_DEFAULT | 1 << 12 | 2 << 14 | 19 << 32;
        self
    }

    /// Lets GCR3 tables lie behind host tables (`GCR3TRPMode`).
    #[must_use]
    pub fn nesting(mut self) -> Self {
        self.features2 |= ROOTS_OVER_HOST;
        self
    }

    pub(super) fn has_guests(&self) -> bool {
        self.features & GUESTS != 0
    }

    pub(super) fn has_guest_default(&self) -> bool {
        self.features & GUEST_DEFAULT != 0
    }

    /// Most levels of guest tables (`GATS`).
    pub(super) fn guest_levels(&self) -> u64 {
        4 + (self.features >> 12 & 3)
    }

    /// Most levels of GCR3 tables (`GLXSup`).
    pub(super) fn guest_root_levels(&self) -> u64 {
        1 + (self.features >> 14 & 3)
    }

    /// Width of PASIDs (`PASmax`).
    pub(super) fn pasid_bits(&self) -> u32 {
        1 + (self.features >> 32 & 0x1f) as u32
    }

    /// Tells if there are accessed and dirty bits in leaves of host tables.
    pub fn has_marks(&self) -> bool {
        self.features & MARKS == MARKS
    }

    pub(super) fn caches_absence(&self) -> bool {
        self.capability[0] & NOT_PRESENT != 0
    }

    pub(super) fn has_device_tlbs(&self) -> bool {
        self.capability[0] & DEVICE_TLB != 0
    }

    pub(super) fn prefetches(&self) -> bool {
        self.features & PREFETCH != 0
    }

    pub(super) fn has_page_requests(&self) -> bool {
        self.features & PAGE_REQUESTS != 0
    }

    /// Looks at the entries' `PPR` (`EPHSup`).
    pub(super) fn looks_at_requests(&self) -> bool {
        self.features & REQUESTS_BY_ENTRY != 0
    }

    pub(super) fn invalidates_all(&self) -> bool {
        self.features & INVALIDATE_ALL != 0
    }

    /// Bits of the control register that features have to be there for: `GAEn`, `GAMEn`, `GALogEn`, `XTEn`,
    /// `IntCapXTEn`, `GTEn` and `GCR3TRPMode`.
    pub(super) fn lacks(&self) -> u64 {
        let without = |feature: u64, bits: u64| if self.features & feature == 0 { bits } else { 0 };
        without(GUEST_APIC, control::GUEST_APIC)
            | without(PAGE_REQUESTS, control::REQUEST_LOG | control::REQUESTS)
            | without(AUTO_RESPONSE, control::AUTO_RESPONSE)
            | if self.posts() { control::OTHER_POSTED } else { POSTED }
            | without(X2APIC, control::X2APIC | control::OWN_TARGETS)
            | without(GUESTS, control::GUESTS)
            | match self.features2 & ROOTS_OVER_HOST {
                0 => control::ROOTS_OVER_HOST,
                _ => 0,
            }
    }

    /// Posts interrupts to guest virtual APICs (`GAMSup`).
    pub(super) fn posts(&self) -> bool {
        self.features & POSTING == POSTS
    }

    /// Most levels of page tables (`HATS`).
    pub(super) fn levels(&self) -> u64 {
        4 + (self.features >> 10 & 3)
    }
}

setup! {
    /// All that a unit is made from.
    AmdSetup of AmdIdentification, default: "Adversarial and fast." {
        /// Pace of its queue.
        pace: Pace = Pace::AtOnce,
        /// Time at which the record of an event is written, after the log's tail has moved.
        records: Pace = Pace::AtOnce,
    }
}

counts! {
    AmdCounts {
        /// Commands carried out, by kind; a refused one is not.
        commands: BTreeMap<CommandKind, u64>,
        /// Interrupts for events. One covers all events until the last is acknowledged.
        event_interrupts: u64,
        /// Events that found no room, or no log.
        lost_events: u64,
        /// Interrupts for guests that found no room in their log, or no log.
        lost_sleepers: u64,
        /// Interrupts for that log. One covers all records until the last is acknowledged.
        sleeper_interrupts: u64,
        /// Page requests that found no room.
        lost_requests: u64,
    }
}

/// An event, as its record's two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmdEvent {
    /// The words, lowest first.
    pub words: [u64; 2],
}

impl AmdEvent {
    /// Code of the event.
    pub fn code(&self) -> u32 {
        (self.words[0] >> 60) as u32
    }

    /// The device of the record.
    pub fn device(&self) -> u16 {
        self.words[0] as u16
    }
}
