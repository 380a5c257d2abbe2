//! Setup of an SMMU, and its identification.

use std::collections::BTreeMap;

use super::{Beside, CommandKind};
use crate::inject::Pace;
use crate::unit::{counts, setup};

/// The identification registers, as a driver reads them and as the model behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmmuIdentification {
    /// `IDR0` to `IDR5`.
    pub idr: [u32; 6],
    /// `IIDR`.
    pub iidr: u32,
    /// `AIDR`: 3.1 is 1, 3.2 is 2, and so on.
    pub aidr: u32,
}

impl SmmuIdentification {
    /// More features than any published chip has: both stages, AArch64 tables of all three granules, coherent, 16-bit
    /// ASIDs and VMIDs, messages of syncs, two-level tables, 32-bit streams, 20-bit substreams, queues of 2^8
    /// commands and 2^7 events, range invalidation, 48-bit addresses.
    #[must_use]
    pub fn able() -> Self {
        let (both_stages, aarch64, coherent) = (0b11, 0b10 << 2, 1 << 4);
        let (asid16, msi, vmid16, cd2l) = (1 << 12, 1 << 13, 1 << 18, 1 << 19);
        let (little_endian, terminates, two_level) = (0b10 << 21, 0b01 << 24, 1 << 27);
        let idr0 = both_stages
            | aarch64
            | coherent
            | asid16
            | msi
            | vmid16
            | cd2l
            | little_endian
            | terminates
            | two_level;
        let (sid, ssid, events, commands) = (32, 20 << 6, 7 << 16, 8 << 21);
        let replaces_attributes = 1 << 27;
        let range = 1 << 10;
        let (bits48, granules) = (0b101, 0b111 << 4);
        Self {
            idr: [
                idr0,
                sid | ssid | events | commands | replaces_attributes,
                0,
                range,
                0,
                bits48 | granules,
            ],
            iidr: 0,
            aidr: 2,
        }
    }

    /// Removes `IDR0.COHACC`: drivers have to clean the lines that they write.
    #[must_use]
    pub fn not_coherent(mut self) -> Self {
        self.idr[0] &= !(1 << 4);
        self
    }

    /// Adds hardware update of dirty state (`IDR0.HTTU` is 2).
    #[must_use]
    pub fn marks(mut self) -> Self {
        self.idr[0] |= 2 << 6;
        self
    }

    /// Adds stalls, for streams that request them.
    #[must_use]
    pub fn stalls(mut self) -> Self {
        self.idr[0] &= !(0b11 << 24);
        self
    }

    /// Adds page requests, in a queue of 2^7, and devices with TLBs.
    #[must_use]
    pub fn page_requests(mut self) -> Self {
        self.idr[0] |= 1 << 10 | 1 << 16;
        self.idr[1] |= 7 << 11;
        self
    }

    /// Becomes an MMU-700 r1p1 by its `IIDR`, but without range invalidation, so that large debts are many commands.
    #[must_use]
    pub fn mmu_700(mut self) -> Self {
        self.iidr = 0x4871_143b;
        self.idr[3] &= !(1 << 10);
        self
    }

    /// The bits of `IDRn` from `low`, so many of them.
    pub(super) fn field(&self, n: usize, low: u32, bits: u32) -> u32 {
        let register = self.idr.get(n).copied().unwrap_or(0);
        (register >> low) & ((1u32 << bits) - 1)
    }

    /// Tells if bit `bit` of `IDRn` is set.
    pub(super) fn has(&self, n: usize, bit: u32) -> bool {
        self.field(n, bit, 1) == 1
    }

    /// Width of output addresses.
    pub(super) fn output_lg2(&self) -> u8 {
        match self.field(5, 0, 3) {
            0 => 32,
            1 => 36,
            2 => 40,
            3 => 42,
            4 => 44,
            5 => 48,
            _ => 52,
        }
    }
}

/// Existing pages of registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// Both, with the pointers of the queues for records on the second.
    #[default]
    Two,
    /// The first, which has those pointers too, as on Cavium's ThunderX2.
    OnlyFirst,
}

setup! {
    /// All that an SMMU is made from.
    SmmuSetup of SmmuIdentification, default: "Adversarial, able, and fast." {
        /// Its pages of registers.
        pages: Pages = Pages::Two,
        /// Command queues beside its own.
        beside: Beside = Beside::None,
        /// Pace of its queue.
        pace: Pace = Pace::AtOnce,
        /// Largest number of commands after the last sync that the queue survives, after erratum 2812531 of Arm's
        /// MMU-700; `None` for no limit.
        most_unsynced: Option<u64> = None,
    }
}

counts! {
    SmmuCounts {
        /// Commands carried out, by kind; a refused one is not.
        commands: BTreeMap<CommandKind, u64>,
        /// Events that found no room.
        lost_events: u64,
        /// Page requests that found no room.
        lost_requests: u64,
    }
}

/// An event, as its record's four words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// The words, lowest first.
    pub words: [u64; 4],
}

impl EventRecord {
    /// Code of the event.
    pub fn code(&self) -> u32 {
        (self.words[0] & 0xff) as u32
    }

    /// The stream of the record.
    pub fn stream(&self) -> u32 {
        (self.words[0] >> 32) as u32
    }
}
