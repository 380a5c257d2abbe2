//! Entries of interrupt tables (2.2.5.1): 32 bits each, remapped format.

use super::Bits;

crate::bits::constants! {
    REMAPPED: u64 = 1 => "RemapEn: the interrupt is remapped; without it, it is aborted.";
    TYPE: Bits = Bits::new(2, 3) => "IntType: 0 fixed, 1 arbitrated.";
    LOGICAL: Bits = Bits::new(6, 1) => "DM: logical destination.";
    DESTINATION: Bits = Bits::new(8, 8) => "Destination.";
    VECTOR: Bits = Bits::new(16, 8) => "Vector.";
}
