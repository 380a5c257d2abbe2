//! What is told of faults, and of registers that do not hold what was written.

use alloc::sync::Arc;

use portolan::addr::Iova;
use portolan::iommu::{
    Attach, AttachError, FaultAccess, FaultEvent, FaultReason, FaultRecord, Iommu as _, IommuError,
};

use super::super::{Config, DomainOptions};
use super::mock::{Iommu, Regs, bank, enable, stream};

const FSR: usize = 0x58;

fn next(unit: &Iommu) -> FaultRecord {
    match unit.next_fault() {
        Ok(Some(FaultEvent::Fault(record))) => record,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_status_of_a_bank_has_its_reason() {
    let (regs, unit) = enable(Regs::new(), Config::default());
    let unit = unit.unwrap();
    let _domain = unit.first_stage::<12>(&DomainOptions::default()).unwrap();
    // CBFRSYNRA, FAR; FSYNR0 says whether it was a write.
    regs.set(0x1400, 0x21);
    regs.set(bank(0, 0x60), 0x5000);
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
            regs.set(bank(0, FSR), status);
            regs.set(bank(0, 0x68), syndrome);
            let wanted = FaultRecord {
                stream: stream(0x21),
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
    regs.set(bank(3, FSR), 1 << 1);
    assert_eq!(unit.next_fault(), Ok(None));
}

#[test]
fn a_stream_that_matches_nothing_is_told_of() {
    let (regs, unit) = enable(Regs::new(), Config::default());
    let unit = unit.unwrap();
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
    regs.set(0x40, 0x7000);
    regs.set(0x50, 1 << 1);
    regs.set(0x54, 0x22);
    for (status, reason) in reasons {
        regs.set(0x48, status);
        let wanted = FaultRecord {
            stream: stream(0x22),
            pasid: None,
            iova: Some(Iova::new(0x7000)),
            access: Some(FaultAccess::Write),
            reason,
        };
        assert_eq!(next(&unit), wanted);
        assert_eq!((regs.get(0x48), unit.next_fault()), (0, Ok(None)));
    }
    // Bit 31: there were more.
    regs.set(0x48, 1 << 31 | 1 << 1);
    assert_eq!(next(&unit).reason, FaultReason::Blocked);
    assert_eq!(unit.next_fault(), Ok(Some(FaultEvent::Lost)));
    assert_eq!(unit.next_fault(), Ok(None));
}

#[test]
fn a_stream_that_stays_with_another_bank_is_found_out() {
    // S2CR0.CBNDX stays 0.
    let (_regs, unit) = enable(Regs::new().fixed(0xc00, 0xff), Config::default());
    let unit = unit.unwrap();
    let domain = || Arc::new(unit.first_stage::<12>(&DomainOptions::default()).unwrap());
    let _in_bank_0 = domain();
    let attached = unit.attach(stream(0x20), &domain());
    let nonsense = |error| matches!(error, IommuError::Nonsense { offset: 0xc00, .. });
    let found_out = matches!(attached, Err(AttachError::Iommu(error)) if nonsense(error));
    assert!(found_out, "{attached:?}");
}
