//! AMD-Vi host table entries (version 1).
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 2.2.3: bit 0 present, 11:9
//! the level of the table that the entry points at (AMD's level 1 is 0 here), 61 readable, 62 writable, 60:52
//! reserved where a table follows, 58:52 in a leaf. Permissions of all levels combine. Next level 7: a leaf whose size
//! is in its address, the first bit from 12 on that is clear, counted from 1; a size without a place at its level
//! counts as a bad entry, and so do skipped levels, which the library does not write.

use portolan::addr::{PageSize, PhysAddr};

use super::{Decoded, Permissions};

/// Decodes an entry.
pub(super) fn entry(raw: u64, level: u8) -> Decoded {
    if raw & 1 == 0 {
        return Decoded::Nothing;
    }
    let readable = Permissions::READ.given(raw & (1 << 61) != 0);
    let permissions = readable.or(Permissions::WRITE.given(raw & (1 << 62) != 0));
    let pa = raw & 0x000f_ffff_ffff_f000;
    let next = (raw >> 9 & 7) as u8;
    if next == 0 {
        let span = 12 + 9 * u32::from(level);
        if raw >> 52 & 0x7f != 0 || pa & ((1 << span) - 1) != 0 {
            return Decoded::Bad;
        }
        return Decoded::Leaf { pa: PhysAddr::new(pa), permissions };
    }
    if next == 7 {
        return part(raw, level, permissions);
    }
    if next != level || raw >> 52 & 0x1ff != 0 {
        return Decoded::Bad;
    }
    Decoded::Table { next: PhysAddr::new(pa), permissions }
}

/// Decodes a leaf whose size is in its address.
fn part(raw: u64, level: u8, permissions: Permissions) -> Decoded {
    let span = 12 + 9 * u32::from(level);
    let clear = (12..52).find(|bit| raw >> bit & 1 == 0);
    let lg2 = clear.map(|bit| bit + 1).filter(|lg2| (span + 1..span + 9).contains(lg2));
    let Some(lg2) = lg2.filter(|_| raw >> 52 & 0x7f == 0) else {
        return Decoded::Bad;
    };
    let pa = PhysAddr::new(raw & 0x000f_ffff_ffff_f000 & !((1 << lg2) - 1));
    Decoded::Part { pa, size: PageSize::of_lg2(lg2), permissions }
}
