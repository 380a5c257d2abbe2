//! PCI functions that are known for what their configuration space does not tell, from the machines that
//! they failed on: all that Linux 6.18 lists in `drivers/pci/quirks.c` and `drivers/iommu/intel/iommu.c`, as facts.
//!
//! Of Switchtec's bridges between hosts a table in their registers has the identifiers that the other side's requests
//! carry. It is not read: they get those of their whole bus, as PLX's do.
//!
//! *Context.* Interrupt: everything here is a constant.

use super::device_tlb::{DeviceTlbFlaw, DeviceTlbOverride};
use super::node::PciId;
use super::overrides::{AliasOf, AliasOverride, PciOverrides};

const AMD_ATI: u16 = 0x1002;
const HIGHPOINT: u16 = 0x1103;
const MICROCHIP: u16 = 0x1055;
const PLX: u16 = 0x10b5;
const RICOH: u16 = 0x1180;
const MICROSEMI: u16 = 0x11f8;
const JMICRON: u16 = 0x197b;
const MARVELL: u16 = 0x1b4b;
const LITE_ON: u16 = 0x1c28;
const GLENFLY: u16 = 0x6766;
const INTEL: u16 = 0x8086;
const ADAPTEC: u16 = 0x9005;

impl PciOverrides {
    /// Functions that are known: disk controllers and others that do DMA as another function, bridges
    /// between hosts, devices whose TLB is flawed. All that Linux 6.18 lists.
    pub const KNOWN: Self = Self { aliases: KNOWN_ALIASES, tlbs: KNOWN_TLBS, isolation: &[] };
}

const fn id(vendor: u16, device: u16) -> PciId {
    PciId { vendor, device }
}

/// Bridges from PCI Express that do not say so (`quirk_use_pcie_bridge_dma_alias`): of ASMedia, Tundra, ITE
/// and Intel. Accesses of functions behind one carry function 0.0 of the bus behind it.
pub(super) const HIDDEN_BRIDGES: [PciId; 5] = [
    id(0x1b21, 0x1080),
    id(0x10e3, 0x8113),
    id(0x1283, 0x8892),
    id(0x1283, 0x8893),
    id(INTEL, 0x244e),
];

/// Bridges above which identifiers do not change any more: the IOMMU of Broadcom's Vulcan, Cavium's ThunderX2, is
/// there (`quirk_bridge_cavm_thrx2_pcie_root`).
pub(super) const TRANSLATED_BELOW: [PciId; 2] = [id(0x14e4, 0x9000), id(0x14e4, 0x9084)];

/// Class of bridges of no particular kind.
const OTHER_BRIDGE: u16 = 0x0680;

const fn alias(vendor: u16, device: u16, alias: AliasOf) -> AliasOverride {
    AliasOverride { of: id(vendor, device), class: None, alias }
}

const fn as_function(function: u8, vendor: u16, device: u16) -> AliasOverride {
    alias(vendor, device, AliasOf::Function(function))
}

const fn as_fixed(device: u8, function: u8, vendor: u16, of: u16) -> AliasOverride {
    alias(vendor, of, AliasOf::Fixed { device, function })
}

const fn as_each(functions: u8, vendor: u16, device: u16) -> AliasOverride {
    alias(vendor, device, AliasOf::Each { functions })
}

/// Functions that do DMA as others. `quirk_dma_func1_alias` and `quirk_dma_func0_alias`: disk controllers,
/// card readers, FireWire controllers, audio. `quirk_fixed_dma_alias`: boards of which the processor has a
/// device of its own that is not to be seen. `quirk_mic_x200_dma_alias` and `quirk_pex_vca_alias`:
/// computers on a card (Xeon Phi, Visual Compute Accelerator). `quirk_plx_ntb_dma_alias`: bridges between hosts.
const AS_OTHERS: [AliasOverride; 39] = [
    as_function(1, MARVELL, 0x9120),
    as_function(1, MARVELL, 0x9123),
    as_function(1, MARVELL, 0x9125),
    as_function(1, MARVELL, 0x9128),
    as_function(1, MARVELL, 0x9130),
    as_function(1, MARVELL, 0x9170),
    as_function(1, MARVELL, 0x9172),
    as_function(1, MARVELL, 0x917a),
    as_function(1, MARVELL, 0x9182),
    as_function(1, MARVELL, 0x9183),
    as_function(1, MARVELL, 0x91a0),
    as_function(1, MARVELL, 0x9215),
    as_function(1, MARVELL, 0x9220),
    as_function(1, MARVELL, 0x9230),
    as_function(1, MARVELL, 0x9235),
    as_function(1, HIGHPOINT, 0x0642),
    as_function(1, HIGHPOINT, 0x0644),
    as_function(1, HIGHPOINT, 0x0645),
    as_function(1, JMICRON, 0x2392),
    as_function(1, LITE_ON, 0x0122),
    as_function(0, RICOH, 0xe476),
    as_function(0, RICOH, 0xe832),
    as_function(0, GLENFLY, 0x3d40),
    as_function(0, GLENFLY, 0x3d41),
    as_fixed(1, 0, ADAPTEC, 0x0285),
    as_fixed(0x10, 0, INTEL, 0x2260),
    as_fixed(0x11, 0, INTEL, 0x2260),
    as_fixed(0x12, 3, INTEL, 0x2260),
    as_fixed(0x10, 0, INTEL, 0x2264),
    as_fixed(0x11, 0, INTEL, 0x2264),
    as_fixed(0x12, 3, INTEL, 0x2264),
    as_each(5, INTEL, 0x2954),
    as_each(5, INTEL, 0x2955),
    as_each(5, INTEL, 0x2956),
    as_each(5, INTEL, 0x2958),
    as_each(5, INTEL, 0x2959),
    as_each(5, INTEL, 0x295a),
    as_each(8, PLX, 0x87b0),
    as_each(8, PLX, 0x87b1),
];

/// Switchtec's switches, in each of which the function that is no memory controller is a bridge between hosts
/// (`quirk_switchtec_ntb_dma_alias`): generations 3, 4 and 5.
const SWITCHTEC: [u16; 93] = [
    0x8531, 0x8532, 0x8533, 0x8534, 0x8535, 0x8536, 0x8541, 0x8542, 0x8543, 0x8544, 0x8545, 0x8546,
    0x8551, 0x8552, 0x8553, 0x8554, 0x8555, 0x8556, 0x8561, 0x8562, 0x8563, 0x8564, 0x8565, 0x8566,
    0x8571, 0x8572, 0x8573, 0x8574, 0x8575, 0x8576, // 3
    0x4000, 0x4084, 0x4068, 0x4052, 0x4036, 0x4028, 0x4100, 0x4184, 0x4168, 0x4152, 0x4136, 0x4128,
    0x4200, 0x4284, 0x4268, 0x4252, 0x4236, 0x4228, 0x4352, 0x4336, 0x4328, 0x4452, 0x4436, 0x4428,
    0x4552, 0x4536, 0x4528, // 4
    0x5000, 0x5084, 0x5068, 0x5052, 0x5036, 0x5028, 0x5100, 0x5184, 0x5168, 0x5152, 0x5136, 0x5128,
    0x5200, 0x5284, 0x5268, 0x5252, 0x5236, 0x5228, 0x5300, 0x5384, 0x5368, 0x5352, 0x5336, 0x5328,
    0x5400, 0x5484, 0x5468, 0x5452, 0x5436, 0x5428, 0x5500, 0x5584, 0x5568, 0x5552, 0x5536, 0x5528,
];
/// The same of Microchip's own number (PCI100x).
const SWITCHTEC_OF_MICROCHIP: [u16; 6] = [0x1001, 0x1002, 0x1003, 0x1004, 0x1005, 0x1006];

const ALIASES: usize = AS_OTHERS.len() + SWITCHTEC.len() + SWITCHTEC_OF_MICROCHIP.len();

const fn between_hosts(vendor: u16, device: u16) -> AliasOverride {
    AliasOverride { class: Some(OTHER_BRIDGE), ..as_each(8, vendor, device) }
}

/// All functions that do DMA as others.
const KNOWN_ALIASES: &[AliasOverride] = &{
    let mut all = [AS_OTHERS[0]; ALIASES];
    let mut at = 0;
    while at < ALIASES {
        let switch = at.saturating_sub(AS_OTHERS.len());
        all[at] = if at < AS_OTHERS.len() {
            AS_OTHERS[at]
        } else if switch < SWITCHTEC.len() {
            between_hosts(MICROSEMI, SWITCHTEC[switch])
        } else {
            between_hosts(MICROCHIP, SWITCHTEC_OF_MICROCHIP[switch - SWITCHTEC.len()])
        };
        at += 1;
    }
    all
};

const fn unusable(vendor: u16, device: u16) -> DeviceTlbOverride {
    DeviceTlbOverride {
        of: id(vendor, device),
        revisions: [0, u8::MAX],
        boards: &[],
        flaw: DeviceTlbFlaw::Unusable,
    }
}

/// Intel's network processor E2000 before its third stepping takes the bytes of an invalidation the wrong
/// way round (`quirk_intel_e2000_no_ats`).
const fn e2000(device: u16) -> DeviceTlbOverride {
    DeviceTlbOverride { revisions: [0, 0x1f], ..unusable(INTEL, device) }
}

/// Intel's QuickAssist of the fourth generation may keep what it is asked to forget for the first time
/// (`dev_needs_extra_dtlb_flush`).
const fn quick_assist(device: u16) -> DeviceTlbOverride {
    DeviceTlbOverride { flaw: DeviceTlbFlaw::AskTwice, ..unusable(INTEL, device) }
}

/// Boards with Raven's graphics of one revision, whose TLB does not answer.
const RAVEN: [PciId; 3] = [id(0xea50, 0xce19), id(0xea50, 0xcc10), id(0xea50, 0xcc08)];

/// Functions whose TLBs are flawed. Graphics of AMD's need their driver first (`quirk_amd_harvest_no_ats`).
const KNOWN_TLBS: &[DeviceTlbOverride] = &[
    // Stoney, Iceland.
    unusable(AMD_ATI, 0x98e4),
    unusable(AMD_ATI, 0x6900),
    // Navi 10.
    unusable(AMD_ATI, 0x7310),
    unusable(AMD_ATI, 0x7312),
    unusable(AMD_ATI, 0x7318),
    unusable(AMD_ATI, 0x7319),
    unusable(AMD_ATI, 0x731a),
    unusable(AMD_ATI, 0x731b),
    unusable(AMD_ATI, 0x731e),
    unusable(AMD_ATI, 0x731f),
    // Navi 14.
    unusable(AMD_ATI, 0x7340),
    unusable(AMD_ATI, 0x7341),
    unusable(AMD_ATI, 0x7347),
    unusable(AMD_ATI, 0x734f),
    DeviceTlbOverride { revisions: [0xcf; 2], boards: &RAVEN, ..unusable(AMD_ATI, 0x15d8) },
    e2000(0x1451),
    e2000(0x1452),
    e2000(0x1453),
    e2000(0x1454),
    e2000(0x1455),
    e2000(0x1457),
    e2000(0x1459),
    e2000(0x145a),
    e2000(0x145c),
    quick_assist(0x4940),
    quick_assist(0x4941),
    quick_assist(0x4942),
    quick_assist(0x4943),
];
