//! Regions of several sources put together.

use super::*;

const R: Access = Access::READ;
const RW: Access = Access::READ.union(Access::WRITE);
const PAGE: PageSize = PageSize::SIZE_4K;

fn region(start: u64, last: u64, kind: ReservedKind) -> ReservedRegion {
    let range = IovaRange::new(Iova::new(start), Iova::new(last)).unwrap();
    ReservedRegion { range, kind }
}

fn direct(start: u64, last: u64, access: Access) -> ReservedRegion {
    region(start, last, ReservedKind::Direct(access))
}

#[test]
fn a_region_is_written_as_its_range_and_kind() {
    let text = alloc::format!("{}", direct(0x1000, 0x1fff, R));
    assert_eq!(text, "0x1000..=0x1fff (Direct(Access(READ)))");
}

#[test]
fn regions_that_overlap_or_touch_become_one() {
    let regions = [
        direct(0x9000, 0x9fff, RW),
        direct(0x1000, 0x2fff, RW),
        direct(0x2000, 0x2fff, RW),
        direct(0x3000, 0x3fff, RW),
        direct(0x1800, 0x1fff, RW),
    ];
    let wanted = [direct(0x1000, 0x3fff, RW), direct(0x9000, 0x9fff, RW)];
    assert_eq!(disjoint(&regions, PAGE).unwrap(), wanted);
    assert_eq!(disjoint(&[], PAGE), Ok(Vec::new()));
    let top = [direct(0, u64::MAX, RW), direct(0x1000, u64::MAX, RW)];
    let wanted = [direct(0, u64::MAX, RW)];
    assert_eq!(disjoint(&top, PAGE).unwrap(), wanted);
}

#[test]
fn where_regions_overlap_all_that_any_allows_is_allowed() {
    let until = |start, last, access| {
        let kind = ReservedKind::DirectUntilDriven(access);
        region(start, last, kind)
    };
    let regions = [
        direct(0x1000, 0x4fff, R),
        direct(0x3000, 0x5fff, Access::WRITE),
        until(0x4000, 0x6fff, RW),
    ];
    let wanted = [direct(0x1000, 0x2fff, R), direct(0x3000, 0x5fff, RW), until(0x6000, 0x6fff, RW)];
    assert_eq!(disjoint(&regions, PAGE).unwrap(), wanted);
}

/// Two regions in one page cannot be mapped differently.
#[test]
fn regions_are_widened_to_pages_before_they_are_put_together() {
    let odd = direct(0x1234, 0x1235, R);
    let wide = odd.whole_pages(PageSize::SIZE_64K);
    assert_eq!(wide, direct(0, 0xffff, R));
    let found = disjoint(&[direct(0x1800, 0x1fff, RW), odd], PAGE).unwrap();
    assert_eq!(found, [direct(0x1000, 0x1fff, RW)]);
    let over = [direct(0x1fff, 0x2000, R), odd];
    assert_eq!(disjoint(&over, PAGE).unwrap(), [direct(0x1000, 0x2fff, R)]);
}

/// Neither wins: of two that contradict each other none is believed.
#[test]
fn regions_that_contradict_each_other_are_refused() {
    let closed = [ReservedKind::Interrupts, ReservedKind::Unusable];
    let closed = closed.map(|kind| region(0x2800, 0x2bff, kind));
    let registers = direct(0x2000, 0x2fff, RW | Access::DEVICE);
    for first in [closed[0], closed[1], registers] {
        let second = direct(0x1000, 0x2200, RW);
        // One in between is no hiding place.
        let between = direct(0x1000, 0x1fff, RW);
        for order in [[first, between, second], [second, between, first]] {
            let (first, second) = (order[0], order[2]);
            let refused = NotDisjoint::Contradiction { first, second };
            assert_eq!(disjoint(&order, PAGE), Err(refused));
        }
        let apart = direct(0x4000, 0x4fff, RW);
        assert_eq!(disjoint(&[first, apart], PAGE).unwrap(), [first, apart]);
    }
    // A window that is reserved twice is a window, and a doorbell may lie in a device's memory.
    let doorbell = region(0x1000, 0x1fff, ReservedKind::Doorbell);
    let registers = direct(0x1000, 0x1fff, RW | Access::DEVICE);
    let all = [closed[0], doorbell, closed[1], registers];
    assert_eq!(disjoint(&all, PAGE).unwrap(), all);
}

#[test]
fn registers_that_two_regions_name_are_no_contradiction() {
    let registers = RW | Access::DEVICE;
    let (one, two) = (direct(0x1000, 0x2fff, registers), direct(0x2000, 0x3fff, registers));
    assert!(!one.contradicts(&two, PAGE));
    assert!(one.contradicts(&direct(0x2000, 0x3fff, RW), PAGE));
    let found = disjoint(&[one, two], PAGE).unwrap();
    assert_eq!(found, [direct(0x1000, 0x3fff, registers)]);
}
