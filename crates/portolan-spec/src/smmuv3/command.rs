//! Commands: two words each (IHI 0070, section 4).
//!
//! *Context.* Interrupt: everything here is a value.

use super::fields;

/// Words of a command.
pub const WORDS: usize = 2;
/// Exponent of its bytes.
pub const LG2_BYTES: u32 = 4;
/// A command.
pub type Words = [u64; WORDS];

/// Operation codes.
pub mod op {
    crate::bits::constants! {
        CFGI_STE: u64 = 0x03 => "One stream's configuration.";
        /// The configuration of an aligned range of streams; all of them with a range of 31.
        CFGI_STE_RANGE: u64 = 0x04;
        CFGI_CD: u64 = 0x05 => "One context descriptor.";
        CFGI_CD_ALL: u64 = 0x06 => "All context descriptors of a stream.";
        TLBI_NH_ALL: u64 = 0x10 => "Non-secure stage 1, everything of a VMID.";
        TLBI_NH_ASID: u64 = 0x11 => "Non-secure stage 1, everything of an ASID.";
        TLBI_NH_VA: u64 = 0x12 => "Non-secure stage 1, by address.";
        TLBI_NH_VAA: u64 = 0x13 => "Non-secure stage 1, by address whatever the ASID.";
        TLBI_EL2_ALL: u64 = 0x20 => "EL2, everything.";
        TLBI_S12_VMALL: u64 = 0x28 => "Both stages, everything of a VMID.";
        TLBI_S2_IPA: u64 = 0x2a => "Stage 2, by address.";
        TLBI_NSNH_ALL: u64 = 0x30 => "Non-secure EL1, everything.";
        ATC_INV: u64 = 0x40 => "A device's own translations.";
        PRI_RESP: u64 = 0x41 => "The answer to a page request.";
        RESUME: u64 = 0x44 => "The end of a stall.";
        SYNC: u64 = 0x46 => "Wait for the commands before.";
    }
}

fields! {
    OP: 0, 0, 8 => "Operation.";
    SSV: 0, 11, 1 => "The substream field counts.";
    SSID: 0, 12, 20 => "Substream.";
    SID: 0, 32, 32 => "Stream.";
    CFGI_LEAF: 1, 0, 1 => "Configuration: the last level only.";
    CFGI_RANGE: 1, 0, 5 => "Configuration: exponent of the number of streams, less one.";
    TLBI_NUM: 0, 12, 5 => "Invalidation: multiplier less one.";
    TLBI_SCALE: 0, 20, 6 => "Invalidation: exponent.";
    TLBI_VMID: 0, 32, 16 => "Invalidation: VMID.";
    TLBI_ASID: 0, 48, 16 => "Invalidation: ASID.";
    TLBI_LEAF: 1, 0, 1 => "Invalidation: the last level only.";
    TLBI_TTL: 1, 8, 2 => "Invalidation: level of the leaf, 0 if unknown.";
    TLBI_TG: 1, 10, 2 => "Invalidation: granule, 0 if neither range nor hint.";
    TLBI_ADDRESS: 1, 12, 52 => "Invalidation: address, in place from bit 12.";
    ATC_GLOBAL: 0, 9, 1 => "Device's translations: everywhere, whatever the substream.";
    /// Device's translations: exponent of the number of pages of 4 KiB; 52 for all.
    ATC_SIZE: 1, 0, 6;
    ATC_ADDRESS: 1, 12, 52 => "Device's translations: address, in place from bit 12.";
    PRI_GROUP: 1, 0, 9 => "Page request: group.";
    PRI_RESPONSE: 1, 12, 2 => "Page request: answer.";
    RESUME_ACTION: 0, 12, 2 => "Stall: how it ends.";
    RESUME_TAG: 1, 0, 16 => "Stall: which.";
    SYNC_CS: 0, 12, 2 => "Sync: how completion is signalled.";
    SYNC_MSH: 0, 22, 2 => "Sync: shareability of the message.";
    SYNC_ATTR: 0, 24, 4 => "Sync: attributes of the message.";
    SYNC_DATA: 0, 32, 32 => "Sync: the message.";
    SYNC_ADDRESS: 1, 2, 50 => "Sync: where the message goes, in place from bit 2.";
}

/// Values of [`SYNC_CS`].
pub mod sync {
    crate::bits::constants! {
        NONE: u64 = 0 => "By the consumer index only.";
        IRQ: u64 = 1 => "By an interrupt, which is a message if there is an address.";
        WRITE_BACK: u64 = 0xf => "Attributes of a message to inner write-back memory.";
    }
}

/// Value of [`CFGI_RANGE`] for all streams.
pub const ALL_STREAMS: u64 = 31;
/// Value of [`ATC_SIZE`] for all addresses.
pub const ATC_ALL: u64 = 52;

/// Reasons of refused commands: values of the consumer register's error field (section 7.1).
pub mod error {
    crate::bits::constants! {
        ILL: u32 = 1 => "Illegal command.";
        ABT: u32 = 2 => "The command could not be fetched.";
        ATC_INV_SYNC: u32 = 3 => "A device did not answer an invalidation in time.";
    }
}
