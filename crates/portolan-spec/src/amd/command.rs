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
        DEVICE_TLB: u64 = 4 => "INVALIDATE_IOTLB_PAGES (2.4.4).";
        INTERRUPT_TABLE: u64 = 5 => "INVALIDATE_INTERRUPT_TABLE (2.4.5).";
        RESPONSE: u64 = 7 => "COMPLETE_PPR_REQUEST (2.4.7).";
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
        PASID: Bits = Bits::new(0, 20) => "Word 0: PASID, with [`GUEST`].";
        DOMAIN: Bits = Bits::new(32, 16) => "Word 0: domain.";
        /// Word 1: more than 4 KiB; the lowest zero address bit from 12 tells the size.
        SIZE: u64 = 1;
        DIRECTORIES: u64 = 1 << 1 => "Word 1: entries of upper levels, too.";
        /// Word 1: GN, the address is one of guest tables; without it, one of host tables.
        GUEST: u64 = 1 << 2;
        ADDRESS: u64 = !0xfff => "Word 1: bits 63:12 of the address.";
        /// Word 1: the address that stands for all there are.
        EVERYTHING: u64 = 0x7fff_ffff_ffff_f000;
    }
}

/// INVALIDATE_IOTLB_PAGES. Word 1 is that of INVALIDATE_IOMMU_PAGES without entries of upper levels; with
/// [`pages::GUEST`] the PASID counts.
pub mod device_tlb {
    use super::Bits;
    crate::bits::constants! {
        DEVICE: Bits = Bits::new(0, 16) => "Word 0: the device.";
        MOST: Bits = Bits::new(24, 8) => "Word 0: Maxpend, invalidations that its queue takes at a time.";
        QUEUE: Bits = Bits::new(32, 16) => "Word 0: QueueID, the function whose queue it is.";
        PASID_LOW: Bits = Bits::new(48, 8) => "Word 0: bits 7:0 of the PASID.";
        PASID_MIDDLE: Bits = Bits::new(16, 8) => "Word 0: bits 15:8 of the PASID.";
        PASID_HIGH: Bits = Bits::new(56, 4) => "Word 0: bits 19:16 of the PASID.";
    }
}

/// COMPLETE_PPR_REQUEST.
pub mod response {
    use super::Bits;
    crate::bits::constants! {
        DEVICE: Bits = Bits::new(0, 16) => "Word 0: the device.";
        PASID: Bits = Bits::new(32, 20) => "Word 0: the address space.";
        PASID_VALID: u64 = 1 << 2 => "Word 1: GN, the address space counts.";
        GROUP: Bits = Bits::new(32, 9) => "Word 1: the group.";
        CODE: Bits = Bits::new(44, 4) => "Word 1: the response.";
        SUCCESS: u64 = 0 => "Value of [`CODE`]: the pages are there.";
        INVALID: u64 = 1 => "Value of [`CODE`]: one of the pages is not for the device.";
        FAILURE: u64 = 15 => "Value of [`CODE`]: the device is not to ask again.";
    }
}
