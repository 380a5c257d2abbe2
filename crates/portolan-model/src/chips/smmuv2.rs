//! SMMUv2: no log prints ID0 to ID2 raw. The words are put together from what Linux prints (`SMMUv2 with: …`):
//! stages, match registers, context banks, page sizes and widths.

use super::RealChip;
use crate::smmuv2::SmmuV2Identification;

/// Match registers: 128; stream identifiers of 15 bits; matching.
const MATCHING_128: u32 = 1 << 27 | 15 << 9 | 128;
/// 4 and 64 KiB; 48 bits of input, of what is between the stages, and of output.
const WIDE: u32 = 1 << 14 | 1 << 12 | 5 << 8 | 5 << 4 | 5;
/// Register pages of 64 KiB, `1 << (lg2 + 1)` of them, and context banks, so many of which have a second
/// stage alone.
const fn banks(pages_lg2: u32, all: u32, second: u32) -> u32 {
    1 << 31 | (pages_lg2 - 1) << 28 | second << 16 | all
}

/// SMMUs of version 2: implementations of Arm's MMU-500.
pub const SMMU_V2: &[RealChip<SmmuV2Identification>] = &[
    RealChip {
        name: "NXP LS1088A",
        source: "https://lore.kernel.org/r/CAONkfw4AE7H1YDKVWAjrT5_eEAcgZ065Y0CdbV6On4QtHCN_sA@mail.gmail.com",
        identification: SmmuV2Identification {
            idr: [0b111 << 28 | MATCHING_128, banks(6, 64, 0), WIDE],
            revision: 0,
            stream_bits: 0x7fff,
        },
    },
    RealChip {
        name: "an MMU-500 with a second stage alone",
        source: "https://lore.kernel.org/linux-iommu/67ae3a53-3db9-c1bc-2b67-08df14bc15cc@arm.com/",
        identification: SmmuV2Identification {
            idr: [1 << 29 | 1 << 14 | MATCHING_128, banks(7, 128, 128), WIDE],
            revision: 0,
            stream_bits: 0x7fff,
        },
    },
];
