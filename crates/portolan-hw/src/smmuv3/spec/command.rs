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
    /// One stream's configuration.
    pub const CFGI_STE: u64 = 0x03;
    /// The configuration of an aligned range of streams; all of them with a range of 31.
    pub const CFGI_STE_RANGE: u64 = 0x04;
    /// One context descriptor.
    pub const CFGI_CD: u64 = 0x05;
    /// All context descriptors of a stream.
    pub const CFGI_CD_ALL: u64 = 0x06;
    /// Non-secure stage 1, everything of a VMID.
    pub const TLBI_NH_ALL: u64 = 0x10;
    /// Non-secure stage 1, everything of an ASID.
    pub const TLBI_NH_ASID: u64 = 0x11;
    /// Non-secure stage 1, by address.
    pub const TLBI_NH_VA: u64 = 0x12;
    /// Non-secure stage 1, by address whatever the ASID.
    pub const TLBI_NH_VAA: u64 = 0x13;
    /// EL2, everything.
    pub const TLBI_EL2_ALL: u64 = 0x20;
    /// Both stages, everything of a VMID.
    pub const TLBI_S12_VMALL: u64 = 0x28;
    /// Stage 2, by address.
    pub const TLBI_S2_IPA: u64 = 0x2a;
    /// Non-secure EL1, everything.
    pub const TLBI_NSNH_ALL: u64 = 0x30;
    /// A device's own translations.
    pub const ATC_INV: u64 = 0x40;
    /// The answer to a page request.
    pub const PRI_RESP: u64 = 0x41;
    /// The end of a stall.
    pub const RESUME: u64 = 0x44;
    /// Wait for the commands before.
    pub const SYNC: u64 = 0x46;
}

fields! {
    /// Operation.
    OP: 0, 0, 8;
    /// The substream field counts.
    SSV: 0, 11, 1;
    /// Substream.
    SSID: 0, 12, 20;
    /// Stream.
    SID: 0, 32, 32;
    /// Configuration: the last level only.
    CFGI_LEAF: 1, 0, 1;
    /// Configuration: exponent of the number of streams, less one.
    CFGI_RANGE: 1, 0, 5;
    /// Invalidation: multiplier less one.
    TLBI_NUM: 0, 12, 5;
    /// Invalidation: exponent.
    TLBI_SCALE: 0, 20, 6;
    /// Invalidation: VMID.
    TLBI_VMID: 0, 32, 16;
    /// Invalidation: ASID.
    TLBI_ASID: 0, 48, 16;
    /// Invalidation: the last level only.
    TLBI_LEAF: 1, 0, 1;
    /// Invalidation: level of the leaf, 0 if unknown.
    TLBI_TTL: 1, 8, 2;
    /// Invalidation: granule, 0 if neither range nor hint.
    TLBI_TG: 1, 10, 2;
    /// Invalidation: address, in place from bit 12.
    TLBI_ADDRESS: 1, 12, 52;
    /// Device's translations: everywhere, whatever the substream.
    ATC_GLOBAL: 0, 9, 1;
    /// Device's translations: exponent of the number of pages of 4 KiB; 52 for all.
    ATC_SIZE: 1, 0, 6;
    /// Device's translations: address, in place from bit 12.
    ATC_ADDRESS: 1, 12, 52;
    /// Page request: group.
    PRI_GROUP: 1, 0, 9;
    /// Page request: answer.
    PRI_RESPONSE: 1, 12, 2;
    /// Stall: how it ends.
    RESUME_ACTION: 0, 12, 2;
    /// Stall: which.
    RESUME_TAG: 1, 0, 16;
    /// Sync: how completion is signalled.
    SYNC_CS: 0, 12, 2;
    /// Sync: shareability of the message.
    SYNC_MSH: 0, 22, 2;
    /// Sync: attributes of the message.
    SYNC_ATTR: 0, 24, 4;
    /// Sync: the message.
    SYNC_DATA: 0, 32, 32;
    /// Sync: where the message goes, in place from bit 2.
    SYNC_ADDRESS: 1, 2, 50;
}

/// Values of [`SYNC_CS`].
pub mod sync {
    /// By the consumer index only.
    pub const NONE: u64 = 0;
    /// By an interrupt, which is a message if there is an address.
    pub const IRQ: u64 = 1;
    /// Attributes of a message to inner write-back memory.
    pub const WRITE_BACK: u64 = 0xf;
}

/// Value of [`CFGI_RANGE`] for all streams.
pub const ALL_STREAMS: u64 = 31;
/// Value of [`ATC_SIZE`] for all addresses.
pub const ATC_ALL: u64 = 52;

/// Why a command was refused: values of the consumer register's error field (section 7.1).
pub mod error {
    /// Illegal command.
    pub const ILL: u32 = 1;
    /// The command could not be fetched.
    pub const ABT: u32 = 2;
    /// A device did not answer an invalidation in time.
    pub const ATC_INV_SYNC: u32 = 3;
}
