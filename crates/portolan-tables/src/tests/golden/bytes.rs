//! Bytes of tables, put together by hand from the specifications. Tests of other crates have them, too.

extern crate std;

use std::vec;
use std::vec::Vec;

/// A table with its length and checksum made.
pub(crate) fn table(signature: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 36];
    bytes[..4].copy_from_slice(&signature);
    bytes[8] = 1;
    bytes[10..16].copy_from_slice(b"HANDMA");
    bytes.extend_from_slice(body);
    seal(&mut bytes);
    bytes
}

/// Makes length and checksum right.
pub(crate) fn seal(bytes: &mut [u8]) {
    let length = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    reseal(bytes);
}

/// Makes the checksum right for any length in the header.
pub(crate) fn reseal(bytes: &mut [u8]) {
    bytes[9] = 0;
    let said = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let summed = &bytes[..said.min(bytes.len())];
    let sum = summed.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte));
    bytes[9] = sum.wrapping_neg();
}

#[rustfmt::skip]
pub(crate) fn dmar_bytes() -> Vec<u8> {
    table(*b"DMAR", &[
        // 39 bits, interrupt remapping; reserved.
        38, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        // DRHD, segment 1, 0xfed9_1000, two pages; a bridge path 1c.0 -> 2.3; an I/O APIC.
        0, 0, 32, 0, 0, 1, 1, 0, 0, 0x10, 0xd9, 0xfe, 0, 0, 0, 0,
        1, 10, 0, 0, 0, 5, 0x1c, 0, 2, 3,
        3, 6, 0, 0, 8, 0xf0,
        // Of unknown type.
        0x99, 0, 6, 0, 0xff, 0xff,
        // RMRR: 0x7c00_0000 to 0x7c0f_ffff, 0:14.0.
        1, 0, 32, 0, 0, 0, 0, 0,
        0, 0, 0, 0x7c, 0, 0, 0, 0, 0xff, 0xff, 0x0f, 0x7c, 0, 0, 0, 0,
        1, 8, 0, 0, 0, 0, 0x14, 0,
        // ATSR for all ports.
        2, 0, 8, 0, 1, 0, 0, 0,
        // RHSA: 0xfed9_0000 in domain 3.
        3, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0xd9, 0xfe, 0, 0, 0, 0, 3, 0, 0, 0,
        // ANDD 7.
        4, 0, 13, 0, 0, 0, 0, 7, b'\\', b'_', b'S', b'B', 0,
        // SATC with a scope of unknown type, SIDP.
        5, 0, 14, 0, 1, 0, 0, 0, 0x77, 6, 0, 0, 0, 0,
        6, 0, 16, 0, 0, 0, 0, 0, 1, 8, 0, 0, 0, 3, 1, 1,
    ])
}

#[rustfmt::skip]
pub(crate) fn viot_bytes() -> Vec<u8> {
    table(*b"VIOT", &[
        5, 0, 48, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        // At 48: the unit 0:1.0.
        3, 0, 16, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        // At 64: another, by registers.
        4, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0, 0, 0, 0,
        // Unknown.
        9, 0, 4, 0,
        // Segments 2 and 3, 0x100 to 0x1ff, from endpoint 0x1000 on, of the first.
        1, 0, 24, 0, 0, 0x10, 0, 0, 2, 0, 3, 0, 0, 1, 0xff, 1, 48, 0, 0, 0, 0, 0, 0, 0,
        // Endpoint 9 at 0x0b00_0000, of the second.
        2, 0, 24, 0, 9, 0, 0, 0, 0, 0, 0, 0x0b, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0,
    ])
}

/// Words of 32 bits as bytes.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A node: type and revision, the words after the common part, and its mappings.
pub(crate) fn node(kind: u8, revision: u8, body: &[u32], mappings: &[[u32; 5]]) -> Vec<u8> {
    let body = words(body);
    let length = 16 + body.len() + 20 * mappings.len();
    let mut bytes = vec![kind, length as u8, 0, revision, 0, 0, 0, 0];
    bytes.extend(words(&[mappings.len() as u32, 16 + body.len() as u32]));
    bytes.extend(body);
    bytes.extend(mappings.iter().flat_map(|mapping| words(mapping)));
    bytes
}

pub(crate) const ITS: u32 = 48;
pub(crate) const SMMU: u32 = ITS + 24;
pub(crate) const PARENT: u32 = SMMU + 16 + 52 + 20;
pub(crate) const ROOT: u32 = PARENT + 16 + 13 * 4 + 20;
pub(crate) const NAMED: u32 = ROOT + 16 + 24 + 60;
pub(crate) const LOOPED: u32 = NAMED + 16 + 20 + 20;

/// An ITS, two SMMUs, a root complex, a named component, a loop, RMR, PMCG.
pub(crate) fn iort_bytes() -> Vec<u8> {
    let mut body = words(&[9, 48, 0]);
    body.extend(node(0, 1, &[1, 4], &[]));
    let smmu = [0x905_0000, 0, 9, 0, 0, 0, 0, 106, 107, 109, 108, 2, 0];
    body.extend(node(4, 4, &smmu, &[[0, 0xffff, 0, ITS, 0]]));
    let second = [0x906_0000, 0, 0x1_0000, 0, 3, 2, 60, 0, 0, 0, 0, 0, 0];
    body.extend(node(3, 0, &second, &[[0, 0xffff, 0, ITS, 0]]));
    let root = [3, 0, 0, 2, 48, 0];
    let mappings =
        [[0, 0xff, 0x1000, SMMU, 0], [0x100, 0xff, 0, PARENT, 0], [0x200, 0xff, 0x200, ITS, 0]];
    body.extend(node(2, 3, &root, &mappings));
    // Flags, memory, 40 bits, "\_SB.X".
    let named = [0x15, 0, 0, 40 | 0x5c << 8 | 0x5f << 16 | 0x53 << 24, 0x582e42];
    body.extend(node(1, 4, &named, &[[0, 0, 77, SMMU, 1]]));
    // A root complex that leads to itself.
    body.extend(node(2, 0, &[0, 0, 0, 9], &[[0, 0xffff, 0, LOOPED, 0]]));
    let reserved = [1, 1, 28, 0x8000_0000, 0, 0x20_0000, 0, 0];
    body.extend(node(6, 3, &reserved, &[]));
    body.extend(node(5, 2, &[0x907_0000, 0, 33, SMMU, 0x908_0000, 0], &[]));
    body.extend(node(200, 0, &[1, 2], &[]));
    table(*b"IORT", &body)
}

/// IVinfo: feature images, 48 bits of physical and 57 of virtual addresses.
pub(crate) const INFO: u32 = 1 | 48 << 8 | 57 << 15;

pub(crate) fn ivrs(info: u32, blocks: &[Vec<u8>]) -> Vec<u8> {
    let mut body = info.to_le_bytes().to_vec();
    body.extend([0; 8]);
    body.extend(blocks.iter().flatten());
    table(*b"IVRS", &body)
}

/// A hardware block of a unit at 0:0.2 with its capability at 0x40.
pub(crate) fn unit(kind: u8, flags: u8, base: u64, segment: u16, entries: &[u8]) -> Vec<u8> {
    let fixed = if kind == 0x10 { 24 } else { 40 };
    let length = (fixed + entries.len()) as u16;
    let mut block = vec![kind, flags];
    block.extend(length.to_le_bytes());
    block.extend([2, 0, 0x40, 0]);
    block.extend(base.to_le_bytes());
    block.extend(segment.to_le_bytes());
    // Message 3 of HyperTransport unit 7; attributes.
    block.extend([3, 7, 0x6e, 0x8f, 0x04, 0x80]);
    if kind != 0x10 {
        block.extend(0x22_6729_4afa_u64.to_le_bytes());
        block.extend(0x1_0002_u64.to_le_bytes());
    }
    block.extend(entries);
    block
}

/// A memory block.
pub(crate) fn memory(kind: u8, flags: u8, devices: [u16; 2], start: u64, length: u64) -> Vec<u8> {
    let mut block = vec![kind, flags, 32, 0];
    block.extend(devices.iter().flat_map(|device| device.to_le_bytes()));
    block.extend([0; 8]);
    block.extend(start.to_le_bytes());
    block.extend(length.to_le_bytes());
    block
}

#[rustfmt::skip]
pub(crate) fn entries() -> Vec<u8> {
    vec![
        // 0:0.3 to ff:1f.6.
        3, 3, 0, 0, 4, 0xfe, 0xff, 0,
        // Padding of both lengths; 2:0.0 lets NMI and system management 01b through.
        0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0,
        2, 0, 2, 0x14,
        // 3:0.0 to 3:1f.7 carry 2:0.1.
        0x43, 0, 3, 0, 0, 1, 2, 0, 4, 0xff, 3, 0,
        // 4:0.0 carries 4:0.1.
        0x42, 0, 4, 2, 0, 1, 4, 0,
        // 5:0.0 must not use ATS, nor 6:0.0 to 6:0.7.
        0x46, 0, 5, 1, 0, 0, 0, 0x80,
        0x47, 0, 6, 0x40, 0, 0, 0, 0x80, 4, 7, 6, 0,
        // A timer and I/O APIC 8 at 0:14.0, and one of unknown kind.
        0x48, 0, 0, 0xd7, 8, 0xa0, 0, 1,
        0x48, 0, 0, 0, 0, 0xa0, 0, 2,
        0x48, 0, 0, 0, 0, 0xa1, 0, 9,
        // Of unknown types of 4, 8 and 16 bytes.
        0x3f, 0, 0, 0, 0x41, 0, 0, 0, 0, 0, 0, 0,
        0x81, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ]
}

/// "AMDI0020" at 0:14.5, told apart by the text "\_SB.FUR0".
pub(crate) fn acpi() -> Vec<u8> {
    let mut entry = vec![0xf0, 0xa5, 0, 0x40];
    entry.extend(b"AMDI0020");
    entry.extend([0; 8]);
    entry.extend([2, 9]);
    entry.extend(b"\\_SB.FUR0");
    entry
}

pub(crate) fn ivrs_bytes() -> Vec<u8> {
    let mut named = entries();
    named.extend(acpi());
    let blocks = [
        unit(0x10, 0xb0, 0xfeb8_0000, 0, &entries()),
        unit(0x11, 0xff, 0xfeb8_0000, 0, &entries()),
        // A unit of another segment, for everything.
        unit(0x10, 0x0f, 0xfec0_0000, 1, &[1, 0, 0, 0]),
        vec![0x99, 0, 6, 0, 0xff, 0xff],
        unit(0x40, 0x35, 0xfeb8_0000, 0, &named),
        memory(0x20, 0b0011, [0, 0], 0x7000_0000, 0x1000),
        memory(0x21, 0b0111, [0x200, 0], 0x7100_0000, 0x2000),
        memory(0x22, 0b1000, [0x200, 0x2ff], 0x7200_0000, 0x3000),
    ];
    ivrs(INFO, &blocks)
}

#[rustfmt::skip]
pub(crate) fn rimt_bytes() -> Vec<u8> {
    table(*b"RIMT", &[
        // Five nodes from offset 48 on; reserved.
        5, 0, 0, 0, 48, 0, 0, 0, 0, 0, 0, 0,
        // At 48: a platform device, 56 bytes, number 0, "RSCV0004", 0x301_0000.
        0, 1, 56, 0, 0, 0, 0, 0, b'R', b'S', b'C', b'V', b'0', b'0', b'0', b'4',
        0, 0, 1, 3, 0, 0, 0, 0,
        // No flags, domain 0, no function; two wires from byte 40 on.
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 40, 0,
        36, 0, 0, 0, 2, 0, 0, 0, 37, 0, 0, 0, 0, 0, 0, 0,
        // At 104: the function 0002:00:01.2, 44 bytes (four behind), no wires.
        0, 1, 44, 0, 0, 0, 1, 0, 0x36, 0x1b, 0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        // At 148: segment 2, 60 bytes, two mappings from byte 20 on.
        1, 1, 60, 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 2, 0, 20, 0, 2, 0,
        // Requesters 0 to 9 are streams 0x100 and so on of the function.
        0, 0, 0, 0, 10, 0, 0, 0, 0, 1, 0, 0, 104, 0, 0, 0, 0, 0, 0, 0,
        // Requesters 0xb to 0xffff are as they are, of the platform device.
        0x0b, 0, 0, 0, 0xf5, 0xff, 0, 0, 0x0b, 0, 0, 0, 48, 0, 0, 0, 0, 0, 0, 0,
        // At 208: of unknown type.
        0x99, 1, 8, 0, 0, 0, 0, 0,
        // At 216: the device \_SB.D, 40 bytes, one mapping from byte 20 on: stream 0x4_0000.
        2, 1, 40, 0, 0, 0, 3, 0, 20, 0, 1, 0, b'\\', b'_', b'S', b'B', b'.', b'D', 0, 0,
        0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 4, 0, 48, 0, 0, 0, 0, 0, 0, 0,
    ])
}
