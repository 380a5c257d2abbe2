//! All mutants.

use portolan_spec::smmuv3::command::op::{
    ATC_INV, CFGI_CD, CFGI_STE, PRI_RESP, RESUME, SYNC, TLBI_NH_ALL, TLBI_NH_ASID, TLBI_NH_VA,
    TLBI_S2_IPA, TLBI_S12_VMALL,
};

use portolan_chips::memory::PairStores;

use super::Mutant;
use super::edits::{intel, smmuv3};
use crate::backend::BackendName;
use crate::backend::seam::{Arrives, Cleans, Sabotage, Words};

pub(super) const fn commands(edit: fn(&mut [Words])) -> Sabotage {
    Sabotage::of_commands(edit)
}

const fn again(again: fn(&mut [Words])) -> Sabotage {
    Sabotage { again, ..Sabotage::NONE }
}

pub(super) const fn read(read: fn(usize, u32) -> u32) -> Sabotage {
    Sabotage { read, ..Sabotage::NONE }
}

pub(super) const fn write(write: fn(usize, u32) -> Arrives) -> Sabotage {
    Sabotage { write, ..Sabotage::NONE }
}

pub(super) const UNCLEAN: Sabotage = Sabotage { cleans: Cleans::Lost, ..Sabotage::NONE };
/// Both words of a pair are stored, one behind the other.
pub(super) const TORN: Sabotage = Sabotage { pairs: PairStores::Torn, ..Sabotage::NONE };

/// Declares a list of mutants by the backends that they run on: the part that is left out, its sabotage,
/// and the scenarios that have to fail.
macro_rules! mutants {
    ($(#[$doc:meta])* $list:ident: $($ground:ident => {
        $($without:literal, $sabotage:expr => $($noticed:literal)+;)+
    })+) => {
        $(#[$doc])*
        pub const $list: &[Mutant] = &[$($(Mutant {
            without: $without,
            ground: BackendName::$ground,
            sabotage: $sabotage,
            noticed_by: &[$($noticed),+],
        },)+)+];
    };
}
pub(super) use mutants;

mutants! {
    /// Each part that is left out, and the scenarios that have to notice.
    MUTANTS:
    ModelSmmuv3 => {
        "the sync", commands(smmuv3::without::<SYNC>)
            => "unmapped-access-faults" "stale-until-sync" "attach-block-attach";
        "TLBI_NH_VA", commands(smmuv3::without::<TLBI_NH_VA>)
            => "unmapped-access-faults" "stale-until-sync" "tables-shared-by-requests"
               "tables-shared-by-stalls" "migration-under-load-ends-equal" "random-operations"
               "sleep-keeps-mappings";
        "the first of several TLBI_NH_VA", commands(smmuv3::without_first)
            => "one-sync-pays-for-all";
        "the last of several TLBI_NH_VA", commands(smmuv3::without_last) => "one-sync-pays-for-all";
        "TLBI_NH_ASID", commands(smmuv3::without::<TLBI_NH_ASID>) => "identifier-reuse-forgets";
        "CFGI_STE", commands(smmuv3::without::<CFGI_STE>)
            => "attach-block-attach" "pass-through-to-paging";
        "CFGI_CD", commands(smmuv3::without::<CFGI_CD>) => "pasid-moves";
        "the end of each range", commands(smmuv3::short_ranges) => "ranges-are-whole";
        "the right ASID", commands(smmuv3::wrong_asid) => "stale-until-sync";
        "walk caches, where tables were freed", commands(smmuv3::leaves_only)
            => "freed-tables-are-forgotten";
        "blocks: leaves of the last level alone", commands(smmuv3::last_level)
            => "block-split-keeps-the-rest" "blocks-among-pages";
        "the right granule of ranges", commands(smmuv3::wrong_granule) => "ranges-are-whole";
        "the sync that follows TLBI_NH_VA", commands(smmuv3::without_sync_of::<TLBI_NH_VA>)
            => "requests-are-brought-in";
        "break before make", read(smmuv3::claims_bbml2) => "block-split-keeps-the-rest";
        "ATC_INV", commands(smmuv3::without::<ATC_INV>)
            => "requests-are-brought-in" "tables-shared-by-requests";
        "ATC_INV of a stream that moves", commands(smmuv3::without_moved_devices)
            => "moved-devices-forget" "refused-moves-of-keepers";
        "the sync between CFGI_STE and ATC_INV", commands(smmuv3::without_sync_of::<CFGI_STE>)
            => "moved-devices-forget";
        "CFGI_STE in the second attempt at a move", again(smmuv3::without::<CFGI_STE>)
            => "refused-moves-are-repeated";
        "PRI_RESP", commands(smmuv3::without::<PRI_RESP>)
            => "requests-are-brought-in" "requests-are-refused" "detach-answers-requests"
               "misbehaving-requests";
        "RESUME", commands(smmuv3::without::<RESUME>)
            => "stalls-are-brought-in" "stalls-are-refused" "detach-answers-stalls"
               "stall-room-overflows";
        "the end of refused stalls", commands(smmuv3::always_retried) => "stalls-are-refused";
        "the queue's address after sleep", write(smmuv3::queue_once) => "sleep-keeps-mappings";
        "the stream table after sleep", write(smmuv3::streams_once) => "sleep-keeps-mappings";
        "what a former kernel's unit has cached", commands(smmuv3::without_everything)
            => "next-kernel-hits-nothing-old";
        "translation, while the queue changes hands", write(smmuv3::without_translation)
            => "handed-over-at-work";
    }
    ModelSmmuv3Mmu700 => {
        "a sync after every 62 commands", commands(smmuv3::without_early_syncs)
            => "long-debts-are-paid";
    }
    ModelSmmuv3NotCoherent => {
        "the cleaning of lines", UNCLEAN => "mapped-access-succeeds";
    }
    ModelSmmuv3Stage2 => {
        "the sync", commands(smmuv3::without::<SYNC>) => "stale-until-sync";
        "TLBI_S2_IPA", commands(smmuv3::without::<TLBI_S2_IPA>)
            => "unmapped-access-faults" "stale-until-sync";
        "ATC_INV of a stream that moves", commands(smmuv3::without_moved_devices)
            => "moved-devices-forget";
        "CFGI_STE in the second attempt at a move", again(smmuv3::without::<CFGI_STE>)
            => "refused-moves-are-repeated";
        "TLBI_S12_VMALL", commands(smmuv3::without::<TLBI_S12_VMALL>) => "identifier-reuse-forgets";
        "the end of each range", commands(smmuv3::short_ranges) => "ranges-are-whole";
        "walk caches, where tables were freed", commands(smmuv3::leaves_only)
            => "freed-tables-are-forgotten";
        "blocks: leaves of the last level alone", commands(smmuv3::last_level)
            => "block-split-keeps-the-rest" "blocks-among-pages";
    }
    ModelSmmuv3Nested => {
        "TLBI_NH_ALL after TLBI_S2_IPA", commands(smmuv3::without::<TLBI_NH_ALL>)
            => "unmapped-access-faults" "stale-until-sync";
        "the sync between TLBI_S2_IPA and TLBI_NH_ALL",
            commands(smmuv3::without_sync_of::<TLBI_S2_IPA>) => "unmapped-access-faults" "stale-until-sync";
    }
    ModelVtd => {
        "the wait", commands(intel::without_wait)
            => "unmapped-access-faults" "stale-until-sync" "attach-block-attach";
        "IOTLB invalidations by page", commands(intel::without_pages)
            => "unmapped-access-faults" "stale-until-sync";
        "IOTLB invalidations by domain", commands(intel::without_domain)
            => "identifier-reuse-forgets";
        "invalidations of interrupt entries by index", commands(intel::without_interrupt_entries)
            => "remapped-interrupts-arrive" "freed-interrupts-are-refused"
               "posted-interrupts-are-pending";
        "the right interrupt entries", commands(intel::wrong_interrupt_entries)
            => "remapped-interrupts-arrive" "freed-interrupts-are-refused";
        "context-cache invalidations", commands(intel::without_context)
            => "attach-block-attach" "pass-through-to-paging";
        "context-cache invalidations in the second attempt at a move", again(intel::without_context)
            => "refused-moves-are-repeated";
        "the first of several by page", commands(intel::without_first) => "one-sync-pays-for-all";
        "the last of several by page", commands(intel::without_last) => "one-sync-pays-for-all";
        "half of each range", commands(intel::short_ranges) => "ranges-are-whole";
        "the right domain", commands(intel::wrong_domain) => "stale-until-sync";
        "walk caches, where tables were freed", commands(intel::leaves_only)
            => "freed-tables-are-forgotten";
        "masks as large as blocks", commands(intel::masks_below_blocks)
            => "block-split-keeps-the-rest" "debts-of-one-block" "blocks-among-pages";
        "the queue's address after sleep", write(intel::queue_once) => "sleep-keeps-mappings";
        "the root table after sleep", write(intel::root_once) => "sleep-keeps-mappings";
        "the interrupt table after sleep", write(intel::interrupts_once)
            => "sleep-keeps-interrupts";
        "what a former kernel's unit has cached", commands(intel::without_everything)
            => "next-kernel-hits-nothing-old";
        "translation, while the queue changes hands", write(intel::without_translation)
            => "handed-over-at-work";
    }
    ModelVtdScalable => {
        "both words of an interrupt's entry at once", TORN => "posted-interrupts-are-pending";
        "masks as large as blocks", commands(intel::masks_below_blocks)
            => "block-split-keeps-the-rest" "blocks-among-pages";
        "the wait", commands(intel::without_wait) => "stale-until-sync";
        "PASID-cache invalidations", commands(intel::without_pasid_entries)
            => "attach-block-attach" "pasid-moves";
        "IOTLB invalidations by page", commands(intel::without_pages)
            => "stale-until-sync" "migration-under-load-ends-equal" "sleep-keeps-mappings";
        "device-TLB invalidations", commands(intel::without_devices) => "requests-are-brought-in";
        "device-TLB invalidations of a stream that moves", commands(intel::without_moved_devices)
            => "moved-devices-forget" "refused-moves-of-keepers";
        "page-group responses", commands(intel::without_responses)
            => "requests-are-brought-in" "requests-are-refused" "detach-answers-requests"
               "misbehaving-requests";
    }
    ModelVtdCachingMode => {
        "invalidations after a map (caching mode)", read(intel::without_caching_mode)
            => "random-operations";
    }
    ModelVtdWriteBuffer => {
        "write-buffer flushes", write(intel::without_flush) => "mapped-access-succeeds";
    }
    ModelVtdNotCoherent => {
        "the cleaning of lines", UNCLEAN => "mapped-access-succeeds";
    }
    ModelVtdRegisters => {
        "IOTLB invalidations through registers", write(intel::without_register_pages)
            => "stale-until-sync";
    }
    ModelVtdFirstStage => {
        "PASID-based invalidations by page", commands(intel::without_pages) => "stale-until-sync";
        "walk caches, where tables were freed", commands(intel::leaves_only)
            => "freed-tables-are-forgotten";
        "masks as large as blocks", commands(intel::masks_below_blocks)
            => "block-split-keeps-the-rest" "blocks-among-pages";
        "PASID-based invalidations of all", commands(intel::without_pasid_translations)
            => "one-sync-pays-for-all";
        "PASID-cache invalidations", commands(intel::without_pasid_entries)
            => "attach-block-attach" "pasid-moves";
    }
    QemuSmmuv3 => {
        "TLBI_NH_VA", commands(smmuv3::without::<TLBI_NH_VA>)
            => "unmapped-access-faults" "stale-until-sync";
        "CFGI_STE", commands(smmuv3::without::<CFGI_STE>) => "pass-through-to-paging";
        "the right ASID", commands(smmuv3::wrong_asid) => "stale-until-sync";
    }
    QemuVtd => {
        "IOTLB invalidations by page", commands(intel::without_pages)
            => "unmapped-access-faults" "stale-until-sync";
        "context-cache invalidations", commands(intel::without_context) => "pass-through-to-paging";
    }
    QemuVtdScalable => {
        "IOTLB invalidations by page", commands(intel::without_pages)
            => "unmapped-access-faults" "stale-until-sync";
    }
}
