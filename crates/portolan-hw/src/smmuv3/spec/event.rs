//! Event records (IHI 0070, section 7.3) and page requests (8.1).
//!
//! *Context.* Interrupt: everything here is a value.

use super::fields;

/// Words of an event.
pub const WORDS: usize = 4;
/// Exponent of its bytes.
pub const LG2_BYTES: u32 = 5;
/// An event.
pub type Event = [u64; WORDS];
/// Exponent of the bytes of a page request.
pub const PAGE_REQUEST_LG2_BYTES: u32 = 4;

fields! {
    /// What happened: see [`kind`].
    TYPE: 0, 0, 8;
    /// The substream field counts.
    SSV: 0, 11, 1;
    /// Substream.
    SSID: 0, 12, 20;
    /// Stream.
    SID: 0, 32, 32;
    /// Stall: which.
    STAG: 1, 0, 16;
    /// The access waits for an answer.
    STALL: 1, 31, 1;
    /// By the privileged.
    PNU: 1, 33, 1;
    /// Of an instruction.
    IND: 1, 34, 1;
    /// A read.
    RNW: 1, 35, 1;
    /// The second stage's fault.
    S2: 1, 39, 1;
    /// What was being accessed: 0 a context descriptor, 1 a table, 2 the address itself.
    CLASS: 1, 40, 2;
    /// Input address.
    ADDRESS: 2, 0, 64;
}

/// Types.
pub mod kind {
    /// An upstream transaction that is not supported.
    pub const UUT: u8 = 0x01;
    /// A stream out of range.
    pub const BAD_STREAMID: u8 = 0x02;
    /// The entry could not be fetched.
    pub const STE_FETCH: u8 = 0x03;
    /// The entry is invalid.
    pub const BAD_STE: u8 = 0x04;
    /// A translation request that the entry does not allow.
    pub const BAD_ATS_TREQ: u8 = 0x05;
    /// Accesses without a substream are not allowed.
    pub const STREAM_DISABLED: u8 = 0x06;
    /// A translated access that the entry does not allow.
    pub const TRANSL_FORBIDDEN: u8 = 0x07;
    /// A substream out of range.
    pub const BAD_SUBSTREAMID: u8 = 0x08;
    /// The descriptor could not be fetched.
    pub const CD_FETCH: u8 = 0x09;
    /// The descriptor is invalid.
    pub const BAD_CD: u8 = 0x0a;
    /// A table could not be fetched.
    pub const WALK_EABT: u8 = 0x0b;
    /// Nothing is mapped.
    pub const TRANSLATION: u8 = 0x10;
    /// An address is too wide.
    pub const ADDR_SIZE: u8 = 0x11;
    /// The access flag is clear.
    pub const ACCESS: u8 = 0x12;
    /// Permission.
    pub const PERMISSION: u8 = 0x13;
    /// Two translations for one address.
    pub const TLB_CONFLICT: u8 = 0x20;
    /// Two configurations for one stream.
    pub const CFG_CONFLICT: u8 = 0x21;
    /// A hint that a page will be wanted.
    pub const PAGE_REQUEST: u8 = 0x24;
    /// A virtual machine structure could not be fetched.
    pub const VMS_FETCH: u8 = 0x25;
}

/// Fields of a page request: two words.
pub mod page_request {
    super::super::fields! {
        /// Stream.
        SID: 0, 0, 32;
        /// Substream.
        SSID: 0, 32, 20;
        /// Privileged.
        PRIVILEGED: 0, 58, 1;
        /// To execute.
        EXECUTE: 0, 59, 1;
        /// To read.
        READ: 0, 60, 1;
        /// To write.
        WRITE: 0, 61, 1;
        /// The last of its group.
        LAST: 0, 62, 1;
        /// The substream field counts.
        SSV: 0, 63, 1;
        /// Group.
        GROUP: 1, 0, 9;
        /// Address, in place from bit 12.
        ADDRESS: 1, 12, 52;
    }
}
