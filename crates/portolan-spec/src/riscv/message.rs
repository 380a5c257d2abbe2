//! MSI page tables: entries of two words each, of which the second is ignored in basic translate mode
//! (RISC-V Advanced Interrupt Architecture, version 1.0, chapter on IOMMU support).

use super::Bits;
use crate::bits::fields;

crate::bits::constants! {
    LG2_BYTES: u32 = 4 => "Bytes of an entry, as an exponent.";
    WORDS: usize = 2 => "Words of an entry.";

    V: u64 = 1 => "Word 0: it counts.";
}

fields! { Bits;
    /// Word 0: treatment of a message. Its page number is in [`PPN`](super::PPN).
    MODE: 1, 2;
    /// Word 0, for [`IN_FILE`]: address of the memory-resident interrupt file, less its low 9 bits.
    FILE: 7, 47;
    /// Word 1, for [`IN_FILE`]: the low bits of the number that a notice writes. Its page number is in
    /// [`PPN`](super::PPN).
    NOTICE_LOW: 0, 10;
    /// Word 1, for [`IN_FILE`]: bit 10 of that number.
    NOTICE_HIGH: 60, 1;
}

/// Value of [`MODE`]: it is stored in a memory-resident interrupt file, and a notice is sent.
pub const IN_FILE: u64 = 1;
/// Bytes of a memory-resident interrupt file, as an exponent, to which it is aligned.
pub const LG2_FILE: u32 = 9;

/// Value of [`MODE`]: it is written to another page.
pub const TRANSLATED: u64 = 3;
