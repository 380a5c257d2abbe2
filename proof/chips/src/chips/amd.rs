//! AMD-Vi: the extended feature register, raw, as Linux logs it (`AMD-Vi: Extended features (0x…)`).
//!
//! No log prints the capability block's words: their header says whether there is such a register, and the
//! addresses, physical and virtual, have 48 bits.

use super::RealChip;
use crate::amd::AmdIdentification;

/// Header, base, range and miscellaneous: 48 bits (PASize, VASize).
const CAPABILITY: [u32; 5] = [0x1b03_400f, 1, 0, 0, 48 << 8 | 48 << 15];

/// A unit without extended features, which Linux then does not log. IVRS says that devices may have TLBs.
const WITHOUT_FEATURES: [u32; 5] = [0x010b_400f, 1, 0, 0, CAPABILITY[4]];

/// Two banks of four counters (NCounterBanks, NCounter), as Linux logs them of these chips.
const COUNTERS: u64 = 2 << 12 | 4 << 7;

const fn chip(
    name: &'static str,
    source: &'static str,
    features: u64,
) -> RealChip<AmdIdentification> {
    RealChip {
        name,
        source,
        identification: AmdIdentification {
            capability: CAPABILITY,
            features,
            features2: 0,
            counters: COUNTERS,
        },
    }
}

/// The narrowest: no extended features, so that tables have four levels, and everything is invalidated entry by
/// entry and domain by domain.
pub const AMD_990FX: RealChip<AmdIdentification> = RealChip {
    name: "990FX",
    source: "https://ubuntuforums.org, Easy solution to get IOMMU working on mobos with broken BIOSes",
    identification: AmdIdentification {
        capability: WITHOUT_FEATURES,
        features: 0,
        features2: 0,
        counters: 0,
    },
};

/// Tables of up to six levels, INVALIDATE_IOMMU_ALL, prefetching, page requests.
pub const RAVEN_RIDGE: RealChip<AmdIdentification> =
    chip("Raven Ridge", "https://docs.kernel.org/arch/x86/iommu.html", 0x004f_77ef_2229_4ada);

/// The same and interrupt entries with identifiers of 32 bits.
pub const ROME: RealChip<AmdIdentification> =
    chip("Rome", "https://github.com/AMDESE/AMDSEV/issues/62", 0x058f_77ef_2229_4ade);

impl Default for AmdIdentification {
    /// The narrowest real chip, [`AMD_990FX`].
    fn default() -> Self {
        AMD_990FX.identification
    }
}

/// Units of AMD's chips, the oldest first.
pub const AMD: &[RealChip<AmdIdentification>] = &[
    AMD_990FX,
    chip(
        "Bristol Ridge",
        "https://ubuntuforums.org, Easy solution to get IOMMU working on mobos with broken BIOSes",
        0x0000_37ef_2229_4ada,
    ),
    chip(
        "Summit Ridge",
        "https://www.haiku-os.org, Haiku PCI Driver Development Under QEMU on Linux",
        0x000f_77ef_2229_4ada,
    ),
    RAVEN_RIDGE,
    chip(
        "Matisse",
        "https://github.com/hamadmarri/TT-CPU-Scheduler/issues/23",
        0x058f_77ef_2229_4a5a,
    ),
    ROME,
    chip("Lucienne", "https://github.com/codepayne/pop-os-linux/issues/5", 0x206d_73ef_2225_4ade),
    chip(
        "a processor for socket AM5",
        "https://github.com/frankcrawford/it87/issues/60",
        0x2465_77ef_a225_4afa,
    ),
    chip(
        "EPYC 7R13 of m6a.metal",
        "https://github.com/enarx/enarx/issues/2263",
        0x841f_77e0_2209_4ace,
    ),
    chip("Genoa", "https://github.com/openvelinux/kernel/pull/50", 0xa5bf_732f_a229_5afe),
];
