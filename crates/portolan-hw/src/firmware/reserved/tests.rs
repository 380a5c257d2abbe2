//! Regions of several blocks put together.

extern crate std;

use std::vec::Vec;

use super::*;

const READ_WRITE: Access = Access::READ.union(Access::WRITE);

fn region(start: u64, last: u64, kind: ReservedKind, access: Access) -> ReservedRegion {
    let memory = PhysRange::new(PhysAddr::new(start), PhysAddr::new(last)).unwrap();
    ReservedRegion {
        memory,
        kind,
        access,
    }
}

fn direct(start: u64, last: u64) -> ReservedRegion {
    region(start, last, ReservedKind::Direct, READ_WRITE)
}

fn settled(mut regions: Vec<ReservedRegion>) -> Result<Vec<ReservedRegion>, Contradiction> {
    disjoint(&mut regions, PageSize::SIZE_4K).map(|kept| kept.to_vec())
}

#[test]
fn overlapping_regions_of_one_kind_become_one() {
    let regions = [
        direct(0x9000, 0x9fff),
        direct(0x1000, 0x2fff),
        direct(0x2000, 0x2fff),
        direct(0x3000, 0x3fff),
        direct(0x1800, 0x1fff),
    ];
    let kept = settled(regions.to_vec()).unwrap();
    assert_eq!(kept, [direct(0x1000, 0x3fff), direct(0x9000, 0x9fff)]);
    assert_eq!(settled(Vec::new()), Ok(Vec::new()));
    let top = [direct(0, u64::MAX), direct(0x1000, u64::MAX)];
    assert_eq!(settled(top.to_vec()).unwrap(), [direct(0, u64::MAX)]);
}

/// Neither wins: firmware that says two things is not believed in either.
#[test]
fn overlapping_regions_that_differ_are_refused() {
    let other = region(0x2000, 0x2fff, ReservedKind::Excluded, READ_WRITE);
    let less = region(0x2000, 0x2fff, ReservedKind::Direct, Access::READ);
    for second in [other, less] {
        let first = direct(0x1000, 0x3fff);
        // One in between is no hiding place.
        let between = direct(0x1000, 0x1fff);
        let found = settled([second, between, first].to_vec());
        assert_eq!(found, Err(Contradiction { first, second }));
        let apart = direct(0x4000, 0x4fff);
        let kept = settled([apart, second].to_vec()).unwrap();
        assert_eq!(kept, [second, apart]);
    }
}

/// Two regions in one page cannot be mapped differently.
#[test]
fn regions_are_widened_to_pages_before_they_are_compared() {
    let odd = region(0x1234, 0x1235, ReservedKind::Direct, Access::READ);
    let (page, wide) = (PageSize::SIZE_4K, odd.whole_pages(PageSize::SIZE_64K));
    assert_eq!(wide.memory.last(), PhysAddr::new(0xffff));
    assert_eq!(odd.addresses().start(), Iova::new(0x1234));
    assert_eq!(odd.addresses().last(), Iova::new(0x1235));
    let other = direct(0x1800, 0x1fff);
    let refused = Contradiction {
        first: odd.whole_pages(page),
        second: other.whole_pages(page),
    };
    assert_eq!(settled([other, odd].to_vec()), Err(refused));
    let alike = region(0x1fff, 0x2000, ReservedKind::Direct, Access::READ);
    let kept = settled([alike, odd].to_vec()).unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].memory.last(), PhysAddr::new(0x2fff));
}

#[test]
fn memory_beyond_the_machine_is_nonsense() {
    let memory = direct(0x1000, (1 << 36) - 1).memory;
    assert_eq!(within(memory, Some(36), 8), Ok(memory));
    let (offset, value) = (8, (1 << 36) - 1);
    let refused = Err(TableError::Nonsense { offset, value });
    assert_eq!(within(memory, Some(35), 8), refused);
    for any in [None, Some(64), Some(200)] {
        assert_eq!(within(memory, any, 8), Ok(memory));
    }
}
