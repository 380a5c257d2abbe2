//! Fault records (7.2, 11.4.14) and page requests (7.5) of revision 4.1.
//!
//! *Context.* Interrupt: everything here is a value.

/// Bytes of a fault record.
pub const FAULT_BYTES: usize = 16;

/// The second word of a fault record; the first has the address in place.
pub mod fault {
    use super::super::Bits;
    crate::bits::constants! {
        F: Bits = Bits::new(63, 1) => "Something is recorded; written 1 to clear.";
        T1: Bits = Bits::new(62, 1) => "Type, high bit: with a clear low bit, a read.";
        INDEX: Bits = Bits::new(48, 16) => "The first word of a record of an interrupt: its index.";
        PASID: Bits = Bits::new(40, 20) => "PASID.";
        REASON: Bits = Bits::new(32, 8) => "Reason.";
        PP: Bits = Bits::new(31, 1) => "There was a PASID.";
        T2: Bits = Bits::new(28, 1) => "Type, low bit.";
        SID: Bits = Bits::new(0, 16) => "Source.";
        /// Offset in the record of the half word with [`F`], which is its top bit.
        F_OFFSET: usize = 12;
    }
}

/// Fault reasons (7.1.3).
pub mod reason {
    crate::bits::constants! {
        ROOT_ABSENT: u8 = 0x1 => "Root entry not present.";
        CONTEXT_ABSENT: u8 = 0x2 => "Context entry not present.";
        CONTEXT_INVALID: u8 = 0x3 => "Context entry malformed.";
        BEYOND_WIDTH: u8 = 0x4 => "Address beyond the width.";
        WRITE: u8 = 0x5 => "Write without permission, or to nothing.";
        READ: u8 = 0x6 => "Read without permission, or of nothing.";
        TABLE_ACCESS: u8 = 0x7 => "Page-table entry unreadable.";
        ROOT_ACCESS: u8 = 0x8 => "Root table unreadable.";
        CONTEXT_ACCESS: u8 = 0x9 => "Context table unreadable.";
        ROOT_RESERVED: u8 = 0xa => "Reserved bit set in a root entry.";
        CONTEXT_RESERVED: u8 = 0xb => "Reserved bit set in a context entry.";
        TABLE_RESERVED: u8 = 0xc => "Reserved bit set in a page-table entry.";
        CONTEXT_BLOCKS: u8 = 0xd => "The context entry lets no such request through.";
        INTERRUPT_RESERVED: u8 = 0x20 => "Reserved bit set in an interrupt message.";
        INTERRUPT_BEYOND: u8 = 0x21 => "The index is beyond the interrupt table.";
        INTERRUPT_ABSENT: u8 = 0x22 => "Interrupt entry not present.";
        INTERRUPT_ACCESS: u8 = 0x23 => "Interrupt entry unreadable.";
        INTERRUPT_ENTRY_RESERVED: u8 = 0x24 => "Reserved bit set in an interrupt entry.";
        INTERRUPT_COMPATIBLE: u8 = 0x25 => "Interrupt in compatibility format, which is blocked.";
        INTERRUPT_SOURCE: u8 = 0x26 => "The interrupt entry is another source's.";
        /// Descriptor of a posted interrupt unreadable, or malformed: first and last reason.
        INTERRUPT_POSTED: u8 = 0x27;
        INTERRUPT_POSTED_LAST: u8 = 0x28 => "As [`INTERRUPT_POSTED`].";
        SCALABLE_ROOT_ACCESS: u8 = 0x38 => "Scalable root entry unreadable.";
        SCALABLE_ROOT_ABSENT: u8 = 0x39 => "Scalable root entry not present.";
        SCALABLE_ROOT_RESERVED: u8 = 0x3a => "Scalable root entry malformed.";
        SCALABLE_CONTEXT_ACCESS: u8 = 0x40 => "Scalable context entry unreadable.";
        SCALABLE_CONTEXT_ABSENT: u8 = 0x41 => "Scalable context entry not present.";
        SCALABLE_CONTEXT_LAST: u8 = 0x4f => "Scalable context entry malformed: last reason.";
        /// The root table's address, or its mode, does not fit the request: first and last reason.
        ROOT_POINTER: u8 = 0x30;
        ROOT_POINTER_LAST: u8 = 0x32 => "As [`ROOT_POINTER`].";
        DIRECTORY_ACCESS: u8 = 0x50 => "PASID directory entry unreadable.";
        DIRECTORY_ABSENT: u8 = 0x51 => "PASID directory entry not present.";
        DIRECTORY_RESERVED: u8 = 0x52 => "Reserved bit set in a PASID directory entry.";
        PASID_ACCESS: u8 = 0x58 => "PASID table entry unreadable.";
        PASID_ABSENT: u8 = 0x59 => "PASID table entry not present.";
        PASID_LAST: u8 = 0x5f => "PASID table entry malformed: last reason.";
        FIRST_ACCESS: u8 = 0x70 => "First-stage entry unreadable.";
        FIRST_ABSENT: u8 = 0x71 => "First-stage entry not present.";
        FIRST_RESERVED: u8 = 0x72 => "First-stage entry malformed.";
        FIRST_ROOT_ACCESS: u8 = 0x73 => "Root of the first stage unreadable.";
        FIRST_BEYOND: u8 = 0x74 => "First-stage table beyond the second stage's width.";
        /// The second stage does not let the first stage's tables be reached: first and last reason.
        NESTED_TABLE: u8 = 0x75;
        NESTED_TABLE_LAST: u8 = 0x77 => "As [`NESTED_TABLE`].";
        SECOND_ACCESS: u8 = 0x78 => "Second-stage entry unreadable.";
        /// Second-stage entry without permission; one that is not present has none.
        SECOND_PERMISSION: u8 = 0x79;
        SECOND_RESERVED: u8 = 0x7a => "Second-stage entry malformed.";
        SECOND_ROOT: u8 = 0x7b => "Root of the second stage malformed.";
        NOT_CANONICAL: u8 = 0x80 => "First-stage address not canonical.";
        SUPERVISOR: u8 = 0x81 => "First-stage entry of a supervisor.";
        EXECUTE: u8 = 0x82 => "Execute without permission.";
        BEYOND_UNIT: u8 = 0x83 => "Address beyond what the unit can look up.";
        SECOND_BEYOND: u8 = 0x84 => "Second-stage address beyond the width.";
        SCALABLE_WRITE: u8 = 0x85 => "Write without permission.";
        SCALABLE_READ: u8 = 0x86 => "Read without permission.";
    }
}

/// Words of a page request.
pub const REQUEST_WORDS: usize = 4;
/// Exponent of the bytes of a page request.
pub const REQUEST_LG2: u32 = 5;

/// Page requests: word 1 has the address in place, words 2 and 3 are private data.
pub mod request {
    use super::super::Bits;
    crate::bits::fields! { Bits;
        TYPE: 0, 8 => "Word 0: type, 1 for a page request.";
        PASID_PRESENT: 8, 1 => "Word 0: there is a PASID.";
        RID: 16, 16 => "Word 0: source.";
        PASID: 32, 20 => "Word 0: PASID.";
        EXECUTE: 52, 1 => "Word 0: to execute.";
        PRIVILEGED: 53, 1 => "Word 0: privileged.";
        READ: 0, 1 => "Word 1: to read.";
        WRITE: 1, 1 => "Word 1: to write.";
        LAST: 2, 1 => "Word 1: last of its group.";
        GROUP: 3, 9 => "Word 1: group.";
    }
}
