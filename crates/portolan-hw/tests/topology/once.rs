//! Firmware's bytes are read once: what follows, from a survey to an open device, takes the description.

use portolan::addr::PciFunction;
use portolan::iommu::IommuError;
use portolan_chips::smmuv3::SmmuIdentification;
use portolan_chips::vtd::VtdIdentification;
use portolan_hw::topology::pci::PciOverrides;
use portolan_hw::topology::{EnableError, Options, Topology};
use portolan_tables::counted::looked;
use portolan_tables::viot::Viommu;

use super::machine::{
    DEVICE, IORT, Kernel, REGISTERS, SECOND, amd, described, dmar, ivrs, smmu, table, vtd,
};

/// Asserts that a topology of `bytes` takes one walk of them, and what is done with it none. Headers are looked
/// at twice: for their lengths, and for what they say.
fn is_read_once(kernel: Kernel, bytes: &[u8]) {
    let before = looked();
    let topology = Topology::from_acpi([bytes]).expect("a table of units");
    let walked = looked() - before;
    let most = 3 * bytes.len() / 2;
    assert!(walked <= most && 2 * walked > most, "{walked} of {} bytes", bytes.len());
    let survey = topology.survey(PciOverrides::KNOWN, |_, _| None);
    let _ = survey.served();
    let iommus = topology.enable(kernel, Options::default(), described()).expect("units that work");
    let device = iommus.trusted_device(DEVICE).expect("a device");
    let _ = iommus.fault_interrupt(0).expect("an undamaged table");
    drop(device);
    assert_eq!(looked() - before, walked, "bytes are read again");
}

#[test]
fn a_table_is_walked_once_for_survey_units_and_devices() {
    is_read_once(vtd(VtdIdentification::default()).kernel(), &dmar(REGISTERS));
    is_read_once(smmu(SmmuIdentification::default()).kernel(), &IORT.bytes());
    is_read_once(amd().kernel(), &ivrs(SECOND));
}

#[test]
fn a_unit_without_a_transport_is_named() {
    // One unit at 0:1.0.
    let nodes = [3, 0, 16, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let body = [&[1, 0, 48, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &nodes].concat();
    let topology = Topology::from_acpi([&table(*b"VIOT", &body)[..]]).expect("a table of a unit");
    let kernel = vtd(VtdIdentification::default()).kernel();
    let failed = topology.enable(kernel, Options::default(), described()).err();
    let PciFunction { segment, requester } = PciFunction::of(0, 1, 0);
    let place = Viommu::Pci { segment, requester };
    let error = IommuError::Unsupported;
    assert_eq!(failed, Some(EnableError::Viommu { place, error }));
}
