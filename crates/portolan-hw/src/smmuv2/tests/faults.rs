//! Reports of faults, and of registers that do not hold the value that was written.

use portolan::addr::{Iova, StreamId};
use portolan::iommu::{
    Attach, AttachError, FaultAccess, FaultEvent, FaultReason, FaultRecord, Iommu as _, IommuError,
};

use portolan_chips::smmuv2::FaultRegisters;

use super::super::Config;
use super::kit::{Kit, Unit, few, first, stream};

fn next(unit: &Unit) -> FaultRecord {
    match unit.next_fault() {
        Ok(Some(FaultEvent::Fault(record))) => record,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_status_of_a_bank_has_its_reason() {
    let machine = few(&[]);
    let unit = machine.enable(Config::default()).unwrap();
    let _domain = first(&unit);
    let reasons = [
        (1 << 1, FaultReason::NotMapped),
        (1 << 2, FaultReason::Table),
        (1 << 3, FaultReason::Permission),
        (1 << 4, FaultReason::External),
        (1 << 5, FaultReason::Other { code: 1 << 5 }),
        (1 << 6, FaultReason::Other { code: 1 << 6 }),
        (1 << 7, FaultReason::AddressSize),
        (1 << 8, FaultReason::Configuration),
    ];
    for (status, reason) in reasons {
        for (syndrome, access) in [(0, FaultAccess::Read), (1 << 4, FaultAccess::Write)] {
            let (address, stream) = (0x5000, 0x21);
            let record = FaultRegisters { status, address, syndrome, stream };
            machine.unit().record(Some(0), record);
            let wanted = FaultRecord {
                stream: StreamId::new(stream),
                pasid: None,
                iova: Some(Iova::new(0x5000)),
                access: Some(access),
                reason,
            };
            assert_eq!(next(&unit), wanted);
            assert_eq!(unit.next_fault(), Ok(None));
        }
    }
    // A bank that no domain has is not looked at.
    let (status, address, syndrome, stream) = (1 << 1, 0, 0, 0);
    let record = FaultRegisters { status, address, syndrome, stream };
    machine.unit().record(Some(3), record);
    assert_eq!(unit.next_fault(), Ok(None));
}

#[test]
fn a_stream_that_matches_nothing_is_told_of() {
    let machine = few(&[]);
    let unit = machine.enable(Config::default()).unwrap();
    let reasons = [
        (1 << 0, FaultReason::Blocked),
        (1 << 1, FaultReason::Blocked),
        (1 << 2, FaultReason::Configuration),
        (1 << 3, FaultReason::Configuration),
        (1 << 4, FaultReason::Configuration),
        (1 << 6, FaultReason::External),
        (1 << 7, FaultReason::Permission),
        (1 << 5, FaultReason::Other { code: 1 << 5 }),
    ];
    let record = |status| {
        let (address, syndrome, stream) = (0x7000, 1 << 1, 0x22);
        let record = FaultRegisters { status, address, syndrome, stream };
        machine.unit().record(None, record);
    };
    for (status, reason) in reasons {
        record(status);
        let wanted = FaultRecord {
            stream: stream(0x22),
            pasid: None,
            iova: Some(Iova::new(0x7000)),
            access: Some(FaultAccess::Write),
            reason,
        };
        assert_eq!(next(&unit), wanted);
        assert_eq!((machine.reg32(0x48), unit.next_fault()), (0, Ok(None)));
    }
    // Bit 31: there were more.
    record(1 << 31 | 1 << 1);
    assert_eq!(next(&unit).reason, FaultReason::Blocked);
    assert_eq!(unit.next_fault(), Ok(Some(FaultEvent::Lost)));
    assert_eq!(unit.next_fault(), Ok(None));
}

#[test]
fn a_stream_that_stays_with_another_bank_is_found_out() {
    // S2CR0.CBNDX stays 0.
    let machine = few(&[]);
    machine.lie(0xc00, 0xff, 0);
    let unit = machine.enable(Config::default()).unwrap();
    let _in_bank_0 = first(&unit);
    let attached = unit.attach(stream(0x20), &first(&unit));
    let nonsense = |error| matches!(error, IommuError::Nonsense { offset: 0xc00, .. });
    let found_out = matches!(attached, Err(AttachError::Iommu(error)) if nonsense(error));
    assert!(found_out, "{attached:?}");
}
