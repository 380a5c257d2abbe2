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
    /// The entry is valid.
    V: 0, 0, 1;
    /// What is done with the stream: see [`config`].
    CONFIG: 0, 1, 3;
    /// Form of the context descriptor table.
    S1FMT: 0, 4, 2;
    /// Context descriptors, in place from bit 6.
    S1CONTEXTPTR: 0, 6, 46;
    /// Their number, as an exponent.
    S1CDMAX: 0, 59, 5;
    /// What becomes of accesses without a substream.
    S1DSS: 1, 0, 2;
    /// Inner cacheability of descriptor fetches.
    S1CIR: 1, 2, 2;
    /// Outer cacheability of descriptor fetches.
    S1COR: 1, 4, 2;
    /// Shareability of descriptor fetches.
    S1CSH: 1, 6, 2;
    /// Stage 1 may not stall.
    S1STALLD: 1, 27, 1;
    /// Address translation service.
    EATS: 1, 28, 2;
    /// Stream world.
    STRW: 1, 30, 2;
    /// Attributes of accesses, whatever the configuration: what lies below the stalls.
    ATTRIBUTES_LOW: 1, 8, 19;
    /// The same, above the stream world.
    ATTRIBUTES_HIGH: 1, 32, 32;
    /// Shareability of untranslated accesses.
    SHCFG: 1, 44, 2;
    /// Tag of second-stage translations.
    S2VMID: 2, 0, 16;
    /// 64 less the width of second-stage input addresses.
    S2T0SZ: 2, 32, 6;
    /// Level at which the second-stage walk begins.
    S2SL0: 2, 38, 2;
    /// Inner cacheability of walks.
    S2IR0: 2, 40, 2;
    /// Outer cacheability of walks.
    S2OR0: 2, 42, 2;
    /// Shareability of walks.
    S2SH0: 2, 44, 2;
    /// Granule.
    S2TG: 2, 46, 2;
    /// Output size.
    S2PS: 2, 48, 3;
    /// AArch64 tables.
    S2AA64: 2, 51, 1;
    /// Access flag faults are disabled.
    S2AFFD: 2, 53, 1;
    /// First-stage walks may not touch device memory.
    S2PTW: 2, 54, 1;
    /// Hardware updates dirty state.
    S2HD: 2, 55, 1;
    /// Hardware updates access flags.
    S2HA: 2, 56, 1;
    /// Second-stage faults stall.
    S2S: 2, 57, 1;
    /// Second-stage faults are recorded.
    S2R: 2, 58, 1;
    /// All that controls the second stage, but for its tag.
    S2CONTROL: 2, 32, 27;
    /// Second-stage table, in place from bit 4.
    S2TTB: 3, 4, 48;
}

/// Values of [`CONFIG`].
pub mod config {
    /// Aborted, without an event.
    pub const ABORT: u64 = 0b000;
    /// Passed through.
    pub const BYPASS: u64 = 0b100;
    /// Stage 1.
    pub const STAGE1: u64 = 0b101;
    /// Stage 2.
    pub const STAGE2: u64 = 0b110;
    /// Both.
    pub const NESTED: u64 = 0b111;
}

/// Values of [`S1FMT`].
pub mod s1fmt {
    /// One table.
    pub const LINEAR: u64 = 0;
    /// Two levels, the second of 4 KiB.
    pub const TWO_LEVEL_4K: u64 = 1;
    /// Two levels, the second of 64 KiB.
    pub const TWO_LEVEL_64K: u64 = 2;
}

/// Values of [`S1DSS`].
pub mod s1dss {
    /// Accesses without a substream are terminated.
    pub const TERMINATE: u64 = 0;
    /// They are passed through.
    pub const BYPASS: u64 = 1;
    /// They use the first descriptor.
    pub const SSID0: u64 = 2;
}

/// Values of [`EATS`].
pub mod eats {
    /// Translation requests are refused.
    pub const ABORT: u64 = 0;
    /// They are answered with final addresses.
    pub const FULL: u64 = 1;
}

/// Value of [`SHCFG`]: as the device says.
pub const SHARE_INCOMING: u64 = 1;
/// Write-back cacheable, for the cacheability fields.
pub const WRITE_BACK: u64 = 1;
/// Inner shareable, for the shareability fields.
pub const INNER: u64 = 3;
/// Outer shareable, for the shareability fields.
pub const OUTER: u64 = 2;

/// Level 1 descriptors: one word.
pub mod level1 {
    super::super::fields! {
        /// Exponent of the number of entries, plus one; 0 is invalid.
        SPAN: 0, 0, 5;
        /// Second-level table, in place from bit 6.
        L2PTR: 0, 6, 46;
    }
}
