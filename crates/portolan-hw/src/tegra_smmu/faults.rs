//! Refused accesses: one record at a time, and none of those that came while it stood.
//!
//! Tegra X1 Technical Reference Manual, chapter 18 (INTSTATUS, ERR_STATUS, ERR_ADR).
//!
//! *Context.* Interrupt: a few accesses to registers, and a look at where the stream is.

use core::sync::atomic::AtomicU32;

use portolan::addr::Iova;
use portolan::iommu::{FaultAccess, FaultEvent, FaultReason, FaultRecord, IommuError};
use portolan::platform::{Mmio, UnitPlatform};

use super::config::WriteKind;
use super::shared::BLOCKED;
use super::unit::TegraSmmu;
use portolan_spec::tegra_smmu::reg::{self, asid, err, int};

impl<P: UnitPlatform<AtomicU32>> TegraSmmu<P> {
    /// The record, if there is one, which makes room for the next.
    pub(super) fn fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        let shared = &*self.shared;
        let pending = shared.read(reg::INTSTATUS)? & int::EXPLAINED;
        if pending == 0 {
            return Ok(None);
        }
        let status = shared.read(reg::ERR_STATUS)?;
        // An address may be all ones.
        let low = shared.regs.read32(reg::ERR_ADR);
        shared.write(WriteKind::Acknowledge, reg::INTSTATUS, pending);
        let high = status >> err::HIGH_LSB & err::HIGH;
        let iova = Iova::new(u64::from(high) << 32 | u64::from(low));
        let client = (status & err::CLIENT) as u8;
        let Some(group) = shared.chip.swgroup_of_client(client) else {
            // Of a client that is not behind the SMMU there is nothing to say here.
            return Ok(Some(FaultEvent::Lost));
        };
        // No stream but a blocked one is translated by the address space without tables.
        let blocked = shared.read(group.register)? & asid::VALUE == BLOCKED;
        let kind = status >> err::TYPE_LSB & err::TYPE;
        let reason = match kind {
            err::TYPE_PAGE if blocked => FaultReason::Blocked,
            err::TYPE_PAGE if status & err::THERE == 0 => FaultReason::NotMapped,
            err::TYPE_PAGE => FaultReason::Permission,
            err::TYPE_DECERR => FaultReason::AddressSize,
            code => FaultReason::Other { code },
        };
        let access = match status & err::WRITE {
            0 => FaultAccess::Read,
            _ => FaultAccess::Write,
        };
        Ok(Some(FaultEvent::Fault(FaultRecord {
            stream: group.stream,
            pasid: None,
            iova: Some(iova),
            access: Some(access),
            reason,
        })))
    }
}
