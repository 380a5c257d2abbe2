//! Mutants where there is no queue: writes to registers are lost or bent.
//!
//! Tegra's SMMU: TLB_FLUSH and PTC_FLUSH (Tegra X1 Technical Reference Manual, chapter 17.5).

use super::Mutant;
use super::list::{UNCLEAN, mutants, write};
use crate::backend::BackendName;
use crate::backend::seam::Sabotage;

const UNREAD: Sabotage = Sabotage { unread: Some(tegra::READ_BACK), ..Sabotage::NONE };

mutants! {
    /// Each part that Tegra's driver leaves out, and the scenarios that have to notice.
    TEGRA_MUTANTS:
    ModelTegra210 => {
        // Reading the fault record completes flushes as well.
        "the read that completes", UNREAD => "remapped-goes-to-the-new-page" "random-operations";
        "TLB_FLUSH of groups", write(tegra::without_groups)
            => "unmapped-access-faults" "stale-until-sync" "random-operations";
        "TLB_FLUSH of sections", write(tegra::without_sections)
            => "ranges-are-whole" "block-split-keeps-the-rest";
        "all of a section but its first four pages", write(tegra::first_group_alone)
            => "block-split-keeps-the-rest" "debts-of-one-block";
        "TLB_FLUSH of address spaces", write(tegra::without_spaces) => "identifier-reuse-forgets";
        "the right address space", write(tegra::wrong_space) => "stale-until-sync";
        "the right group", write(tegra::wrong_group) => "stale-until-sync" "ranges-are-whole";
        "PTC_FLUSH of lines", write(tegra::without_lines)
            => "unmapped-access-faults" "stale-until-sync";
        "PTC_FLUSH_HI", write(tegra::without_upper_bits)
            => "unmapped-access-faults" "stale-until-sync";
        "PTC_FLUSH of everything", write(tegra::without_tables) => "identifier-reuse-forgets";
        "the cleaning of lines", UNCLEAN => "mapped-access-succeeds";
    }
    ModelTegra30 => {
        "the right one of four address spaces", write(tegra::wrong_space_of_4)
            => "stale-until-sync";
    }
}

/// Edits.
mod tegra {
    use portolan_spec::tegra_smmu::reg::{PTB_ASID, PTC_FLUSH, PTC_FLUSH_HI, TLB_FLUSH};

    use crate::backend::seam::Arrives;

    /// The register whose read completes the flushes.
    pub const READ_BACK: usize = PTB_ASID;

    fn lost(lost: bool) -> Arrives {
        if lost { Arrives::No } else { Arrives::Yes }
    }

    /// Leaves out flushes of lines of the translation buffer.
    pub fn without_groups(offset: usize, value: u32) -> Arrives {
        lost(offset == TLB_FLUSH && value & 3 == 3)
    }

    /// Leaves out flushes of 4 MiB of the translation buffer.
    pub fn without_sections(offset: usize, value: u32) -> Arrives {
        lost(offset == TLB_FLUSH && value & 3 == 2)
    }

    /// Flushes only the first group of each section.
    pub fn first_group_alone(offset: usize, value: u32) -> Arrives {
        match offset {
            TLB_FLUSH if value & 3 == 2 => Arrives::As(value | 1),
            _ => Arrives::Yes,
        }
    }

    /// Leaves out flushes of an address space.
    pub fn without_spaces(offset: usize, value: u32) -> Arrives {
        lost(offset == TLB_FLUSH && value & 3 == 0 && value >> 31 == 1)
    }

    /// Leaves out flushes of lines of the page-table cache.
    pub fn without_lines(offset: usize, value: u32) -> Arrives {
        lost(offset == PTC_FLUSH && value & 1 == 1)
    }

    /// Leaves out the flush of the whole page-table cache, except the one before translation is turned on.
    pub fn without_tables(offset: usize, value: u32) -> Arrives {
        match (offset, value) {
            (PTC_FLUSH, 0) => Arrives::Once,
            _ => Arrives::Yes,
        }
    }

    /// Lines without the upper bits of their addresses.
    pub fn without_upper_bits(offset: usize, _: u32) -> Arrives {
        lost(offset == PTC_FLUSH_HI)
    }

    /// The next of 128 address spaces instead of this one.
    pub fn wrong_space(offset: usize, value: u32) -> Arrives {
        match offset {
            TLB_FLUSH if value >> 31 == 1 => Arrives::As(value ^ 1 << 24),
            _ => Arrives::Yes,
        }
    }

    /// The next of four.
    pub fn wrong_space_of_4(offset: usize, value: u32) -> Arrives {
        match offset {
            TLB_FLUSH if value >> 31 == 1 => Arrives::As(value ^ 1 << 29),
            _ => Arrives::Yes,
        }
    }

    /// The group before, where four pages begin.
    pub fn wrong_group(offset: usize, value: u32) -> Arrives {
        match offset {
            TLB_FLUSH if value & 3 == 3 => Arrives::As(value ^ 1 << 2),
            _ => Arrives::Yes,
        }
    }
}
