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
    TYPE: 0, 0, 8 => "What happened: see [`kind`].";
    SSV: 0, 11, 1 => "The substream field counts.";
    SSID: 0, 12, 20 => "Substream.";
    SID: 0, 32, 32 => "Stream.";
    STAG: 1, 0, 16 => "Stall: which.";
    STALL: 1, 31, 1 => "The access waits for an answer.";
    PNU: 1, 33, 1 => "By the privileged.";
    IND: 1, 34, 1 => "Of an instruction.";
    RNW: 1, 35, 1 => "A read.";
    S2: 1, 39, 1 => "The second stage's fault.";
    /// Class of the access: 0 a context descriptor, 1 a table, 2 the address itself.
    CLASS: 1, 40, 2;
    ADDRESS: 2, 0, 64 => "Input address.";
}

/// Types.
pub mod kind {
    crate::bits::constants! {
        UUT: u8 = 0x01 => "An upstream transaction that is not supported.";
        BAD_STREAMID: u8 = 0x02 => "A stream out of range.";
        STE_FETCH: u8 = 0x03 => "The entry could not be fetched.";
        BAD_STE: u8 = 0x04 => "The entry is invalid.";
        BAD_ATS_TREQ: u8 = 0x05 => "A translation request that the entry does not allow.";
        STREAM_DISABLED: u8 = 0x06 => "Accesses without a substream are not allowed.";
        TRANSL_FORBIDDEN: u8 = 0x07 => "A translated access that the entry does not allow.";
        BAD_SUBSTREAMID: u8 = 0x08 => "A substream out of range.";
        CD_FETCH: u8 = 0x09 => "The descriptor could not be fetched.";
        BAD_CD: u8 = 0x0a => "The descriptor is invalid.";
        WALK_EABT: u8 = 0x0b => "A table could not be fetched.";
        TRANSLATION: u8 = 0x10 => "Nothing is mapped.";
        ADDR_SIZE: u8 = 0x11 => "An address is too wide.";
        ACCESS: u8 = 0x12 => "The access flag is clear.";
        PERMISSION: u8 = 0x13 => "Permission.";
        TLB_CONFLICT: u8 = 0x20 => "Two translations for one address.";
        CFG_CONFLICT: u8 = 0x21 => "Two configurations for one stream.";
        PAGE_REQUEST: u8 = 0x24 => "A hint that a page will be wanted.";
        VMS_FETCH: u8 = 0x25 => "A virtual machine structure could not be fetched.";
    }
}

/// Fields of a page request: two words.
pub mod page_request {
    super::super::fields! {
        SID: 0, 0, 32 => "Stream.";
        SSID: 0, 32, 20 => "Substream.";
        PRIVILEGED: 0, 58, 1 => "Privileged.";
        EXECUTE: 0, 59, 1 => "To execute.";
        READ: 0, 60, 1 => "To read.";
        WRITE: 0, 61, 1 => "To write.";
        LAST: 0, 62, 1 => "The last of its group.";
        SSV: 0, 63, 1 => "The substream field counts.";
        GROUP: 1, 0, 9 => "Group.";
        ADDRESS: 1, 12, 52 => "Address, in place from bit 12.";
    }
}
