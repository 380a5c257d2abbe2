//! Properties of an entry that a walk over a kernel's own tables needs: the access that it lets
//! through, and reserved encodings. Words by hand, from the specifications' figures of entries.

use super::*;

const NONE: Access = Access::empty();

/// Checks the access of reads, writes and instructions that each of `words`, a table's entry of
/// `level`, lets through.
fn lets_through<F: Format>(format: F, level: u32, words: &[(u64, Access)]) {
    for &(raw, wanted) in words {
        assert!(matches!(F::classify(raw, level), Entry::Table(_)), "{raw:#x}");
        let found = format.table_access(raw, level).difference(D);
        assert_eq!(found, wanted, "{raw:#x}");
        assert!(!format.is_reserved(raw, level), "{raw:#x}");
    }
}

#[test]
fn table_entries_take_accesses_away() {
    // R and W at 0 and 1.
    lets_through(SECOND, 2, &[(0x7001, R), (0x7002, W), (0x7003, RW)]);
    // P, R/W, U/S at 0, 1, 2: of users alone.
    let first = [(0x7005, R), (0x7007, RW), (0x7003, NONE), (0x7001, NONE)];
    lets_through(FIRST, 1, &first);
    // IR and IW at 61 and 62, the next level at 11:9.
    let amd = [
        (0x2000_0000_0000_7401, R),
        (0x4000_0000_0000_7401, W),
        (0x6000_0000_0000_7401, RW),
        (0x0000_0000_0000_7401, NONE),
    ];
    lets_through(AMD, 2, &amd);
    // UXNTable, APTable at 60, 62:61; PXNTable and NSTable, 59 and 63, are nothing to a device.
    let stage1_words = [
        (0x8800_0000_0000_7003, RW | X),
        (0x1000_0000_0000_7003, RW),
        (0x2000_0000_0000_7003, X),
        (0x4000_0000_0000_7003, R | X),
        (0x7000_0000_0000_7003, NONE),
    ];
    lets_through(stage1(), 1, &stage1_words);
    lets_through(stage2(), 1, &[(0xf800_0000_0000_7003, RW | X)]);
    lets_through(RISCV, 3, &[(0x1c01, RW | X)]);
    // Readable, writable, non-secure, next at 31 to 28.
    let tegra = [(0xb000_0007, R), (0x7000_0007, W), (0xf000_0007, RW)];
    lets_through(TEGRA, 1, &tegra);
}

/// Checks that the right ones of `words` are refused at `level`, all of which are present.
fn reserved<F: Format>(format: F, level: u32, words: &[(u64, bool)]) {
    for &(raw, wanted) in words {
        let found = F::classify(raw, level);
        assert!(matches!(found, Entry::Leaf(_) | Entry::Table(_)), "{raw:#x}");
        assert_eq!(format.is_reserved(raw, level), wanted, "{raw:#x} {level}");
    }
}

#[test]
fn reserved_encodings_are_refused() {
    for level in [1, 2] {
        reserved(SECOND, level, &[(0x83, false), (0x3, false)]);
        reserved(FIRST, level, &[(0xa7, false)]);
    }
    reserved(SECOND, 3, &[(0x83, true), (0x3, false)]);
    reserved(FIRST, 3, &[(0xa7, true), (0x27, false)]);
    // The next level has to be the one below; 7 would be a size in the address.
    let amd = [
        (0x6000_0000_0000_7401, false),
        (0x6000_0000_0000_7201, true),
        (0x6000_0000_0000_7601, true),
        (0x6000_0000_0000_7e01, true),
        (0x6010_0000_0000_7401, true),
        (0x7000_0000_0000_7401, true),
        (0x7000_0000_0000_0001, false),
        (0x6400_0000_0000_0001, true),
        (0x6010_0000_0000_0001, true),
    ];
    reserved(AMD, 2, &amd);
    let pages = [(0x6000_0000_0000_7001, false), (0x6000_0000_0000_7201, true)];
    reserved(AMD, 0, &pages);
    // The lowest level has pages (3), the others blocks (1) and tables (3); the access flag is bit 10.
    reserved(stage1(), 0, &[(0x7443, false), (0x7441, true), (0x7043, true)]);
    reserved(stage1(), 1, &[(0x441, false), (0x41, true), (0x7003, false)]);
    reserved(stage2(), 0, &[(0x74c3, false), (0x74c1, true), (0x70c3, true)]);
    // Executable alone; writable and not readable; bits 60:54; Svnapot; a memory type that there is not.
    let leaves = [
        (0xd7, false),
        (0xd9, false),
        (0xd5, true),
        (0xdd, true),
        (0x0040_0000_0000_00d7, true),
        (0x1000_0000_0000_00d7, true),
        (0x8000_0000_0000_00d7, true),
        (0x4000_0000_0000_00d7, false),
        (0x6000_0000_0000_00d7, true),
    ];
    reserved(RISCV, 0, &leaves);
    reserved(RISCV, 0, &[(0x1c01, true)]);
    // Svpbmt is not there.
    reserved(RISCV_SECOND, 0, &[(0x4000_0000_0000_00d7, true)]);
    let tables = [
        (0x1c01, false),
        (0x1f01, false),
        (0x1c11, true),
        (0x1c21, true),
        (0x1c41, true),
        (0x1c81, true),
        (0x0040_0000_0000_1c01, true),
        (0x8000_0000_0000_1c01, true),
    ];
    reserved(RISCV, 1, &tables);
    reserved(TEGRA, 0, &[(0xf000_0007, false)]);
}

#[test]
fn what_is_not_of_users_or_not_marked_allows_nothing() {
    let access = |format: &dyn Fn(u64) -> Access, raw| format(raw).intersection(RW | X);
    let first = |raw| FIRST.access(raw, 0);
    assert_eq!(access(&first, 0x7007), RW);
    assert_eq!(access(&first, 0x7003), NONE);
    let plain = |raw| stage1().access(raw, 0);
    // AP[1] at 6, AP[2] at 7; DBM at 51 is ignored where no hardware keeps dirty state.
    assert_eq!(access(&plain, 0x0040_0000_0000_7443), RW);
    assert_eq!(access(&plain, 0x0040_0000_0000_7403), NONE);
    assert_eq!(access(&plain, 0x0048_0000_0000_74c3), R);
    let second = |raw| stage2().access(raw, 0);
    assert_eq!(access(&second, 0x0048_0000_0000_7443), R);
    // U, A and D at 4, 6 and 7.
    let off = |raw| RISCV_SECOND.access(raw, 0);
    assert_eq!(access(&off, 0xd7), RW);
    assert_eq!(access(&off, 0x57), R, "not dirty");
    assert_eq!(access(&off, 0x97), NONE, "not accessed");
    assert_eq!(access(&off, 0xc7), NONE, "not of users");
    let kept = |raw| RISCV.access(raw, 0);
    assert_eq!(access(&kept, 0x17), RW, "hardware marks it");
}

#[test]
fn a_large_pages_memory_type_is_no_address() {
    let large = 0x4020_0000 | 1 << 12 | 0xa7;
    let pa = PhysAddr::new(0x4020_0000);
    assert_eq!(VtdFirstStage::classify(large, 1), Entry::Leaf(pa));
    assert_eq!(VtdFirstStage::classify(0x7007, 0), Entry::Leaf(PhysAddr::new(0x7000)));
}
