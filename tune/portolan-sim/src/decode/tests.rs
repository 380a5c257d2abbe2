//! The walkers against tables written by hand, byte by byte, from the architectures' manuals.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64};

use portolan::addr::{Iova, PageSize, PhysAddr};
use portolan::platform::{SlabTables, TableMem, Word};

use super::*;

/// Pages of bytes.
#[derive(Default)]
struct Bytes(BTreeMap<u64, Vec<u8>>);

impl Bytes {
    fn put(&mut self, pa: u64, bytes: &[u8]) {
        for (at, byte) in (pa..).zip(bytes) {
            let page = self.0.entry(at & !0xfff).or_insert_with(|| vec![0; 0x1000]);
            page[(at & 0xfff) as usize] = *byte;
        }
    }

    fn get<const N: usize>(&self, pa: PhysAddr) -> Option<[u8; N]> {
        let at = (pa.get() & 0xfff) as usize;
        self.0.get(&(pa.get() & !0xfff))?.get(at..at + N)?.try_into().ok()
    }
}

impl WalkMemory for Bytes {
    fn read_u64(&self, pa: PhysAddr) -> Option<u64> {
        self.get(pa).map(u64::from_le_bytes)
    }

    fn read_u32(&self, pa: PhysAddr) -> Option<u32> {
        self.get(pa).map(u32::from_le_bytes)
    }
}

fn at(
    memory: &Bytes,
    format: TableFormat,
    iova: u64,
) -> Result<(u64, u64, Permissions), WalkFault> {
    let table = TableRoot { root: PhysAddr::new(0x1000), format };
    let iova = Iova::new(iova);
    walk(memory, &table, iova).map(|l| (l.address(iova).get(), l.size.bytes(), l.permissions))
}

const RW: Permissions = Permissions::ALL;
const RO: Permissions = Permissions::READ;
const WO: Permissions = Permissions::WRITE;
const NO: Permissions = Permissions::NONE;

#[test]
fn armv8_stage1_4k() {
    let mut memory = Bytes::default();
    // Root: entry 1 is a table at 0x2000, entry 2 a block at 0x8000_0000: valid, AF, unprivileged.
    memory.put(0x1008, &[0x03, 0x20, 0, 0, 0, 0, 0, 0]);
    memory.put(0x1010, &[0x41, 0x04, 0, 0x80, 0, 0, 0, 0]);
    // Its entry 3: a table at 0x3000; entry 4: a read-only block at 0x1234_5600_0000 aligned to 2 MiB.
    memory.put(0x2018, &[0x03, 0x30, 0, 0, 0, 0, 0, 0]);
    memory.put(0x2020, &[0xc1, 0x04, 0x40, 0x34, 0x12, 0, 0, 0]);
    // Entry 5 of the leaf table: a page at 0xabc_d000, with attributes that are none of our business.
    memory.put(0x3028, &[0x47, 0xdf, 0xbc, 0x0a, 0, 0, 0x60, 0]);
    // Entry 6 is privileged only, entry 7 has no access flag, entry 8 is a block where none may be.
    memory.put(0x3030, &[0x03, 0xd4, 0xbc, 0x0a, 0, 0, 0, 0]);
    memory.put(0x3038, &[0x43, 0xd0, 0xbc, 0x0a, 0, 0, 0, 0]);
    memory.put(0x3040, &[0x41, 0xd4, 0xbc, 0x0a, 0, 0, 0, 0]);
    // Entry 9: not valid, however much else is set.
    memory.put(0x3048, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    let format = TableFormat::armv8_stage1(PageSize::SIZE_4K, 39, 48).unwrap();
    assert_eq!(format.levels(), 3);
    let go = |iova| at(&memory, format, iova);
    let leaf_table = (1 << 30) | (3 << 21);
    assert_eq!(go(leaf_table | 0x5123), Ok((0xabc_d123, 0x1000, RW)));
    assert_eq!(go((2 << 30) | 0x1234_5678), Ok((0x9234_5678, 1 << 30, RW)));
    assert_eq!(go((1 << 30) | (4 << 21) | 7), Ok((0x12_3440_0007, 2 << 20, RO)));
    assert_eq!(go(leaf_table | 0x6000).unwrap().2, NO);
    assert!(matches!(go(leaf_table | 0x7000), Err(WalkFault::BadEntry { level: 0, .. })));
    assert!(matches!(go(leaf_table | 0x8000), Err(WalkFault::BadEntry { level: 0, .. })));
    assert_eq!(go(leaf_table | 0x9000), Err(WalkFault::NoTranslation { level: 0 }));
    assert_eq!(go(0), Err(WalkFault::NoTranslation { level: 2 }));
    assert_eq!(go(1 << 39), Err(WalkFault::NoTranslation { level: 2 }));
    assert_eq!(go(u64::MAX), Err(WalkFault::NoTranslation { level: 2 }));
}

#[test]
fn armv8_stage1_tables_take_permissions_away() {
    let mut memory = Bytes::default();
    // APTable forbids writes (bit 62) in entry 0, and unprivileged access (bit 61) in entry 1.
    memory.put(0x1000, &[0x03, 0x20, 0, 0, 0, 0, 0, 0x40]);
    memory.put(0x1008, &[0x03, 0x20, 0, 0, 0, 0, 0, 0x20]);
    memory.put(0x2000, &[0x41, 0x04, 0x20, 0, 0, 0, 0, 0]);
    let format = TableFormat::armv8_stage1(PageSize::SIZE_4K, 39, 48).unwrap();
    assert_eq!(at(&memory, format, 0), Ok((0x20_0000, 2 << 20, RO)));
    assert_eq!(at(&memory, format, 1 << 30), Ok((0x20_0000, 2 << 20, NO)));
}

#[test]
fn armv8_stage2_other_granules() {
    let mut memory = Bytes::default();
    // 16 KiB, 36 bits: two levels of 11 bits. A block of 32 MiB, read only; a page, write only.
    memory.put(0x1000, &[0x7d, 0x04, 0, 0x02, 0, 0, 0, 0]);
    memory.put(0x1008, &[0x03, 0x40, 0, 0, 0, 0, 0, 0]);
    memory.put(0x4008, &[0xbf, 0xc4, 0x00, 0x01, 0, 0, 0, 0]);
    let format = TableFormat::armv8_stage2(PageSize::SIZE_16K, 36, 40).unwrap();
    assert_eq!(format.levels(), 2);
    assert_eq!(at(&memory, format, 0x12_3456), Ok((0x212_3456, 32 << 20, RO)));
    assert_eq!(at(&memory, format, (32 << 20) | 0x4001), Ok((0x100_c001, 16 << 10, WO)));
    // 64 KiB, 42 bits, 52-bit output: bits 51:48 of the address are bits 15:12 of the entry.
    let mut memory = Bytes::default();
    memory.put(0x1000, &[0xfd, 0xa4, 0, 0, 0xe0, 0x01, 0, 0]);
    memory.put(0x1008, &[0x03, 0x00, 0x05, 0, 0, 0, 0, 0]);
    memory.put(0x5_0000, &[0xff, 0xb4, 0x07, 0, 0, 0, 0, 0]);
    let format = TableFormat::armv8_stage2(PageSize::SIZE_64K, 42, 52).unwrap();
    assert_eq!(at(&memory, format, 9), Ok((0xa_01e0_0000_0009, 512 << 20, RW)));
    assert_eq!(at(&memory, format, 512 << 20), Ok((0xb_0000_0007_0000, 64 << 10, RW)));
    // The same table with 48-bit output: the address is too large.
    let narrow = TableFormat::armv8_stage2(PageSize::SIZE_64K, 42, 48).unwrap();
    assert!(matches!(at(&memory, narrow, 9), Err(WalkFault::BadEntry { level: 1, .. })));
}

#[test]
fn armv8_blocks_only_where_they_may_be() {
    let block = |granule, input| {
        let mut memory = Bytes::default();
        memory.put(0x1000, &[0x41, 0x04, 0, 0, 0, 0, 0, 0]);
        at(&memory, TableFormat::armv8_stage1(granule, input, 48).unwrap(), 0)
    };
    assert!(matches!(block(PageSize::SIZE_4K, 48), Err(WalkFault::BadEntry { level: 3, .. })));
    assert!(matches!(block(PageSize::SIZE_16K, 47), Err(WalkFault::BadEntry { level: 2, .. })));
    assert!(matches!(block(PageSize::SIZE_64K, 48), Err(WalkFault::BadEntry { level: 2, .. })));
    assert!(block(PageSize::SIZE_64K, 42).is_ok());
}

#[test]
fn vtd_second_stage() {
    let mut memory = Bytes::default();
    // Entry 0 reads and writes, entry 1 only reads, both to the table at 0x2000.
    memory.put(0x1000, &[0x03, 0x20, 0, 0, 0, 0, 0, 0]);
    memory.put(0x1008, &[0x01, 0x20, 0, 0, 0, 0, 0, 0]);
    // A page of 1 GiB; a table.
    memory.put(0x2000, &[0x83, 0, 0, 0xc0, 0, 0, 0, 0]);
    memory.put(0x2008, &[0x03, 0x30, 0, 0, 0, 0, 0, 0]);
    // A page of 2 MiB, write only; a table; a misaligned page.
    memory.put(0x3000, &[0x82, 0, 0x60, 0, 0, 0, 0, 0]);
    memory.put(0x3008, &[0x03, 0x40, 0, 0, 0, 0, 0, 0]);
    memory.put(0x3010, &[0x83, 0x10, 0x60, 0, 0, 0, 0, 0]);
    // A page with ignored bits; one with execute alone, which is present and lets nothing through.
    memory.put(0x4000, &[0x03, 0x74, 0x65, 0, 0, 0, 0xf0, 0x3f]);
    memory.put(0x4008, &[0x04, 0x70, 0x65, 0, 0, 0, 0, 0]);
    let format = TableFormat::vtd_second_stage(4).unwrap();
    let go = |iova| at(&memory, format, iova);
    assert_eq!(go(0x1234), Ok((0xc000_1234, 1 << 30, RW)));
    assert_eq!(go(1 << 30), Ok((0x60_0000, 2 << 20, WO)));
    assert_eq!(go((1 << 30) + (2 << 20) + 5), Ok((0x65_7005, 4096, RW)));
    assert_eq!(go((1 << 30) + (2 << 20) + 0x1000).unwrap().2, NO);
    assert!(matches!(go((1 << 30) + (4 << 20)), Err(WalkFault::BadEntry { level: 1, .. })));
    // Below the entry that only reads.
    assert_eq!(go(1 << 39).unwrap().2, RO);
    assert_eq!(go((1 << 39) + (1 << 30)).unwrap().2, NO);
    assert_eq!(go(1 << 40), Err(WalkFault::NoTranslation { level: 3 }));
    assert_eq!(go(1 << 48), Err(WalkFault::NoTranslation { level: 3 }));
    // Three levels start one table further down: the same bytes are a 1 GiB page.
    let three = TableFormat::vtd_second_stage(3).unwrap();
    let low = TableRoot { root: PhysAddr::new(0x2000), format: three };
    assert_eq!(walk(&memory, &low, Iova::new(0)).unwrap().size.bytes(), 1 << 30);
    // Five levels: one table more, and bit 7 is reserved above 1 GiB.
    memory.put(0x9000, &[0x03, 0x10, 0, 0, 0, 0, 0, 0]);
    memory.put(0x9008, &[0x83, 0x10, 0, 0, 0, 0, 0, 0]);
    let five = TableFormat::vtd_second_stage(5).unwrap();
    let high = TableRoot { root: PhysAddr::new(0x9000), format: five };
    assert_eq!(walk(&memory, &high, Iova::new(7)).unwrap().pa.get(), 0xc000_0000);
    let bad = walk(&memory, &high, Iova::new(1 << 48));
    assert!(matches!(bad, Err(WalkFault::BadEntry { level: 4, .. })));
}

#[test]
fn vtd_first_stage() {
    let mut memory = Bytes::default();
    // User and writable; user only; writable only.
    memory.put(0x1000, &[0x07, 0x20, 0, 0, 0, 0, 0, 0]);
    memory.put(0x1008, &[0x05, 0x20, 0, 0, 0, 0, 0, 0]);
    memory.put(0x1010, &[0x03, 0x20, 0, 0, 0, 0, 0, 0]);
    memory.put(0x2000, &[0x07, 0x30, 0, 0, 0, 0, 0, 0]);
    // 2 MiB with PAT (bit 12); a table.
    memory.put(0x3000, &[0x87, 0x10, 0x20, 0, 0, 0, 0, 0]);
    memory.put(0x3008, &[0x27, 0x40, 0, 0, 0, 0, 0, 0]);
    // A page with PAT (bit 7) and execute-disable; one that is not present.
    memory.put(0x4000, &[0xe7, 0x50, 0, 0, 0, 0, 0, 0x80]);
    memory.put(0x4008, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    let format = TableFormat::vtd_first_stage(4).unwrap();
    let go = |iova| at(&memory, format, iova);
    assert_eq!(go(3), Ok((0x20_0003, 2 << 20, RW)));
    assert_eq!(go(2 << 20), Ok((0x5000, 4096, RW)));
    assert_eq!(go((2 << 20) + 0x1000), Err(WalkFault::NoTranslation { level: 0 }));
    assert_eq!(go(1 << 39).unwrap().2, RO);
    assert_eq!(go(2 << 39).unwrap().2, NO);
    assert_eq!(go(1 << 47), Err(WalkFault::NoTranslation { level: 3 }));
    assert_eq!(go(u64::MAX), Err(WalkFault::NoTranslation { level: 3 }));
    assert_eq!(TableFormat::vtd_first_stage(5).unwrap().levels(), 5);
}

#[test]
fn tegra() {
    let mut memory = Bytes::default();
    // A table at 0x2000; a section of 4 MiB, read only; a misaligned one; a table that only reads.
    memory.put(0x1000, &[0x02, 0, 0, 0xf0]);
    memory.put(0x1004, &[0x00, 0x04, 0, 0xa0]);
    memory.put(0x1008, &[0x01, 0x04, 0, 0xe0]);
    memory.put(0x100c, &[0x02, 0, 0, 0xb0]);
    // A page above 4 GiB; one that is not present although it has an address.
    memory.put(0x2004, &[0x45, 0x23, 0x31, 0xe0]);
    memory.put(0x2008, &[0x45, 0x23, 0x01, 0x20]);
    let format = TableFormat::tegra(34).unwrap();
    let go = |iova| at(&memory, format, iova);
    assert_eq!(go(0x1abc), Ok((0x3_1234_5abc, 4096, RW)));
    assert_eq!(go(0x2000), Err(WalkFault::NoTranslation { level: 0 }));
    assert_eq!(go((4 << 20) | 0x3f_ffff), Ok((0x7f_ffff, 4 << 20, RO)));
    assert!(matches!(go(8 << 20), Err(WalkFault::BadEntry { level: 1, .. })));
    assert_eq!(go((12 << 20) | 0x1000).unwrap().2, RO);
    assert_eq!(go(16 << 20), Err(WalkFault::NoTranslation { level: 1 }));
    assert_eq!(go(1 << 32), Err(WalkFault::NoTranslation { level: 1 }));
}

#[test]
fn a_table_where_no_memory_is() {
    let mut memory = Bytes::default();
    memory.put(0x1000, &[0x03, 0x80, 0, 0, 0, 0, 0, 0]);
    let format = TableFormat::vtd_second_stage(3).unwrap();
    let entry = PhysAddr::new(0x8018);
    assert_eq!(at(&memory, format, 3 << 21), Err(WalkFault::Unreadable { entry, level: 1 }));
    let table = TableRoot { root: PhysAddr::new(!0xfff), format };
    let past = walk(&memory, &table, Iova::new(0x7f_ffff_ffff));
    assert!(matches!(past, Err(WalkFault::Unreadable { level: 2, .. })));
}

#[test]
fn every_content_is_answered() {
    let seed = 0x5eed_0001_u64;
    println!("seed {seed:#x}");
    let mut state = seed;
    let mut next = || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut formats = vec![TableFormat::tegra(32).unwrap(), TableFormat::tegra(34).unwrap()];
    for granule in [PageSize::SIZE_4K, PageSize::SIZE_16K, PageSize::SIZE_64K] {
        for (input, output) in [(20, 32), (39, 40), (48, 48)] {
            formats.push(TableFormat::armv8_stage1(granule, input, output).unwrap());
            formats.push(TableFormat::armv8_stage2(granule, input, output).unwrap());
        }
    }
    formats.extend((3..=5).map(|levels| TableFormat::vtd_second_stage(levels).unwrap()));
    formats.extend((3..=5).map(|levels| TableFormat::amd_v1(levels).unwrap()));
    formats.extend((4..=5).map(|levels| TableFormat::vtd_first_stage(levels).unwrap()));
    /// Memory everywhere, with the same content in every entry.
    struct Same(u64);
    impl WalkMemory for Same {
        fn read_u64(&self, _: PhysAddr) -> Option<u64> {
            Some(self.0)
        }
        fn read_u32(&self, _: PhysAddr) -> Option<u32> {
            Some(self.0 as u32)
        }
    }
    for _ in 0..20_000 {
        let (raw, root, iova) = (next(), next(), next() >> (next() % 64));
        for format in &formats {
            let table = TableRoot { root: PhysAddr::new(root), format: *format };
            if let Ok(leaf) = walk(&Same(raw), &table, Iova::new(iova)) {
                assert!(leaf.pa.is_aligned(leaf.size), "{format:?} {raw:#x}");
                assert_eq!(leaf.pa.get() >> format.output_lg2(), 0, "{format:?} {raw:#x}");
            }
        }
    }
}

#[test]
fn widths_that_do_not_exist() {
    let s1 = TableFormat::armv8_stage1;
    assert_eq!(s1(PageSize::SIZE_2M, 39, 48), Err(FormatError::Granule(21)));
    assert_eq!(s1(PageSize::SIZE_4K, 49, 48), Err(FormatError::Input(49)));
    assert_eq!(s1(PageSize::SIZE_4K, 12, 48), Err(FormatError::Input(12)));
    assert_eq!(s1(PageSize::SIZE_64K, 52, 53), Err(FormatError::Output(53)));
    assert_eq!(TableFormat::vtd_second_stage(2), Err(FormatError::Levels(2)));
    assert_eq!(TableFormat::vtd_first_stage(3), Err(FormatError::Levels(3)));
    assert_eq!(TableFormat::tegra(36), Err(FormatError::Output(36)));
}

#[test]
fn words_of_either_width_read_the_same() {
    let base = PhysAddr::new(0x10_0000);
    let wide = SlabTables::<AtomicU64>::new(base, PageSize::SIZE_4K, 1);
    let narrow = SlabTables::<AtomicU32>::new(base, PageSize::SIZE_4K, 1);
    let (a, b) = (wide.alloc(PageSize::SIZE_4K).unwrap(), narrow.alloc(PageSize::SIZE_4K).unwrap());
    Word::store(&wide.table(a, PageSize::SIZE_4K)[1], 0x1122_3344_5566_7788);
    Word::store(&narrow.table(b, PageSize::SIZE_4K)[2], 0x5566_7788);
    Word::store(&narrow.table(b, PageSize::SIZE_4K)[3], 0x1122_3344);
    let wide = TableReader::<AtomicU64, _>::new(&wide, PageSize::SIZE_4K);
    let narrow = TableReader::<AtomicU32, _>::new(&narrow, PageSize::SIZE_4K);
    for offset in [0u64, 1, 4, 8, 10, 12, 4088, 4092, 4096] {
        let pa = PhysAddr::new(base.get() + offset);
        assert_eq!(wide.read_u64(pa), narrow.read_u64(pa), "{offset}");
        assert_eq!(wide.read_u32(pa), narrow.read_u32(pa), "{offset}");
    }
    assert_eq!(wide.read_u64(PhysAddr::new(0x10_0008)), Some(0x1122_3344_5566_7788));
    assert_eq!(wide.read_u32(PhysAddr::new(0x10_000c)), Some(0x1122_3344));
}

#[test]
fn amd_v1() {
    let format = TableFormat::amd_v1(4).unwrap();
    assert_eq!((format.levels(), format.input_lg2()), (4, 48));
    let pa = PhysAddr::new(0x12_3456_7000);
    let table = |raw, level| format.decode(raw, level);
    let next = Decoded::Table { next: pa, permissions: Permissions::ALL };
    assert_eq!(table(0x6000_0012_3456_7601, 3), next);
    // Ignored bits, among them 63.
    assert_eq!(table(0xe000_0012_3456_77df, 3), next);
    // The next level is not the next, and reserved bits.
    assert_eq!(table(0x6000_0012_3456_7601, 2), Decoded::Bad);
    assert_eq!(table(0x7000_0012_3456_7601, 3), Decoded::Bad);
    let leaf = Decoded::Leaf { pa, permissions: Permissions::READ };
    assert_eq!(table(0x3800_0012_3456_7001, 0), leaf);
    assert_eq!(table(0x3800_0012_3456_7001, 1), Decoded::Bad);
    assert_eq!(table(0x3010_0012_3456_7001, 0), Decoded::Bad);
    assert_eq!(table(0x3800_0012_3456_7000, 0), Decoded::Nothing);
}

#[test]
fn riscv() {
    let mut memory = Bytes::default();
    // Sv39x4: the root has four pages in a row. Entry 0x602 of it, for 0x180_8000_0000, is a table at 0x9000.
    memory.put(0x1000 + 0x602 * 8, &[0x01, 0x24, 0, 0, 0, 0, 0, 0]);
    // Entry 0x201 a leaf of 1 GiB at 0x4000_0000, which may be read by users.
    memory.put(0x1000 + 0x201 * 8, &[0x53, 0, 0, 0x10, 0, 0, 0, 0]);
    // Its entry 1 is a table at 0xa000; its entry 2 a leaf of 2 MiB that does not start with one.
    memory.put(0x9008, &[0x01, 0x28, 0, 0, 0, 0, 0, 0]);
    memory.put(0x9010, &[0xd7, 0x04, 0x08, 0, 0, 0, 0, 0]);
    // Pages at 0x12_3456_7000: I/O that may be written; not dirty; not accessed; not for users.
    memory.put(0xa000, &[0xd7, 0x9c, 0x15, 0x8d, 0x04, 0, 0, 0x40]);
    memory.put(0xa008, &[0x57, 0x9c, 0x15, 0x8d, 0x04, 0, 0, 0]);
    memory.put(0xa010, &[0x97, 0x9c, 0x15, 0x8d, 0x04, 0, 0, 0]);
    memory.put(0xa018, &[0xc7, 0x9c, 0x15, 0x8d, 0x04, 0, 0, 0]);
    // Reserved entries: write without read, bit 54, a memory type of 3, a part of a larger page, no leaf.
    memory.put(0xa020, &[0xd5, 0x9c, 0x15, 0x8d, 0x04, 0, 0, 0]);
    memory.put(0xa028, &[0xd7, 0x9c, 0x15, 0x8d, 0x04, 0, 0x40, 0]);
    memory.put(0xa030, &[0xd7, 0x9c, 0x15, 0x8d, 0x04, 0, 0, 0x60]);
    memory.put(0xa038, &[0xd7, 0x9c, 0x15, 0x8d, 0x04, 0, 0, 0x80]);
    memory.put(0xa040, &[0x01, 0x9c, 0x15, 0x8d, 0x04, 0, 0, 0]);
    // Not valid, with all other bits set.
    memory.put(0xa048, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    let format = TableFormat::riscv_second_stage(3).unwrap();
    assert_eq!((format.levels(), format.input_lg2()), (3, 41));
    assert_eq!(format.table_size(2).bytes(), 0x4000);
    assert_eq!(format.table_size(1).bytes(), 0x1000);
    let page = |n: u64| 0x180_8020_0000 + n * 0x1000;
    let go = |iova| at(&memory, format, iova);
    assert_eq!(go(0x80_4000_0123), Ok((0x4000_0123, 1 << 30, RO)));
    assert_eq!(go(page(0) | 0xabc), Ok((0x12_3456_7abc, 4096, RW)));
    assert_eq!(go(page(1)), Ok((0x12_3456_7000, 4096, RO)));
    assert_eq!(go(page(2)), Ok((0x12_3456_7000, 4096, NO)));
    assert_eq!(go(page(3)), Ok((0x12_3456_7000, 4096, NO)));
    for bad in 4..9 {
        assert!(matches!(go(page(bad)), Err(WalkFault::BadEntry { level: 0, .. })), "{bad}");
    }
    assert_eq!(go(page(9)), Err(WalkFault::NoTranslation { level: 0 }));
    assert!(matches!(go(0x180_8040_0000), Err(WalkFault::BadEntry { level: 1, .. })));
    assert_eq!(go(1 << 41), Err(WalkFault::NoTranslation { level: 2 }));
    // A first stage serves the lower half of its 39 bits.
    let format = TableFormat::riscv_first_stage(3).unwrap();
    assert_eq!((format.levels(), format.input_lg2()), (3, 38));
    assert!(TableFormat::riscv_first_stage(2).is_err());
    // An entry that points at a table keeps its reserved bits clear; two are ignored.
    let table = |raw| matches!(format.decode(raw, 1), Decoded::Table { .. });
    assert!(table(0x2401) && table(0x2701));
    assert!(!table(0x2441) && !table(0x2481) && !table(0x2411) && !table(0x0040_0000_0000_2401));
}
