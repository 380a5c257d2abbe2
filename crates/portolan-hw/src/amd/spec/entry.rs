//! Device table entries (2.2.2.1): four words each. Words 2 and 3 are zero: interrupts pass
//! unmapped.

use super::Bits;

/// Words of an entry.
pub const WORDS: usize = 4;
/// Bytes of an entry, as an exponent.
pub const LG2_BYTES: u32 = 5;

/// Word 0: the entry counts. Without it, all accesses pass.
pub const V: u64 = 1;
/// Word 0: the fields about translation count.
pub const TV: u64 = 1 << 1;
/// Word 0: levels of the tables; none: addresses are not translated.
pub const MODE: Bits = Bits::new(9, 3);
/// Word 0: reads are let through.
pub const IR: u64 = 1 << 61;
/// Word 0: writes are let through.
pub const IW: u64 = 1 << 62;
/// Word 1: domain.
pub const DOMAIN: Bits = Bits::new(0, 16);
