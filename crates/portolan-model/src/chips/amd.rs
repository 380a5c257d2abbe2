//! AMD-Vi: the extended feature register, raw, as Linux logs it (`AMD-Vi: Extended features (0x…)`).
//!
//! No log prints the capability block's words: they are those of the model's default, whose header says that
//! there is such a register, with 48 bits of physical and of virtual address.

use super::RealChip;
use crate::amd::AmdIdentification;

/// Header, base, range and miscellaneous: 48 bits (PASize, VASize).
const CAPABILITY: [u32; 5] = [0x1b03_400f, 1, 0, 0, 48 << 8 | 48 << 15];

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
        },
    }
}

/// Units of AMD's chips, the oldest first.
pub const AMD: &[RealChip<AmdIdentification>] = &[
    chip(
        "Raven Ridge",
        "https://docs.kernel.org/arch/x86/iommu.html",
        0x004f_77ef_2229_4ada,
    ),
    chip(
        "Matisse",
        "https://github.com/hamadmarri/TT-CPU-Scheduler/issues/23",
        0x058f_77ef_2229_4a5a,
    ),
    chip(
        "Rome",
        "https://github.com/AMDESE/AMDSEV/issues/62",
        0x058f_77ef_2229_4ade,
    ),
    chip(
        "Lucienne",
        "https://github.com/codepayne/pop-os-linux/issues/5",
        0x206d_73ef_2225_4ade,
    ),
    chip(
        "EPYC 7R13 of m6a.metal",
        "https://github.com/enarx/enarx/issues/2263",
        0x841f_77e0_2209_4ace,
    ),
    chip(
        "Genoa",
        "https://github.com/openvelinux/kernel/pull/50",
        0xa5bf_732f_a229_5afe,
    ),
];
