//! Root, context and PASID entries (9.1 to 9.6 of revision 4.1), and interrupt entries (9.10).
//!
//! All are little-endian words of 64 bits; the present bit is bit 0 of word 0.
//!
//! *Context.* Interrupt: everything here is a value.

crate::bits::constants! {
    P: u64 = 1 => "Present.";

    ROOT_WORDS: usize = 2 => "Words of a root entry, legacy or scalable.";
    CONTEXT_WORDS: usize = 2 => "Words of a legacy context entry.";
    SCALABLE_WORDS: usize = 4 => "Words of a scalable context entry.";
    PASID_WORDS: usize = 8 => "Words of a PASID table entry.";
    PASID_TABLE_LG2: u32 = 6 => "Exponent of the number of entries of a PASID table.";
}

/// Entries of the interrupt remapping table (9.10), remapped and posted format.
pub mod interrupt {
    use super::super::Bits;
    crate::bits::constants! {
        DM: Bits = Bits::new(2, 1) => "Word 0: logical destination.";
        RH: Bits = Bits::new(3, 1) => "Word 0: one of several CPUs is chosen.";
        TM: Bits = Bits::new(4, 1) => "Word 0: level-triggered.";
        DLM: Bits = Bits::new(5, 3) => "Word 0: delivery mode, 0 fixed, 1 lowest priority.";
        URG: Bits = Bits::new(14, 1) => "Word 0, posted: it notifies in spite of suppression.";
        IM: Bits = Bits::new(15, 1) => "Word 0: the entry is posted.";
        V: Bits = Bits::new(16, 8) => "Word 0: vector.";
        PDA: Bits = Bits::new(38, 26) => "Word 0, posted: bits 31:6 of the descriptor's address.";
        PDA_HIGH: Bits = Bits::new(32, 32) => "Word 1, posted: bits 63:32 of the descriptor's address.";
        DST: Bits = Bits::new(32, 32) => "Word 0: destination, with identifiers of 32 bits.";
        DST_XAPIC: Bits = Bits::new(40, 8) => "Word 0: destination, with identifiers of 8 bits.";
        /// Word 1: source; two buses if it is verified by them, the first in the high half.
        SID: Bits = Bits::new(0, 16);
        SQ: Bits = Bits::new(16, 2) => "Word 1: which bits of the function are not compared.";
        SVT: Bits = Bits::new(18, 2) => "Word 1: how the source is verified, see [`verify`].";

        ALL_FUNCTIONS: u64 = 3 => "Value of [`SQ`]: none of the three bits is compared.";
    }

    /// Values of [`SVT`].
    pub mod verify {
        /// The requester identifier is the source's, but for the bits that [`SQ`](super::SQ) leaves
        /// out.
        pub const REQUESTER: u64 = 1;
        /// Its bus is one of those from the first to the last.
        pub const BUSES: u64 = 2;
    }
}

/// Legacy context entries (9.3): word 0 has the table in place.
pub mod context {
    use super::super::Bits;
    crate::bits::fields! { Bits;
        TT: 2, 2 => "Word 0: translation type, see [`translation`].";
        AW: 0, 3 => "Word 1: address width, 1 for three levels.";
        DID: 8, 16 => "Word 1: domain.";
    }

    /// Values of [`TT`].
    pub mod translation {
        crate::bits::constants! {
            UNTRANSLATED: u64 = 0 => "Untranslated requests are translated; others are blocked.";
            DEVICE_TLB: u64 = 1 => "Requests of device TLBs too.";
            PASS: u64 = 2 => "Pass-through.";
        }
    }
}

/// Scalable context entries (9.4): word 0 has the PASID directory in place.
pub mod scalable {
    use super::super::Bits;
    crate::bits::constants! {
        DTE: u64 = 1 << 2 => "Word 0: device TLB enable.";
        PASIDE: u64 = 1 << 3 => "Word 0: requests with PASID enable.";
        PRE: u64 = 1 << 4 => "Word 0: page request enable.";
        PDTS: Bits = Bits::new(9, 3) => "Word 0: directory of `2^(PDTS + 7)` entries.";
        RID_PASID: Bits = Bits::new(0, 20) => "Word 1: PASID of requests without one.";
    }
}

/// PASID table entries (9.6): word 0 has the second-stage table in place, word 2 the first-stage.
pub mod pasid {
    use super::super::Bits;
    crate::bits::constants! {
        /// Word 0: address width of the second stage, 1 for three levels.
        AW: Bits = Bits::new(2, 3);
        PGTT: Bits = Bits::new(6, 3) => "Word 0: granular translation type, see [`translation`].";
        DID: Bits = Bits::new(0, 16) => "Word 1: domain.";
        SSADE: u64 = 1 << 9 => "Word 0: accessed and dirty bits of the second stage are set.";
        PWSNP: u64 = 1 << 23 => "Word 1: page walks snoop.";
        FSPM: Bits = Bits::new(2, 2) => "Word 2: first-stage levels, 0 for four.";
    }

    /// Values of [`PGTT`].
    pub mod translation {
        crate::bits::constants! {
            FIRST: u64 = 1 => "First stage.";
            SECOND: u64 = 2 => "Second stage.";
            NESTED: u64 = 3 => "Nested.";
            PASS: u64 = 4 => "Pass-through.";
        }
    }
}
