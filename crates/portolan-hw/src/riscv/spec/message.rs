//! MSI page tables: entries of two words each, of which the second is zero in basic translate mode
//! (RISC-V Advanced Interrupt Architecture, version 1.0, chapter on IOMMU support).

use super::Bits;
use crate::chassis::fields;

/// Bytes of an entry, as an exponent.
pub const LG2_BYTES: u32 = 4;
/// Words of an entry.
pub const WORDS: usize = 2;

/// Word 0: it counts.
pub const V: u64 = 1;

fields! { Bits;
    /// Word 0: what becomes of a message. Its page number is in [`PPN`](super::PPN).
    MODE: 1, 2;
}

/// Value of [`MODE`]: it is written to another page.
pub const TRANSLATED: u64 = 3;
