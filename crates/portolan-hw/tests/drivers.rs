//! Units whose driver is not compiled in, with any features: a survey says so, and they are refused beside those that
//! work.

use portolan_chips::chips::LS1088A;
use portolan_chips::smmuv2::SmmuV2Setup;
use portolan_hw::topology::pci::PciOverrides;
use portolan_hw::topology::{EnableError, OpenError, Options, Topology, UnitKind};

#[allow(dead_code)]
#[path = "topology/machine.rs"]
mod machine;

use machine::{
    DEVICE, OTHER, OTHER_REGISTERS, REGISTERS, SECOND, described, dmar, ivrs, old_smmu,
    old_smmu_node, root_complex, smmu_node, table, words,
};

/// Bytes of the old SMMU's registers.
const BYTES: u64 = 0x80_0000;

/// An SMMU of version 2, for the functions of bus 0 up to 0:3.7, and one of version 3 for all others.
fn both() -> Topology {
    let mut body = words(&[3, 48, 0]);
    body.extend(old_smmu_node(OTHER_REGISTERS, BYTES, 0));
    body.extend(smmu_node(REGISTERS, 1, 0));
    body.extend(root_complex(&[[0, 0x1f, 48], [0x20, 0xffdf, 48 + 92]]));
    let table = table(*b"IORT", &body);
    Topology::from_acpi([&table[..]]).expect("a table")
}

#[test]
fn a_unit_without_a_driver_is_refused_beside_one_that_works() {
    let [old, new] = [cfg!(feature = "smmuv2"), cfg!(feature = "smmuv3")];
    let survey = both().survey(PciOverrides::KNOWN, |_, _| None);
    let driven: Vec<_> = survey.units().iter().map(|unit| unit.has_driver()).collect();
    assert_eq!(driven, [old, new]);

    let setup = SmmuV2Setup { identification: LS1088A.identification, ..SmmuV2Setup::default() };
    let machine = old_smmu(&setup);
    let enabled = both().enable(machine.kernel(), Options::default(), described());
    if !old {
        // The other one is an old one as well, whatever the table says.
        let error = EnableError::NoDriver { kind: UnitKind::Smmu };
        assert_eq!(enabled.err(), Some(error));
        return;
    }
    let iommus = enabled.expect("the first unit");
    assert!(iommus.trusted_device(DEVICE).is_ok());
    let error = EnableError::NoDriver { kind: UnitKind::SmmuV3 };
    let refused = OpenError::NotEnabled { function: OTHER, unit: 1, error };
    let opened = iommus.trusted_device(OTHER).err();
    assert_eq!(opened == Some(refused), !new, "{opened:?}");
}

#[test]
fn a_machine_whose_only_driver_is_left_out_says_which() {
    let cases = [
        (dmar(REGISTERS), UnitKind::Vtd, cfg!(feature = "vtd")),
        (ivrs(SECOND), UnitKind::AmdVi, cfg!(feature = "amd")),
    ];
    for (table, kind, driven) in cases {
        let topology = Topology::from_acpi([&table[..]]).expect("a table");
        let machine = old_smmu(&SmmuV2Setup::default());
        let enabled = topology.enable(machine.kernel(), Options::default(), described());
        let error = enabled.err().expect("these are registers of an SMMU");
        let missing = EnableError::NoDriver { kind };
        assert_eq!(error == missing, !driven, "{error}");
    }
}
