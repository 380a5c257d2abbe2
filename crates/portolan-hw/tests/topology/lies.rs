//! Firmware's tables that lie: an error, and a machine in which no device does DMA.

use portolan::addr::PhysAddr;
use portolan_chips::smmuv3::SmmuIdentification;
use portolan_chips::vtd::VtdIdentification;
use portolan_hw::topology::{EnableError, Options, Topology, TopologyError};
use portolan_tables::TableError;

use super::machine::{
    IORT, OTHER_REGISTERS, REGISTERS, SECOND, described, dmar, dmar_of, drhd, ivrs, smmu, table,
    vtd,
};

#[test]
fn a_machine_has_tables_of_one_architecture() {
    let (dmar, ivrs) = (dmar(REGISTERS), ivrs(SECOND));
    let none = Topology::from_acpi([&table(*b"APIC", &[])[..]]);
    assert_eq!(none.err(), Some(TopologyError::NoTable));
    let two = Topology::from_acpi([&dmar[..], &ivrs]);
    assert_eq!(two.err(), Some(TopologyError::TwoTables));
    let twice = Topology::from_acpi([&dmar[..], &dmar]);
    assert_eq!(twice.err(), Some(TopologyError::TwoTables));
}

#[test]
fn tables_larger_than_any_machine_s_are_refused() {
    let units = vec![drhd(REGISTERS, None); 1025];
    let many = Topology::from_acpi([&dmar_of(48, &units)[..]]);
    let (offset, most) = (0, 1024);
    let refused = TableError::TooMany { offset, most };
    assert_eq!(many.err(), Some(TopologyError::Table(refused)));
    assert!(Topology::from_acpi([&dmar_of(48, &units[..1024])[..]]).is_ok());
    let mut long = dmar(REGISTERS);
    long.resize((1 << 20) + 1, 0);
    let (offset, length) = (0, long.len());
    let refused = TableError::Length { offset, length };
    let failed = Topology::from_acpi([&long[..]]).err();
    assert_eq!(failed, Some(TopologyError::Table(refused)));
}

#[test]
fn two_units_in_one_place_are_not_enabled() {
    let machine = vtd(VtdIdentification::default());
    let (one, other) = (0, 1);
    let shared = Some(EnableError::SameRegisters { one, other });
    for second in [REGISTERS, REGISTERS + 0xfff] {
        let two = [drhd(REGISTERS, Some(&[])), drhd(second & !0xfff, None)];
        let topology = Topology::from_acpi([&dmar_of(48, &two)[..]]).expect("a table");
        let failed = topology.enable(machine.kernel(), Options::default(), described()).err();
        assert_eq!(failed, shared);
        let three = [&two[..], &[drhd(OTHER_REGISTERS, Some(&[]))]].concat();
        let topology = Topology::from_acpi([&dmar_of(48, &three)[..]]).expect("a table");
        let iommus = topology.enable(machine.kernel(), Options::default(), described());
        let iommus = iommus.expect("the third unit");
        let failed = |unit: usize| iommus.units()[unit].as_ref().err().copied();
        assert_eq!([0, 1, 2].map(failed), [shared, shared, None]);
    }
    assert_eq!(machine.unit.violations(), []);
}

#[test]
fn units_at_absurd_addresses_are_not_looked_at() {
    let machine = vtd(VtdIdentification::default());
    for at in [0, 0x1000, REGISTERS + 8, 0xffff_ffff_ffff_f000, 1 << 63] {
        let Ok(topology) = Topology::from_acpi([&dmar(at)[..]]) else {
            continue;
        };
        let failed = topology.enable(machine.kernel(), Options::default(), described()).err();
        let Some(EnableError::NoRegisters { window }) = failed else {
            panic!("{at:#x}: {failed:?}");
        };
        assert_eq!(window.start(), PhysAddr::new(at));
    }
    let mut iort = IORT.bytes();
    // The SMMU's base is at 16 of the node at 48.
    iort[9] = iort[9].wrapping_add(iort[48 + 16 + 2]).wrapping_add(iort[48 + 16 + 3]);
    iort[48 + 16..48 + 20].fill(0);
    let topology = Topology::from_acpi([&iort[..]]).expect("a table");
    let failed = topology.enable(
        smmu(SmmuIdentification::default()).kernel(),
        Options::default(),
        described(),
    );
    assert!(matches!(failed.err(), Some(EnableError::NoRegisters { .. })));
}
