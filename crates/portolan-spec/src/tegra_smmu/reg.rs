//! Registers, as offsets in the memory controller's window, and their fields.

use core::ops::BitOr as _;

crate::bits::constants! {
    INTSTATUS: usize = 0x000 => "What happened, a bit for each kind; written ones clear it.";
    ERR_STATUS: usize = 0x008 => "Who was refused, and why.";
    ERR_ADR: usize = 0x00c => "Where: the low 32 bits.";
    SMMU_CONFIG: usize = 0x010 => "Enables translation as a whole.";
    TLB_CONFIG: usize = 0x014 => "The translation buffer.";
    PTC_CONFIG: usize = 0x018 => "The page-table cache.";
    PTB_ASID: usize = 0x01c => "The address space that [`PTB_DATA`] is of.";
    PTB_DATA: usize = 0x020 => "The page directory of that address space.";
    TLB_FLUSH: usize = 0x030 => "Written: the translation buffer forgets.";
    PTC_FLUSH: usize = 0x034 => "Written: the page-table cache forgets.";
    /// Address bits 33 and 32 of a line that [`PTC_FLUSH`] is to forget, on chips with 34-bit memory
    /// addresses.
    PTC_FLUSH_HI: usize = 0x9b8;

    WINDOW_BYTES: usize = 0x1000 => "Bytes of the window.";
}

/// [`SMMU_CONFIG`].
pub mod config {
    /// Translation is on.
    pub const ENABLE: u32 = 1 << 0;
}

/// [`TLB_CONFIG`].
pub mod tlb_config {
    crate::bits::constants! {
        HIT_UNDER_MISS: u32 = 1 << 29 => "Hits go on while a miss is under way.";
        ROUND_ROBIN: u32 = 1 << 28 => "Clients take turns.";
        LINES: u32 = 0x3f => "Lines in use: the low bits.";
    }
}

/// [`PTC_CONFIG`].
pub mod ptc_config {
    crate::bits::constants! {
        ENABLE: u32 = 1 << 29 => "The cache is in use.";
        REQUEST_LIMIT_LSB: u32 = 24 => "Lowest bit of the limit of requests under way (four bits).";
        INDEX_MAP: u32 = 0x3f => "Which address bits choose a line: all of them.";
    }
}

/// [`PTB_ASID`] and the registers of swgroups.
pub mod asid {
    crate::bits::constants! {
        VALUE: u32 = 0x7f => "The address space, on every chip.";
        ENABLE: u32 = 1 << 31 => "In a swgroup's register: it is translated.";
        BOTH: u32 = VALUE | ENABLE => "Both.";
    }
}

/// [`PTB_DATA`].
pub mod directory {
    crate::bits::constants! {
        READABLE: u32 = 1 << 31 => "Reads pass.";
        WRITABLE: u32 = 1 << 30 => "Writes pass.";
        NON_SECURE: u32 = 1 << 29 => "Accesses that are not secure pass.";
        ADDRESS_LG2: u32 = 12 => "Bits of an address below its place in the register.";
    }
}

/// [`TLB_FLUSH`].
pub mod tlb_flush {
    crate::bits::constants! {
        ALL: u32 = 0 => "Every address.";
        SECTION: u32 = 2 => "The 4 MiB that one directory entry spans.";
        GROUP: u32 = 3 => "The 16 KiB that one line of the buffer spans.";
        SECTION_LG2: u32 = 22 => "Exponents of the two spans.";
        GROUP_LG2: u32 = 14 => "See [`SECTION_LG2`].";
        ASID_MATCH: u32 = 1 << 31 => "Of one address space only.";
        ADDRESS_LG2: u32 = 12 => "Bits of an address below its place in the register.";
        ASID_LSB_OF_128: u32 = 24 => "Lowest bit of the address space, on chips with 128 of them.";
        ASID_LSB_OF_4: u32 = 29 => "The same on chips with four.";
    }
}

/// [`PTC_FLUSH`].
pub mod ptc_flush {
    /// Every line.
    pub const ALL: u32 = 0;
    /// The line that holds an address.
    pub const ADDRESS: u32 = 1;
}

/// [`INTSTATUS`].
pub mod int {
    /// An address outside memory.
    pub const DECERR_EMEM: u32 = 1 << 6;
    /// Access that is not secure to secure memory.
    pub const SECURITY_VIOLATION: u32 = 1 << 8;
    /// A page that is not there, or does not allow the access.
    pub const INVALID_SMMU_PAGE: u32 = 1 << 10;
    /// Those that [`super::ERR_STATUS`] explains here.
    pub const EXPLAINED: u32 = DECERR_EMEM | SECURITY_VIOLATION | INVALID_SMMU_PAGE;
}

/// [`ERR_STATUS`].
pub mod err {
    crate::bits::constants! {
        TYPE_LSB: u32 = 28 => "Lowest bit of the kind (three bits).";
        TYPE: u32 = 7 => "Its mask, shifted down.";
        TYPE_DECERR: u32 = 2 => "Kind: outside memory.";
        TYPE_PAGE: u32 = 6 => "Kind: refused by a page.";
        READABLE: u32 = 1 << 27 => "The page can be read.";
        WRITABLE: u32 = 1 << 26 => "The page can be written.";
        THERE: u32 = READABLE | WRITABLE => "The page can be accessed in some way.";
        HIGH_LSB: u32 = 20 => "Lowest of the two address bits above [`super::ERR_ADR`].";
        HIGH: u32 = 3 => "Their mask, shifted down.";
        WRITE: u32 = 1 << 16 => "A write.";
        CLIENT: u32 = 0xff => "The client.";
    }
}

/// The register with the enable bit of `client`, which is bit `client % 32`.
pub const fn enables(client: u8) -> usize {
    ENABLES[client as usize / 32 % ENABLES.len()]
}

/// The enable bits of those of `clients` that are in `register`.
pub fn enable_bits(clients: impl Iterator<Item = u8>, register: usize) -> u32 {
    let here = clients.filter(|&client| enables(client) == register);
    here.map(|client| 1 << (client % 32)).fold(0, u32::bitor)
}

/// Registers of enable bits, 32 clients each.
pub const ENABLES: [usize; 5] = [0x228, 0x22c, 0x230, 0x234, 0xb98];
