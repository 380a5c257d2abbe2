//! VMSAv8-64 descriptors.
//!
//! Arm Architecture Reference Manual (DDI 0487), section D8.3. Addresses of 52 bits only with the
//! 64 KiB granule. The access flag has to be set, dirty state is not updated by hardware, and
//! accesses are unprivileged.

use portolan::addr::PhysAddr;

use super::{Decoded, Permissions};

/// Output address in a descriptor of this granule.
fn address(granule: u32, raw: u64) -> u64 {
    let low = raw & 0x0000_ffff_ffff_ffff & (u64::MAX << granule);
    if granule == 16 { low | ((raw >> 12) & 0xf) << 48 } else { low }
}

/// Tells if a level of this granule may hold blocks: 1 GiB and 2 MiB, 32 MiB, 512 MiB.
fn may_hold_block(granule: u32, level: u8) -> bool {
    match granule {
        12 => level == 1 || level == 2,
        _ => level == 1,
    }
}

fn decode(
    granule: u32,
    output_lg2: u8,
    raw: u64,
    level: u8,
    table: impl Fn(u64) -> Permissions,
    leaf: impl Fn(u64) -> Permissions,
) -> Decoded {
    if raw & 1 == 0 {
        return Decoded::Nothing;
    }
    let pa = address(granule, raw);
    if pa >> output_lg2 != 0 {
        return Decoded::Bad;
    }
    let second_bit = raw & 2 != 0;
    if level > 0 && second_bit {
        return Decoded::Table { next: PhysAddr::new(pa), permissions: table(raw) };
    }
    if level == 0 && !second_bit || level > 0 && !may_hold_block(granule, level) {
        return Decoded::Bad;
    }
    let span = granule + (granule - 3) * u32::from(level);
    let misaligned = pa & ((1 << span) - 1) != 0;
    let accessed = raw & (1 << 10) != 0;
    if misaligned || !accessed {
        return Decoded::Bad;
    }
    Decoded::Leaf { pa: PhysAddr::new(pa), permissions: leaf(raw) }
}

/// Decodes a stage-1 descriptor.
pub(super) fn stage1(granule: u32, output_lg2: u8, raw: u64, level: u8) -> Decoded {
    // APTable: bit 61 takes unprivileged access away, bit 62 writes.
    let table = |raw: u64| {
        let writable = Permissions::WRITE.given(raw & (1 << 62) == 0);
        Permissions::READ.or(writable).given(raw & (1 << 61) == 0)
    };
    // AP: bit 6 allows unprivileged access, bit 7 forbids writes.
    let leaf = |raw: u64| {
        let writable = Permissions::WRITE.given(raw & (1 << 7) == 0);
        Permissions::READ.or(writable).given(raw & (1 << 6) != 0)
    };
    decode(granule, output_lg2, raw, level, table, leaf)
}

/// Decodes a stage-2 descriptor.
pub(super) fn stage2(granule: u32, output_lg2: u8, raw: u64, level: u8) -> Decoded {
    // S2AP: bit 6 allows reads, bit 7 writes. Tables take nothing away.
    let leaf = |raw: u64| {
        let readable = Permissions::READ.given(raw & (1 << 6) != 0);
        readable.or(Permissions::WRITE.given(raw & (1 << 7) != 0))
    };
    decode(granule, output_lg2, raw, level, |_| Permissions::ALL, leaf)
}
