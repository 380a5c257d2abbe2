//! Primary faults and page requests, each read one at a time, oldest first.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 7.1 to 7.6,
//! 11.4.5, 11.4.11 and 11.4.14. A fault's record is given back by writing 1 to its F bit and to nothing else;
//! overflow by writing 1 to PFO and to nothing else, so that no error of the queue is lost with it.
//! Page requests are read raw, and their private data is handed on as it is. Grouping, handling and the
//! promise of one answer a group are `portolan::iopf`'s.
//!
//! Not supported: advanced fault logging.

use super::control::{Core, VtdControl};
use crate::chassis::{Present, Published};
use portolan::addr::{Iova, PageSize, Pasid, PhysAddr, StreamId};
use portolan::iommu::{
    FaultAccess, FaultEvent, FaultReason, FaultRecord, InterruptRefusal, IommuError,
};

use portolan::iopf::{GroupId, Permissions, Place, RawPageRequest, RequestKind};
use portolan::platform::{Guarded, Mmio, TableMem, UnitPlatform, Word};
use portolan_spec::vtd::record::{FAULT_BYTES, REQUEST_LG2, REQUEST_WORDS, fault, reason, request};
use portolan_spec::vtd::reg::{self, fsts, prs, queue};

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
                    return Ok(Some(FaultEvent::Fault(decode_fault(low, high))));
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

/// Decodes a fault record, of a unit or of a log.
///
/// *Context.* Interrupt: a value.
pub fn decode_fault(low: u64, high: u64) -> FaultRecord {
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

/// Event of the page-request queue.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEvent {
    /// A request.
    Request {
        /// Request of the device.
        request: RawPageRequest,
        /// Private data of the device.
        private: [u64; 2],
    },
    /// A descriptor that is no page request.
    Unknown {
        /// Its first word.
        word: u64,
    },
    /// Requests were lost; the unit answered them itself.
    Lost,
}

/// The queue of page requests. Reading it is for one caller at a time.
#[derive(Debug, Default)]
pub(super) struct PageQueue {
    /// Address and exponent of pages, as the register has them; 0 for none.
    address: Published,
}

impl PageQueue {
    /// Sets up a queue of `2^lg2_pages` pages (7 at most).
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if there is a queue already; [`IommuError::Memory`].
    pub(super) fn set_up<P: UnitPlatform>(
        &self,
        core: &Core<P>,
        lg2_pages: u32,
    ) -> Result<(), IommuError> {
        if lg2_pages > 7 {
            return Err(IommuError::Unsupported);
        }
        let size = PageSize::of_lg2(12 + lg2_pages);
        let base = core.mem.alloc(size)?;
        let address = base.get() | queue::SIZE.at(lg2_pages.into());
        if !self.address.publish_first(address) {
            core.mem.free(base, size);
            return Err(IommuError::Unsupported);
        }
        self.install(&core.control);
        Ok(())
    }

    /// Gives the unit the queue, empty, if there is one.
    pub(super) fn install<P: UnitPlatform>(&self, control: &VtdControl<P>) {
        let (regs, address) = (&control.regs, self.address.get());
        if address != 0 {
            regs.write64(reg::PQH, 0);
            regs.write64(reg::PQT, 0);
            regs.write64(reg::PQA, address);
            regs.write32(reg::PRS, prs::PPR | prs::PRO);
        }
    }

    /// Tells if there is a queue.
    pub(super) fn is_read(&self) -> bool {
        self.address.get() != 0
    }

    /// The oldest request.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without a queue, [`IommuError::Gone`], or
    /// [`IommuError::Nonsense`] if the tail is outside it.
    pub(super) fn next<P: UnitPlatform>(
        &self,
        core: &Core<P>,
    ) -> Result<Option<PageEvent>, IommuError> {
        let address = self.address.get();
        if address == 0 {
            return Err(IommuError::Unsupported);
        }
        let regs = &core.control.regs;
        let (base, size) = place(address);
        let index = |offset| {
            let value = queue::OFFSET.of(regs.present64(offset)?);
            if value >= size.bytes() || value % (1 << REQUEST_LG2) != 0 {
                Err(IommuError::Nonsense { offset, value })
            } else {
                Ok(value)
            }
        };
        let (head, mut tail) = (index(reg::PQH)?, index(reg::PQT)?);
        if head == tail {
            // What comes from now on interrupts again, and what came before is seen.
            regs.write32(reg::PRS, prs::PPR);
            tail = index(reg::PQT)?;
        }
        if head == tail {
            let status = regs.read32(reg::PRS);
            if status & prs::PRO == 0 {
                return Ok(None);
            }
            // Only with room again does the unit take what comes.
            regs.write32(reg::PRS, prs::PRO);
            return Ok(Some(PageEvent::Lost));
        }
        let mut words = [0; REQUEST_WORDS];
        let table = core.mem.table(base, size);
        let slot = table.iter().skip(head as usize / 8);
        for (value, word) in words.iter_mut().zip(slot) {
            *value = Word::load(word);
        }
        let next = (head + (1 << REQUEST_LG2)) & (size.bytes() - 1);
        regs.write64(reg::PQH, next);
        Ok(Some(decode_request(words)))
    }

    /// Gives the queue's memory back. Translation must be off.
    pub(super) fn free<P: UnitPlatform>(&self, core: &Core<P>) {
        let address = self.address.withdraw();
        if address != 0 {
            core.control.regs.write64(reg::PQA, 0);
            let (base, size) = place(address);
            core.mem.free(base, size);
        }
    }
}

/// Start and size of the queue that a register value describes.
fn place(address: u64) -> (PhysAddr, PageSize) {
    let size = PageSize::of_lg2(12 + queue::SIZE.of(address) as u32);
    (PhysAddr::new(address).align_down(PageSize::SIZE_4K), size)
}

fn decode_request(words: [u64; REQUEST_WORDS]) -> PageEvent {
    let [who, what, first, second] = words;
    if request::TYPE.of(who) != 1 {
        return PageEvent::Unknown { word: who };
    }
    let mut wants = Permissions::empty();
    wants.set(Permissions::READ, request::READ.of(what) == 1);
    wants.set(Permissions::WRITE, request::WRITE.of(what) == 1);
    wants.set(Permissions::EXECUTE, request::EXECUTE.of(who) == 1);
    wants.set(Permissions::PRIVILEGED, request::PRIVILEGED.of(who) == 1);
    let named = request::PASID_PRESENT.of(who) == 1;
    let group = GroupId::new(request::GROUP.of(what) as u16);
    let place = match request::LAST.of(what) {
        0 => Place::More,
        _ => Place::Last,
    };
    let request = RawPageRequest {
        stream: StreamId::new(request::RID.of(who) as u32),
        pasid: named.then(|| Pasid::new(request::PASID.of(who) as u32)),
        iova: Iova::new(what & !0xfff),
        wants,
        kind: RequestKind::Pri { group, place },
    };
    let private = [first, second];
    PageEvent::Request { request, private }
}
