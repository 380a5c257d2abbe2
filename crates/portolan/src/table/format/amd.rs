//! AMD-Vi host page tables (version 1, `AmdV1`).
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10: section 2.2.3
//! (I/O page tables for host translations). AMD's level 1 is level 0 here. Each entry names in its
//! next-level field the level of the table or page it points at, so that a table's entry depends on
//! its own level.
//!
//! 4 KiB granule with 2 MiB and 1 GiB pages, and where [`AmdSizes::Between`] asks for them all powers of two from
//! 8 KiB to 256 GiB between (next level 7, the size in the address bits), as clusters of up to 256 entries; dirty
//! bits (bit 6), which the hardware sets where the device's entry has it do so.
//!
//! Not supported: sizes between where the hardware keeps dirty bits, of which it may set any of a page's; pages of
//! 512 GiB, which hardware has an erratum for; skipped levels, accessed bits (nothing reads them), execute
//! permission (refused), version 2 tables (the x86-64 layout).
//!
//! *Context.* Interrupt: functions of values.

use super::{
    ADDRESS, AmdLevels, BROKEN, DirtyTracking, Entry, Format, SplitRule, absent, data_access,
    span_lg2,
};
use crate::addr::{PageSize, PageSizes, PhysAddr};
use crate::table::{Access, TableAccessError};

const PRESENT: u64 = 1;
const DIRTY: u64 = 1 << 6;
/// The next-level field, bits 11:9; zero in a leaf.
const NEXT_SHIFT: u32 = 9;
const NEXT: u64 = 7 << NEXT_SHIFT;
/// The next level of a leaf whose size is in its address bits.
const OTHER_SIZE: u64 = 7 << NEXT_SHIFT;
/// Exponent of the smallest page that is not made.
const TOP_LG2: u32 = 39;
/// Accesses snoop, even if the device says that they do not.
const FORCE_COHERENT: u64 = 1 << 60;
const READ: u64 = 1 << 61;
/// Bits 58:52 of a leaf, and 60:52 of an entry that points at a table.
const LEAF_RESERVED: u64 = 0x7f << 52;
const TABLE_RESERVED: u64 = 0x1ff << 52;
const WRITE: u64 = 1 << 62;

/// Sizes of leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AmdSizes {
    /// Those of the levels.
    #[default]
    Levels,
    /// Powers of two between as well, unless the hardware keeps dirty bits.
    Between,
}

/// AMD-Vi host tables. Read and write permission are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmdV1 {
    /// Number of levels.
    pub levels: AmdLevels,
    /// Width of output addresses, at most 52.
    pub output_lg2: u32,
    /// Dirty bits that are enabled (HAD).
    pub dirty: DirtyTracking,
    /// Sizes of leaves.
    pub sizes: AmdSizes,
}

impl AmdV1 {
    /// Without dirty bits, with leaves of the levels' sizes.
    ///
    /// *Context.* Interrupt: a value.
    pub const fn new(levels: AmdLevels, output_lg2: u32) -> Self {
        let dirty = DirtyTracking::Off;
        Self { levels, output_lg2, dirty, sizes: AmdSizes::Levels }
    }

    /// Tells if leaves may be of sizes between those of the levels.
    const fn knows_between(&self) -> bool {
        matches!((self.sizes, self.dirty), (AmdSizes::Between, DirtyTracking::Off))
    }
}

/// Exponent of the page of a leaf whose size is in its address bits: the lowest bit that is clear is one below it.
const fn told_lg2(raw: u64) -> u32 {
    (raw & ADDRESS | !ADDRESS & 0xfff).trailing_ones() + 1
}

/// Address to which a leaf leads; one of several of a page, where all of them do.
const fn leads_to(raw: u64) -> u64 {
    match raw & NEXT {
        OTHER_SIZE => raw & ADDRESS & !((1 << told_lg2(raw)) - 1),
        _ => raw & ADDRESS,
    }
}

impl Format for AmdV1 {
    const CLUSTER_LG2: u32 = 8;

    tables_of_512!(0);

    fn page_sizes(&self) -> PageSizes {
        let all = (12..TOP_LG2.min(12 + 9 * self.levels.count())).map(PageSize::of_lg2);
        all.filter(|size| size.lg2() % 9 == 3 || self.knows_between())
            .fold(PageSizes::default(), PageSizes::with)
    }

    fn template(&self, access: Access, _level: u32) -> Result<u64, TableAccessError> {
        let mut raw = PRESENT | data_access(access, READ, WRITE)?;
        if !access.contains(Access::DEVICE) {
            raw |= FORCE_COHERENT;
        }
        Ok(raw)
    }

    #[inline]
    fn table(pa: PhysAddr, level: u32) -> u64 {
        let next = (u64::from(level) << NEXT_SHIFT) & NEXT;
        pa.get() | next | PRESENT | READ | WRITE
    }

    fn demote(raw: u64, _level: u32) -> u64 {
        raw & !ADDRESS
    }

    #[inline]
    fn classify(raw: u64, level: u32) -> Entry {
        if raw & PRESENT == 0 {
            absent(raw)
        } else if level > 0 && raw & NEXT != 0 && raw & NEXT != OTHER_SIZE {
            Entry::Table(PhysAddr::new(raw & ADDRESS))
        } else {
            Entry::Leaf(PhysAddr::new(leads_to(raw)))
        }
    }

    fn access(&self, raw: u64, _level: u32) -> Access {
        let mut access = Access::empty();
        access.set(Access::READ, raw & READ != 0);
        access.set(Access::WRITE, raw & WRITE != 0);
        access.set(Access::DEVICE, raw & FORCE_COHERENT == 0);
        access
    }

    fn table_access(&self, raw: u64, level: u32) -> Access {
        self.access(raw, level).difference(Access::DEVICE)
    }

    fn dirty_tracking(&self) -> DirtyTracking {
        self.dirty
    }

    fn is_dirty(&self, raw: u64) -> bool {
        self.dirty == DirtyTracking::Hardware && raw & DIRTY != 0
    }

    fn cleaned(&self, raw: u64) -> u64 {
        raw & !DIRTY
    }

    #[inline]
    fn leaf_lg2(raw: u64, level: u32) -> u32 {
        match raw & NEXT {
            OTHER_SIZE => told_lg2(raw),
            _ => span_lg2::<Self>(level),
        }
    }

    #[inline]
    fn joined(first: u64, lg2: u32) -> Option<u64> {
        let told = (1 << (lg2 - 1)) - (1 << 12);
        let begins = first & PRESENT != 0 && first & (NEXT | told | 1 << (lg2 - 1)) == 0;
        begins.then_some(first | OTHER_SIZE | told)
    }

    #[inline]
    fn parted(raw: u64, level: u32, part: u64) -> u64 {
        raw & !(ADDRESS | NEXT) | leads_to(raw) | part << span_lg2::<Self>(level)
    }

    /// Skipped levels count, and sizes that have no place at `level`: a walk that expects neither would go astray.
    fn is_reserved(&self, raw: u64, level: u32) -> bool {
        match (raw & NEXT) >> NEXT_SHIFT {
            0 => raw & LEAF_RESERVED != 0,
            7 => {
                let more = told_lg2(raw).wrapping_sub(span_lg2::<Self>(level));
                let fits = more > 0 && more <= Self::CLUSTER_LG2 && self.knows_between();
                !fits || raw & LEAF_RESERVED != 0
            }
            next => u64::from(level) != next || raw & TABLE_RESERVED != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_by_hand() {
        let pa = PhysAddr::new(0x12_3456_7000);
        // A page directory pointer table of level 3 is pointed at from level 4.
        assert_eq!(AmdV1::table(pa, 3), 0x6000_0012_3456_7601);
        assert_eq!(AmdV1::table(pa, 1), 0x6000_0012_3456_7201);
        let format = AmdV1::new(AmdLevels::Four, 48);
        let read = format.template(Access::READ, 0).unwrap();
        assert_eq!(AmdV1::leaf(read, pa), 0x3000_0012_3456_7001);
        let both = Access::READ | Access::WRITE | Access::DEVICE;
        let both = format.template(both, 1).unwrap();
        let block = AmdV1::leaf(both, PhysAddr::new(0x4000_0000));
        assert_eq!(block, 0x6000_0000_4000_0001);
        assert_eq!(AmdV1::classify(block, 1), Entry::Leaf(PhysAddr::new(0x4000_0000)));
        assert_eq!(AmdV1::classify(AmdV1::table(pa, 1), 1), Entry::Table(pa));
        assert_eq!(AmdV1::classify(AmdV1::broken(pa), 1), Entry::Broken(pa));
        assert_eq!(AmdV1::demote(block, 1), both);
        // D, and A beside it, as the hardware sets them.
        let marking = AmdV1 { dirty: DirtyTracking::Hardware, ..format };
        assert!(marking.is_dirty(0x6000_0000_4000_0061) && !format.is_dirty(0x6000_0000_4000_0061));
        assert!(!marking.is_dirty(0x6000_0000_4000_0021));
        assert_eq!(marking.cleaned(0x6000_0000_4000_0061), 0x6000_0000_4000_0021);
        assert_eq!(format.input_lg2(), 48);
        assert_eq!(format.page_sizes().bits(), 1 << 12 | 1 << 21 | 1 << 30);
    }

    /// By hand, from table 14 (example page size encodings): next level 7, and as many ones from bit 12 on as the page
    /// has more than one bit of address above 12.
    #[test]
    fn sizes_between_by_hand() {
        let leaf = |pa| AmdV1::leaf(0x3000_0000_0000_0001, PhysAddr::new(pa));
        let at = |pa| Entry::Leaf(PhysAddr::new(pa));
        // 8 KiB: bit 12 is clear; 16 KiB: bit 12 is set, and 13 clear; 1 MiB: 18 to 12 are set.
        let words = [
            (0x12_3456_6000, 13, 0x3000_0012_3456_6e01),
            (0x12_3456_4000, 14, 0x3000_0012_3456_5e01),
            (0x12_3450_0000, 20, 0x3000_0012_3457_fe01),
        ];
        for (pa, lg2, joined) in words {
            assert_eq!(AmdV1::joined(leaf(pa), lg2), Some(joined));
            assert_eq!((AmdV1::leaf_lg2(joined, 0), AmdV1::classify(joined, 0)), (lg2, at(pa)));
            let last = (1 << (lg2 - 12)) - 1;
            assert_eq!(AmdV1::parted(joined, 0, last), leaf(pa + (last << 12)));
        }
        // 4 MiB, two entries of 2 MiB: bits 20 to 12 are set.
        let joined = AmdV1::joined(leaf(0x12_3440_0000), 22).unwrap();
        assert_eq!(joined, 0x3000_0012_345f_fe01);
        assert_eq!(AmdV1::parted(joined, 1, 1), leaf(0x12_3460_0000));
        let refused = [(0x12_3456_7000, 13), (0x12_3456_6000, 14), (0x12_3448_0000, 20)];
        assert!(refused.iter().all(|&(pa, lg2)| AmdV1::joined(leaf(pa), lg2).is_none()));
        // Neither what is empty nor what points at a table is a leaf that can be joined.
        assert_eq!(AmdV1::joined(0, 22), None);
        assert_eq!(AmdV1::joined(AmdV1::table(PhysAddr::new(0), 1), 22), None);
        let between = AmdV1 { sizes: AmdSizes::Between, ..AmdV1::new(AmdLevels::Four, 48) };
        // A size has one level, and no level has 2 MiB as a size between.
        assert!(!between.is_reserved(joined, 1) && between.is_reserved(joined, 0));
        assert!(!between.is_reserved(words[0].2, 0) && between.is_reserved(words[0].2, 1));
        assert!([0, 1].iter().all(|&level| between.is_reserved(0x3000_0012_344f_fe01, level)));
        assert!(between.is_reserved(words[0].2 | 1 << 52, 0));
        assert!(AmdV1::new(AmdLevels::Four, 48).is_reserved(words[0].2, 0));
        let marking = AmdV1 { dirty: DirtyTracking::Hardware, ..between };
        assert!(marking.is_reserved(words[0].2, 0));
        assert_eq!(marking.page_sizes().bits(), 1 << 12 | 1 << 21 | 1 << 30);
        assert_eq!(between.page_sizes().bits(), (1 << 39) - (1 << 12));
        let three = AmdV1 { levels: AmdLevels::Three, ..between };
        assert_eq!(three.page_sizes().bits(), (1 << 39) - (1 << 12));
    }
}
