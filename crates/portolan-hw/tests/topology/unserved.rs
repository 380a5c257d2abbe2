//! Machines without units, and functions that no unit serves: devices reach memory where it is, or are refused.

use portolan::addr::{Iova, PciFunction, PciSegment};
use portolan::dma::{DeviceError, Direction, MapError};
use portolan_chips::vtd::VtdIdentification;
use portolan_hw::topology::{DeviceOptions, Iommus, OpenError, Options, Topology};

use super::machine::{DEVICE, Kernel, OTHER, REGISTERS, described, dmar, dmar_with_scopes, vtd};
use super::{packet, promised};

/// A function of a segment that the unit is not of.
const ELSEWHERE: PciFunction =
    PciFunction { segment: PciSegment::new(1), requester: DEVICE.requester };

/// Maps a packet for a device that no unit serves.
fn reaches_memory_where_it_is(iommus: &Iommus<Kernel>, function: PciFunction) {
    let device = iommus.trusted_device(function).unwrap();
    assert!(device.is_direct());
    assert_eq!(device.stream(), function.requester.stream());
    let mapping = device.map(packet(), Direction::FromDevice).unwrap();
    assert_eq!(mapping.iova(), Iova::new(0x1234_5000));
    assert!(mapping.unmap().is_ok());
    assert_eq!(device.detach(), Err(DeviceError::NoUnit));
}

#[test]
fn a_machine_without_units_opens_devices_that_reach_all_memory() {
    let machine = vtd(VtdIdentification::default());
    let iommus = Iommus::none(machine.kernel(), promised::all_memory());
    assert_eq!(iommus.units().len(), 0);
    for function in [DEVICE, OTHER, ELSEWHERE] {
        reaches_memory_where_it_is(&iommus, function);
        let unit = iommus.unit_of(function).err();
        assert_eq!(unit, Some(OpenError::NotServed { function }));
    }
    // Memory that it does not reach is refused, and so is a device that is not trusted.
    let mut narrow = DeviceOptions::trusted();
    narrow.constraints = narrow.constraints.address_bits(24);
    let narrow = iommus.device_with(DEVICE, &narrow).unwrap();
    let refused = narrow.map(packet(), Direction::FromDevice).err().unwrap();
    assert!(matches!(refused.error, MapError::AboveLimit { .. }));
    let refused = iommus.device_with(DEVICE, &DeviceOptions::untrusted());
    assert_eq!(refused.err(), Some(OpenError::Device(DeviceError::Untrusted)));
    // No unit of the machine was touched.
    assert_eq!(machine.unit.accesses(), 0);
}

#[test]
fn a_function_that_no_unit_serves_is_opened_if_that_was_allowed() {
    let machine = vtd(VtdIdentification::default());
    let table = dmar(REGISTERS);
    let topology = Topology::from_acpi([&table[..]]).unwrap();
    let iommus = topology.enable(machine.kernel(), Options::default(), described()).unwrap();
    let refused = iommus.trusted_device(ELSEWHERE).err();
    assert_eq!(refused, Some(OpenError::NotServed { function: ELSEWHERE }));
    let iommus = iommus.reaching_unserved(promised::all_memory());
    reaches_memory_where_it_is(&iommus, ELSEWHERE);
    assert!(iommus.trusted_device(DEVICE).unwrap().space().is_some());
}

#[test]
fn a_function_whose_unit_was_not_enabled_stays_refused() {
    let machine = vtd(VtdIdentification::default());
    let table = dmar_with_scopes([0xfe00_0000, REGISTERS]);
    let topology = Topology::from_acpi([&table[..]]).unwrap();
    let iommus = topology.enable(machine.kernel(), Options::default(), described()).unwrap();
    let iommus = iommus.reaching_unserved(promised::all_memory());
    let refused = iommus.trusted_device(DEVICE).err();
    assert!(matches!(refused, Some(OpenError::NotEnabled { unit: 0, .. })));
    assert!(iommus.trusted_device(OTHER).unwrap().space().is_some());
}
