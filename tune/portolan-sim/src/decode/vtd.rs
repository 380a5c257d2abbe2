//! VT-d second-stage and first-stage entries.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1: sections 9.8 (second
//! stage), 9.7 (first stage), 3.6 and 3.7. Permissions of all levels combine. Execute requests are
//! not modelled; accesses are user accesses; accessed and dirty bits are not updated.

use portolan::addr::PhysAddr;

use super::{Decoded, Permissions};

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const PAGE_SIZE: u64 = 1 << 7;

fn decode(raw: u64, level: u8, permissions: Permissions, ignored: u64) -> Decoded {
    let pa = raw & ADDRESS;
    let large = raw & PAGE_SIZE != 0;
    if level > 0 && !large {
        return Decoded::Table { next: PhysAddr::new(pa), permissions };
    }
    // Bit 7 is PS at the two levels that have pages of their own, PAT or ignored in a leaf, and
    // reserved further up.
    let span = 12 + 9 * u32::from(level);
    if level > 2 {
        return Decoded::Bad;
    }
    if pa & ((1 << span) - 1) & !ignored != 0 {
        return Decoded::Bad;
    }
    Decoded::Leaf { pa: PhysAddr::new(pa >> span << span), permissions }
}

/// Decodes a second-stage entry: present if any of read, write and execute is set.
pub(super) fn second_stage(raw: u64, level: u8) -> Decoded {
    if raw & 0b111 == 0 {
        return Decoded::Nothing;
    }
    let readable = Permissions::READ.given(raw & 1 != 0);
    decode(raw, level, readable.or(Permissions::WRITE.given(raw & 2 != 0)), 0)
}

/// Decodes a first-stage entry.
pub(super) fn first_stage(raw: u64, level: u8) -> Decoded {
    if raw & 1 == 0 {
        return Decoded::Nothing;
    }
    let writable = Permissions::WRITE.given(raw & 2 != 0);
    let user = raw & 4 != 0;
    // In a large page bit 12 is PAT.
    decode(raw, level, Permissions::READ.or(writable).given(user), 1 << 12)
}
