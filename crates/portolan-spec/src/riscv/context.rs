//! The device directory: entries that lead to the next level, and device contexts of 32 bytes (base
//! format) or of 64 (extended format), of which the first four words are the same.

use super::Bits;
use crate::bits::fields;

crate::bits::constants! {
    /// An entry of the directory above its leaves, and word 0 of a device context: it counts.
    V: u64 = 1;

    /// Word 0 of a device context: its device may ask for translations and use them (`EN_ATS`).
    TRANSLATES: u64 = 1 << 1;
    /// Word 0 of a device context whose device may ask for translations: it may send page requests (`EN_PRI`).
    REQUESTS: u64 = 1 << 2;
    /// Word 0 of a device context: the first stage is a process directory's (`PDTV`).
    DIRECTORY: u64 = 1 << 5;
    /// Word 0 of a device context: the unit marks pages that it reads and writes through, in leaves
    /// of second stages (`GADE`) and of first stages (`SADE`).
    MARKS: u64 = 3 << 7;
    /// Word 0 of a device context with a process directory: requests without a PASID are those of address
    /// space 0 (`DPE`).
    BY_DEFAULT: u64 = 1 << 9;

    /// Words of a process context: control and tag, and the first stage, as in [`ATTRIBUTES`] and [`FIRST`].
    PROCESS_WORDS: usize = 2;
    BASE_WORDS: usize = 4 => "Words of a context in base format.";
    EXTENDED_WORDS: usize = 8 => "Words of a context in extended format.";

    CONTROL: usize = 0 => "Word of a context: translation control (`tc`).";
    SECOND: usize = 1 => "Word of a context: the second stage (`iohgatp`).";
    ATTRIBUTES: usize = 2 => "Word of a context: translation attributes (`ta`).";
    FIRST: usize = 3 => "Word of a context: the first stage (`fsc`, as `iosatp`).";

    /// Word of a context in extended format: the MSI page table (`msiptp`).
    MESSAGE_TABLE: usize = 4;
    /// Word of a context in extended format: the bits of a page's number that choose an entry
    /// (`msi_addr_mask`).
    MESSAGE_MASK: usize = 5;
    /// Word of a context in extended format: the others, for a page to be one of messages
    /// (`msi_addr_pattern`).
    MESSAGE_PATTERN: usize = 6;
}

fields! { Bits;
    /// [`SECOND`] and [`FIRST`]: page number of the root.
    ROOT: 0, 44;
    /// [`SECOND`] and [`FIRST`]: which tables. 0: addresses pass that stage as they are.
    MODE: 60, 4;
    /// [`SECOND`]: tag of the stage's translations.
    GSCID: 44, 16;
    /// [`ATTRIBUTES`]: tag of the first stage's translations.
    PSCID: 12, 20;
}

/// [`MESSAGE_TABLE`], [`MODE`]: a flat table.
pub const MESSAGE_MODE: u64 = MODE.at(1);
/// Value of [`MODE`]: tables of three levels; of four and five levels the next values.
pub const THREE_LEVELS: u64 = 8;
