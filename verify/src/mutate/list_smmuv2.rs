//! All mutants of SMMUv2's driver, whose commands are register writes.

use super::edits::smmuv2;
use super::list::{UNCLEAN, mutant, read, write};
use super::{Ground, Mutant};
use crate::backend::seam::Sabotage;
use crate::backend::smmuv2::Kind;

const fn bend(bend: fn(usize, u64) -> (usize, u64)) -> Sabotage {
    Sabotage {
        bend,
        ..Sabotage::NONE
    }
}

/// Each thing that is left out, and who has to notice.
pub const SMMUV2_MUTANTS: &[Mutant] = &[
    mutant(
        Ground::Smmuv2(Kind::Plain),
        "the sync",
        write(smmuv2::without_sync),
        &[
            "unmapped-access-faults",
            "stale-until-sync",
            "attach-block-attach",
        ],
    ),
    mutant(
        Ground::Smmuv2(Kind::Plain),
        "TLBIVAL",
        write(smmuv2::without_leaves),
        &["other-page-stays-stale", "ranges-are-whole"],
    ),
    mutant(
        Ground::Smmuv2(Kind::Plain),
        "TLBIVA",
        write(smmuv2::without_all_levels),
        &[
            "unmapped-access-faults",
            "stale-until-sync",
            "freed-tables-are-forgotten",
        ],
    ),
    mutant(
        Ground::Smmuv2(Kind::Plain),
        "TLBIASID",
        write(smmuv2::without_asid),
        &["identifier-reuse-forgets", "attach-block-attach"],
    ),
    mutant(
        Ground::Smmuv2(Kind::Plain),
        "TLBIALLNSNH",
        write(smmuv2::without_everything),
        &["pass-through-to-paging"],
    ),
    mutant(
        Ground::Smmuv2(Kind::Plain),
        "the right ASID",
        bend(smmuv2::wrong_asid),
        &["stale-until-sync"],
    ),
    mutant(
        Ground::Smmuv2(Kind::Plain),
        "the right page",
        bend(smmuv2::next_page),
        &["stale-until-sync", "ranges-are-whole"],
    ),
    mutant(
        Ground::Smmuv2(Kind::Plain),
        "walk caches, where tables were freed",
        bend(smmuv2::leaves_only),
        &["freed-tables-are-forgotten"],
    ),
    mutant(
        Ground::Smmuv2(Kind::NotCoherent),
        "the cleaning of lines",
        UNCLEAN,
        &["mapped-access-succeeds"],
    ),
    mutant(
        Ground::Smmuv2(Kind::NotCoherent),
        "firmware's word against a register that claims coherent walks",
        read(smmuv2::claims_coherence),
        &["mapped-access-succeeds"],
    ),
    mutant(
        Ground::Smmuv2(Kind::Qualcomm),
        "the wait for a bank's sync",
        read(smmuv2::without_wait),
        &["unmapped-access-faults", "stale-until-sync"],
    ),
    mutant(
        Ground::Smmuv2(Kind::Qualcomm),
        "the wait for a global sync",
        read(smmuv2::without_global_wait),
        &["pass-through-to-paging"],
    ),
    mutant(
        Ground::Smmuv2Stage2,
        "TLBIIPAS2 and TLBIIPAS2L",
        write(smmuv2::without_second),
        &["unmapped-access-faults", "stale-until-sync"],
    ),
    mutant(
        Ground::Smmuv2Stage2,
        "TLBIVMID",
        write(smmuv2::without_vmid),
        &["identifier-reuse-forgets", "attach-block-attach"],
    ),
    mutant(
        Ground::Smmuv2(Kind::Qualcomm),
        "the walk flush by TLBIASID",
        write(smmuv2::without_asid),
        &["stale-until-sync", "freed-tables-are-forgotten"],
    ),
    mutant(
        Ground::Smmuv2(Kind::Qualcomm),
        "TLBIVAL",
        write(smmuv2::without_leaves),
        &["other-page-stays-stale", "ranges-are-whole"],
    ),
    mutant(
        Ground::Smmuv2(Kind::Qualcomm),
        "the context bank that passes through",
        read(smmuv2::without_firmware),
        &["pass-through-to-paging"],
    ),
];
