//! Effects of the driver's requests on the device, as its endpoints see them.

use crate::promised::all_memory;
use std::time::Duration;

use vm_memory::GuestAddress;
use vm_memory::iommu::Iommu as _;

use super::*;
use crate::{doorbell, reach};

const PAGE: u64 = 4096;

#[test]
fn a_device_reaches_what_its_domain_maps_and_no_more() {
    let link = Link::new();
    let ([endpoint, other], unit) = (&link.endpoints, start(&link));
    let domain = unit.domain().unwrap();
    assert_eq!(reach(endpoint, 0x2010, 4, READ), None);
    unit.attach(A, &domain).unwrap();
    map_for(&domain, 0x2000, 0x8000, 2 * PAGE, Access::READ).unwrap();
    assert_eq!(reach(endpoint, 0x2010, 4, READ), Some(vec![(0x8010, 4)]));
    assert_eq!(reach(endpoint, 0x2010, 4, WRITE), None);
    assert_eq!(reach(endpoint, 0x3ffe, 4, READ), None, "past its end");
    assert_eq!(reach(other, 0x2010, 4, READ), None, "of no domain");
    // Records in their order: no domain, a write, the end, no domain.
    let reasons = [
        FaultReason::Blocked,
        FaultReason::Permission,
        FaultReason::NotMapped,
        FaultReason::Blocked,
    ];
    for (number, reason) in reasons.into_iter().enumerate() {
        let fault = unit.next_fault().unwrap().unwrap();
        let said = format!("{fault:?}");
        assert!(said.contains(&format!("{reason:?}")), "{number}: {said}");
    }
    unmap(&domain, 0x2000, 0x3fff).unwrap();
    assert_eq!(reach(endpoint, 0x2010, 4, READ), None);
}

#[test]
fn endpoints_pass_through_and_are_blocked() {
    let link = Link::new();
    let ([endpoint, _], unit) = (&link.endpoints, start(&link));
    unit.pass_through(A, all_memory()).unwrap();
    assert_eq!(reach(endpoint, 0x1234, 8, WRITE), Some(vec![(0x1234, 8)]));
    unit.block(A).unwrap();
    assert_eq!(reach(endpoint, 0x1234, 8, WRITE), None);
    // Those without a domain, as the guest says.
    link.device.write_config(36, 1);
    assert_eq!(reach(endpoint, 0x1234, 8, WRITE), Some(vec![(0x1234, 8)]));
    link.device.write_config(36, 2);
    assert_eq!(link.device.config()[36], 1);
    link.device.write_config(36, 0);
    assert_eq!(reach(endpoint, 0x1234, 8, WRITE), None);
}

#[test]
fn a_probe_tells_of_doorbells() {
    let link = Link::new();
    let unit = start(&link);
    let mut found = Vec::new();
    Iommu::reserved(&unit, B, &mut |region| found.push((region.range, region.kind)));
    assert_eq!(found, [(doorbell(), ReservedKind::Interrupts)]);
}

#[test]
fn an_unmap_is_not_done_while_the_device_holds_a_translation() {
    let link = Link::with_limit(Duration::ZERO);
    let ([endpoint, _], unit) = (&link.endpoints, start(&link));
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    map_for(&domain, 0, 0x8000, PAGE, Access::READ).unwrap();
    map_for(&domain, 0x10_0000, 0x9000, PAGE, Access::READ).unwrap();
    let held = endpoint.translate(GuestAddress(0), 8, READ).unwrap();
    assert_eq!(unmap(&domain, 0x10_0000, 0x10_0fff), Ok(()), "another's range");
    assert!(unmap(&domain, 0, PAGE - 1).is_err());
    assert_eq!(reach(endpoint, 0, 8, READ), None, "forgotten for others");
    drop(held);
}
