//! Devices that an IOMMU cannot tell apart, and devices with more identifiers than one.

use std::sync::Arc;

use portolan::addr::{Iova, PciFunction, StreamId};
use portolan::dma::{Device, DeviceError, Direction, OldMappings, Trust};
use portolan::platform::Platform;
use portolan_chips::vtd::VtdIdentification;
use portolan_hw::topology::{DeviceOptions, OpenError};
use portolan_sim::decode::AccessKind;

use super::machine::{DEVICE, Machine, OTHER, PciWords, REGISTERS, amd, dmar, ivrs, vtd};
use super::{opened, packet};

/// A bridge from PCI Express to bus 2, and two cards there.
const BRIDGE: PciFunction = PciFunction::of(0, 1, 0);
const CARDS: [PciFunction; 2] = [PciFunction::of(2, 4, 0), PciFunction::of(2, 5, 0)];
const TREE: PciWords = &[
    (BRIDGE, 0x00, 0x1234_8086),
    (BRIDGE, 0x04, 1 << 20),
    (BRIDGE, 0x0c, 1 << 16),
    (BRIDGE, 0x18, 0x0002_0200),
    (BRIDGE, 0x34, 0x40),
    (BRIDGE, 0x40, 7 << 20 | 0x10),
    (DEVICE, 0x00, 0x1234_8086),
    (OTHER, 0x00, 0x1234_8086),
    (CARDS[0], 0x00, 0x1234_8086),
    (CARDS[1], 0x00, 0x1234_8086),
];
/// Stream that the bridge sends in place of a card's identifier: device 0 of its bus.
const AS_BRIDGE: StreamId = PciFunction::of(2, 0, 0).requester.stream();

fn space<P: Platform>(device: &Device<P>) -> *const () {
    Arc::as_ptr(device.space().expect("it is translated")).cast()
}

#[test]
fn cards_behind_a_bridge_share_a_space_and_are_known_by_the_bridge_s_identifier() {
    let machine = Machine { config: TREE, ..vtd(VtdIdentification::default()) };
    let iommus = opened(machine.kernel(), &dmar(REGISTERS));
    let reach = |stream: StreamId, at: Iova| {
        let found = machine.unit.dma(stream, None, at, AccessKind::Write, 8);
        found.ok()?.first().map(|piece| piece.pa.get())
    };
    let [one, other] = CARDS.map(|card| iommus.trusted_device(card).expect("a device"));
    let alone = iommus.trusted_device(DEVICE).expect("a device");
    assert_eq!(space(&one), space(&other));
    assert_ne!(space(&one), space(&alone));
    let own = CARDS[0].requester.stream();
    assert_eq!(one.stream(), own);

    let rx = one.map(packet(), Direction::FromDevice).expect("mapped");
    let at = rx.iova();
    let memory = Some(0x1234_5000);
    assert_eq!((reach(own, at), reach(AS_BRIDGE, at)), (memory, memory));
    assert_eq!(reach(DEVICE.requester.stream(), at), None);
    assert_eq!(reach(BRIDGE.requester.stream(), at), None);
    // The identifier that both may have stays as long as either is open.
    drop(other);
    assert_eq!(reach(AS_BRIDGE, at), memory);
    assert!(rx.unmap().is_ok());
    drop(one);
    assert_eq!(reach(AS_BRIDGE, at), None);
    // Then all of it begins anew.
    let again = iommus.trusted_device(CARDS[1]).expect("a device");
    let rx = again.map(packet(), Direction::FromDevice).expect("mapped");
    assert_eq!(reach(AS_BRIDGE, rx.iova()), memory);
    assert!(rx.unmap().is_ok());
    drop((again, alone));
    assert_eq!(machine.unit.violations(), []);
}

#[test]
fn a_function_is_open_once_and_does_not_leave_its_group_alone() {
    let machine = Machine { config: TREE, ..vtd(VtdIdentification::default()) };
    let iommus = opened(machine.kernel(), &dmar(REGISTERS));
    let card = iommus.trusted_device(CARDS[0]).expect("a device");
    let twice = iommus.trusted_device(CARDS[0]).err();
    assert_eq!(twice, Some(OpenError::Device(DeviceError::InUse)));
    let elsewhere = iommus.trusted_device(DEVICE).expect("a device");
    let elsewhere = elsewhere.space().expect("it is translated").clone();
    let failed = card.move_to(elsewhere, OldMappings::Refuse).err();
    let error = failed.map(|failed| failed.error);
    assert_eq!(error, Some(DeviceError::Shared));
}

/// The unit cannot tell them apart.
#[test]
fn a_card_is_trusted_no_further_than_others_of_its_group() {
    let machine = Machine { config: TREE, ..vtd(VtdIdentification::default()) };
    let iommus = opened(machine.kernel(), &dmar(REGISTERS));
    let untrusted = DeviceOptions::untrusted();
    let first = iommus.trusted_device(CARDS[0]).expect("a device");
    let refused = iommus.device_with(CARDS[1], &untrusted).err();
    let less = OpenError::Device(DeviceError::LessTrusted);
    assert_eq!(refused, Some(less));
    drop(first);
    let first = iommus.device_with(CARDS[0], &untrusted);
    let _first = first.expect("a device");
    let other = iommus.trusted_device(CARDS[1]).expect("a device");
    assert_eq!(other.constraints().trust, Trust::Untrusted);
    // A space may be prepared for less trusted devices that are opened later.
    let mut prepared = DeviceOptions::trusted();
    prepared.space.trust = Some(Trust::Untrusted);
    let alone = iommus.device_with(DEVICE, &prepared).expect("a device");
    assert_eq!(alone.constraints().trust, Trust::Untrusted);
}

/// IVRS says that 0:5.0 accesses memory as 0:5.1, which is a function of its own here.
#[test]
fn functions_of_one_stream_share_it() {
    const ALIASED: PciFunction = PciFunction::of(0, 5, 0);
    const ALIAS: PciFunction = PciFunction::of(0, 5, 1);
    const UNIT: PciFunction = PciFunction::of(0, 0, 2);
    const MORE: PciWords = &[
        (UNIT, 0x40, 0x1b03_400f),
        (UNIT, 0x44, 1),
        (UNIT, 0x50, 0x0018_2800),
        (UNIT, 0x48, 0),
        (UNIT, 0x4c, 0),
        // Two devices of PCI Express, which isolate by themselves.
        (ALIASED, 0x00, 0x1234_8086),
        (ALIASED, 0x04, 1 << 20),
        (ALIASED, 0x0c, 0x80 << 16),
        (ALIASED, 0x34, 0x40),
        (ALIASED, 0x40, 0x10),
        (ALIASED, 0x100, 0xd),
        (ALIASED, 0x104, 0x001d_001d),
        (ALIAS, 0x00, 0x1234_8086),
        (ALIAS, 0x04, 1 << 20),
        (ALIAS, 0x34, 0x40),
        (ALIAS, 0x40, 0x10),
        (ALIAS, 0x100, 0xd),
        (ALIAS, 0x104, 0x001d_001d),
    ];
    let machine = Machine { config: MORE, ..amd() };
    let iommus = opened(machine.kernel(), &ivrs(UNIT));
    let survey = iommus.survey();
    assert_eq!(survey.groups().first(survey.tree(), ALIAS), ALIASED);
    let reach = |at: Iova| {
        let found = machine.unit.dma(ALIAS.requester.stream(), at, AccessKind::Write, 8);
        found.ok()?.first().map(|piece| piece.pa.get())
    };
    let one = iommus.trusted_device(ALIASED).expect("a device");
    let other = iommus.trusted_device(ALIAS).expect("a device");
    assert_eq!(space(&one), space(&other));
    assert_eq!((one.stream(), other.stream()), (ALIAS.requester.stream(), other.stream()));
    let rx = one.map(packet(), Direction::FromDevice).expect("mapped");
    let at = rx.iova();
    assert_eq!(reach(at), Some(0x1234_5000));
    assert!(rx.unmap().is_ok());
    drop(one);
    let rx = other.map(packet(), Direction::FromDevice).expect("mapped");
    assert_eq!(reach(rx.iova()), Some(0x1234_5000));
    let at = rx.iova();
    assert!(rx.unmap().is_ok());
    drop(other);
    assert_eq!(reach(at), None);
    assert_eq!(machine.unit.violations(), []);
}
