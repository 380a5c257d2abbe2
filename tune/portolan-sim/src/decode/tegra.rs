//! Tegra SMMU entries: two levels of 32 bits.
//!
//! Tegra X1 Technical Reference Manual, section 17.5: bit 31 readable, 30 writable, 29 non-secure; in
//! the page directory bit 28 says that a table follows. An entry that can be neither read nor written
//! is not present; an upper entry without bit 28 is a section of 4 MiB. Permissions of both levels
//! combine.

use portolan::addr::PhysAddr;

use super::{Decoded, Permissions};

/// Decodes an entry.
pub(super) fn entry(output_lg2: u8, raw: u64, level: u8) -> Decoded {
    let readable = Permissions::READ.given(raw & (1 << 31) != 0);
    let permissions = readable.or(Permissions::WRITE.given(raw & (1 << 30) != 0));
    if permissions == Permissions::NONE {
        return Decoded::Nothing;
    }
    let frame = raw & ((1 << (output_lg2 - 12)) - 1);
    let pa = PhysAddr::new(frame << 12);
    if level == 0 {
        return Decoded::Leaf { pa, permissions };
    }
    if raw & (1 << 28) != 0 {
        return Decoded::Table { next: pa, permissions };
    }
    if frame & 0x3ff != 0 {
        return Decoded::Bad;
    }
    Decoded::Leaf { pa, permissions }
}
