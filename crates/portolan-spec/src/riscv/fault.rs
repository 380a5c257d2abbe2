//! Fault records: four words each.

use super::Bits;
use crate::bits::fields;

/// Words of a record.
pub const WORDS: usize = 4;
/// Bytes of a record, as an exponent.
pub const LG2_BYTES: u32 = 5;
/// Word of a record: the address for the device, or another value that belongs to the cause
/// (`iotval`).
pub const ADDRESS: usize = 2;

fields! { Bits;
    /// Word 0: why.
    CAUSE: 0, 12;
    /// Word 0: in which address space.
    PID: 12, 20;
    /// Word 0: the address space counts.
    PV: 32, 1;
    /// Word 0: which kind of access.
    TTYP: 34, 6;
    /// Word 0: the stream.
    DID: 40, 24;
}

/// Values of [`CAUSE`].
pub mod cause {
    crate::bits::constants! {
        /// No memory, or none that may be accessed so: instructions, reads and writes.
        ACCESS: [u64; 3] = [1, 5, 7];
        /// The first stage does not let it through: instructions, reads and writes.
        PAGE: [u64; 3] = [12, 13, 15];
        /// The second stage does not let it through: instructions, reads and writes.
        GUEST_PAGE: [u64; 3] = [20, 21, 23];
        OFF: u64 = 256 => "The unit lets nothing through.";
        DIRECTORY_ACCESS: u64 = 257 => "The device directory cannot be read.";
        NO_CONTEXT: u64 = 258 => "There is no valid device context.";
        BAD_CONTEXT: u64 = 259 => "The device context, or an entry that leads to it, is malformed.";
        /// Accesses of this kind are not let through: the device's number is too wide, its context knows no
        /// address spaces or no translated accesses.
        DISALLOWED: u64 = 260;
        /// The entry of an MSI page table: it cannot be read, is not valid, is malformed.
        MESSAGE: [u64; 3] = [261, 262, 263];
        MESSAGE_FILE: u64 = 264 => "The file that a message is stored in cannot be accessed.";
        PROCESS_ACCESS: u64 = 265 => "The process directory cannot be read.";
        NO_PROCESS: u64 = 266 => "There is no valid process context.";
        /// The process context, or an entry that leads to it, is malformed.
        BAD_PROCESS: u64 = 267;
        /// From here to [`CORRUPT_LAST`]: the unit read corrupt data, or its message could not be
        /// sent.
        CORRUPT_FIRST: u64 = 268;
        CORRUPT_LAST: u64 = 274 => "The last of those.";
    }
}

/// Values of [`TTYP`], of those with an address for the device.
pub mod access {
    crate::bits::constants! {
        FETCH: u64 = 1 => "An instruction is read.";
        READ: u64 = 2 => "A read.";
        WRITE: u64 = 3 => "A write.";
        /// The three again, of addresses that the device has had translated.
        TRANSLATED: [u64; 3] = [5, 6, 7];
        REQUEST: u64 = 8 => "A request for a translation.";
    }
}
