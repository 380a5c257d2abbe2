//! SMMUv2: no log prints ID0 to ID2 raw. The words are put together from what Linux and Xen print (`SMMUv2
//! with: …`): stages, match registers, context banks, page sizes and widths. Fields that they do not print
//! are open: each is tried with nothing and with all.

use super::RealChip;
use crate::smmuv2::SmmuV2Identification;

/// Fields of [`SmmuV2Identification`] that are open, by register: the size of a page of registers, and the
/// width of addresses that go out (units that print a second stage print that as well).
pub const SMMU_V2_OPEN: [(usize, u32); 2] = [(1, 1 << 31), (2, OUTPUT)];
/// `IDR2.OAS`, 48 bits.
const OUTPUT: u32 = 5 << 4;

/// Stages, as `IDR0` has them.
const FIRST: u32 = 1 << 30;
const SECOND: u32 = 1 << 29;
const NESTED: u32 = 1 << 28;
/// Tables are read through the processors' caches.
const COHERENT: u32 = 1 << 14;
/// Granules, as `IDR2` has them: 4 and 64 KiB (`0x61311000` in the log), or all three (`0x63315000`).
const TWO_GRANULES: u32 = 1 << 14 | 1 << 12;
const ALL_GRANULES: u32 = 0b111 << 12;

/// Features of a unit as Linux and Xen print them.
struct PrintedSmmuV2 {
    /// Stages and coherency.
    able: u32,
    /// Stream match registers.
    matching: u32,
    /// Number of context banks, and of those with a second stage only.
    banks: [u32; 2],
    granules: u32,
    /// Widths of a device's address and of one between the stages, as codes.
    widths: [u32; 2],
}

/// Codes of widths.
const BITS_32: u32 = 0;
const BITS_36: u32 = 1;
const BITS_40: u32 = 2;
const BITS_48: u32 = 5;

const fn words(printed: PrintedSmmuV2) -> SmmuV2Identification {
    let [all, second] = printed.banks;
    let [device, between] = printed.widths;
    // Stream numbers of 15 bits, and matching.
    let idr0 = printed.able | 1 << 27 | 15 << 9 | printed.matching;
    // As many pages as banks need, in a power of two.
    let pages_lg2 = match all.next_power_of_two().trailing_zeros() {
        0 => 1,
        lg2 => lg2,
    };
    let out = match printed.able & SECOND {
        0 => 0,
        _ => OUTPUT,
    };
    SmmuV2Identification {
        idr: [
            idr0,
            (pages_lg2 - 1) << 28 | second << 16 | all,
            printed.granules | device << 8 | out | between,
        ],
        revision: 0,
        stream_bits: 0x7fff,
    }
}

const fn chip(
    name: &'static str,
    source: &'static str,
    printed: PrintedSmmuV2,
) -> RealChip<SmmuV2Identification> {
    RealChip { name, source, identification: words(printed) }
}

/// Address at which MSM8998's units were published.
const MSM8998: &str =
    "https://lore.kernel.org/lkml/dfd80103-391a-4777-8944-296ba31a11dd@freebox.fr/";

/// The narrowest chip: input addresses of 32 bits and output addresses of 36, first stage only, no snooping.
pub const MSM8998_MULTIMEDIA: RealChip<SmmuV2Identification> = chip(
    "Qualcomm MSM8998, multimedia",
    MSM8998,
    PrintedSmmuV2 {
        able: FIRST,
        matching: 54,
        banks: [17, 0],
        granules: ALL_GRANULES,
        widths: [BITS_32, BITS_36],
    },
);

/// Both stages, 48 bits, 128 stream match registers, 64 context banks.
pub const LS1088A: RealChip<SmmuV2Identification> = chip(
    "NXP LS1088A",
    "https://lore.kernel.org/r/CAONkfw4AE7H1YDKVWAjrT5_eEAcgZ065Y0CdbV6On4QtHCN_sA@mail.gmail.com",
    PrintedSmmuV2 {
        able: FIRST | SECOND | NESTED,
        matching: 128,
        banks: [64, 0],
        granules: TWO_GRANULES,
        widths: [BITS_48, BITS_48],
    },
);

impl Default for SmmuV2Identification {
    /// The narrowest real chip, [`MSM8998_MULTIMEDIA`].
    fn default() -> Self {
        MSM8998_MULTIMEDIA.identification
    }
}

/// SMMUs of version 2: Arm's MMU-500 and Qualcomm's own, those with the narrowest addresses first.
pub const SMMU_V2: &[RealChip<SmmuV2Identification>] = &[
    MSM8998_MULTIMEDIA,
    chip(
        "Qualcomm MSM8998, sensors and modem",
        MSM8998,
        PrintedSmmuV2 {
            able: FIRST,
            matching: 16,
            banks: [6, 0],
            granules: ALL_GRANULES,
            widths: [BITS_36, BITS_36],
        },
    ),
    chip(
        "Qualcomm SM7225",
        "https://lore.kernel.org/lkml/2a1b199b-b426-4895-be8f-2b7629e84fcd@kernel.org/",
        PrintedSmmuV2 {
            able: FIRST | COHERENT,
            matching: 71,
            banks: [63, 0],
            granules: TWO_GRANULES,
            widths: [BITS_36, BITS_36],
        },
    ),
    chip(
        "Qualcomm SC8280XP",
        "https://lore.kernel.org/all/08a310dd-6982-4e63-9f6a-02bd9d579167@oss.qualcomm.com/",
        PrintedSmmuV2 {
            able: FIRST | COHERENT,
            matching: 162,
            banks: [110, 0],
            granules: TWO_GRANULES,
            widths: [BITS_36, BITS_36],
        },
    ),
    chip(
        "Qualcomm MSM8998, graphics",
        MSM8998,
        PrintedSmmuV2 {
            able: FIRST,
            matching: 3,
            banks: [3, 0],
            granules: ALL_GRANULES,
            widths: [BITS_48, BITS_36],
        },
    ),
    chip(
        "Qualcomm X1E80100, graphics",
        "https://lore.kernel.org/all/Z_jMiC1uj_MJpKVj@hovoldconsulting.com/",
        PrintedSmmuV2 {
            able: FIRST | COHERENT,
            matching: 24,
            banks: [22, 0],
            granules: TWO_GRANULES,
            widths: [BITS_48, BITS_40],
        },
    ),
    chip(
        "Xilinx Zynq UltraScale+",
        "https://lore.kernel.org/xen-devel/alpine.DEB.2.22.394.2304251120530.3419@ubuntu-linux-20-04-desktop/",
        PrintedSmmuV2 {
            able: SECOND,
            matching: 48,
            banks: [16, 0],
            granules: TWO_GRANULES,
            widths: [BITS_48, BITS_48],
        },
    ),
    chip(
        "NXP i.MX8QM",
        "https://github.com/Joshua-Riek/ubuntu-apalis-imx8",
        PrintedSmmuV2 {
            able: FIRST | SECOND | NESTED,
            matching: 32,
            banks: [32, 0],
            granules: TWO_GRANULES,
            widths: [BITS_48, BITS_48],
        },
    ),
    LS1088A,
    chip(
        "an MMU-500 with a second stage alone",
        "https://lore.kernel.org/linux-iommu/67ae3a53-3db9-c1bc-2b67-08df14bc15cc@arm.com/",
        PrintedSmmuV2 {
            able: SECOND | COHERENT,
            matching: 128,
            banks: [128, 128],
            granules: TWO_GRANULES,
            widths: [BITS_48, BITS_48],
        },
    ),
];
