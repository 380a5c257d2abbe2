//! SMMUv3: no log prints IDR0 to IDR5 raw. The words are put together from what Linux prints: its features
//! (`ias 48-bit, oas 48-bit (features 0x…)`), whose bits stand for fields of IDR0, IDR3 and IDR5, and the
//! sizes of the queues. Fields that it does not print are open: each is tried with nothing and with all. Streams
//! have 16 bits where nothing else is known, and always more than devices need here.

use super::RealChip;
use crate::smmuv3::SmmuIdentification;

/// Features as Linux prints them, and the widest queues as exponents: commands, events, page requests.
struct PrintedSmmuV3 {
    features: u32,
    output: u32,
    queues: [u32; 3],
    sid: u32,
}

/// Fields of [`SmmuIdentification`] that are open, by register: SSIDSIZE, ATTR_TYPES_OVR, ASID16, VMID16,
/// granules of 16 and 64 KiB.
pub const SMMU_V3_OPEN: [(usize, u32); 5] =
    [(1, 0x14 << 6), (1, 1 << 27), (0, 1 << 12), (0, 1 << 18), (5, 0b110 << 4)];

/// Bits of Linux's word, and the fields that they mean: bit, register, field.
const FEATURES: [(u32, usize, u32); 12] = [
    // Two levels of stream tables and of tables of contexts.
    (0, 0, 1 << 27),
    (1, 0, 1 << 19),
    // Page requests, ATS, events and messages.
    (4, 0, 1 << 16),
    (5, 0, 1 << 10),
    (6, 0, 1 << 14),
    (7, 0, 1 << 13),
    // Coherent, stages 1 and 2, EL2.
    (8, 0, 1 << 4),
    (9, 0, 1 << 1),
    (10, 0, 1),
    (12, 0, 1 << 9),
    // 52 bits of input; invalidation by range.
    (14, 5, 1 << 10),
    (15, 3, 1 << 10),
];

const fn words(printed: PrintedSmmuV3) -> SmmuIdentification {
    // AArch64 tables, and granules of 4 KiB.
    let mut idr = [0b10 << 2, printed.sid, 0, 0, 0, 1 << 4];
    let mut at = 0;
    while at < FEATURES.len() {
        let (bit, register, field) = FEATURES[at];
        if printed.features >> bit & 1 != 0 {
            idr[register] |= field;
        }
        at += 1;
    }
    // Endianness: little, or both.
    idr[0] |= match printed.features >> 2 & 0b11 {
        0b11 => 0,
        _ => 0b10 << 21,
    };
    // Stalls: there, or not.
    idr[0] |= match printed.features >> 11 & 1 {
        1 => 0,
        _ => 0b01 << 24,
    };
    let [commands, events, requests] = printed.queues;
    idr[1] |= commands << 21 | events << 16 | requests << 11;
    idr[5] |= match printed.output {
        32 => 0,
        36 => 1,
        40 => 2,
        42 => 3,
        44 => 4,
        48 => 5,
        _ => 6,
    };
    SmmuIdentification { idr, iidr: 0, aidr: 2 }
}

/// The narrowest: 44 bits, streams of 16 bits; contexts in one level; no messages, ATS, stalls nor page requests.
pub const THUNDER_X2: RealChip<SmmuIdentification> = RealChip {
    name: "Cavium ThunderX2",
    source: "https://lore.kernel.org/lkml/6326D2D1-8641-48D1-BDD5-4F4B8BADB286@lca.pw/",
    identification: words(PrintedSmmuV3 {
        features: 0x170d,
        output: 44,
        queues: [19, 19, 0],
        sid: 16,
    }),
};

impl Default for SmmuIdentification {
    /// The narrowest real chip, [`THUNDER_X2`].
    fn default() -> Self {
        THUNDER_X2.identification
    }
}

/// SMMUs of version 3.
pub const SMMU_V3: &[RealChip<SmmuIdentification>] = &[
    THUNDER_X2,
    RealChip {
        name: "HiSilicon HIP08",
        source: "https://lore.kernel.org/linux-pci/8ac8e372-15a0-2f95-089c-c189b619ea62@huawei.com/",
        identification: words(PrintedSmmuV3 {
            features: 0xfef,
            output: 48,
            queues: [16, 15, 0],
            sid: 16,
        }),
    },
    RealChip {
        name: "Rockchip RK3588",
        source: "https://lore.kernel.org/all/20240502140231.477049-2-cassel@kernel.org/",
        identification: words(PrintedSmmuV3 {
            features: 0x001c_1eaf,
            output: 48,
            queues: [16, 15, 0],
            sid: 16,
        }),
    },
    RealChip {
        name: "Ampere Altra",
        source: "https://github.com/AmpereComputing/ampere-lts-kernel---DEPRECATED/issues/40",
        identification: words(PrintedSmmuV3 {
            features: 0x1fff,
            output: 48,
            queues: [18, 17, 18],
            sid: 16,
        }),
    },
    RealChip {
        name: "NVIDIA Grace",
        source: "https://lore.kernel.org/linux-tegra/aUWeUapsFo3KZP7i@Asurada-Nvidia/",
        identification: words(PrintedSmmuV3 {
            features: 0x001e_1fbf,
            output: 48,
            queues: [19, 19, 19],
            sid: 24,
        }),
    },
];
