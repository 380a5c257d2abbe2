//! Table formats: data and a few inlined functions each; the walker is elsewhere and knows none.
//!
//! A format names its levels from the leaf up: level 0 holds the smallest pages. Beside the bits
//! that the hardware reads, an entry that points at a leaf table may say in an ignored bit that all
//! entries there are in use, and an entry that the hardware takes for empty may remember the table
//! page of a *broken* block, one that is being split.
//!
//! *Context.* Interrupt: functions of values.

/// Common items of formats of 64-bit entries whose tables of 4 KiB hold 512 of them, with addresses
/// in bits 51:12: `$top` is the number of bits of the widest input address that are not served.
macro_rules! tables_of_512 {
    ($top:literal) => {
        type Word = core::sync::atomic::AtomicU64;
        const GRANULE: PageSize = PageSize::SIZE_4K;
        const INDEX_LG2: u32 = 9;

        #[inline]
        fn levels(&self) -> u32 {
            self.levels.count()
        }

        #[inline]
        fn input_lg2(&self) -> u32 {
            12 + 9 * self.levels.count() - $top
        }

        #[inline]
        fn output_lg2(&self) -> u32 {
            self.output_lg2.min(52)
        }

        fn split_rule(&self) -> SplitRule {
            SplitRule::Direct
        }

        const LEAF_STEP: u64 = 1 << 12;

        #[inline]
        fn leaf(template: u64, pa: PhysAddr) -> u64 {
            template | pa.get()
        }

        #[inline]
        fn broken(pa: PhysAddr) -> u64 {
            pa.get() | BROKEN
        }
    };
}

mod amd;
mod armv8;
mod riscv;
mod tegra;
mod vtd;

pub use amd::{AmdSizes, AmdV1};
pub use armv8::{Armv8Config, Armv8ConfigError, Armv8Stage1, Armv8Stage2};
pub use riscv::{Riscv, RiscvContiguity, RiscvFirstStage, RiscvMemoryTypes, RiscvSecondStage};
pub use tegra::{Tegra, TegraMemory};
pub use vtd::{VtdFirstLevels, VtdFirstStage, VtdSecondStage};

/// AMD-Vi guest tables (version 2): the x86-64 layout, as VT-d's first stage has it.
pub type AmdV2 = VtdFirstStage;
/// Number of levels of AMD-Vi's guest tables.
pub type AmdV2Levels = VtdFirstLevels;
/// Number of levels: the paging mode of an AMD-Vi device-table entry.
pub type AmdLevels = Levels;
/// Number of levels of RISC-V's tables: Sv39, Sv48 and Sv57.
pub type RiscvLevels = Levels;
/// Number of levels of VT-d's second-stage tables.
pub type VtdLevels = Levels;

use super::{Access, TableAccessError};
use crate::addr::{PageSize, PageSizes, PhysAddr};
use crate::platform::Word;

/// Address bits of formats with tables of 512 entries.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Their software mark in entries that are not present.
const BROKEN: u64 = 1 << 10;

/// Number of levels of tables of 512 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    /// 39-bit input addresses (RISC-V: 38 in the lower half, 41 in a second stage).
    Three,
    /// 48-bit input addresses (RISC-V: 47, 50).
    Four,
    /// 57-bit input addresses (RISC-V: 56, 59).
    Five,
}

impl Levels {
    /// The number.
    pub const fn count(self) -> u32 {
        match self {
            Self::Three => 3,
            Self::Four => 4,
            Self::Five => 5,
        }
    }
}

/// Meaning of an entry of theirs that is not present.
#[inline]
const fn absent(raw: u64) -> Entry {
    match raw & BROKEN {
        0 => Entry::Empty,
        _ => Entry::Broken(PhysAddr::new(raw & ADDRESS)),
    }
}

/// The bits of `read` and `write` that `access` asks for, in a format that grants nothing else.
fn data_access(access: Access, read: u64, write: u64) -> Result<u64, TableAccessError> {
    let wanted = access.intersection(Access::READ.union(Access::WRITE));
    if wanted.is_empty() || access.contains(Access::EXECUTE) {
        return Err(TableAccessError { access });
    }
    let bit = |flag, bit| if access.contains(flag) { bit } else { 0 };
    Ok(bit(Access::READ, read) | bit(Access::WRITE, write))
}

/// Meaning of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing.
    Empty,
    /// Nothing for the hardware; software holds the table that will replace a broken block.
    Broken(PhysAddr),
    /// The next table.
    Table(PhysAddr),
    /// A translation; of one in a cluster, where that leads.
    Leaf(PhysAddr),
}

/// Way in which a block may be replaced by a table that translates the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitRule {
    /// In one write.
    Direct,
    /// Through an invalid entry and an invalidation.
    BreakBeforeMake,
}

/// Marking by the hardware of leaves that were written through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DirtyTracking {
    /// The hardware marks none.
    #[default]
    Off,
    /// The hardware marks them.
    Hardware,
}

/// One layout of page tables.
pub trait Format: Copy + Send + Sync + core::fmt::Debug + 'static {
    /// Width of an entry.
    type Word: Word;
    /// Size of a table, and the smallest page.
    const GRANULE: PageSize;
    /// Exponent of the number of entries of a table.
    const INDEX_LG2: u32;
    /// Size of the root, at least that of a table. A root that is larger has more entries, and three levels
    /// at least.
    const ROOT: PageSize = Self::GRANULE;
    /// Ignored bit of an entry that points at a leaf table, for software's mark that all entries there
    /// are in use; 0 where there is none. An unmap of marked tables does not look into them.
    const FILLED: u64 = 0;
    /// Exponent of the number of leaves of one table, aligned and in a row, that can at most be one
    /// larger page together (a *cluster*), each saying so; 0 where none can. The sizes of leaves tell
    /// which clusters there are.
    const CLUSTER_LG2: u32 = 0;

    /// Number of levels, at least 2.
    fn levels(&self) -> u32;
    /// Width of input addresses in bits, at most 63.
    fn input_lg2(&self) -> u32;
    /// Width of output addresses in bits.
    fn output_lg2(&self) -> u32;
    /// The sizes of leaves.
    fn page_sizes(&self) -> PageSizes;
    /// Way in which blocks are split.
    fn split_rule(&self) -> SplitRule;
    /// Dirty bits that are kept.
    fn dirty_tracking(&self) -> DirtyTracking {
        DirtyTracking::Off
    }

    /// A leaf entry of `level` with everything but its address.
    ///
    /// # Errors
    /// If the format cannot express `access`.
    fn template(&self, access: Access, level: u32) -> Result<u64, TableAccessError>;
    /// The leaf entry for `pa`.
    fn leaf(template: u64, pa: PhysAddr) -> u64;
    /// Difference of the leaves of two granules that follow each other in memory; 0 if it is not the
    /// same everywhere.
    const LEAF_STEP: u64 = 0;
    /// The entry of `level` that points at the table `pa`, without the mark [`Format::FILLED`].
    fn table(pa: PhysAddr, level: u32) -> u64;
    /// Value that [`Format::template`] would have for a leaf one level below the leaf `raw` of
    /// `level`.
    fn demote(raw: u64, level: u32) -> u64;
    /// The entry that holds the table `pa` of a block being split; empty for the hardware.
    fn broken(pa: PhysAddr) -> u64;
    /// Meaning of `raw` at `level`.
    fn classify(raw: u64, level: u32) -> Entry;
    /// Access that a leaf by itself gives a device, by accesses that are not privileged.
    fn access(&self, raw: u64, level: u32) -> Access;
    /// Access that the table entry `raw` of `level` lets through: no leaf below allows anything
    /// else.
    fn table_access(&self, raw: u64, level: u32) -> Access;
    /// Tells if an entry that is present has a reserved or forbidden encoding at `level`, so that
    /// hardware refuses it. Rules that depend on sizes and widths, alignment included, are not
    /// checked.
    fn is_reserved(&self, raw: u64, level: u32) -> bool;
    /// Tells if a leaf was written through since it was last cleaned.
    fn is_dirty(&self, _raw: u64) -> bool {
        false
    }
    /// The leaf, as not written through.
    fn cleaned(&self, raw: u64) -> u64 {
        raw
    }

    /// Exponent of the page that the leaf `raw` of `level` is, or is a part of.
    #[inline]
    fn leaf_lg2(_raw: u64, level: u32) -> u32 {
        span_lg2::<Self>(level)
    }
    /// Value of each leaf of a cluster of `1 << lg2` bytes whose first one is `first` as long as it
    /// stands by itself; `None` if no cluster of that size can begin with it.
    #[inline]
    fn joined(_first: u64, _lg2: u32) -> Option<u64> {
        None
    }
    /// Value of leaf `part` of a cluster in a table of `level` by itself, if `raw` is the value of
    /// each of them.
    #[inline]
    fn parted(raw: u64, _level: u32, _part: u64) -> u64 {
        raw
    }

    /// A word that links detached tables; empty for the hardware, and never 0 for a real page.
    #[inline]
    fn link(pa: PhysAddr) -> u64 {
        pa.get()
    }

    /// The address in a linking word.
    #[inline]
    fn unlink(raw: u64) -> PhysAddr {
        PhysAddr::new(raw)
    }
}

/// Exponent of the size that one entry of `level` spans.
#[inline]
pub const fn span_lg2<F: Format>(level: u32) -> u32 {
    F::GRANULE.lg2() + level * F::INDEX_LG2
}

#[cfg(test)]
mod tests;
