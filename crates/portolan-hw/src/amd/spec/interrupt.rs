//! Entries of interrupt tables (2.2.5.1): 32 bits each, remapped format.

use super::Bits;

/// RemapEn: the interrupt is remapped; without it, it is aborted.
pub const REMAPPED: u64 = 1;
/// IntType: 0 fixed, 1 arbitrated.
pub const TYPE: Bits = Bits::new(2, 3);
/// DM: logical destination.
pub const LOGICAL: Bits = Bits::new(6, 1);
/// Destination.
pub const DESTINATION: Bits = Bits::new(8, 8);
/// Vector.
pub const VECTOR: Bits = Bits::new(16, 8);
