//! All mutants.

use super::edits::{intel, smmuv3};
use super::{Ground, Mutant};
use crate::backend::seam::{Arrives, Cleans, Sabotage, Words};
use crate::backend::smmuv3::Kind::{Mmu700, NotCoherent as SmmuNotCoherent, Plain as Smmu};
use crate::backend::vtd::Kind;

pub(super) const fn commands(edit: fn(&mut [Words])) -> Sabotage {
    Sabotage::of_commands(edit)
}

const fn again(again: fn(&mut [Words])) -> Sabotage {
    Sabotage {
        again,
        ..Sabotage::NONE
    }
}

pub(super) const fn read(read: fn(usize, u32) -> u32) -> Sabotage {
    Sabotage {
        read,
        ..Sabotage::NONE
    }
}

pub(super) const fn write(write: fn(usize, u32) -> Arrives) -> Sabotage {
    Sabotage {
        write,
        ..Sabotage::NONE
    }
}

pub(super) const UNCLEAN: Sabotage = Sabotage {
    cleans: Cleans::Lost,
    ..Sabotage::NONE
};

pub(super) const fn mutant(
    ground: Ground,
    without: &'static str,
    sabotage: Sabotage,
    noticed_by: &'static [&'static str],
) -> Mutant {
    Mutant {
        without,
        ground,
        sabotage,
        noticed_by,
    }
}

/// Each thing that is left out, and who has to notice.
pub const MUTANTS: &[Mutant] = &[
    mutant(
        Ground::Smmuv3(Smmu),
        "the sync",
        commands(smmuv3::without_sync),
        &[
            "unmapped-access-faults",
            "stale-until-sync",
            "attach-block-attach",
        ],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "TLBI_NH_VA",
        commands(smmuv3::without_pages),
        &[
            "unmapped-access-faults",
            "stale-until-sync",
            "tables-shared-by-requests",
            "tables-shared-by-stalls",
            "random-operations",
        ],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "the first of several TLBI_NH_VA",
        commands(smmuv3::without_first),
        &["one-sync-pays-for-all"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "the last of several TLBI_NH_VA",
        commands(smmuv3::without_last),
        &["one-sync-pays-for-all"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "TLBI_NH_ASID",
        commands(smmuv3::without_asid),
        &["identifier-reuse-forgets"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "CFGI_STE",
        commands(smmuv3::without_entries),
        &["attach-block-attach", "pass-through-to-paging"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "CFGI_CD",
        commands(smmuv3::without_descriptors),
        &["pasid-moves"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "the end of each range",
        commands(smmuv3::short_ranges),
        &["ranges-are-whole"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "the right ASID",
        commands(smmuv3::wrong_asid),
        &["stale-until-sync"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "walk caches, where tables were freed",
        commands(smmuv3::leaves_only),
        &["freed-tables-are-forgotten"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "blocks: leaves of the last level alone",
        commands(smmuv3::last_level),
        &["block-split-keeps-the-rest", "blocks-among-pages"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "the right granule of ranges",
        commands(smmuv3::wrong_granule),
        &["ranges-are-whole"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "the sync that follows TLBI_NH_VA",
        commands(smmuv3::without_sync_of_first),
        &["requests-are-brought-in"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "break before make",
        read(smmuv3::claims_bbml2),
        &["block-split-keeps-the-rest"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "ATC_INV",
        commands(smmuv3::without_devices),
        &["requests-are-brought-in", "tables-shared-by-requests"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "ATC_INV of a stream that moves",
        commands(smmuv3::without_moved_devices),
        &["moved-devices-forget", "refused-moves-of-keepers"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "the sync between CFGI_STE and ATC_INV",
        commands(smmuv3::without_sync_of_entries),
        &["moved-devices-forget"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "CFGI_STE in the second attempt at a move",
        again(smmuv3::without_entries),
        &["refused-moves-are-repeated"],
    ),
    mutant(
        Ground::Smmuv3(Mmu700),
        "a sync after every 62 commands",
        commands(smmuv3::without_early_syncs),
        &["long-debts-are-paid"],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "PRI_RESP",
        commands(smmuv3::without_responses),
        &[
            "requests-are-brought-in",
            "requests-are-refused",
            "detach-answers-requests",
            "misbehaving-requests",
        ],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "RESUME",
        commands(smmuv3::without_resumes),
        &[
            "stalls-are-brought-in",
            "stalls-are-refused",
            "detach-answers-stalls",
            "stall-room-overflows",
        ],
    ),
    mutant(
        Ground::Smmuv3(Smmu),
        "the end of refused stalls",
        commands(smmuv3::always_retried),
        &["stalls-are-refused"],
    ),
    mutant(
        Ground::Smmuv3(SmmuNotCoherent),
        "the cleaning of lines",
        UNCLEAN,
        &["mapped-access-succeeds"],
    ),
    mutant(
        Ground::Smmuv3Stage2,
        "the sync",
        commands(smmuv3::without_sync),
        &["stale-until-sync"],
    ),
    mutant(
        Ground::Smmuv3Stage2,
        "TLBI_S2_IPA",
        commands(smmuv3::without_second_pages),
        &["unmapped-access-faults", "stale-until-sync"],
    ),
    mutant(
        Ground::Smmuv3Stage2,
        "ATC_INV of a stream that moves",
        commands(smmuv3::without_moved_devices),
        &["moved-devices-forget"],
    ),
    mutant(
        Ground::Smmuv3Stage2,
        "CFGI_STE in the second attempt at a move",
        again(smmuv3::without_entries),
        &["refused-moves-are-repeated"],
    ),
    mutant(
        Ground::Smmuv3Stage2,
        "TLBI_S12_VMALL",
        commands(smmuv3::without_vmid),
        &["identifier-reuse-forgets"],
    ),
    mutant(
        Ground::Smmuv3Stage2,
        "the end of each range",
        commands(smmuv3::short_ranges),
        &["ranges-are-whole"],
    ),
    mutant(
        Ground::Smmuv3Stage2,
        "walk caches, where tables were freed",
        commands(smmuv3::leaves_only),
        &["freed-tables-are-forgotten"],
    ),
    mutant(
        Ground::Smmuv3Stage2,
        "blocks: leaves of the last level alone",
        commands(smmuv3::last_level),
        &["block-split-keeps-the-rest", "blocks-among-pages"],
    ),
    mutant(
        Ground::Smmuv3Nested,
        "TLBI_NH_ALL after TLBI_S2_IPA",
        commands(smmuv3::without_combined),
        &["unmapped-access-faults", "stale-until-sync"],
    ),
    mutant(
        Ground::Smmuv3Nested,
        "the sync between TLBI_S2_IPA and TLBI_NH_ALL",
        commands(smmuv3::without_sync_of_second),
        &["unmapped-access-faults", "stale-until-sync"],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "the wait",
        commands(intel::without_wait),
        &[
            "unmapped-access-faults",
            "stale-until-sync",
            "attach-block-attach",
        ],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "IOTLB invalidations by page",
        commands(intel::without_pages),
        &["unmapped-access-faults", "stale-until-sync"],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "IOTLB invalidations by domain",
        commands(intel::without_domain),
        &["identifier-reuse-forgets"],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "invalidations of interrupt entries by index",
        commands(intel::without_interrupt_entries),
        &["remapped-interrupts-arrive", "freed-interrupts-are-refused"],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "the right interrupt entries",
        commands(intel::wrong_interrupt_entries),
        &["remapped-interrupts-arrive", "freed-interrupts-are-refused"],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "context-cache invalidations",
        commands(intel::without_context),
        &["attach-block-attach", "pass-through-to-paging"],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "context-cache invalidations in the second attempt at a move",
        again(intel::without_context),
        &["refused-moves-are-repeated"],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "the first of several by page",
        commands(intel::without_first),
        &["one-sync-pays-for-all"],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "the last of several by page",
        commands(intel::without_last),
        &["one-sync-pays-for-all"],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "half of each range",
        commands(intel::short_ranges),
        &["ranges-are-whole"],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "the right domain",
        commands(intel::wrong_domain),
        &["stale-until-sync"],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "walk caches, where tables were freed",
        commands(intel::leaves_only),
        &["freed-tables-are-forgotten"],
    ),
    mutant(
        Ground::Vtd(Kind::Plain),
        "masks as large as blocks",
        commands(intel::masks_below_blocks),
        &[
            "block-split-keeps-the-rest",
            "debts-of-one-block",
            "blocks-among-pages",
        ],
    ),
    mutant(
        Ground::Vtd(Kind::Scalable),
        "masks as large as blocks",
        commands(intel::masks_below_blocks),
        &["block-split-keeps-the-rest", "blocks-among-pages"],
    ),
    mutant(
        Ground::Vtd(Kind::CachingMode),
        "invalidations after a map (caching mode)",
        read(intel::without_caching_mode),
        &["random-operations"],
    ),
    mutant(
        Ground::Vtd(Kind::WriteBuffer),
        "write-buffer flushes",
        write(intel::without_flush),
        &["mapped-access-succeeds"],
    ),
    mutant(
        Ground::Vtd(Kind::NotCoherent),
        "the cleaning of lines",
        UNCLEAN,
        &["mapped-access-succeeds"],
    ),
    mutant(
        Ground::Vtd(Kind::Registers),
        "IOTLB invalidations through registers",
        write(intel::without_register_pages),
        &["stale-until-sync"],
    ),
    mutant(
        Ground::Vtd(Kind::Scalable),
        "the wait",
        commands(intel::without_wait),
        &["stale-until-sync"],
    ),
    mutant(
        Ground::Vtd(Kind::Scalable),
        "PASID-cache invalidations",
        commands(intel::without_pasid_entries),
        &["attach-block-attach", "pasid-moves"],
    ),
    mutant(
        Ground::Vtd(Kind::Scalable),
        "IOTLB invalidations by page",
        commands(intel::without_pages),
        &["stale-until-sync"],
    ),
    mutant(
        Ground::Vtd(Kind::Scalable),
        "device-TLB invalidations",
        commands(intel::without_devices),
        &["requests-are-brought-in"],
    ),
    mutant(
        Ground::Vtd(Kind::Scalable),
        "device-TLB invalidations of a stream that moves",
        commands(intel::without_moved_devices),
        &["moved-devices-forget", "refused-moves-of-keepers"],
    ),
    mutant(
        Ground::Vtd(Kind::Scalable),
        "page-group responses",
        commands(intel::without_responses),
        &[
            "requests-are-brought-in",
            "requests-are-refused",
            "detach-answers-requests",
            "misbehaving-requests",
        ],
    ),
    mutant(
        Ground::VtdFirst,
        "PASID-based invalidations by page",
        commands(intel::without_pages),
        &["stale-until-sync"],
    ),
    mutant(
        Ground::VtdFirst,
        "walk caches, where tables were freed",
        commands(intel::leaves_only),
        &["freed-tables-are-forgotten"],
    ),
    mutant(
        Ground::VtdFirst,
        "masks as large as blocks",
        commands(intel::masks_below_blocks),
        &["block-split-keeps-the-rest", "blocks-among-pages"],
    ),
    mutant(
        Ground::VtdFirst,
        "PASID-based invalidations of all",
        commands(intel::without_pasid_translations),
        &["one-sync-pays-for-all"],
    ),
    mutant(
        Ground::VtdFirst,
        "PASID-cache invalidations",
        commands(intel::without_pasid_entries),
        &["attach-block-attach", "pasid-moves"],
    ),
    mutant(
        Ground::QemuSmmuv3,
        "TLBI_NH_VA",
        commands(smmuv3::without_pages),
        &["unmapped-access-faults", "stale-until-sync"],
    ),
    mutant(
        Ground::QemuSmmuv3,
        "CFGI_STE",
        commands(smmuv3::without_entries),
        &["pass-through-to-paging"],
    ),
    mutant(
        Ground::QemuSmmuv3,
        "the right ASID",
        commands(smmuv3::wrong_asid),
        &["stale-until-sync"],
    ),
    mutant(
        Ground::QemuVtd,
        "IOTLB invalidations by page",
        commands(intel::without_pages),
        &["unmapped-access-faults", "stale-until-sync"],
    ),
    mutant(
        Ground::QemuVtd,
        "context-cache invalidations",
        commands(intel::without_context),
        &["pass-through-to-paging"],
    ),
    mutant(
        Ground::QemuVtdScalable,
        "IOTLB invalidations by page",
        commands(intel::without_pages),
        &["unmapped-access-faults", "stale-until-sync"],
    ),
];
