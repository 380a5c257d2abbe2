//! Pages that devices wrote.

use alloc::vec::Vec;

use super::buffers::unowned;
use super::rig::{Rig, Setup, TIMED_OUT};
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use crate::dma::{Constraints, DmaRange, IovaUse, SpaceDirtyError, UnmapError};
use crate::iommu::TrackDirtyError;
use crate::platform::{TableMem, Word};
use crate::table::format::DirtyTracking;
use crate::table::{Access, DirtyError};

/// Bit 9 of a second-stage leaf says that it was written.
const DIRTY: u64 = 1 << 9;
const PAGE: u64 = 0x1000;

fn marking() -> Rig {
    Rig::new(&Setup { dirty: DirtyTracking::Hardware, ..Setup::default() })
}

/// Four pages of the device's, and all of the tables that they lie in.
fn lend(rig: &Rig) -> DmaRange {
    let memory = unowned(PhysRange::from_len(PhysAddr::new(0x5000), 4 * PAGE).unwrap());
    let lent = rig.space.map_range(memory, Access::READ_WRITE, &Constraints::trusted());
    lent.unwrap().0
}

fn page(range: &DmaRange, number: u64) -> IovaRange {
    let start = Iova::new(range.addresses().start().get() + number * PAGE);
    IovaRange::page(start, PageSize::SIZE_4K)
}

/// Writes through a leaf, as hardware does.
fn write(rig: &Rig, page: IovaRange) {
    let mut table = rig.domain.upgrade().unwrap().table().root();
    for level in (0..4).rev() {
        let index = page.start().get() >> (12 + 9 * level) & 511;
        let word = &TableMem::table(&rig.memory, table, PageSize::SIZE_4K)[index as usize];
        let raw = Word::load(word);
        match level {
            0 => Word::store(word, raw | DIRTY),
            _ => table = PhysAddr::new(raw & 0x000f_ffff_ffff_f000),
        }
    }
}

fn seen(rig: &Rig, range: &DmaRange) -> Vec<IovaRange> {
    let mut found = Vec::new();
    rig.space.read_dirty(range.addresses(), |page| found.push(page)).unwrap();
    found
}

fn read_and_cleared(rig: &Rig, range: &DmaRange) -> Vec<IovaRange> {
    let mut found = Vec::new();
    rig.space.read_and_clear_dirty(range.addresses(), |page| found.push(page)).unwrap();
    found
}

#[test]
fn a_written_page_is_handed_over_and_its_translation_is_forgotten() {
    let rig = marking();
    let range = lend(&rig);
    assert_eq!(read_and_cleared(&rig, &range), []);
    let before = rig.syncs();
    let written = [page(&range, 1), page(&range, 3)];
    written.iter().for_each(|page| write(&rig, *page));
    for _ in 0..2 {
        assert_eq!(seen(&rig, &range), written);
    }
    assert_eq!(rig.syncs(), before, "a look owes nothing");
    assert_eq!(read_and_cleared(&rig, &range), written);
    assert_eq!(rig.syncs(), before + 1, "marks that were cleared are paid for");
    assert_eq!(read_and_cleared(&rig, &range), []);
    rig.space.unmap_range(range).unwrap();
}

#[test]
fn an_unmap_returns_its_marks() {
    let rig = marking();
    let range = lend(&rig);
    let (written, addresses) = (page(&range, 2), range.addresses());
    write(&rig, written);
    let mut found = Vec::new();
    let before = rig.syncs();
    rig.space.unmap_range_and_read_dirty(range, |page| found.push(page)).unwrap();
    assert_eq!(found, [written]);
    assert_eq!(rig.syncs(), before + 1);
    assert_eq!(rig.space.find(addresses.start()), IovaUse::Unused);
    // Another space's range comes back.
    let other = marking();
    let range = lend(&other);
    let failed = rig.space.unmap_range_and_read_dirty(range, |_| panic!("it is not here"));
    let failed = failed.err().unwrap();
    assert_eq!(failed.error, UnmapError::OtherSpace);
    other.space.unmap_range(failed.value.unwrap()).unwrap();
}

#[test]
fn marks_that_were_not_paid_for_break_the_space() {
    let rig = marking();
    let range = lend(&rig);
    write(&rig, page(&range, 0));
    rig.set_broken(1);
    let (mut found, addresses) = (Vec::new(), range.addresses());
    let read = rig.space.read_and_clear_dirty(addresses, |page| found.push(page));
    assert_eq!(read, Err(SpaceDirtyError::NotPaid(UnmapError::Iommu(TIMED_OUT))));
    assert_eq!(found, [page(&range, 0)]);
    assert_eq!(rig.space.failure(), Some(TIMED_OUT));
    rig.set_broken(0);
    rig.space.recover().unwrap();
    write(&rig, page(&range, 1));
    rig.set_broken(1);
    found.clear();
    let unmapped = rig.space.unmap_range_and_read_dirty(range, |page| found.push(page));
    let failed = unmapped.err().unwrap();
    assert_eq!((failed.error, failed.value), (UnmapError::Iommu(TIMED_OUT), None));
    assert_eq!(found.len(), 1);
    rig.set_broken(0);
    rig.space.recover().unwrap();
    assert_eq!(rig.space.waiting(), (0, 0));
}

#[test]
fn marks_are_switched_while_pages_are_mapped() {
    let rig = marking();
    let range = lend(&rig);
    rig.space.track_dirty(DirtyTracking::Off).unwrap();
    write(&rig, page(&range, 0));
    let not_tracked = Err(SpaceDirtyError::Domain(DirtyError::NotTracked));
    assert_eq!(rig.space.read_dirty(range.addresses(), |_| ()), not_tracked);
    assert_eq!(rig.space.read_and_clear_dirty(range.addresses(), |_| ()), not_tracked);
    let before = rig.syncs();
    rig.space.track_dirty(DirtyTracking::Hardware).unwrap();
    assert_eq!(rig.syncs(), before + 1, "caches know pages as written");
    assert_eq!(seen(&rig, &range), [], "marks from before are gone");
    write(&rig, page(&range, 1));
    assert_eq!(seen(&rig, &range), [page(&range, 1)]);
    rig.space.track_dirty(DirtyTracking::Off).unwrap();
    let (mut found, all) = (Vec::new(), range.addresses());
    rig.space.unmap_range_and_read_dirty(range, |page| found.push(page)).unwrap();
    assert_eq!(found, [all], "any of it may have been written");
    // A domain that was made for none.
    let rig = Rig::new(&Setup::default());
    let tracked = rig.space.track_dirty(DirtyTracking::Hardware);
    assert_eq!(tracked, Err(TrackDirtyError::NotTracked));
}
