//! Commands (2.4): two words each.

use super::Bits;

/// A command.
pub type Words = [u64; 2];

/// Bytes of a command, as an exponent.
pub const LG2_BYTES: u32 = 4;

/// Word 0 of all: what it is.
pub const OPCODE: Bits = Bits::new(60, 4);

/// Values of [`OPCODE`].
pub mod opcode {
    /// COMPLETION_WAIT (2.4.1).
    pub const COMPLETION_WAIT: u64 = 1;
    /// INVALIDATE_DEVTAB_ENTRY (2.4.2).
    pub const DEVICE_ENTRY: u64 = 2;
    /// INVALIDATE_IOMMU_PAGES (2.4.3).
    pub const PAGES: u64 = 3;
    /// INVALIDATE_INTERRUPT_TABLE (2.4.5).
    pub const INTERRUPT_TABLE: u64 = 5;
    /// INVALIDATE_IOMMU_ALL (2.4.8).
    pub const ALL: u64 = 8;
}

/// COMPLETION_WAIT. Word 1 is what is stored.
pub mod wait {
    use super::Bits;
    /// Word 0: store word 1.
    pub const STORE: Bits = Bits::new(0, 1);
    /// Word 0: nothing behind begins before everything in front is complete.
    pub const FLUSH: Bits = Bits::new(2, 1);
    /// Word 0: bits 51:3 of where to store.
    pub const ADDRESS: u64 = 0x000f_ffff_ffff_fff8;
}

/// INVALIDATE_DEVTAB_ENTRY, and INVALIDATE_INTERRUPT_TABLE alike.
pub mod device_entry {
    use super::Bits;
    /// Word 0: whose entry.
    pub const DEVICE: Bits = Bits::new(0, 16);
}

/// INVALIDATE_IOMMU_PAGES.
pub mod pages {
    use super::Bits;
    /// Word 0: domain.
    pub const DOMAIN: Bits = Bits::new(32, 16);
    /// Word 1: more than 4 KiB; the lowest zero address bit from 12 tells how much.
    pub const SIZE: u64 = 1;
    /// Word 1: entries of upper levels, too.
    pub const DIRECTORIES: u64 = 1 << 1;
    /// Word 1: bits 63:12 of the address.
    pub const ADDRESS: u64 = !0xfff;
    /// Word 1: the address that stands for all there are.
    pub const EVERYTHING: u64 = 0x7fff_ffff_ffff_f000;
}
