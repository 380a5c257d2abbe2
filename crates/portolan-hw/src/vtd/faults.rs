//! Primary faults, read one at a time, oldest first, and the memory of the queue of page requests.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 7.1 to 7.3,
//! 11.4.5, 11.4.11 and 11.4.14. A record is given back by writing 1 to its F bit and to nothing else;
//! overflow by writing 1 to PFO and to nothing else, so that no error of the queue is lost with it.
//!
//! Not supported: advanced fault logging.

use super::control::VtdControl;
use crate::chassis::{Present, Published};
use core::sync::atomic::AtomicU64;
use portolan::addr::{Iova, PageSize, Pasid, PhysAddr, StreamId};
use portolan::iommu::{
    FaultAccess, FaultEvent, FaultReason, FaultRecord, InterruptRefusal, IommuError,
};

use portolan::platform::{Guarded, Mmio, TableMem, UnitPlatform};
use portolan_spec::vtd::record::{FAULT_BYTES, fault, reason};
use portolan_spec::vtd::reg::{self, fsts, queue};

/// Index at which the next record is expected; none before the first.
pub(super) struct FaultReader<P: UnitPlatform> {
    next: Guarded<P, Option<usize>>,
}

impl<P: UnitPlatform> Default for FaultReader<P> {
    fn default() -> Self {
        Self { next: Guarded::default() }
    }
}

impl<P: UnitPlatform> FaultReader<P> {
    /// Gives back all that was recorded before, unread.
    pub(super) fn discard(&self, control: &VtdControl<P>) -> Result<(), IommuError> {
        for _ in 0..=control.features.fault_count {
            if self.next(control)?.is_none() {
                break;
            }
        }
        control.regs.write32(reg::FSTS, fsts::IQE | fsts::ICE | fsts::ITE);
        Ok(())
    }

    /// The oldest record, or that some were lost.
    pub(super) fn next(&self, control: &VtdControl<P>) -> Result<Option<FaultEvent>, IommuError> {
        let mut next = self.next.lock();
        let (regs, features) = (&control.regs, &control.features);
        let status = regs.present32(reg::FSTS)?;
        if status & fsts::PPF != 0 {
            let count = features.fault_count;
            let first = fsts::FRI.of(status.into()) as usize;
            let start = next.unwrap_or(first) % count;
            for index in (0..count).map(|step| (start + step) % count) {
                let at = features.faults + index * FAULT_BYTES;
                let high = regs.present64(at + 8)?;
                if fault::F.of(high) == 1 {
                    // Where a read is two, the first may have been before the record was whole.
                    let high = regs.present64(at + 8)?;
                    let low = regs.read64(at);
                    regs.write32(at + fault::F_OFFSET, 1 << 31);
                    *next = Some((index + 1) % count);
                    return Ok(Some(FaultEvent::Fault(decode(low, high))));
                }
            }
        }
        if status & fsts::PFO != 0 {
            regs.write32(reg::FSTS, fsts::PFO);
            return Ok(Some(FaultEvent::Lost));
        }
        Ok(None)
    }
}

fn decode(low: u64, high: u64) -> FaultRecord {
    let code = fault::REASON.of(high) as u8;
    if let Some(reason) = interrupt(code, fault::INDEX.of(low) as u16) {
        return FaultRecord {
            stream: StreamId::new(fault::SID.of(high) as u32),
            pasid: None,
            iova: None,
            access: None,
            reason,
        };
    }
    let access = match (fault::T1.of(high), fault::T2.of(high)) {
        (0, 0) => Some(FaultAccess::Write),
        (1, 0) => Some(FaultAccess::Read),
        _ => None,
    };
    let reason = explain(code);
    let placed = matches!(
        reason,
        FaultReason::NotMapped
            | FaultReason::Permission
            | FaultReason::AddressSize
            | FaultReason::Table
            | FaultReason::Blocked
    );
    FaultRecord {
        stream: StreamId::new(fault::SID.of(high) as u32),
        pasid: (fault::PP.of(high) == 1).then(|| Pasid::new(fault::PASID.of(high) as u32)),
        iova: placed.then(|| Iova::new(low & !0xfff)),
        access,
        reason,
    }
}

/// Reason by the unit's own code, if it is of an interrupt.
fn interrupt(code: u8, index: u16) -> Option<FaultReason> {
    use InterruptRefusal as Why;
    use reason as r;
    let (index, refusal) = match code {
        r::INTERRUPT_COMPATIBLE => (None, Why::NotRemapped),
        r::INTERRUPT_RESERVED => (None, Why::Malformed),
        r::INTERRUPT_BEYOND | r::INTERRUPT_ABSENT => (Some(index), Why::Absent),
        r::INTERRUPT_SOURCE => (Some(index), Why::Source),
        r::INTERRUPT_ENTRY_RESERVED => (Some(index), Why::Malformed),
        r::INTERRUPT_ACCESS => (Some(index), Why::External),
        r::INTERRUPT_POSTED..=r::INTERRUPT_POSTED_LAST => (Some(index), Why::Malformed),
        _ => return None,
    };
    Some(FaultReason::Interrupt { index, refusal })
}

/// Reason by the unit's own code. Legacy mode has one code for a page that is not there and one
/// without permission ([`reason::READ`], [`reason::WRITE`]); a caller that knows the tables tells
/// more.
fn explain(code: u8) -> FaultReason {
    use reason as r;
    match code {
        r::ROOT_ABSENT | r::CONTEXT_ABSENT | r::CONTEXT_BLOCKS => FaultReason::Blocked,
        r::SCALABLE_ROOT_ABSENT | r::SCALABLE_CONTEXT_ABSENT => FaultReason::Blocked,
        r::DIRECTORY_ABSENT | r::PASID_ABSENT => FaultReason::Blocked,
        r::WRITE | r::READ | r::SCALABLE_WRITE | r::SCALABLE_READ | r::SUPERVISOR => {
            FaultReason::Permission
        }
        r::SECOND_PERMISSION | r::EXECUTE => FaultReason::Permission,
        r::FIRST_ABSENT => FaultReason::NotMapped,
        r::BEYOND_WIDTH | r::SECOND_BEYOND | r::NOT_CANONICAL => FaultReason::AddressSize,
        r::BEYOND_UNIT => FaultReason::AddressSize,
        r::TABLE_RESERVED | r::FIRST_RESERVED | r::SECOND_RESERVED => FaultReason::Table,
        r::TABLE_ACCESS | r::ROOT_ACCESS | r::CONTEXT_ACCESS => FaultReason::External,
        r::SCALABLE_ROOT_ACCESS | r::SCALABLE_CONTEXT_ACCESS => FaultReason::External,
        r::DIRECTORY_ACCESS | r::FIRST_ACCESS | r::SECOND_ACCESS => FaultReason::External,
        r::FIRST_ROOT_ACCESS => FaultReason::External,
        r::FIRST_BEYOND | r::NESTED_TABLE..=r::NESTED_TABLE_LAST => FaultReason::Table,
        r::ROOT_POINTER..=r::ROOT_POINTER_LAST => FaultReason::Configuration,
        r::DIRECTORY_RESERVED | r::SECOND_ROOT => FaultReason::Configuration,
        r::CONTEXT_INVALID | r::ROOT_RESERVED | r::CONTEXT_RESERVED => FaultReason::Configuration,
        r::SCALABLE_ROOT_RESERVED => FaultReason::Configuration,
        r::SCALABLE_CONTEXT_ACCESS..=r::SCALABLE_CONTEXT_LAST => FaultReason::Configuration,
        // Earlier revisions have one code for all that is wrong with a PASID entry.
        r::PASID_ACCESS..=r::PASID_LAST => FaultReason::Configuration,
        code => FaultReason::Other { code: code.into() },
    }
}

/// Address and size of the queue: 0 until there is one.
#[derive(Debug, Default)]
pub(super) struct PageQueue {
    /// Address and exponent of pages, as the register has them; 0 for none.
    pub(super) address: Published,
}

impl PageQueue {
    /// Gives the queue's memory back. Translation must be off.
    pub(super) fn free<P: UnitPlatform>(
        &self,
        control: &VtdControl<P>,
        mem: &impl TableMem<AtomicU64>,
    ) {
        let address = self.address.withdraw();
        if address != 0 {
            control.regs.write64(reg::PQA, 0);
            let (base, size) = place(address);
            mem.free(base, size);
        }
    }
}

/// Start and size of the queue that a register value describes.
pub(super) fn place(address: u64) -> (PhysAddr, PageSize) {
    let size = PageSize::of_lg2(12 + queue::SIZE.of(address) as u32);
    (PhysAddr::new(address).align_down(PageSize::SIZE_4K), size)
}
