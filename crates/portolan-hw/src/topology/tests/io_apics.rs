//! Interrupts are remapped where the table has the requester identifier of each I/O APIC.

use alloc::vec::Vec;

use portolan::addr::RequesterId;
use portolan::iommu::InterruptSource;

use super::build::{at, dmar, drhd, ivhd, ivrs, scope, words};
use crate::interrupt::ApicMode;
use crate::table_bytes::table;
use crate::topology::pci::PciOverrides;
use crate::topology::pci::tests::{Fake, Has, Is};
use crate::topology::{Controller, Topology};

/// A MADT with I/O APICs of these numbers, behind a local one.
fn madt(ids: &[u8]) -> Vec<u8> {
    let mut body = words(&[0xfee0_0000, 1]);
    body.extend([0, 8, 0, 0, 1, 0, 0, 0]);
    for id in ids {
        body.extend([1, 12, *id, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
    }
    table(*b"APIC", &body)
}

fn offered(tables: &[Vec<u8>]) -> Option<ApicMode> {
    let topology = Topology::from_acpi(tables.iter().map(Vec::as_slice)).unwrap();
    topology.interrupt_remapping(|_, _| None)
}

/// An IVRS with a timer and I/O APICs of these numbers.
fn of_amd(ids: &[u8]) -> Vec<u8> {
    let apics = ids.iter().map(|id| [72, 0, 0, 0, *id, 0xa0, 0, 1].to_vec());
    let timer = [72, 0, 0, 0, 0, 0xa0, 0, 2].to_vec();
    let entries: Vec<_> = apics.chain([timer]).collect();
    ivrs(0x0020_2840, &[ivhd(0x10, 0, 0xfeb8_0000, 0, &entries)])
}

/// Boards of 2014 and a notebook of 2019 name none; a board of 2017 names two of the same number. Linux leaves
/// remapping off there ("IOAPIC[5] not in IVRS table").
#[test]
fn amd_s_units_remap_where_each_io_apic_is_named_once() {
    let x_apic = Some(ApicMode::XApic);
    assert_eq!(offered(&[of_amd(&[])]), None);
    assert_eq!(offered(&[of_amd(&[0, 0])]), None);
    assert_eq!(offered(&[of_amd(&[5])]), x_apic);
    assert_eq!(offered(&[madt(&[5]), of_amd(&[5, 6])]), x_apic);
    assert_eq!(offered(&[of_amd(&[5, 200]), madt(&[200, 5])]), x_apic);
    assert_eq!(offered(&[madt(&[5, 6]), of_amd(&[5])]), None);
}

/// Boards with X58, 5500 or 5520 lost interrupts of disks and networks (SUSE's KB 7014344). Linux leaves
/// remapping off there.
#[test]
fn a_chipset_that_loses_remapped_interrupts_is_not_offered_to_remap_them() {
    let table = dmar(38, 1, &[drhd(1, 0xfed9_0000, &[])]);
    let topology = Topology::from_acpi([&table[..]]).unwrap();
    let offered = |device: u32, revision: u32, class: u32| {
        topology.interrupt_remapping(|of, at| match (of == super::build::at(0, 0, 0), at) {
            (true, 0) => Some(device << 16 | 0x8086),
            (true, 8) => Some(class << 16 | revision),
            _ => None,
        })
    };
    let host_bridge = 0x0600;
    for device in [0x3403, 0x3405, 0x3406] {
        assert_eq!(offered(device, 0x12, host_bridge), None, "{device:x}");
        assert_eq!(offered(device, 0x13, host_bridge), None, "{device:x}");
        assert!(offered(device, 0x14, host_bridge).is_some(), "{device:x}");
        assert!(offered(device, 0x13, 0x0604).is_some(), "{device:x}");
    }
    assert_eq!(offered(0x3405, 0x22, host_bridge), None);
    assert!(offered(0x3406, 0x22, host_bridge).is_some());
    assert!(offered(0x3404, 0x13, host_bridge).is_some());
}

#[test]
fn intel_s_units_remap_where_each_io_apic_is_named() {
    let named = drhd(1, 0xfed9_0000, &[scope(3, 2, 0xf0, 0x1f, 0)]);
    let dmar = dmar(38, 1, &[named]);
    let x2_apic = Some(ApicMode::X2Apic);
    assert_eq!(offered(core::slice::from_ref(&dmar)), x2_apic);
    assert_eq!(offered(&[dmar.clone(), madt(&[2])]), x2_apic);
    assert_eq!(offered(&[dmar.clone(), madt(&[2, 8])]), None);
    // An I/O APIC whose entry is cut off is not there.
    let mut cut = madt(&[2, 8]);
    cut.truncate(cut.len() - 1);
    assert_eq!(offered(&[dmar, cut]), x2_apic);
}

/// Its messages carry its place on the bus behind the bridge (VT-d 8.3.1).
#[test]
fn an_io_apic_behind_a_bridge_has_a_source_before_units_are_enabled() {
    let behind = [3, 10, 0, 0, 2, 0, 0x1c, 0, 5, 0].to_vec();
    let tables = [dmar(38, 1, &[drhd(1, 0xfed9_0000, &[behind])]), madt(&[2])];
    let topology = Topology::from_acpi(tables.iter().map(Vec::as_slice)).unwrap();
    let bridge = Fake::default().with(at(0, 0x1c, 0), Is::RootPort, Some((4, 4)), Has::On);
    let survey = topology.survey(PciOverrides::KNOWN, |of, offset| bridge.read(of, offset));
    let source = InterruptSource::Requester(RequesterId::of(4, 5, 0));
    let apic = Controller::IoApic(2);
    assert_eq!(survey.interrupts_of(apic), Some((0, source)));
    let read = |of, offset| bridge.read(of, offset);
    assert!(topology.interrupt_remapping(read).is_some());
    // A bridge that has no buses yet.
    let survey = topology.survey(PciOverrides::KNOWN, |_, _| None);
    assert_eq!(survey.interrupts_of(apic), None);
    assert_eq!(topology.interrupt_remapping(|_, _| None), None);
}
