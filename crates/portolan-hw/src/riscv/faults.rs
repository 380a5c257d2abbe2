//! The fault queue: records of accesses that the unit refused.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Fault/Event-Queue" and "Fault queue
//! CSR".

use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::{
    FaultAccess, FaultEvent, FaultReason, FaultRecord, InterruptRefusal, IommuError,
};
use portolan::platform::UnitPlatform;

use super::control::Control;
use super::records::{Next, Records};
use portolan_spec::riscv::fault::{self, ADDRESS, WORDS, access, cause};

/// Next event of the unit.
pub(super) fn next<P: UnitPlatform>(
    records: &Records<P>,
    unit: &Control<P>,
) -> Result<Option<FaultEvent>, IommuError> {
    Ok(match records.next(unit)? {
        Next::Record(words) => Some(FaultEvent::Fault(decode(words))),
        Next::Lost => Some(FaultEvent::Lost),
        Next::Nothing => None,
    })
}

/// Translates a record.
fn decode(record: [u64; WORDS]) -> FaultRecord {
    let [word, ..] = record;
    let (kind, known) = match fault::TTYP.of(word) {
        access::FETCH | access::READ => (Some(FaultAccess::Read), true),
        access::WRITE => (Some(FaultAccess::Write), true),
        kind if access::TRANSLATED[..2].contains(&kind) => (Some(FaultAccess::Read), true),
        kind if kind == access::TRANSLATED[2] => (Some(FaultAccess::Write), true),
        access::REQUEST => (None, true),
        _ => (None, false),
    };
    let pasid = Pasid::new(fault::PID.of(word) as u32);
    FaultRecord {
        stream: StreamId::new(fault::DID.of(word) as u32),
        pasid: (fault::PV.of(word) == 1).then_some(pasid),
        iova: known.then(|| Iova::new(record[ADDRESS])),
        access: kind,
        reason: reason(fault::CAUSE.of(word)),
    }
}

/// Reason of a fault, by its cause. Every page fault is [`FaultReason::NotMapped`], until the
/// tables are read.
fn reason(code: u64) -> FaultReason {
    let refused = |refusal| FaultReason::Interrupt { index: None, refusal };
    let [unreadable, absent, malformed] = cause::MESSAGE;
    match code {
        code if cause::PAGE.contains(&code) => FaultReason::NotMapped,
        code if cause::GUEST_PAGE.contains(&code) => FaultReason::NotMapped,
        code if cause::ACCESS.contains(&code) => FaultReason::External,
        cause::OFF | cause::NO_CONTEXT | cause::DISALLOWED | cause::NO_PROCESS => {
            FaultReason::Blocked
        }
        cause::BAD_CONTEXT | cause::BAD_PROCESS => FaultReason::Configuration,
        cause::DIRECTORY_ACCESS | cause::PROCESS_ACCESS => FaultReason::External,
        cause::CORRUPT_FIRST..=cause::CORRUPT_LAST => FaultReason::External,
        code if code == unreadable => refused(InterruptRefusal::External),
        code if code == absent => refused(InterruptRefusal::Absent),
        code if code == malformed => refused(InterruptRefusal::Malformed),
        cause::MESSAGE_FILE => refused(InterruptRefusal::External),
        other => FaultReason::Other { code: other as u32 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_by_hand() {
        // A write page fault of device 0x1234 in address space 0xabcde.
        let word = 0x1234 << 40 | 3 << 34 | 1 << 32 | 0xa_bcde << 12 | 15;
        let wanted = FaultRecord {
            stream: StreamId::new(0x1234),
            pasid: Some(Pasid::new(0xa_bcde)),
            iova: Some(Iova::new(0x4000_0123)),
            access: Some(FaultAccess::Write),
            reason: FaultReason::NotMapped,
        };
        assert_eq!(decode([word, 0, 0x4000_0123, 0]), wanted);
        // Without an access: the unit's own message could not be sent.
        let own = decode([273, 0, 0x2800_0000, 0]);
        assert_eq!((own.iova, own.access, own.pasid), (None, None, None));
        assert_eq!(own.reason, FaultReason::External);
        let kind = |ttyp: u64| decode([ttyp << 34 | 13, 0, 0, 0]).access;
        for reads in [1, 2, 5, 6] {
            assert_eq!(kind(reads), Some(FaultAccess::Read));
        }
        assert_eq!((kind(7), kind(8)), (Some(FaultAccess::Write), None));
    }

    #[test]
    fn causes_by_hand() {
        let of = |code| decode([code, 0, 0, 0]).reason;
        for page in [12, 13, 15, 20, 21, 23] {
            assert_eq!(of(page), FaultReason::NotMapped, "{page}");
        }
        for external in [1, 5, 7, 257, 265, 268, 269, 272, 274] {
            assert_eq!(of(external), FaultReason::External, "{external}");
        }
        for blocked in [256, 258, 260, 266] {
            assert_eq!(of(blocked), FaultReason::Blocked, "{blocked}");
        }
        assert_eq!(of(259), FaultReason::Configuration);
        assert_eq!(of(267), FaultReason::Configuration);
        let refusal = InterruptRefusal::Absent;
        let message = FaultReason::Interrupt { index: None, refusal };
        assert_eq!(of(262), message);
        for other in [0, 4, 6, 275, 2048] {
            let code = other as u32;
            assert_eq!(of(other), FaultReason::Other { code });
        }
    }
}
