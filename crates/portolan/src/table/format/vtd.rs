//! VT-d second-stage and first-stage tables.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1: sections 9.8 (second
//! stage) and 9.7 (first stage, the x86-64 layout), 3.6 and 3.7. Intel's SS-PTE and FS-PTE level is
//! level 0 here.
//!
//! 4 KiB granule with 2 MiB and 1 GiB pages. Not supported: memory types (EMT), snoop control,
//! execute permission (requests to execute are refused by the format), supervisor pages. First-stage
//! addresses must be canonical: only the lower half of the space is served.

use super::{
    ADDRESS, BROKEN, DirtyTracking, Entry, Format, SplitRule, VtdLevels, absent, data_access,
};
use crate::addr::{PageSize, PageSizes, PhysAddr};
use crate::table::{Access, TableAccessError};

const READ: u64 = 1;
const WRITE: u64 = 1 << 1;
const EXECUTE: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;
const S2_DIRTY: u64 = 1 << 9;

const PRESENT: u64 = 1;
const USER: u64 = 1 << 2;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const S1_DIRTY: u64 = 1 << 6;
/// Part of the memory type in a large page, where others have an address.
const LARGE_PAT: u64 = 1 << 12;

/// Software's mark in entries that point at tables, one of the ignored bits 61:52.
const FILLED: u64 = 1 << 52;

/// Number of levels of first-stage tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VtdFirstLevels {
    /// 48-bit input addresses.
    Four,
    /// 57-bit input addresses.
    Five,
}

impl VtdFirstLevels {
    const fn count(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Five => 5,
        }
    }
}

const fn sizes() -> PageSizes {
    PageSizes::from_bits(0).with(PageSize::SIZE_4K).with(PageSize::SIZE_2M).with(PageSize::SIZE_1G)
}

/// Kind of an entry that is there if it has a bit of `present`, and has its leaf's address in the bits `leaf`.
#[inline]
const fn classify(raw: u64, level: u32, present: u64, leaf: u64) -> Entry {
    if raw & present == 0 {
        absent(raw)
    } else if level > 0 && raw & LARGE == 0 {
        Entry::Table(PhysAddr::new(raw & ADDRESS))
    } else {
        Entry::Leaf(PhysAddr::new(raw & leaf))
    }
}

/// Tells if an entry claims to be a page on a level without pages.
const fn is_large_too_high(raw: u64, level: u32) -> bool {
    level > 2 && raw & LARGE != 0
}

/// Access that a first-stage entry gives a user, which devices are.
fn user_access(raw: u64) -> Access {
    match (raw & USER != 0, raw & WRITE != 0) {
        (false, _) => Access::empty(),
        (true, false) => Access::READ,
        (true, true) => Access::READ_WRITE,
    }
}

macro_rules! common {
    ($dirty:expr, $top:literal) => {
        tables_of_512!($top);

        const FILLED: u64 = FILLED;

        fn page_sizes(&self) -> PageSizes {
            sizes()
        }

        fn demote(raw: u64, level: u32) -> u64 {
            raw & !ADDRESS & if level == 1 { !LARGE } else { !0 }
        }

        fn dirty_tracking(&self) -> DirtyTracking {
            self.dirty
        }

        fn is_dirty(&self, raw: u64) -> bool {
            self.dirty == DirtyTracking::Hardware && raw & $dirty != 0
        }

        fn cleaned(&self, raw: u64) -> u64 {
            raw & !$dirty
        }
    };
}

/// Second-stage tables. Read and write permission are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VtdSecondStage {
    /// Number of levels.
    pub levels: VtdLevels,
    /// Width of output addresses, at most 52.
    pub output_lg2: u32,
    /// Accessed and dirty bits that are enabled (SSADE).
    pub dirty: DirtyTracking,
}

impl VtdSecondStage {
    /// Without accessed and dirty bits.
    ///
    /// *Context.* Interrupt: a value.
    pub const fn new(levels: VtdLevels, output_lg2: u32) -> Self {
        let dirty = DirtyTracking::Off;
        Self { levels, output_lg2, dirty }
    }
}

impl Format for VtdSecondStage {
    common!(S2_DIRTY, 0);

    fn template(&self, access: Access, level: u32) -> Result<u64, TableAccessError> {
        let size = if level > 0 { LARGE } else { 0 };
        Ok(size | data_access(access, READ, WRITE)?)
    }

    #[inline]
    fn table(pa: PhysAddr, _level: u32) -> u64 {
        pa.get() | READ | WRITE
    }

    #[inline]
    fn classify(raw: u64, level: u32) -> Entry {
        classify(raw, level, READ | WRITE | EXECUTE, ADDRESS)
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

    fn is_reserved(&self, raw: u64, level: u32) -> bool {
        is_large_too_high(raw, level)
    }
}

/// First-stage tables: the x86-64 layout. A leaf that can be written can be read as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VtdFirstStage {
    /// Number of levels.
    pub levels: VtdFirstLevels,
    /// Width of output addresses, at most 52.
    pub output_lg2: u32,
    /// Dirty bits that are read.
    pub dirty: DirtyTracking,
}

impl Format for VtdFirstStage {
    common!(S1_DIRTY, 1);

    fn template(&self, access: Access, level: u32) -> Result<u64, TableAccessError> {
        let size = if level > 0 { LARGE } else { 0 };
        let mut raw = PRESENT | USER | ACCESSED | size | data_access(access, 0, WRITE)?;
        if access.contains(Access::DEVICE) {
            raw |= CACHE_DISABLE | WRITE_THROUGH;
        }
        Ok(raw)
    }

    #[inline]
    fn table(pa: PhysAddr, _level: u32) -> u64 {
        pa.get() | PRESENT | WRITE | USER | ACCESSED
    }

    #[inline]
    fn classify(raw: u64, level: u32) -> Entry {
        let leaf = if level > 0 { ADDRESS & !LARGE_PAT } else { ADDRESS };
        classify(raw, level, PRESENT, leaf)
    }

    fn access(&self, raw: u64, _level: u32) -> Access {
        let mut access = user_access(raw);
        access.set(Access::DEVICE, raw & CACHE_DISABLE != 0);
        access
    }

    fn table_access(&self, raw: u64, _level: u32) -> Access {
        user_access(raw)
    }

    fn is_reserved(&self, raw: u64, level: u32) -> bool {
        is_large_too_high(raw, level)
    }
}
