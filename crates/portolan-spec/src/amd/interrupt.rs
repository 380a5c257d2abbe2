//! Entries of interrupt tables (2.2.5), remapped format: of 32 bits (2.2.5.1), and of two words, which
//! have room for identifiers of 32 bits (2.2.5.2).

use super::Bits;

crate::bits::constants! {
    REMAPPED: u64 = 1 => "RemapEn: the interrupt is remapped; without it, it is aborted.";
    TYPE: Bits = Bits::new(2, 3) => "IntType: 0 fixed, 1 arbitrated.";
    LOGICAL: Bits = Bits::new(6, 1) => "DM: logical destination.";
    DESTINATION: Bits = Bits::new(8, 8) => "Destination.";
    VECTOR: Bits = Bits::new(16, 8) => "Vector.";
}

/// Fields of entries of two words where they differ: RemapEn, IntType and DM are those of the short form.
pub mod wide {
    use super::Bits;
    crate::bits::constants! {
        WORDS: usize = 2 => "Words of an entry.";
        LG2_BYTES: u32 = 4 => "Bytes of an entry, as an exponent.";
        DESTINATION: Bits = Bits::new(8, 24) => "Word 0: bits 23:0 of the destination.";
        VECTOR: Bits = Bits::new(0, 8) => "Word 1: vector.";
        DESTINATION_HIGH: Bits = Bits::new(56, 8) => "Word 1: bits 31:24 of the destination.";
    }
}

/// Fields of entries of two words that post to a virtual interrupt controller (2.2.5.3): RemapEn is that of the short
/// form, the vector and the destination are those of the wide one. The unit keeps no copy of the destination, IsRun,
/// GALogIntr and GATag.
pub mod posted {
    use super::Bits;
    crate::bits::constants! {
        /// Word 0: GALogIntr, interrupts of a virtual CPU that does not run are logged.
        LOGGED: u64 = 1 << 2;
        RUNS: u64 = 1 << 6 => "Word 0: IsRun, the virtual CPU runs at the destination.";
        GUEST: u64 = 1 << 7 => "Word 0: GuestMode, the interrupt is posted.";
        TAG: Bits = Bits::new(32, 32) => "Word 0: GATag, number of the virtual CPU.";
        PAGE: u64 = 0x000f_ffff_ffff_f000 => "Word 1: bits 51:12 of the backing page's address.";
    }
}

/// Value of the register that says where an interrupt of the unit's own goes (3.4.31).
pub mod own {
    use super::Bits;
    crate::bits::constants! {
        LOGICAL: Bits = Bits::new(2, 1) => "Logical destination.";
        DESTINATION: Bits = Bits::new(8, 24) => "Bits 23:0 of the destination.";
        VECTOR: Bits = Bits::new(32, 8) => "Vector.";
        ARBITRATED: Bits = Bits::new(40, 1) => "Delivery: 0 fixed, 1 arbitrated.";
        DESTINATION_HIGH: Bits = Bits::new(56, 8) => "Bits 31:24 of the destination.";
    }
}
