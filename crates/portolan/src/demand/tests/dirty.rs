//! Granules that devices wrote.

use alloc::collections::BTreeSet;

use super::rig::{BASE, PAGE, Rig, pages_at};
use crate::addr::{IovaRange, PageSize, PhysAddr};
use crate::demand::IoasOptions;
use crate::platform::{TableMem, Word};

/// Bit 9 of a second-stage leaf says that it was written.
const DIRTY: u64 = 1 << 9;

/// Writes through the leaf of `page`, as hardware does.
pub(super) fn write(rig: &Rig, page: u64) {
    let mut table = rig.domain.table().root();
    let iova = BASE + page * PAGE;
    for level in (0..4).rev() {
        let index = (iova >> (12 + 9 * level)) & 511;
        let words = TableMem::table(&rig.tables, table, PageSize::SIZE_4K);
        let word = &words[index as usize];
        let raw = Word::load(word);
        match level {
            0 => Word::store(word, raw | DIRTY),
            _ => table = PhysAddr::new(raw & 0x000f_ffff_ffff_f000),
        }
    }
}

fn read_and_clear_dirty(rig: &Rig) -> BTreeSet<u64> {
    read_and_clear_in(rig, pages_at(0, 1024))
}

fn read_and_clear_in(rig: &Rig, range: IovaRange) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let visit = |range: IovaRange| {
        let first = (range.start().get() - BASE) / PAGE;
        found.extend(first..=(range.last().get() - BASE) / PAGE);
    };
    rig.container.read_and_clear_dirty(range, visit).unwrap();
    found
}

#[test]
fn a_byte_of_a_page_is_enough_to_ask_for_it() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(1024);
    for page in [0, 1023] {
        rig.fault(page).unwrap();
        write(&rig, page);
    }
    let (start, last) = (pages_at(0, 1024).start(), pages_at(0, 1024).last());
    for (byte, page) in [(last, 1023), (start, 0)] {
        let found = read_and_clear_in(&rig, IovaRange::new(byte, byte).unwrap());
        assert_eq!(found, BTreeSet::from([page]));
    }
}

#[test]
fn written_pages_are_found_once_and_lost_ones_too() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(1024);
    for page in 0..10 {
        rig.fault(page * 100).unwrap();
    }
    assert_eq!(read_and_clear_dirty(&rig), BTreeSet::new());
    write(&rig, 200);
    write(&rig, 900);
    assert_eq!(read_and_clear_dirty(&rig), BTreeSet::from([200, 900]));
    assert_eq!(read_and_clear_dirty(&rig), BTreeSet::new());
    // Written before it was taken back, perhaps: that is not known afterwards.
    write(&rig, 300);
    rig.container.invalidate(pages_at(300, 101)).unwrap();
    assert_eq!(read_and_clear_dirty(&rig), BTreeSet::from([300, 400]));
    rig.fault(300).unwrap();
    assert_eq!(read_and_clear_dirty(&rig), BTreeSet::new());
}
