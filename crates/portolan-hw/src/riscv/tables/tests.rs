//! Shapes of directories, and the places of contexts in them.

use super::*;
use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::SlabTables;

/// Levels that are deep enough, by the width of numbers.
#[test]
fn shapes_by_hand() {
    let levels = |words, lg2| DirectoryShape::shallowest(words, lg2).map(|of| of.levels);
    for (words, widths) in [(4, [7, 16, 24]), (8, [6, 15, 24])] {
        assert_eq!(levels(words, 0), Some(1));
        assert_eq!(levels(words, widths[0]), Some(1));
        assert_eq!(levels(words, widths[0] + 1), Some(2));
        assert_eq!(levels(words, widths[1]), Some(2));
        assert_eq!(levels(words, widths[1] + 1), Some(3));
        assert_eq!(levels(words, widths[2]), Some(3));
        assert_eq!(levels(words, 26), None);
    }
}

#[test]
fn contexts_stay_where_they_are_while_a_directory_becomes_deeper() {
    let mem = SlabTables::new(PhysAddr::new(0x10_0000), PageSize::SIZE_4K, 8);
    let shape = DirectoryShape::shallowest(4, 7).unwrap();
    let mut directory = Directory::new(Block::new(&mem, 12).unwrap(), shape);
    let place = directory.place(&mem, 0x6f).unwrap();
    for levels in [2, 3] {
        directory.deepen(&mem).unwrap();
        assert_eq!(directory.levels(), levels);
        let mut page = directory.root();
        for _ in 1..levels {
            let table = TableMem::<AtomicU64>::table(&mem, page.at, page.size);
            page.at = PhysAddr::new(Word::load(&table[0]) >> 10 << 12);
        }
        assert_eq!(page.at, place.table);
        assert_eq!(directory.place(&mem, 0x6f), Ok(place));
    }
    assert_eq!(directory.deepen(&mem), Err(IommuError::Unsupported));
    directory.free(&mem);
}

/// Checks the place of a context by the entries that lead to it.
#[test]
fn a_context_is_found_by_the_parts_of_its_number() {
    let stream = 0xab_cdef;
    // In base format DDI is 0xab, 0x19b and 0x6f; in extended format 0x157, 0x137 and 0x2f.
    for (words, parts) in [(4, [0xab, 0x19b, 0x6f]), (8, [0x157, 0x137, 0x2f])] {
        let mem = SlabTables::new(PhysAddr::new(0x10_0000), PageSize::SIZE_4K, 8);
        let shape = DirectoryShape { levels: 3, words, lg2: 24 };
        let root = Block::new(&mem, 12).unwrap();
        let mut directory = Directory::new(root, shape);
        let place = directory.place(&mem, stream).unwrap();
        assert_eq!((place.first, place.words), (parts[2] * words, words));
        let mut page = root.at;
        for part in &parts[..2] {
            let entry = Word::load(&TableMem::<AtomicU64>::table(&mem, page, root.size)[*part]);
            // A page number from bit 10, and the bit that says that it counts.
            assert_eq!(entry & 0x3ff, 1);
            page = PhysAddr::new(entry >> 10 << 12);
        }
        assert_eq!(place.table, page);
        assert_eq!(directory.place(&mem, stream), Ok(place));
        assert_eq!(directory.pages.len(), 2);
        directory.free(&mem);
    }
}

#[test]
fn numbers_that_are_too_wide_have_no_context() {
    let has = |lg2, stream| Directory::has(lg2, StreamId::new(stream));
    assert_eq!(has(7, 127), Some(127));
    assert_eq!(has(7, 128), None);
    assert_eq!(has(24, 1 << 24), None);
}
