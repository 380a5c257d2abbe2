//! Maps of one page that owe nothing.

use super::*;

/// A domain in which the page before `AT` is mapped, so that the leaf table exists.
fn begun(caps: Capabilities) -> Tables {
    let domain = domain_of(caps);
    let before = promised(PhysAddr::new(0x1000), PAGE.bytes());
    let at = Iova::new(AT.get() - PAGE.bytes());
    domain.map(at, before, Access::READ, &mut Gather::new()).unwrap();
    domain
}

const AT: Iova = Iova::new(0x7000);

fn bytes(start: u64, bytes: u64) -> DmaMemory {
    promised(PhysAddr::new(start), bytes)
}

#[test]
fn a_page_is_mapped_by_its_entry_alone_and_once() {
    let domain = begun(Capabilities::new(PAGE));
    // Some bytes stand for the page in which they lie.
    assert!(domain.map_page(AT, bytes(0x5010, 0x20), Access::READ));
    let found = domain.translate(AT).unwrap();
    assert_eq!((found.pa, found.size), (PhysAddr::new(0x5000), PAGE));
    assert!(!domain.map_page(AT, bytes(0x6000, 0x1000), Access::READ));
    assert_eq!(domain.translate(AT), Some(found));
    // It is unmapped as any other.
    let mut owed = Gather::new();
    domain.unmap(IovaRange::page(AT, PAGE), &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(domain.translate(AT), None);
}

#[test]
fn more_than_a_page_and_a_page_without_a_table_go_the_way_of_lists() {
    let domain = begun(Capabilities::new(PAGE));
    assert!(!domain.map_page(AT, bytes(0x5800, 0x1000), Access::READ));
    assert!(!domain.map_page(Iova::new(AT.get() + 1), bytes(0x5000, 0x1000), Access::READ));
    let elsewhere = Iova::new(AT.get() + BLOCK.bytes());
    assert!(!domain.map_page(elsewhere, bytes(0x5000, 0x1000), Access::READ));
    let outside = Iova::new(1 << 39);
    assert!(!domain.map_page(outside, bytes(0x5000, 0x1000), Access::READ));
    assert!(!domain.map_page(AT, bytes(1 << 40, 0x1000), Access::READ));
    assert_eq!((domain.translate(AT), domain.translate(elsewhere)), (None, None));
    assert_eq!(domain.table().pages(), 3);
}

#[test]
fn a_page_whose_map_owes_something_goes_the_way_of_lists() {
    let caps = Capabilities::new(PAGE);
    for caps in [
        Capabilities { caching: Caching::NotPresentToo, ..caps },
        Capabilities { walker: Walker::NonCoherent, ..caps },
    ] {
        let domain = begun(caps);
        assert!(!domain.map_page(AT, bytes(0x5000, 0x1000), Access::READ), "{caps:?}");
        assert_eq!(domain.translate(AT), None);
    }
}
