//! Setup of a unit, and its identification.

use std::collections::BTreeMap;

use super::DescriptorKind;
use crate::inject::Pace;
use crate::unit::{counts, setup};

/// The identification registers, as a driver reads them and as the model behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VtdIdentification {
    /// `VER_REG`.
    pub version: u32,
    /// `CAP_REG`.
    pub cap: u64,
    /// `ECAP_REG`.
    pub ecap: u64,
}

/// `CAP.RWBF`.
const RWBF: u64 = 1 << 4;
/// `CAP.CM`.
const CM: u64 = 1 << 7;
/// `ECAP.C`.
const COHERENT: u64 = 1;
/// `ECAP.QI`.
const QI: u64 = 1 << 1;

impl VtdIdentification {
    /// Adds scalable mode: both stages, nesting, 20-bit PASIDs, coherent walks, 1 GiB first-stage pages.
    #[must_use]
    pub fn scalable(self) -> Self {
        let (nest, pss, pasid) = (1 << 26, 19 << 35, 1 << 40);
        let (smts, second, first, coherent) = (1 << 43, 1 << 46, 1 << 47, 1 << 48);
        Self {
            cap: self.cap | 1 << 56,
            ecap: self.ecap | nest | pss | pasid | smts | second | first | coherent,
            ..self
        }
    }

    /// Adds accessed and dirty bits in the second stage (`ECAP.SSADS`).
    #[must_use]
    pub fn marks(self) -> Self {
        let ecap = self.ecap | 1 << 45;
        Self { ecap, ..self }
    }

    /// Adds device TLBs and page requests (`ECAP.DT`, `ECAP.PRS`).
    #[must_use]
    pub fn page_requests(self) -> Self {
        let ecap = self.ecap | 1 << 2 | 1 << 29;
        Self { ecap, ..self }
    }

    /// Adds interrupt remapping, with identifiers of 32 bits (`ECAP.IR`, `ECAP.EIM`).
    #[must_use]
    pub fn interrupts(self) -> Self {
        let ecap = self.ecap | 1 << 3 | 1 << 4 | 0xf << 20;
        Self { ecap, ..self }
    }

    /// Adds posted interrupts (`CAP.PI`), and their remapping.
    #[must_use]
    pub fn posted(self) -> Self {
        let Self { cap, ecap, .. } = self.interrupts();
        Self { cap: cap | 1 << 59, ecap, ..self }
    }

    /// Adds `CAP.CM`: absence is cached.
    #[must_use]
    pub fn caching_mode(self) -> Self {
        let cap = self.cap | CM;
        Self { cap, ..self }
    }

    /// Adds `CAP.RWBF`: drivers have to flush the write buffer.
    #[must_use]
    pub fn write_buffer(self) -> Self {
        let cap = self.cap | RWBF;
        Self { cap, ..self }
    }

    /// Removes `ECAP.C`: drivers have to clean the lines that they write.
    #[must_use]
    pub fn not_coherent(self) -> Self {
        let ecap = self.ecap & !COHERENT;
        Self { ecap, ..self }
    }

    /// Removes `ECAP.QI`: only registers are left.
    #[must_use]
    pub fn without_queue(self) -> Self {
        let ecap = self.ecap & !QI;
        Self { ecap, ..self }
    }

    pub(super) fn cap(&self, low: u32, bits: u32) -> u64 {
        (self.cap >> low) & ((1 << bits) - 1)
    }

    pub(super) fn ecap(&self, low: u32, bits: u32) -> u64 {
        (self.ecap >> low) & ((1 << bits) - 1)
    }

    pub(super) fn caches_absence(&self) -> bool {
        self.cap & CM != 0
    }

    /// Offset of the fault records.
    pub(super) fn records_at(&self) -> usize {
        self.cap(24, 10) as usize * 16
    }

    /// Number of the fault records.
    pub(super) fn records(&self) -> usize {
        self.cap(40, 8) as usize + 1
    }

    /// Offset of the two registers that invalidate translations.
    pub(super) fn invalidate_at(&self) -> usize {
        self.ecap(8, 10) as usize * 16
    }
}

setup! {
    /// All that a unit is made from.
    VtdSetup of VtdIdentification, default: "Adversarial, in legacy mode, and fast." {
        /// Pace at which it carries requests out.
        pace: Pace = Pace::AtOnce,
    }
}

counts! {
    VtdCounts {
        /// Descriptors carried out, by kind; a refused one is not.
        descriptors: BTreeMap<DescriptorKind, u64>,
        /// Invalidations through registers, of contexts and of translations.
        through_registers: (u64, u64),
        /// Flushes of the write buffer.
        write_buffer_flushes: u64,
        /// Faults that found no room.
        lost_faults: u64,
        /// Page requests that found no room.
        lost_requests: u64,
    }
}

/// A fault, as its record's two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VtdFault {
    /// The words, lowest first.
    pub words: [u64; 2],
}

impl VtdFault {
    /// The fault reason of the record.
    pub fn reason(&self) -> u8 {
        (self.words[1] >> 32) as u8
    }

    /// The source of the record.
    pub fn source(&self) -> u16 {
        self.words[1] as u16
    }
}
