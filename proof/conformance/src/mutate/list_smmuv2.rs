//! All mutants of SMMUv2's driver, whose commands are register writes.

use super::Mutant;
use super::edits::smmuv2;
use super::list::{UNCLEAN, mutants, read, write};
use crate::backend::BackendName;
use crate::backend::seam::Sabotage;

const fn bend(bend: fn(usize, u64) -> (usize, u64)) -> Sabotage {
    Sabotage { bend, ..Sabotage::NONE }
}

mutants! {
    /// Each part that is left out, and the scenarios that have to notice.
    SMMUV2_MUTANTS:
    ModelSmmuv2 => {
        "the sync", write(smmuv2::without_sync)
            => "unmapped-access-faults" "stale-until-sync" "attach-block-attach";
        "TLBIVAL", write(smmuv2::without_leaves) => "other-page-stays-stale" "ranges-are-whole";
        "TLBIVA", write(smmuv2::without_all_levels) => "freed-tables-are-forgotten";
        "TLBIASID", write(smmuv2::without_asid) => "identifier-reuse-forgets" "attach-block-attach";
        "TLBIALLNSNH", write(smmuv2::without_everything) => "pass-through-to-paging";
        "the right ASID", bend(smmuv2::wrong_asid) => "stale-until-sync";
        "the right page", bend(smmuv2::next_page) => "stale-until-sync" "ranges-are-whole";
        "walk caches, where tables were freed", bend(smmuv2::leaves_only)
            => "freed-tables-are-forgotten";
    }
    ModelSmmuv2NotCoherent => {
        "the cleaning of lines", UNCLEAN => "mapped-access-succeeds";
        "firmware's word against a register that claims coherent walks",
            read(smmuv2::claims_coherence) => "mapped-access-succeeds";
    }
    ModelSmmuv2Qcom => {
        "the wait for a bank's sync", read(smmuv2::without_wait)
            => "unmapped-access-faults" "stale-until-sync";
        "the wait for a global sync", read(smmuv2::without_global_wait) => "pass-through-to-paging";
        "the walk flush by TLBIASID", write(smmuv2::without_asid)
            => "identifier-reuse-forgets" "freed-tables-are-forgotten";
        "TLBIVAL", write(smmuv2::without_leaves) => "other-page-stays-stale" "ranges-are-whole";
        "the context bank that passes through", read(smmuv2::without_firmware)
            => "pass-through-to-paging";
    }
    ModelSmmuv2Stage2 => {
        "TLBIIPAS2 and TLBIIPAS2L", write(smmuv2::without_second)
            => "unmapped-access-faults" "stale-until-sync";
        "TLBIVMID", write(smmuv2::without_vmid) => "identifier-reuse-forgets" "attach-block-attach";
    }
}
