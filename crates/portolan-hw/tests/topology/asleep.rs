//! A machine that sleeps and wakes: both of its units lose their power.

use portolan::dma::Direction;
use portolan::iommu::IommuError;
use portolan_chips::inject::RegisterFaults;
use portolan_chips::vtd::VtdIdentification;
use portolan_hw::topology::PowerError;

use super::machine::{DEVICE, OTHER, OTHER_REGISTERS, REGISTERS, dmar_with_scopes, vtd};
use super::{driver, opened, packet};
use portolan_sim::decode::AccessKind;

#[test]
fn mappings_stand_while_the_machine_sleeps_and_buffers_come_back_meanwhile() {
    let machine = vtd(VtdIdentification::default());
    let iommus = opened(machine.kernel(), &dmar_with_scopes([REGISTERS, OTHER_REGISTERS]));
    for (function, unit) in [(DEVICE, &machine.unit), (OTHER, &machine.other)] {
        let reach = |at| {
            let stream = function.requester.stream();
            let found = unit.dma(stream, None, at, AccessKind::Write, 8).ok()?;
            found.first().map(|piece| piece.pa.get())
        };
        let device = iommus.trusted_device(function).unwrap();
        let [stays, goes] = [(); 2].map(|()| device.map(packet(), Direction::FromDevice).unwrap());
        let (at, gone) = (stays.iova(), goes.iova());
        assert_eq!([at, gone].map(reach), [Some(0x1234_5000); 2]);
        iommus.suspend().unwrap();
        assert_eq!([at, gone].map(reach), [None; 2]);
        assert!(goes.unmap().is_ok());
        machine.unit.cut_power();
        machine.other.cut_power();
        iommus.resume().unwrap();
        assert_eq!([at, gone].map(reach), [Some(0x1234_5000), None]);
        assert!(stays.unmap().is_ok());
        driver(&device, reach);
    }
    assert_eq!(machine.unit.violations(), []);
}

#[test]
fn a_unit_that_does_not_follow_is_named_and_the_others_go_on() {
    let machine = vtd(VtdIdentification::default());
    let iommus = opened(machine.kernel(), &dmar_with_scopes([REGISTERS, OTHER_REGISTERS]));
    let device = iommus.trusted_device(DEVICE).unwrap();
    let reach = |at| {
        let stream = DEVICE.requester.stream();
        let found = machine.unit.dma(stream, None, at, AccessKind::Write, 8).ok()?;
        found.first().map(|piece| piece.pa.get())
    };
    let gone = PowerError { unit: 1, error: IommuError::Gone, failed: 1 };
    machine.other.inject(RegisterFaults::GONE);
    assert_eq!(iommus.suspend(), Err(gone));
    driver(&device, reach);
    machine.other.inject(RegisterFaults::NONE);
    iommus.suspend().unwrap();
    for unit in [&machine.unit, &machine.other] {
        unit.cut_power();
        unit.inject(RegisterFaults::GONE);
    }
    assert_eq!(iommus.resume(), Err(PowerError { unit: 0, failed: 2, ..gone }));
    machine.unit.inject(RegisterFaults::NONE);
    assert_eq!(iommus.resume(), Err(gone));
    driver(&device, reach);
    machine.other.inject(RegisterFaults::NONE);
    assert_eq!(iommus.resume(), Ok(()));
}
