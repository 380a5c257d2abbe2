//! Setup of an SMMUv2, and its identification.

use std::collections::BTreeMap;

use crate::unit::{counts, setup};

/// The identification registers, as a driver reads them and as the model behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmmuV2Identification {
    /// `IDR0` to `IDR2`.
    pub idr: [u32; 3],
    /// `IDR7`: major and minor revision.
    pub revision: u32,
    /// Bits of a stream number that match registers hold.
    pub stream_bits: u16,
}

impl SmmuV2Identification {
    /// Adds coherent walks: drivers need not clean the lines that they write.
    #[must_use]
    pub fn coherent(mut self) -> Self {
        self.idr[0] |= 1 << 14;
        self
    }

    /// Sets the numbers of context banks.
    #[must_use]
    pub fn banks(mut self, all: u32, second: u32) -> Self {
        self.idr[1] = self.idr[1] & !0x00ff_00ff | second << 16 | all;
        self
    }

    /// Adds stream indexing by `bits` bits instead of matching.
    #[must_use]
    pub fn indexed(mut self, bits: u32) -> Self {
        self.idr[0] = self.idr[0] & !(1 << 27 | 15 << 9) | bits << 9;
        self
    }

    /// Tells if streams are matched.
    pub(super) fn matches(&self) -> bool {
        self.idr[0] >> 27 & 1 == 1
    }

    /// Registers that say where streams go.
    pub(super) fn streams(&self) -> usize {
        let found = if self.matches() { self.idr[0] & 0xff } else { 1 << (self.idr[0] >> 9 & 0xf) };
        found.min(128) as usize
    }

    pub(super) fn bank_count(&self) -> usize {
        (self.idr[1] & 0xff) as usize
    }

    pub(super) fn page_lg2(&self) -> u32 {
        12 + 4 * (self.idr[1] >> 31)
    }

    /// Pages of each half.
    pub(super) fn pages(&self) -> usize {
        1 << ((self.idr[1] >> 28 & 7) + 1)
    }
}

/// Firmware that watches the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Firmware {
    /// Absent.
    #[default]
    Absent,
    /// Some of Qualcomm's: stream-to-context registers ignore a fault and take a bypass for one, and commands
    /// that are written as zero are lost.
    Qualcomm,
}

setup! {
    /// All that an SMMUv2 is made from.
    SmmuV2Setup of SmmuV2Identification,
    default: "Adversarial, and with synchronisations that end at once." {
        /// Virtual nanoseconds that a synchronisation takes.
        sync_ns: u64 = 0,
        /// Virtual nanoseconds more while wait-for-safe is on.
        safe_ns: u64 = 0,
        /// Firmware that watches the registers.
        firmware: Firmware = Firmware::Absent,
        /// Stream numbers and masks that a boot loader left passing through.
        inherited: Vec<(u16, u16)> = Vec::new(),
    }
}

impl SmmuV2Setup {
    /// Qualcomm's: watched by firmware, with a display that a boot loader left running, and with
    /// synchronisations that take `sync_ns`.
    pub fn qualcomm(sync_ns: u64) -> Self {
        Self {
            sync_ns,
            firmware: Firmware::Qualcomm,
            inherited: vec![(0x880, 0x2)],
            ..Self::default()
        }
    }
}

counts! {
    SmmuV2Counts {
        /// Registers written, by name; `configuration` for all that configure.
        writes: BTreeMap<&'static str, u64>,
        /// Synchronisations that came to their end.
        syncs: u64,
    }
}

impl SmmuV2Counts {
    /// Writes of the register of this name.
    pub fn of(&self, name: &str) -> u64 {
        self.writes.get(name).copied().unwrap_or(0)
    }
}
