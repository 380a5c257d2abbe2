//! Commands (2.4): two words each.

use super::Bits;

/// A command.
pub type Words = [u64; 2];

/// Bytes of a command, as an exponent.
pub const LG2_BYTES: u32 = 4;

/// Word 0 of all: the kind of command.
pub const OPCODE: Bits = Bits::new(60, 4);

/// Values of [`OPCODE`].
pub mod opcode {
    crate::bits::constants! {
        COMPLETION_WAIT: u64 = 1 => "COMPLETION_WAIT (2.4.1).";
        DEVICE_ENTRY: u64 = 2 => "INVALIDATE_DEVTAB_ENTRY (2.4.2).";
        PAGES: u64 = 3 => "INVALIDATE_IOMMU_PAGES (2.4.3).";
        INTERRUPT_TABLE: u64 = 5 => "INVALIDATE_INTERRUPT_TABLE (2.4.5).";
        ALL: u64 = 8 => "INVALIDATE_IOMMU_ALL (2.4.8).";
    }
}

/// COMPLETION_WAIT. Word 1 is the value that it stores.
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
    crate::bits::constants! {
        DOMAIN: Bits = Bits::new(32, 16) => "Word 0: domain.";
        /// Word 1: more than 4 KiB; the lowest zero address bit from 12 tells the size.
        SIZE: u64 = 1;
        DIRECTORIES: u64 = 1 << 1 => "Word 1: entries of upper levels, too.";
        ADDRESS: u64 = !0xfff => "Word 1: bits 63:12 of the address.";
        /// Word 1: the address that stands for all there are.
        EVERYTHING: u64 = 0x7fff_ffff_ffff_f000;
    }
}
