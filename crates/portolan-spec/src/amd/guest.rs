//! Entries of GCR3 tables (2.2.6), one word each: by PASID, of the root of a guest table, or of the GCR3 table
//! one level below. The address is in [`super::ADDRESS`].

crate::bits::constants! {
    V: u64 = 1 => "The entry counts.";
    /// Bits of a PASID that one level looks at.
    LG2_ENTRIES: u32 = 9;
}
