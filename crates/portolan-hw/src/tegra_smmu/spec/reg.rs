//! Registers, as offsets in the memory controller's window, and their fields.

use core::ops::BitOr as _;

/// What happened, a bit for each kind; written ones clear it.
pub const INTSTATUS: usize = 0x000;
/// Who was refused, and why.
pub const ERR_STATUS: usize = 0x008;
/// Where: the low 32 bits.
pub const ERR_ADR: usize = 0x00c;
/// Enables translation as a whole.
pub const SMMU_CONFIG: usize = 0x010;
/// The translation buffer.
pub const TLB_CONFIG: usize = 0x014;
/// The page-table cache.
pub const PTC_CONFIG: usize = 0x018;
/// The address space that [`PTB_DATA`] is of.
pub const PTB_ASID: usize = 0x01c;
/// The page directory of that address space.
pub const PTB_DATA: usize = 0x020;
/// Written: the translation buffer forgets.
pub const TLB_FLUSH: usize = 0x030;
/// Written: the page-table cache forgets.
pub const PTC_FLUSH: usize = 0x034;
/// Address bits 33 and 32 of a line that [`PTC_FLUSH`] is to forget, on chips with 34-bit memory
/// addresses.
pub const PTC_FLUSH_HI: usize = 0x9b8;

/// Bytes of the window.
pub const WINDOW_BYTES: usize = 0x1000;

/// [`SMMU_CONFIG`].
pub mod config {
    /// Translation is on.
    pub const ENABLE: u32 = 1 << 0;
}

/// [`TLB_CONFIG`].
pub mod tlb_config {
    /// Hits go on while a miss is under way.
    pub const HIT_UNDER_MISS: u32 = 1 << 29;
    /// Clients take turns.
    pub const ROUND_ROBIN: u32 = 1 << 28;
    /// Lines in use: the low bits.
    pub const LINES: u32 = 0x3f;
}

/// [`PTC_CONFIG`].
pub mod ptc_config {
    /// The cache is in use.
    pub const ENABLE: u32 = 1 << 29;
    /// Lowest bit of the limit of requests under way (four bits).
    pub const REQUEST_LIMIT_LSB: u32 = 24;
    /// Which address bits choose a line: all of them.
    pub const INDEX_MAP: u32 = 0x3f;
}

/// [`PTB_ASID`] and the registers of swgroups.
pub mod asid {
    /// The address space, on every chip.
    pub const VALUE: u32 = 0x7f;
    /// In a swgroup's register: it is translated.
    pub const ENABLE: u32 = 1 << 31;
    /// Both.
    pub const BOTH: u32 = VALUE | ENABLE;
}

/// [`PTB_DATA`].
pub mod directory {
    /// Reads pass.
    pub const READABLE: u32 = 1 << 31;
    /// Writes pass.
    pub const WRITABLE: u32 = 1 << 30;
    /// Accesses that are not secure pass.
    pub const NON_SECURE: u32 = 1 << 29;
    /// Bits of an address below its place in the register.
    pub const ADDRESS_LG2: u32 = 12;
}

/// [`TLB_FLUSH`].
pub mod tlb_flush {
    /// Every address.
    pub const ALL: u32 = 0;
    /// The 4 MiB that one directory entry spans.
    pub const SECTION: u32 = 2;
    /// The 16 KiB that one line of the buffer spans.
    pub const GROUP: u32 = 3;
    /// Exponents of the two spans.
    pub const SECTION_LG2: u32 = 22;
    /// See [`SECTION_LG2`].
    pub const GROUP_LG2: u32 = 14;
    /// Of one address space only.
    pub const ASID_MATCH: u32 = 1 << 31;
    /// Bits of an address below its place in the register.
    pub const ADDRESS_LG2: u32 = 12;
    /// Lowest bit of the address space, on chips with 128 of them.
    pub const ASID_LSB_OF_128: u32 = 24;
    /// The same on chips with four.
    pub const ASID_LSB_OF_4: u32 = 29;
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
    /// An access that is not secure to what is.
    pub const SECURITY_VIOLATION: u32 = 1 << 8;
    /// A page that is not there, or does not allow the access.
    pub const INVALID_SMMU_PAGE: u32 = 1 << 10;
    /// Those that [`super::ERR_STATUS`] explains here.
    pub const EXPLAINED: u32 = DECERR_EMEM | SECURITY_VIOLATION | INVALID_SMMU_PAGE;
}

/// [`ERR_STATUS`].
pub mod err {
    /// Lowest bit of the kind (three bits).
    pub const TYPE_LSB: u32 = 28;
    /// Its mask, shifted down.
    pub const TYPE: u32 = 7;
    /// Kind: outside memory.
    pub const TYPE_DECERR: u32 = 2;
    /// Kind: refused by a page.
    pub const TYPE_PAGE: u32 = 6;
    /// The page can be read.
    pub const READABLE: u32 = 1 << 27;
    /// The page can be written.
    pub const WRITABLE: u32 = 1 << 26;
    /// The page can be accessed in some way.
    pub const THERE: u32 = READABLE | WRITABLE;
    /// Lowest of the two address bits above [`super::ERR_ADR`].
    pub const HIGH_LSB: u32 = 20;
    /// Their mask, shifted down.
    pub const HIGH: u32 = 3;
    /// A write.
    pub const WRITE: u32 = 1 << 16;
    /// The client.
    pub const CLIENT: u32 = 0xff;
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
