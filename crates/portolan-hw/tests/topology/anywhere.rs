//! Memory that safe code lets a device reach without a buffer: nothing in this file is unsafe. What does
//! not compile here is in the compile-fail tests of `portolan`.
#![forbid(unsafe_code)]

use portolan::addr::IovaRange;
use portolan::dma::{Direction, Mapping};
use portolan::inval::Gather;
use portolan_chips::vtd::VtdIdentification;
use portolan_hw::topology::Iommus;
use portolan_sim::decode::AccessKind;

use super::machine::{DEVICE, Kernel, OTHER, REGISTERS, dmar, vtd};
use super::{Packet, opened, packet};

/// Safe code attaches another device to a domain of its own, and takes back what it likes: the other
/// device reaches nothing, before the owner has its page back and after.
#[test]
fn a_device_does_not_reach_a_page_that_was_not_handed_to_it() {
    let machine = vtd(VtdIdentification::default());
    let iommus: Iommus<Kernel> = opened(machine.kernel(), &dmar(REGISTERS));
    let card = iommus.trusted_device(DEVICE).expect("a device");
    let rx: Mapping<Kernel, Packet> = card.map(packet(), Direction::FromDevice).expect("mapped");

    let (unit, stream) = iommus.unit_of(OTHER).expect("a unit");
    let bound = unit.clone().new_domain().expect("a domain");
    bound.attach(stream).expect("the unit completes");
    let at = rx.iova();
    let reached = || machine.unit.dma(stream, None, at, AccessKind::Write, 8);
    assert!(reached().is_err());

    // Unmapping takes away: here there is nothing.
    let range = IovaRange::from_len(at.align_down(bound.domain().granule()), 4096);
    let mut owed = Gather::new();
    assert!(bound.domain().unmap(range.expect("a page"), &mut owed).is_err());
    let _owners_again = rx.unmap().expect("the unit completes");
    assert!(reached().is_err());
}
