//! AMD-Vi host page tables (version 1, `AmdV1`).
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10: section 2.2.3
//! (I/O page tables for host translations). AMD's level 1 is level 0 here. Each entry names in its
//! next-level field the level of the table or page it points at, so that a table's entry depends on
//! its own level.
//!
//! 4 KiB granule with 2 MiB, 1 GiB and 512 GiB pages; dirty bits (bit 6), which the hardware sets where the
//! device's entry has it do so. Not supported: sizes in between (next level 7), skipped levels, accessed bits
//! (nothing reads them), execute permission (refused), version 2 tables (the x86-64 layout).
//!
//! *Context.* Interrupt: functions of values.

use super::{
    ADDRESS, AmdLevels, BROKEN, DirtyTracking, Entry, Format, SplitRule, absent, data_access,
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
/// Accesses snoop, even if the device says that they do not.
const FORCE_COHERENT: u64 = 1 << 60;
const READ: u64 = 1 << 61;
/// Bits 58:52 of a leaf, and 60:52 of an entry that points at a table.
const LEAF_RESERVED: u64 = 0x7f << 52;
const TABLE_RESERVED: u64 = 0x1ff << 52;
const WRITE: u64 = 1 << 62;

/// AMD-Vi host tables. Read and write permission are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmdV1 {
    /// Number of levels.
    pub levels: AmdLevels,
    /// Width of output addresses, at most 52.
    pub output_lg2: u32,
    /// Dirty bits that are enabled (HAD).
    pub dirty: DirtyTracking,
}

impl AmdV1 {
    /// Without dirty bits.
    ///
    /// *Context.* Interrupt: a value.
    pub const fn new(levels: AmdLevels, output_lg2: u32) -> Self {
        let dirty = DirtyTracking::Off;
        Self { levels, output_lg2, dirty }
    }
}

impl Format for AmdV1 {
    tables_of_512!(0);

    fn page_sizes(&self) -> PageSizes {
        (0..self.levels.count()).fold(PageSizes::default(), |sizes, level| {
            sizes.with(PageSize::of_lg2(12 + 9 * level.min(3)))
        })
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
        let pa = PhysAddr::new(raw & ADDRESS);
        if raw & PRESENT == 0 {
            absent(raw)
        } else if level > 0 && raw & NEXT != 0 && raw & NEXT != OTHER_SIZE {
            Entry::Table(pa)
        } else {
            Entry::Leaf(pa)
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

    /// Skipped levels and sizes in between count: a walk that expects neither would go astray.
    fn is_reserved(&self, raw: u64, level: u32) -> bool {
        match (raw & NEXT) >> NEXT_SHIFT {
            0 => raw & LEAF_RESERVED != 0,
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
        assert_eq!(format.page_sizes().bits(), 1 << 12 | 1 << 21 | 1 << 30 | 1 << 39);
    }
}
