//! Stream table entries and level 1 descriptors (IHI 0070, sections 5.1 and 5.2).
//!
//! *Context.* Interrupt: everything here is a value.

use super::fields;

/// Words of an entry.
pub const WORDS: usize = 8;
/// Exponent of its bytes.
pub const LG2_BYTES: u32 = 6;
/// An entry.
pub type Ste = [u64; WORDS];

fields! {
    V: 0, 0, 1 => "The entry is valid.";
    CONFIG: 0, 1, 3 => "What is done with the stream: see [`config`].";
    S1FMT: 0, 4, 2 => "Form of the context descriptor table.";
    S1CONTEXTPTR: 0, 6, 46 => "Context descriptors, in place from bit 6.";
    S1CDMAX: 0, 59, 5 => "Their number, as an exponent.";
    S1DSS: 1, 0, 2 => "What becomes of accesses without a substream.";
    S1CIR: 1, 2, 2 => "Inner cacheability of descriptor fetches.";
    S1COR: 1, 4, 2 => "Outer cacheability of descriptor fetches.";
    S1CSH: 1, 6, 2 => "Shareability of descriptor fetches.";
    S1STALLD: 1, 27, 1 => "Stage 1 may not stall.";
    EATS: 1, 28, 2 => "Address translation service.";
    STRW: 1, 30, 2 => "Stream world.";
    /// Attributes of accesses in any configuration: the fields below the stalls.
    ATTRIBUTES_LOW: 1, 8, 19;
    ATTRIBUTES_HIGH: 1, 32, 32 => "The same, above the stream world.";
    SHCFG: 1, 44, 2 => "Shareability of untranslated accesses.";
    S2VMID: 2, 0, 16 => "Tag of second-stage translations.";
    S2T0SZ: 2, 32, 6 => "64 less the width of second-stage input addresses.";
    S2SL0: 2, 38, 2 => "Level at which the second-stage walk begins.";
    S2IR0: 2, 40, 2 => "Inner cacheability of walks.";
    S2OR0: 2, 42, 2 => "Outer cacheability of walks.";
    S2SH0: 2, 44, 2 => "Shareability of walks.";
    S2TG: 2, 46, 2 => "Granule of the second-stage table.";
    S2PS: 2, 48, 3 => "Size of second-stage output addresses.";
    S2AA64: 2, 51, 1 => "AArch64 tables.";
    S2AFFD: 2, 53, 1 => "Access flag faults are disabled.";
    S2PTW: 2, 54, 1 => "First-stage walks may not touch device memory.";
    S2HD: 2, 55, 1 => "Hardware updates dirty state.";
    S2HA: 2, 56, 1 => "Hardware updates access flags.";
    S2S: 2, 57, 1 => "Second-stage faults stall.";
    S2R: 2, 58, 1 => "Second-stage faults are recorded.";
    S2CONTROL: 2, 32, 27 => "All that controls the second stage, but for its tag.";
    S2TTB: 3, 4, 48 => "Second-stage table, in place from bit 4.";
}

/// Values of [`CONFIG`].
pub mod config {
    crate::bits::constants! {
        ABORT: u64 = 0b000 => "Accesses are aborted, without an event.";
        BYPASS: u64 = 0b100 => "Accesses pass through.";
        STAGE1: u64 = 0b101 => "Stage 1 translates.";
        STAGE2: u64 = 0b110 => "Stage 2 translates.";
        NESTED: u64 = 0b111 => "Stage 1, and stage 2 behind it.";
    }
}

/// Values of [`S1FMT`].
pub mod s1fmt {
    crate::bits::constants! {
        LINEAR: u64 = 0 => "One table.";
        TWO_LEVEL_4K: u64 = 1 => "Two levels, the second of 4 KiB.";
        TWO_LEVEL_64K: u64 = 2 => "Two levels, the second of 64 KiB.";
    }
}

/// Values of [`S1DSS`].
pub mod s1dss {
    crate::bits::constants! {
        TERMINATE: u64 = 0 => "Accesses without a substream are terminated.";
        BYPASS: u64 = 1 => "They are passed through.";
        SSID0: u64 = 2 => "They use the first descriptor.";
    }
}

/// Values of [`EATS`].
pub mod eats {
    /// Translation requests are refused.
    pub const ABORT: u64 = 0;
    /// They are answered with final addresses.
    pub const FULL: u64 = 1;
}

crate::bits::constants! {
    SHARE_INCOMING: u64 = 1 => "Value of [`SHCFG`]: as the device says.";
    WRITE_BACK: u64 = 1 => "Write-back cacheable, for the cacheability fields.";
    INNER: u64 = 3 => "Inner shareable, for the shareability fields.";
    OUTER: u64 = 2 => "Outer shareable, for the shareability fields.";
}

/// Level 1 descriptors: one word.
pub mod level1 {
    super::super::fields! {
        SPAN: 0, 0, 5 => "Exponent of the number of entries, plus one; 0 is invalid.";
        L2PTR: 0, 6, 46 => "Second-level table, in place from bit 6.";
    }
}
