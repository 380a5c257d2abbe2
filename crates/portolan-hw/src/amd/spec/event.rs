//! Events (2.5): two words each; word 1 is an address.

use super::Bits;

/// Bytes of an event, as an exponent.
pub const LG2_BYTES: u32 = 4;

/// Word 0: who.
pub const DEVICE: Bits = Bits::new(0, 16);
/// Word 0: what; zero until the record is complete.
pub const CODE: Bits = Bits::new(60, 4);
/// Word 0: the table entry that decided was present.
pub const PRESENT: Bits = Bits::new(52, 1);
/// It was an interrupt.
pub const INTERRUPT: Bits = Bits::new(51, 1);
/// Word 0: a write.
pub const WRITE: Bits = Bits::new(53, 1);
/// Word 0: a reserved bit was set, or an encoding is illegal.
pub const RESERVED: Bits = Bits::new(55, 1);
/// Word 0: a request for a translation, not an access.
pub const TRANSLATION: Bits = Bits::new(56, 1);

/// Values of [`CODE`].
pub mod code {
    /// ILLEGAL_DEV_TABLE_ENTRY (2.5.2).
    pub const ILLEGAL_ENTRY: u64 = 1;
    /// IO_PAGE_FAULT (2.5.3).
    pub const PAGE_FAULT: u64 = 2;
    /// DEV_TAB_HARDWARE_ERROR (2.5.4).
    pub const DEVICE_TABLE: u64 = 3;
    /// PAGE_TAB_HARDWARE_ERROR (2.5.5).
    pub const PAGE_TABLE: u64 = 4;
    /// ILLEGAL_COMMAND_ERROR (2.5.6).
    pub const ILLEGAL_COMMAND: u64 = 5;
    /// COMMAND_HARDWARE_ERROR (2.5.7).
    pub const COMMAND_HARDWARE: u64 = 6;
}
