//! RISC-V table entries (Sv39, Sv48, Sv57 and the x4 second stages), as an IOMMU reads them.
//!
//! The RISC-V Instruction Set Manual, Volume II, version 20240411, the sections on Sv39 and on guest physical
//! addresses: bit 0 valid, 1 readable, 2 writable, 3 executable, 4 of users, 6 accessed, 7 dirty, 53:10 the page's
//! number, 60:54 reserved, 62:61 the memory type, 63 part of a larger page. An entry that points at a table has none
//! of 3:1, and 7:4 and 63:54 of it are reserved. A leaf that may be written and not read is reserved too.
//!
//! Without accessed bits that hardware sets, a leaf that does not have its own faults; so does a write to one
//! that is not dirty. A larger page (chapter on Svnapot) is of 64 KiB: sixteen entries of the lowest level, in
//! whose numbers the low four bits are 1000.

use portolan::addr::{PageSize, PhysAddr};

use super::{Decoded, Permissions};

/// Decodes an entry.
pub(super) fn entry(raw: u64, level: u8) -> Decoded {
    if raw & 1 == 0 {
        return Decoded::Nothing;
    }
    let pa = (raw >> 10 & ((1 << 44) - 1)) << 12;
    let (readable, writable) = (raw & 2 != 0, raw & 4 != 0);
    let executable = raw & 8 != 0;
    if !readable && !writable && !executable {
        // Nothing above the number but ignored bits, and no accessed, dirty, global or user bit.
        if level == 0 || raw & 0xf0 != 0 || raw >> 54 != 0 {
            return Decoded::Bad;
        }
        return Decoded::Table { next: PhysAddr::new(pa), permissions: Permissions::ALL };
    }
    let span = 12 + 9 * u32::from(level);
    let reserved_type = raw >> 61 & 3 == 3;
    if writable && !readable || raw >> 54 & 0x7f != 0 || reserved_type {
        return Decoded::Bad;
    }
    let of_users = raw & 1 << 4 != 0;
    let accessed = raw & 1 << 6 != 0;
    let dirty = raw & 1 << 7 != 0;
    let used = of_users && accessed;
    let permissions = Permissions::READ
        .given(readable && used)
        .or(Permissions::WRITE.given(writable && dirty && used));
    let is_part = raw >> 63 == 1;
    if is_part && level == 0 && pa >> 12 & 0xf == 8 {
        return Decoded::Part {
            pa: PhysAddr::new(pa & !0xffff),
            size: PageSize::SIZE_64K,
            permissions,
        };
    }
    if is_part || pa & ((1 << span) - 1) != 0 {
        return Decoded::Bad;
    }
    Decoded::Leaf { pa: PhysAddr::new(pa), permissions }
}
