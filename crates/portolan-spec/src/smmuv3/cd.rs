//! Context descriptors and level 1 descriptors (IHI 0070, sections 5.3 and 5.4).
//!
//! *Context.* Interrupt: everything here is a value.

use super::fields;

/// Words of a descriptor.
pub const WORDS: usize = 8;
/// Exponent of its bytes.
pub const LG2_BYTES: u32 = 6;
/// A descriptor.
pub type Cd = [u64; WORDS];

fields! {
    T0SZ: 0, 0, 6 => "64 less the width of input addresses of the low half.";
    TG0: 0, 6, 2 => "Granule of the low half.";
    IR0: 0, 8, 2 => "Inner cacheability of walks.";
    OR0: 0, 10, 2 => "Outer cacheability of walks.";
    SH0: 0, 12, 2 => "Shareability of walks.";
    EPD0: 0, 14, 1 => "No walks of the low half.";
    EPD1: 0, 30, 1 => "No walks of the high half.";
    V: 0, 31, 1 => "The descriptor is valid.";
    IPS: 0, 32, 3 => "Output size.";
    AA64: 0, 41, 1 => "AArch64 tables.";
    HD: 0, 42, 1 => "Hardware updates dirty state.";
    HA: 0, 43, 1 => "Hardware updates access flags.";
    S: 0, 44, 1 => "Faults stall.";
    R: 0, 45, 1 => "Faults are recorded.";
    A: 0, 46, 1 => "Faults abort.";
    ASET: 0, 47, 1 => "The tag is not shared with processors.";
    ASID: 0, 48, 16 => "Tag of translations.";
    TTB0: 1, 4, 48 => "Table of the low half, in place from bit 4.";
    MAIR: 3, 0, 64 => "Memory attributes.";
}

/// Values of [`TG0`] (and of the second stage's granule field).
pub mod granule {
    crate::bits::constants! {
        SIZE_4K: u64 = 0 => "4 KiB.";
        SIZE_64K: u64 = 1 => "64 KiB.";
        SIZE_16K: u64 = 2 => "16 KiB.";
    }
}

/// Level 1 descriptors: one word.
pub mod level1 {
    super::super::fields! {
        V: 0, 0, 1 => "The second-level table is there.";
        L2PTR: 0, 12, 40 => "It, in place from bit 12.";
    }
    /// Exponent of the number of descriptors of a second-level table of 64 KiB.
    pub const SPLIT: u32 = 10;
}
