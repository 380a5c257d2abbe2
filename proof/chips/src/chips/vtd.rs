//! VT-d: version, capabilities and extended capabilities, raw, as Linux logs them
//! (`dmar0: reg_base_addr … ver 1:0 cap … ecap …`).

use super::RealChip;
use crate::vtd::VtdIdentification;

const fn chip(
    name: &'static str,
    source: &'static str,
    (version, cap, ecap): (u32, u64, u64),
) -> RealChip<VtdIdentification> {
    let identification = VtdIdentification { version, cap, ecap };
    RealChip { name, source, identification }
}

/// The narrowest chip: 36 bits of address, tables of three levels with pages of 4 KiB only, 256 domains, one fault
/// record; invalidation through registers, of everything or of a domain; a write buffer, and no snooping.
pub const ARRANDALE_GRAPHICS: RealChip<VtdIdentification> = chip(
    "Arrandale, graphics",
    "https://github.com/lxylxy123456/uberxmhf, bug_092/README.md",
    (0x10, 0x00c0_0000_2023_0272, 0x1000),
);

/// 48 bits, tables of four levels, all sizes of pages, a queue, interrupt remapping.
pub const SKYLAKE_SP: RealChip<VtdIdentification> = chip(
    "Skylake-SP",
    "https://github.com/utcs-scea/LAKE/issues/10",
    (0x10, 0x08d2_078c_106f_0466, 0x00f0_20df),
);

impl Default for VtdIdentification {
    /// The narrowest real chip, [`ARRANDALE_GRAPHICS`].
    fn default() -> Self {
        ARRANDALE_GRAPHICS.identification
    }
}

/// Units of Intel's chips, the oldest first.
pub const VTD: &[RealChip<VtdIdentification>] = &[
    ARRANDALE_GRAPHICS,
    chip(
        "Arrandale, sound",
        "https://github.com/lxylxy123456/uberxmhf, bug_092/README.md",
        (0x10, 0x00c9_0080_20e3_0272, 0x1000),
    ),
    chip(
        "Arrandale",
        "https://github.com/lxylxy123456/uberxmhf, bug_092/README.md",
        (0x10, 0x00c9_0080_2063_0272, 0x1000),
    ),
    chip(
        "Ibex Peak",
        "https://lore.kernel.org/linux-btrfs/99ddd844-3371-d496-701d-bc6ea9fb0779@lbl.gov/",
        (0x10, 0x00c9_0780_106f_0462, 0x00f0_20e2),
    ),
    chip(
        "Westmere-EP",
        "https://catzy007.github.io, 2021-02-03, My Journey Using Yamaha YMF724 PCI Sound Card",
        (0x10, 0x00c9_0780_106f_0462, 0x00f0_20fe),
    ),
    chip(
        "Sandy Bridge-EP",
        "https://lore.kernel.org/lkml/CAKAwkKvOmBFJwE7pQTAZd8b582sOdcnthe=FOEufxYhzQ00jWQ@mail.gmail.com/",
        (0x10, 0x00d2_078c_106f_0466, 0x00f0_20de),
    ),
    chip(
        "Sandy Bridge-EN",
        "https://github.com/philip-bee-h/vault_backup, dell-poweredge-t320-gpu.md",
        (0x10, 0x00d2_078c_106f_0462, 0x00f0_20fe),
    ),
    chip(
        "Ivy Bridge, graphics",
        "https://intel-gfx-ci.01.org/tree/drm-tip/Trybot_7054/fi-ivb-3770/boot0.txt",
        (0x10, 0x00c0_0000_20e6_0262, 0x00f0_101a),
    ),
    chip(
        "Ivy Bridge",
        "https://intel-gfx-ci.01.org/tree/drm-tip/Trybot_7054/fi-ivb-3770/boot0.txt",
        (0x10, 0x00c9_0080_2066_0262, 0x00f0_105a),
    ),
    chip(
        "Haswell, graphics",
        "https://github.com/linux-surface/linux-surface/issues/478",
        (0x10, 0x00c0_0000_2066_0462, 0x00f0_101a),
    ),
    chip(
        "Haswell",
        "https://github.com/linux-surface/linux-surface/issues/478",
        (0x10, 0x00d2_0080_2066_0462, 0x00f0_10da),
    ),
    chip(
        "Haswell-EP",
        "https://lore.kernel.org/linux-mm/013601d296c6$4286fec0$c794fc40$@colorado.edu/",
        (0x10, 0x08d2_078c_106f_0466, 0x00f0_20de),
    ),
    chip(
        "Skylake, graphics",
        "https://bugs.launchpad.net/ubuntu/+source/linux/+bug/1547934",
        (0x10, 0x01c0_000c_4066_0462, 0x007e_3ff0_501e),
    ),
    chip(
        "Kaby Lake, graphics",
        "https://github.com/jasonmontleon/pixelbook-fedora/issues/5",
        (0x10, 0x01c0_000c_4066_0462, 0x019e_2ff0_505e),
    ),
    chip(
        "Kaby Lake",
        "https://github.com/jasonmontleon/pixelbook-fedora/issues/5",
        (0x10, 0x00d2_008c_4066_0462, 0x00f0_50da),
    ),
    chip(
        "Coffee Lake, graphics",
        "https://github.com/intel/gvt-linux/issues/60",
        (0x10, 0x01c0_000c_4066_0462, 0x007e_3ff0_505e),
    ),
    chip(
        "Gemini Lake, graphics",
        "https://github.com/bb-qq/aqc111/issues/57",
        (0x10, 0x01c0_000c_4066_0462, 0x009e_2ff0_505e),
    ),
    SKYLAKE_SP,
    chip(
        "Rocket Lake, graphics",
        "https://lore.kernel.org/netdev/87y1guv5p7.fsf@mkjws.danelec-net.lan/",
        (0x40, 0x01c0_000c_4066_0462, 0x069e_2ff0_505e),
    ),
    chip(
        "Alder Lake, graphics",
        "https://github.com/stefanpartheym/archlinux-ipu6-webcam/pull/42",
        (0x40, 0x01c0_000c_4066_0462, 0x029a_00f0_505e),
    ),
    chip(
        "Alder Lake",
        "https://github.com/stefanpartheym/archlinux-ipu6-webcam/pull/42",
        (0x50, 0x00d2_008c_4066_0462, 0x00f0_50da),
    ),
    chip(
        "Sapphire Rapids, four levels",
        "https://github.com/sharathdm/x86_ir_table",
        (0x60, 0x09ed_008c_4078_0466, 0x0003_ee9e_86f0_50df),
    ),
    chip(
        "Sapphire Rapids, five levels",
        "https://github.com/intel/intel-device-plugins-for-kubernetes/issues/1836",
        (0x60, 0x19ed_008c_4078_0c66, 0x0003_ee9e_86f0_50df),
    ),
    chip(
        "Meteor Lake, graphics",
        "https://lore.kernel.org/linux-media/120983801.106092806.1734789603490.JavaMail.zimbra@chorus.net/",
        (0x70, 0xc9de_008c_ee69_0462, 0x0012_ca9a_00f0_ef5e),
    ),
];
