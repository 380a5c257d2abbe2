//! RISC-V page tables: Sv39, Sv48 and Sv57, and the x4 second stages.
//!
//! The RISC-V Instruction Set Manual, Volume II (privileged architecture), version 20240411: the sections on Sv39,
//! Sv48 and Sv57, on guest physical addresses (the x4 modes), and the chapters on Svnapot, Svpbmt and Svadu; the
//! RISC-V IOMMU Architecture Specification, version 1.0: sections 2.1.3 (`iohgatp` and `fsc`), 2.3 (translation) and
//! "IOMMU capabilities" (Svnapot is required of every unit, and has no bit).
//!
//! 4 KiB granule with leaves of 4 KiB, 2 MiB, 1 GiB and 512 GiB; with Svnapot also of 64 KiB, as clusters of sixteen
//! entries. A second stage has a root of four pages in a row, and takes two bits of address more. First-stage
//! addresses are sign-extended: only the lower half of the space is served.
//!
//! Not supported: Sv32; leaves of 256 TiB, which no memory fills; leaves of 64 KiB where the hardware keeps dirty
//! bits, of which it may set any of sixteen; global and supervisor pages; memory types beside that of I/O.
//!
//! *Context.* Interrupt: functions of values.

use super::{DirtyTracking, Entry, Format, RiscvLevels, SplitRule};
use crate::addr::{PageSize, PageSizes, PhysAddr};
use crate::table::{Access, TableAccessError};

const VALID: u64 = 1;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXECUTE: u64 = 1 << 3;
/// An IOMMU treats accesses as a user's where the request names no privilege, and in second stages always.
const USER: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 6;
const DIRTY: u64 = 1 << 7;
/// The page's number, bits 53:10.
const NUMBER_SHIFT: u32 = 10;
const NUMBER: u64 = ((1 << 44) - 1) << NUMBER_SHIFT;
/// Of a leaf, bits 60:54; of an entry that points at a table, U, G, A, D and all above the number.
const LEAF_RESERVED: u64 = 0x7f << 54;
const TABLE_RESERVED: u64 = 0x3ff << 54 | 0xf << 4;
/// The mark of Svnapot: one of sixteen leaves, in the low four bits of whose number is this pattern.
const NAPOT: u64 = 1 << 63;
const NAPOT_LG2: u32 = 4;
const NAPOT_BITS: u64 = ((1 << NAPOT_LG2) - 1) << NUMBER_SHIFT;
const NAPOT_PATTERN: u64 = 8 << NUMBER_SHIFT;
/// The memory type of Svpbmt, bits 62:61: I/O.
const IO: u64 = 2 << 61;

/// Software's mark in entries that are not valid, all other bits of which are its own.
const BROKEN: u64 = 1 << 2;

/// Presence of memory types in leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RiscvMemoryTypes {
    /// Leaves have none: the platform's attributes of the address hold.
    #[default]
    Absent,
    /// Svpbmt: memory of a device ([`Access::DEVICE`]) is I/O.
    Svpbmt,
}

/// Marking of sixteen leaves of 4 KiB in a row as one of 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RiscvContiguity {
    /// Each leaf of 4 KiB stands by itself.
    #[default]
    Absent,
    /// Svnapot: sixteen that can be are one of 64 KiB, unless the hardware keeps dirty bits.
    Svnapot,
}

/// First-stage tables: Sv39, Sv48, Sv57. Memory that can be written can be read.
pub type RiscvFirstStage = Riscv<12>;
/// Second-stage tables: Sv39x4, Sv48x4, Sv57x4, whose root has 2,048 entries.
pub type RiscvSecondStage = Riscv<14>;

/// RISC-V tables whose root has `1 << ROOT` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Riscv<const ROOT: u32> {
    /// Number of levels.
    pub levels: RiscvLevels,
    /// Width of output addresses, at most 56.
    pub output_lg2: u32,
    /// Presence of memory types in leaves (the capability Svpbmt).
    pub memory_types: RiscvMemoryTypes,
    /// Presence of leaves of 64 KiB. Every unit has to know them, but not every one does (QEMU's).
    pub contiguity: RiscvContiguity,
    /// Accessed and dirty bits that the hardware keeps (SADE of a first stage, GADE of a second).
    pub dirty: DirtyTracking,
}

const fn pa_of(raw: u64) -> PhysAddr {
    PhysAddr::new((raw & NUMBER) >> NUMBER_SHIFT << 12)
}

/// Address to which a leaf leads; one of sixteen, where all of them do.
const fn leads_to(raw: u64) -> PhysAddr {
    match raw & NAPOT {
        0 => pa_of(raw),
        _ => pa_of(raw & !NAPOT_BITS),
    }
}

const fn number_of(pa: PhysAddr) -> u64 {
    pa.get() >> 12 << NUMBER_SHIFT
}

impl<const ROOT: u32> Format for Riscv<ROOT> {
    type Word = core::sync::atomic::AtomicU64;
    const GRANULE: PageSize = PageSize::SIZE_4K;
    const INDEX_LG2: u32 = 9;
    const ROOT: PageSize = PageSize::of_lg2(ROOT);
    const CLUSTER_LG2: u32 = NAPOT_LG2;
    const LEAF_STEP: u64 = 1 << NUMBER_SHIFT;

    #[inline]
    fn levels(&self) -> u32 {
        self.levels.count()
    }

    #[inline]
    fn input_lg2(&self) -> u32 {
        let width = ROOT + 9 * self.levels.count();
        // Without the sign, which the index of an ordinary root includes.
        if ROOT == 12 { width - 1 } else { width }
    }

    #[inline]
    fn output_lg2(&self) -> u32 {
        self.output_lg2.min(56)
    }

    fn page_sizes(&self) -> PageSizes {
        let sizes = (0..self.levels.count()).fold(PageSizes::default(), |sizes, level| {
            sizes.with(PageSize::of_lg2(12 + 9 * level.min(3)))
        });
        match (self.contiguity, self.dirty) {
            (RiscvContiguity::Svnapot, DirtyTracking::Off) => sizes.with(PageSize::SIZE_64K),
            _ => sizes,
        }
    }

    fn split_rule(&self) -> SplitRule {
        SplitRule::Direct
    }

    fn dirty_tracking(&self) -> DirtyTracking {
        self.dirty
    }

    fn template(&self, access: Access, _level: u32) -> Result<u64, TableAccessError> {
        let write = access.contains(Access::WRITE);
        if !write && !access.contains(Access::READ) {
            return Err(TableAccessError { access });
        }
        // A leaf that can be written and not read is reserved. Where the hardware keeps no dirty bits, one
        // that is clear makes a write fault.
        let mut raw = VALID | READ | USER | ACCESSED;
        if write {
            raw |= WRITE;
            if self.dirty == DirtyTracking::Off {
                raw |= DIRTY;
            }
        }
        if access.contains(Access::EXECUTE) {
            raw |= EXECUTE;
        }
        if access.contains(Access::DEVICE) && self.memory_types == RiscvMemoryTypes::Svpbmt {
            raw |= IO;
        }
        Ok(raw)
    }

    #[inline]
    fn leaf(template: u64, pa: PhysAddr) -> u64 {
        template | number_of(pa)
    }

    #[inline]
    fn table(pa: PhysAddr, _level: u32) -> u64 {
        number_of(pa) | VALID
    }

    fn demote(raw: u64, _level: u32) -> u64 {
        raw & !NUMBER
    }

    #[inline]
    fn broken(pa: PhysAddr) -> u64 {
        number_of(pa) | BROKEN
    }

    #[inline]
    fn classify(raw: u64, level: u32) -> Entry {
        let pa = pa_of(raw);
        if raw & VALID != 0 {
            let leaf = level == 0 || raw & (READ | WRITE | EXECUTE) != 0;
            return if leaf { Entry::Leaf(leads_to(raw)) } else { Entry::Table(pa) };
        }
        match raw & BROKEN {
            0 => Entry::Empty,
            _ => Entry::Broken(pa),
        }
    }

    fn access(&self, raw: u64, _level: u32) -> Access {
        // Hardware that does not keep marks refuses an entry that it would have to mark.
        let marked = |bits| self.dirty == DirtyTracking::Hardware || raw & bits == bits;
        let user = raw & USER != 0 && marked(ACCESSED);
        let mut access = Access::empty();
        access.set(Access::READ, user && raw & READ != 0);
        access.set(Access::WRITE, user && raw & WRITE != 0 && marked(DIRTY));
        access.set(Access::EXECUTE, user && raw & EXECUTE != 0);
        access.set(Access::DEVICE, raw & IO != 0);
        access
    }

    /// Tables take nothing away.
    fn table_access(&self, _raw: u64, _level: u32) -> Access {
        Access::all()
    }

    fn is_reserved(&self, raw: u64, level: u32) -> bool {
        if raw & (READ | WRITE | EXECUTE) == 0 {
            return level == 0 || raw & TABLE_RESERVED != 0;
        }
        let types = match self.memory_types {
            RiscvMemoryTypes::Absent => 3 << 61,
            RiscvMemoryTypes::Svpbmt if raw >> 61 & 3 == 3 => 3 << 61,
            RiscvMemoryTypes::Svpbmt => 0,
        };
        let contiguous = raw & NAPOT != 0;
        let strange = contiguous && (level != 0 || raw & NAPOT_BITS != NAPOT_PATTERN);
        raw & (READ | WRITE) == WRITE || raw & (LEAF_RESERVED | types) != 0 || strange
    }

    #[inline]
    fn leaf_lg2(raw: u64, level: u32) -> u32 {
        match raw & NAPOT {
            0 => super::span_lg2::<Self>(level),
            _ => 12 + NAPOT_LG2,
        }
    }

    #[inline]
    fn joined(first: u64, lg2: u32) -> Option<u64> {
        let begins = lg2 == 12 + NAPOT_LG2 && first & NAPOT_BITS == 0;
        begins.then_some(first | NAPOT | NAPOT_PATTERN)
    }

    #[inline]
    fn parted(raw: u64, _level: u32, part: u64) -> u64 {
        raw & !(NAPOT | NAPOT_BITS) | part << NUMBER_SHIFT
    }

    fn is_dirty(&self, raw: u64) -> bool {
        self.dirty == DirtyTracking::Hardware && raw & DIRTY != 0
    }

    fn cleaned(&self, raw: u64) -> u64 {
        raw & !DIRTY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: RiscvSecondStage = Riscv {
        levels: RiscvLevels::Three,
        output_lg2: 56,
        memory_types: RiscvMemoryTypes::Svpbmt,
        contiguity: RiscvContiguity::Absent,
        dirty: DirtyTracking::Off,
    };

    /// By hand, from figures "Sv39 page table entry" and "Sv48 page table entry": V 0, R 1, W 2, X 3, U 4, G 5, A 6,
    /// D 7, PPN 53:10, PBMT 62:61, N 63.
    #[test]
    fn entries_by_hand() {
        let pa = PhysAddr::new(0x12_3456_7000);
        assert_eq!(RiscvFirstStage::table(pa, 1), 0x4_8d15_9c01);
        let word = |access| FORMAT.template(access, 0).unwrap();
        assert_eq!(RiscvSecondStage::leaf(word(Access::READ), pa), 0x4_8d15_9c53);
        assert_eq!(word(Access::READ_WRITE), 0xd7);
        assert_eq!(word(Access::WRITE), 0xd7);
        assert_eq!(word(Access::READ | Access::EXECUTE), 0x5b);
        assert_eq!(word(Access::READ | Access::DEVICE), 0x4000_0000_0000_0053);
        let plain = Riscv {
            memory_types: RiscvMemoryTypes::Absent,
            contiguity: RiscvContiguity::Svnapot,
            dirty: DirtyTracking::Hardware,
            ..FORMAT
        };
        let device = Access::READ_WRITE | Access::DEVICE;
        assert_eq!(plain.template(device, 2).unwrap(), 0x57);
        let top = PhysAddr::new(0xff_ffff_ffff_f000);
        assert_eq!(RiscvFirstStage::leaf(0x53, top), 0x003f_ffff_ffff_fc53);
        assert_eq!(RiscvFirstStage::classify(0x003f_ffff_ffff_fc53, 0), Entry::Leaf(top));
    }

    /// By hand, from table "Page table entry encodings when pte.N=1": N 63, and 1000 in PPN 3:0.
    #[test]
    fn leaves_of_64_kib_by_hand() {
        let first = RiscvFirstStage::leaf(0xd7, PhysAddr::new(0x12_3455_0000));
        let joined = 0x8000_0004_8d15_60d7;
        assert_eq!(RiscvFirstStage::joined(first, 16), Some(joined));
        assert_eq!(RiscvFirstStage::leaf_lg2(joined, 0), 16);
        let leads = Entry::Leaf(PhysAddr::new(0x12_3455_0000));
        assert_eq!(RiscvFirstStage::classify(joined, 0), leads);
        assert_eq!(RiscvFirstStage::parted(joined, 0, 0), first);
        assert_eq!(RiscvFirstStage::parted(joined, 0, 15), 0x4_8d15_7cd7);
        let odd = RiscvFirstStage::leaf(0xd7, PhysAddr::new(0x12_3455_1000));
        assert_eq!(RiscvFirstStage::joined(odd, 16), None);
        // Any other pattern, and any other level, is reserved.
        assert!(!FORMAT.is_reserved(joined, 0));
        assert!(FORMAT.is_reserved(joined | 1 << 10, 0));
        assert!(FORMAT.is_reserved(joined & !(8 << 10), 0));
        assert!(FORMAT.is_reserved(joined, 1));
    }

    #[test]
    fn what_is_not_valid_keeps_tables() {
        let pa = PhysAddr::new(0xff_ffff_ffff_f000);
        let broken = RiscvFirstStage::broken(pa);
        assert_eq!(broken & VALID, 0);
        assert_eq!(RiscvFirstStage::classify(broken, 2), Entry::Broken(pa));
        assert_eq!(RiscvFirstStage::classify(RiscvFirstStage::link(pa), 1), Entry::Empty);
    }

    #[test]
    fn widths() {
        let first = |levels| RiscvFirstStage {
            levels,
            output_lg2: 60,
            memory_types: RiscvMemoryTypes::Absent,
            contiguity: RiscvContiguity::Svnapot,
            dirty: DirtyTracking::Off,
        };
        let widths = [RiscvLevels::Three, RiscvLevels::Four, RiscvLevels::Five].map(|levels| {
            let second = RiscvSecondStage { levels, ..FORMAT };
            (first(levels).input_lg2(), second.input_lg2())
        });
        assert_eq!(widths, [(38, 41), (47, 50), (56, 59)]);
        assert_eq!(first(RiscvLevels::Three).output_lg2(), 56);
        assert_eq!(RiscvSecondStage::ROOT.bytes(), 16384);
        let sizes = first(RiscvLevels::Five).page_sizes().bits();
        assert_eq!(sizes, 1 << 12 | 1 << 16 | 1 << 21 | 1 << 30 | 1 << 39);
    }
}
