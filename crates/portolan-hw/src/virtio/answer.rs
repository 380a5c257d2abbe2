//! Answers of the device: the status of a request, and faults.

use portolan::addr::{Iova, StreamId};
use portolan::iommu::{FaultAccess, FaultReason, FaultRecord, IommuError};

use portolan_spec::virtio as spec;

/// Value of an answer before the device has written it; no status has it.
pub(super) const UNWRITTEN: u8 = 0xff;

/// Checks that the request was carried out, by the last bytes of its answer.
pub(super) fn status(answer: &[u8]) -> Result<(), IommuError> {
    let at = answer.len().checked_sub(spec::TAIL_BYTES);
    match at.and_then(|at| answer.get(at)) {
        Some(&spec::S_OK) => Ok(()),
        Some(&UNWRITTEN) | None => {
            Err(IommuError::Nonsense { offset: at.unwrap_or(0), value: UNWRITTEN.into() })
        }
        Some(&code) => Err(IommuError::Refused { code: code.into() }),
    }
}

/// The error of a request for which there is no endpoint or no domain.
pub(super) const NO_SUCH: IommuError = IommuError::Refused { code: spec::S_NOENT as u32 };

/// The record in the first `written` bytes. A missing mapping and a forbidden access have the same
/// reason here: [`FaultReason::NotMapped`].
pub(super) fn fault(
    bytes: &[u8; spec::FAULT_BYTES],
    written: usize,
) -> Result<FaultRecord, IommuError> {
    if written < spec::FAULT_BYTES {
        return Err(IommuError::Nonsense { offset: 0, value: written as u64 });
    }
    let [reason, _, _, _, flags @ ..] = *bytes;
    let [f0, f1, f2, f3, e0, e1, e2, e3, _, _, _, _, address @ ..] = flags;
    let flags = u32::from_le_bytes([f0, f1, f2, f3]);
    let access = if flags & spec::FAULT_WRITE != 0 {
        Some(FaultAccess::Write)
    } else if flags & spec::FAULT_READ != 0 {
        Some(FaultAccess::Read)
    } else {
        None
    };
    let iova = Iova::new(u64::from_le_bytes(address));
    Ok(FaultRecord {
        stream: StreamId::new(u32::from_le_bytes([e0, e1, e2, e3])),
        pasid: None,
        iova: (flags & spec::FAULT_ADDRESS != 0).then_some(iova),
        access,
        reason: match reason {
            spec::R_DOMAIN => FaultReason::Blocked,
            spec::R_MAPPING => FaultReason::NotMapped,
            code => FaultReason::Other { code: code.into() },
        },
    })
}
