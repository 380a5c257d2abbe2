//! Fault records (7.2, 11.4.14) and page requests (7.5) of revision 4.1.
//!
//! *Context.* Interrupt: everything here is a value.

/// Bytes of a fault record.
pub const FAULT_BYTES: usize = 16;

/// The second word of a fault record; the first has the address in place.
pub mod fault {
    use super::super::Bits;
    /// Something is recorded; written 1 to clear.
    pub const F: Bits = Bits::new(63, 1);
    /// Type, high bit: with a clear low bit, a read.
    pub const T1: Bits = Bits::new(62, 1);
    /// The first word of a record of an interrupt: its index.
    pub const INDEX: Bits = Bits::new(48, 16);
    /// PASID.
    pub const PASID: Bits = Bits::new(40, 20);
    /// Reason.
    pub const REASON: Bits = Bits::new(32, 8);
    /// There was a PASID.
    pub const PP: Bits = Bits::new(31, 1);
    /// Type, low bit.
    pub const T2: Bits = Bits::new(28, 1);
    /// Source.
    pub const SID: Bits = Bits::new(0, 16);
    /// Offset in the record of the half word with [`F`], which is its top bit.
    pub const F_OFFSET: usize = 12;
}

/// Fault reasons (7.1.3).
pub mod reason {
    /// Root entry not present.
    pub const ROOT_ABSENT: u8 = 0x1;
    /// Context entry not present.
    pub const CONTEXT_ABSENT: u8 = 0x2;
    /// Context entry malformed.
    pub const CONTEXT_INVALID: u8 = 0x3;
    /// Address beyond the width.
    pub const BEYOND_WIDTH: u8 = 0x4;
    /// Write without permission, or to nothing.
    pub const WRITE: u8 = 0x5;
    /// Read without permission, or of nothing.
    pub const READ: u8 = 0x6;
    /// Page-table entry unreadable.
    pub const TABLE_ACCESS: u8 = 0x7;
    /// Root table unreadable.
    pub const ROOT_ACCESS: u8 = 0x8;
    /// Context table unreadable.
    pub const CONTEXT_ACCESS: u8 = 0x9;
    /// Reserved bit set in a root entry.
    pub const ROOT_RESERVED: u8 = 0xa;
    /// Reserved bit set in a context entry.
    pub const CONTEXT_RESERVED: u8 = 0xb;
    /// Reserved bit set in a page-table entry.
    pub const TABLE_RESERVED: u8 = 0xc;
    /// The context entry lets no such request through.
    pub const CONTEXT_BLOCKS: u8 = 0xd;
    /// Reserved bit set in an interrupt message.
    pub const INTERRUPT_RESERVED: u8 = 0x20;
    /// The index is beyond the interrupt table.
    pub const INTERRUPT_BEYOND: u8 = 0x21;
    /// Interrupt entry not present.
    pub const INTERRUPT_ABSENT: u8 = 0x22;
    /// Interrupt entry unreadable.
    pub const INTERRUPT_ACCESS: u8 = 0x23;
    /// Reserved bit set in an interrupt entry.
    pub const INTERRUPT_ENTRY_RESERVED: u8 = 0x24;
    /// Interrupt in compatibility format, which is blocked.
    pub const INTERRUPT_COMPATIBLE: u8 = 0x25;
    /// The interrupt entry is another source's.
    pub const INTERRUPT_SOURCE: u8 = 0x26;
    /// Descriptor of a posted interrupt unreadable, or malformed: first and last reason.
    pub const INTERRUPT_POSTED: u8 = 0x27;
    /// As [`INTERRUPT_POSTED`].
    pub const INTERRUPT_POSTED_LAST: u8 = 0x28;
    /// Scalable root entry unreadable.
    pub const SCALABLE_ROOT_ACCESS: u8 = 0x38;
    /// Scalable root entry not present.
    pub const SCALABLE_ROOT_ABSENT: u8 = 0x39;
    /// Scalable root entry malformed.
    pub const SCALABLE_ROOT_RESERVED: u8 = 0x3a;
    /// Scalable context entry unreadable.
    pub const SCALABLE_CONTEXT_ACCESS: u8 = 0x40;
    /// Scalable context entry not present.
    pub const SCALABLE_CONTEXT_ABSENT: u8 = 0x41;
    /// Scalable context entry malformed: last reason.
    pub const SCALABLE_CONTEXT_LAST: u8 = 0x4f;
    /// The root table's address, or its mode, does not fit the request: first and last reason.
    pub const ROOT_POINTER: u8 = 0x30;
    /// As [`ROOT_POINTER`].
    pub const ROOT_POINTER_LAST: u8 = 0x32;
    /// PASID directory entry unreadable.
    pub const DIRECTORY_ACCESS: u8 = 0x50;
    /// PASID directory entry not present.
    pub const DIRECTORY_ABSENT: u8 = 0x51;
    /// Reserved bit set in a PASID directory entry.
    pub const DIRECTORY_RESERVED: u8 = 0x52;
    /// PASID table entry unreadable.
    pub const PASID_ACCESS: u8 = 0x58;
    /// PASID table entry not present.
    pub const PASID_ABSENT: u8 = 0x59;
    /// PASID table entry malformed: last reason.
    pub const PASID_LAST: u8 = 0x5f;
    /// First-stage entry unreadable.
    pub const FIRST_ACCESS: u8 = 0x70;
    /// First-stage entry not present.
    pub const FIRST_ABSENT: u8 = 0x71;
    /// First-stage entry malformed.
    pub const FIRST_RESERVED: u8 = 0x72;
    /// Root of the first stage unreadable.
    pub const FIRST_ROOT_ACCESS: u8 = 0x73;
    /// First-stage table beyond the second stage's width.
    pub const FIRST_BEYOND: u8 = 0x74;
    /// The second stage does not let the first stage's tables be reached: first and last reason.
    pub const NESTED_TABLE: u8 = 0x75;
    /// As [`NESTED_TABLE`].
    pub const NESTED_TABLE_LAST: u8 = 0x77;
    /// Second-stage entry unreadable.
    pub const SECOND_ACCESS: u8 = 0x78;
    /// Second-stage entry without permission; one that is not present has none.
    pub const SECOND_PERMISSION: u8 = 0x79;
    /// Second-stage entry malformed.
    pub const SECOND_RESERVED: u8 = 0x7a;
    /// Root of the second stage malformed.
    pub const SECOND_ROOT: u8 = 0x7b;
    /// First-stage address not canonical.
    pub const NOT_CANONICAL: u8 = 0x80;
    /// First-stage entry of a supervisor.
    pub const SUPERVISOR: u8 = 0x81;
    /// Execute without permission.
    pub const EXECUTE: u8 = 0x82;
    /// Address beyond what the unit can look up.
    pub const BEYOND_UNIT: u8 = 0x83;
    /// Second-stage address beyond the width.
    pub const SECOND_BEYOND: u8 = 0x84;
    /// Write without permission.
    pub const SCALABLE_WRITE: u8 = 0x85;
    /// Read without permission.
    pub const SCALABLE_READ: u8 = 0x86;
}

/// Words of a page request.
pub const REQUEST_WORDS: usize = 4;
/// Exponent of the bytes of a page request.
pub const REQUEST_LG2: u32 = 5;

/// Page requests: word 1 has the address in place, words 2 and 3 are private data.
pub mod request {
    use super::super::Bits;
    /// Word 0: type, 1 for a page request.
    pub const TYPE: Bits = Bits::new(0, 8);
    /// Word 0: there is a PASID.
    pub const PASID_PRESENT: Bits = Bits::new(8, 1);
    /// Word 0: source.
    pub const RID: Bits = Bits::new(16, 16);
    /// Word 0: PASID.
    pub const PASID: Bits = Bits::new(32, 20);
    /// Word 0: to execute.
    pub const EXECUTE: Bits = Bits::new(52, 1);
    /// Word 0: privileged.
    pub const PRIVILEGED: Bits = Bits::new(53, 1);
    /// Word 1: to read.
    pub const READ: Bits = Bits::new(0, 1);
    /// Word 1: to write.
    pub const WRITE: Bits = Bits::new(1, 1);
    /// Word 1: last of its group.
    pub const LAST: Bits = Bits::new(2, 1);
    /// Word 1: group.
    pub const GROUP: Bits = Bits::new(3, 9);
}
