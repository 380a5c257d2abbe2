//! Events (2.5): two words each; word 1 is an address.

use super::Bits;

crate::bits::constants! {
    LG2_BYTES: u32 = 4 => "Bytes of an event, as an exponent.";

    DEVICE: Bits = Bits::new(0, 16) => "Word 0: who.";
    PASID_HIGH: Bits = Bits::new(16, 4) => "Word 0: bits 19:16 of the PASID, with [`GUEST`].";
    PASID_LOW: Bits = Bits::new(32, 16) => "Word 0: bits 15:0 of the PASID, with [`GUEST`]; else the domain.";
    GUEST: Bits = Bits::new(48, 1) => "Word 0: GN, the address is one of guest tables.";
    CODE: Bits = Bits::new(60, 4) => "Word 0: what; zero until the record is complete.";
    PRESENT: Bits = Bits::new(52, 1) => "Word 0: the table entry that decided was present.";
    INTERRUPT: Bits = Bits::new(51, 1) => "It was an interrupt.";
    WRITE: Bits = Bits::new(53, 1) => "Word 0: a write.";
    /// Word 0: a reserved bit was set, or an encoding is illegal.
    RESERVED: Bits = Bits::new(55, 1);
    TRANSLATION: Bits = Bits::new(56, 1) => "Word 0: a request for a translation, not an access.";
}

/// Values of [`CODE`].
pub mod code {
    crate::bits::constants! {
        ILLEGAL_ENTRY: u64 = 1 => "ILLEGAL_DEV_TABLE_ENTRY (2.5.2).";
        PAGE_FAULT: u64 = 2 => "IO_PAGE_FAULT (2.5.3).";
        DEVICE_TABLE: u64 = 3 => "DEV_TAB_HARDWARE_ERROR (2.5.4).";
        PAGE_TABLE: u64 = 4 => "PAGE_TAB_HARDWARE_ERROR (2.5.5).";
        ILLEGAL_COMMAND: u64 = 5 => "ILLEGAL_COMMAND_ERROR (2.5.6).";
        COMMAND_HARDWARE: u64 = 6 => "COMMAND_HARDWARE_ERROR (2.5.7).";
        DEVICE_TLB_TIMEOUT: u64 = 7 => "IOTLB_INV_TIMEOUT (2.5.8): a device did not answer an invalidation.";
    }
}
