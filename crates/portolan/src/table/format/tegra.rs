//! Tegra SMMU tables: two levels of 32-bit entries.
//!
//! Tegra X1 Technical Reference Manual, section 17.5 (SMMU): 32-bit addresses, a page directory of
//! 1,024 entries that each span 4 MiB, page tables of 1,024 entries of 4 KiB. Tegra30 to Tegra210. A
//! directory entry without its NEXT bit maps its 4 MiB itself: a *section*.
//!
//! Not supported: non-secure attribute choice (always set).

use core::sync::atomic::AtomicU32;

use super::{Entry, Format, SplitRule, data_access};
use crate::addr::{PageSize, PageSizes, PhysAddr};
use crate::table::{Access, TableAccessError};

const READ: u64 = 1 << 31;
const WRITE: u64 = 1 << 30;
const NON_SECURE: u64 = 1 << 29;
const NEXT: u64 = 1 << 28;
const FRAME: u64 = (1 << 22) - 1;
const ATTRIBUTES: u64 = READ | WRITE | NON_SECURE;

/// The two-level format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tegra {
    /// Width of the chip's memory addresses: 34 bits (Tegra124 on) or 32.
    pub memory: TegraMemory,
}

impl Tegra {
    /// Size of the memory that one directory entry maps: a section.
    pub const SECTION: PageSize = PageSize::of_lg2(22);
}

/// Width of memory addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TegraMemory {
    /// Tegra30 and Tegra114.
    Bits32,
    /// Tegra124 to Tegra210.
    #[default]
    Bits34,
}

impl Format for Tegra {
    type Word = AtomicU32;
    const GRANULE: PageSize = PageSize::SIZE_4K;
    const INDEX_LG2: u32 = 10;

    #[inline]
    fn levels(&self) -> u32 {
        2
    }

    #[inline]
    fn input_lg2(&self) -> u32 {
        32
    }

    #[inline]
    fn output_lg2(&self) -> u32 {
        match self.memory {
            TegraMemory::Bits32 => 32,
            TegraMemory::Bits34 => 34,
        }
    }

    fn page_sizes(&self) -> PageSizes {
        PageSizes::default().with(PageSize::SIZE_4K).with(Self::SECTION)
    }

    fn split_rule(&self) -> SplitRule {
        SplitRule::Direct
    }

    fn template(&self, access: Access, _level: u32) -> Result<u64, TableAccessError> {
        Ok(NON_SECURE | data_access(access, READ, WRITE)?)
    }

    #[inline]
    fn leaf(template: u64, pa: PhysAddr) -> u64 {
        template | (pa.get() >> 12)
    }

    #[inline]
    fn table(pa: PhysAddr, _level: u32) -> u64 {
        (pa.get() >> 12) | ATTRIBUTES | NEXT
    }

    fn demote(raw: u64, _level: u32) -> u64 {
        raw & !FRAME
    }

    fn broken(_pa: PhysAddr) -> u64 {
        0
    }

    #[inline]
    fn classify(raw: u64, level: u32) -> Entry {
        let pa = PhysAddr::new((raw & FRAME) << 12);
        if raw & (READ | WRITE) == 0 {
            Entry::Empty
        } else if level > 0 && raw & NEXT != 0 {
            Entry::Table(pa)
        } else {
            Entry::Leaf(pa)
        }
    }

    fn access(&self, raw: u64, _level: u32) -> Access {
        let mut access = Access::empty();
        access.set(Access::READ, raw & READ != 0);
        access.set(Access::WRITE, raw & WRITE != 0);
        access
    }

    fn table_access(&self, raw: u64, level: u32) -> Access {
        self.access(raw, level)
    }

    /// Nothing is.
    fn is_reserved(&self, _raw: u64, _level: u32) -> bool {
        false
    }

    #[inline]
    fn link(pa: PhysAddr) -> u64 {
        pa.get() >> 12
    }

    #[inline]
    fn unlink(raw: u64) -> PhysAddr {
        PhysAddr::new(raw << 12)
    }
}
