//! Root, context and PASID entries (9.1 to 9.6 of revision 4.1), and interrupt entries (9.10).
//!
//! All are little-endian words of 64 bits; the present bit is bit 0 of word 0.
//!
//! *Context.* Interrupt: everything here is a value.

/// Present.
pub const P: u64 = 1;

/// Words of a root entry, legacy or scalable.
pub const ROOT_WORDS: usize = 2;
/// Words of a legacy context entry.
pub const CONTEXT_WORDS: usize = 2;
/// Words of a scalable context entry.
pub const SCALABLE_WORDS: usize = 4;
/// Words of a PASID table entry.
pub const PASID_WORDS: usize = 8;
/// Exponent of the number of entries of a PASID table.
pub const PASID_TABLE_LG2: u32 = 6;

/// Entries of the interrupt remapping table (9.10), remapped format.
pub mod interrupt {
    use super::super::Bits;
    /// Word 0: logical destination.
    pub const DM: Bits = Bits::new(2, 1);
    /// Word 0: one of several CPUs is chosen.
    pub const RH: Bits = Bits::new(3, 1);
    /// Word 0: level-triggered.
    pub const TM: Bits = Bits::new(4, 1);
    /// Word 0: delivery mode, 0 fixed, 1 lowest priority.
    pub const DLM: Bits = Bits::new(5, 3);
    /// Word 0: vector.
    pub const V: Bits = Bits::new(16, 8);
    /// Word 0: destination, with identifiers of 32 bits.
    pub const DST: Bits = Bits::new(32, 32);
    /// Word 0: destination, with identifiers of 8 bits.
    pub const DST_XAPIC: Bits = Bits::new(40, 8);
    /// Word 1: source; two buses if it is verified by them, the first in the high half.
    pub const SID: Bits = Bits::new(0, 16);
    /// Word 1: which bits of the function are not compared.
    pub const SQ: Bits = Bits::new(16, 2);
    /// Word 1: how the source is verified, see [`verify`].
    pub const SVT: Bits = Bits::new(18, 2);

    /// Value of [`SQ`]: none of the three bits is compared.
    pub const ALL_FUNCTIONS: u64 = 3;

    /// Values of [`SVT`].
    pub mod verify {
        /// The requester identifier is the source's, but for what [`SQ`](super::SQ) leaves out.
        pub const REQUESTER: u64 = 1;
        /// Its bus is one of those from the first to the last.
        pub const BUSES: u64 = 2;
    }
}

/// Legacy context entries (9.3): word 0 has the table in place.
pub mod context {
    use super::super::Bits;
    /// Word 0: translation type, see [`translation`].
    pub const TT: Bits = Bits::new(2, 2);
    /// Word 1: address width, 1 for three levels.
    pub const AW: Bits = Bits::new(0, 3);
    /// Word 1: domain.
    pub const DID: Bits = Bits::new(8, 16);

    /// Values of [`TT`].
    pub mod translation {
        /// Untranslated requests are translated; others are blocked.
        pub const UNTRANSLATED: u64 = 0;
        /// Requests of device TLBs too.
        pub const DEVICE_TLB: u64 = 1;
        /// Pass-through.
        pub const PASS: u64 = 2;
    }
}

/// Scalable context entries (9.4): word 0 has the PASID directory in place.
pub mod scalable {
    use super::super::Bits;
    /// Word 0: device TLB enable.
    pub const DTE: u64 = 1 << 2;
    /// Word 0: requests with PASID enable.
    pub const PASIDE: u64 = 1 << 3;
    /// Word 0: page request enable.
    pub const PRE: u64 = 1 << 4;
    /// Word 0: directory of `2^(PDTS + 7)` entries.
    pub const PDTS: Bits = Bits::new(9, 3);
    /// Word 1: PASID of requests without one.
    pub const RID_PASID: Bits = Bits::new(0, 20);
}

/// PASID table entries (9.6): word 0 has the second-stage table in place, word 2 the first-stage.
pub mod pasid {
    use super::super::Bits;
    /// Word 0: address width of the second stage, 1 for three levels.
    pub const AW: Bits = Bits::new(2, 3);
    /// Word 0: granular translation type, see [`translation`].
    pub const PGTT: Bits = Bits::new(6, 3);
    /// Word 1: domain.
    pub const DID: Bits = Bits::new(0, 16);
    /// Word 1: page walks snoop.
    pub const PWSNP: u64 = 1 << 23;
    /// Word 2: first-stage levels, 0 for four.
    pub const FSPM: Bits = Bits::new(2, 2);

    /// Values of [`PGTT`].
    pub mod translation {
        /// First stage.
        pub const FIRST: u64 = 1;
        /// Second stage.
        pub const SECOND: u64 = 2;
        /// Nested.
        pub const NESTED: u64 = 3;
        /// Pass-through.
        pub const PASS: u64 = 4;
    }
}
