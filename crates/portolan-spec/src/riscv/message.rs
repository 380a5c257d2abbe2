//! MSI page tables: entries of two words each, of which the second is zero in basic translate mode
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
}

/// Value of [`MODE`]: it is written to another page.
pub const TRANSLATED: u64 = 3;
