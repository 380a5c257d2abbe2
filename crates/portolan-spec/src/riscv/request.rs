//! Page requests: two words each.

use super::Bits;
use crate::bits::fields;

/// Bytes of a record, as an exponent.
pub const LG2_BYTES: u32 = 4;

fields! { Bits;
    /// Word 0: in which address space.
    PID: 12, 20;
    /// Word 0: the address space counts.
    PV: 32, 1;
    /// Word 0: for the privileged.
    PRIV: 33, 1;
    /// Word 0: to execute.
    EXEC: 34, 1;
    /// Word 0: the stream.
    DID: 40, 24;
    /// Word 1: to read.
    READ: 0, 1;
    /// Word 1: to write.
    WRITE: 1, 1;
    /// Word 1: the last of its group.
    LAST: 2, 1;
    /// Word 1: which group.
    GROUP: 3, 9;
    /// Word 1: the page's number.
    PAGE: 12, 52;
}
