//! Reports of a unit and of its devices (events, global errors, page requests), and the answers.
//!
//! IHI 0070, sections 7.3 (event records), 7.5 (global errors), 8.1 (page-request queue), 4.5.2
//! (CMD_PRI_RESP) and 4.7.1 (CMD_RESUME). Every type of event is decoded; the field values are the
//! device's and are not trusted to name anything. Grouping, handling and the promise of one answer a
//! group are `portolan::iopf`'s. When requests are lost for want of room the unit answers those that
//! need an answer itself (8.1).
//!
//! *Context.* Interrupt, but for answers to page requests, which wait for the unit (atomic); the types
//! are values.

use super::command;
use super::command::Resume;
use super::queue::CommandQueue;
use super::unit::Smmu;
pub use crate::chassis::PageRequestEvent;
use crate::chassis::{NextRecord, OperationState};
use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::{Awaited, FaultAccess, FaultEvent, FaultReason, FaultRecord, IommuError};
use portolan::iopf::{
    GroupId, Permissions, Place, RawPageRequest, ReplyName, ReplyTo, RequestKind, Responder,
    Response, StallTag,
};
use portolan::platform::{Nanos, UnitPlatform};
use portolan_spec::smmuv3::command::Words;
use portolan_spec::smmuv3::event::page_request as layout;
use portolan_spec::smmuv3::{event, reg};

bitflags::bitflags! {
    /// Global errors that were found and acknowledged.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GlobalErrors: u32 {
        /// The command queue stopped; it was put to work again.
        const COMMAND_QUEUE = reg::gerror::CMDQ;
        /// An event could not be written.
        const EVENT_QUEUE = reg::gerror::EVENTQ_ABT;
        /// A page request could not be written.
        const PAGE_REQUEST_QUEUE = reg::gerror::PRIQ_ABT;
        /// The message of a sync could not be written: its waiters look at the index as well.
        const SYNC_MESSAGE = reg::gerror::MSI_CMDQ_ABT;
        /// An interrupt message for events could not be written.
        const EVENT_MESSAGE = reg::gerror::MSI_EVENTQ_ABT;
        /// An interrupt message for page requests could not be written.
        const PAGE_REQUEST_MESSAGE = reg::gerror::MSI_PRIQ_ABT;
        /// An interrupt message for global errors could not be written.
        const ERROR_MESSAGE = reg::gerror::MSI_GERROR_ABT;
        /// The unit has stopped for good.
        const SERVICE_FAILURE = reg::gerror::SFM;
        /// An enhanced command queue stopped; it was put to work again.
        const ENHANCED_QUEUE = reg::gerror::CMDQP;
    }
}

/// Decodes a record of the event queue, of a unit or of a log.
///
/// *Context.* Interrupt: a value.
pub fn decode_event(words: &event::Event) -> FaultRecord {
    use event::kind;
    let code = event::TYPE.get(words) as u8;
    let reason = match code {
        kind::TRANSLATION => FaultReason::NotMapped,
        kind::PERMISSION => FaultReason::Permission,
        kind::ADDR_SIZE => FaultReason::AddressSize,
        kind::ACCESS | kind::TLB_CONFLICT => FaultReason::Table,
        kind::BAD_STREAMID | kind::BAD_STE | kind::STREAM_DISABLED => FaultReason::Blocked,
        kind::BAD_ATS_TREQ | kind::TRANSL_FORBIDDEN => FaultReason::Blocked,
        kind::BAD_SUBSTREAMID | kind::BAD_CD | kind::CFG_CONFLICT => FaultReason::Configuration,
        kind::STE_FETCH | kind::CD_FETCH | kind::WALK_EABT | kind::VMS_FETCH => {
            FaultReason::External
        }
        _ => FaultReason::Other { code: code.into() },
    };
    let has_address = matches!(
        code,
        kind::UUT
            | kind::BAD_ATS_TREQ
            | kind::TRANSL_FORBIDDEN
            | kind::WALK_EABT
            | kind::TRANSLATION
            ..=kind::PERMISSION | kind::TLB_CONFLICT | kind::CFG_CONFLICT | kind::PAGE_REQUEST
    );
    // Those that carry an address carry the kind of access, but for some requests.
    let has_access = matches!(
        code,
        kind::WALK_EABT | kind::TRANSLATION
            ..=kind::PERMISSION | kind::TLB_CONFLICT | kind::TRANSL_FORBIDDEN
    );
    let access = match event::RNW.get(words) {
        0 => FaultAccess::Write,
        _ => FaultAccess::Read,
    };
    let pasid = Pasid::new(event::SSID.get(words) as u32);
    FaultRecord {
        stream: StreamId::new(event::SID.get(words) as u32),
        pasid: (event::SSV.get(words) != 0).then_some(pasid),
        iova: has_address.then(|| Iova::new(event::ADDRESS.get(words))),
        access: has_access.then_some(access),
        reason,
    }
}

/// Event of the event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallOrFault {
    /// An access was refused, or records were lost; stalls never are.
    Fault(FaultEvent),
    /// An access waits.
    Stalled {
        /// For this, and its answer.
        request: RawPageRequest,
        /// The fault of that transaction.
        fault: FaultRecord,
    },
}

/// A stalled access as a request, with its kind of access if the event has it.
fn stalled(words: &event::Event, fault: &FaultRecord) -> RawPageRequest {
    let mut wants = match fault.access {
        Some(FaultAccess::Write) => Permissions::WRITE,
        Some(FaultAccess::Read) => Permissions::READ,
        None => Permissions::empty(),
    };
    let read = wants.contains(Permissions::READ);
    wants.set(Permissions::EXECUTE, read && event::IND.get(words) != 0);
    wants.set(Permissions::PRIVILEGED, event::PNU.get(words) != 0);
    let tag = StallTag::new(event::STAG.get(words) as u16);
    RawPageRequest {
        stream: fault.stream,
        pasid: fault.pasid,
        iova: fault.iova.unwrap_or(Iova::new(0)),
        wants,
        kind: RequestKind::Stall { tag },
    }
}

impl<P: UnitPlatform> Smmu<P> {
    /// The oldest event, see [`portolan::iommu::Iommu::next_fault`]. An access that stalled ends: the
    /// answer is written before the event leaves its queue.
    pub(super) fn next_event(&self) -> Result<Option<FaultEvent>, IommuError> {
        let end = |words: &event::Event| {
            if event::STALL.get(words) == 0 {
                return Ok(());
            }
            let stalled = stalled(words, &decode_event(words));
            if self.shared.queue.post(&answer(stalled.reply_to(), Response::Invalid))? {
                Ok(())
            } else {
                Err(IommuError::TimedOut { awaited: Awaited::QueueRoom, waited: Nanos::default() })
            }
        };
        Ok(self.next_record(end)?.map(|event| match event {
            StallOrFault::Fault(event) => event,
            StallOrFault::Stalled { fault, .. } => FaultEvent::Fault(fault),
        }))
    }

    /// The oldest event. An access that stalled waits for an answer ([`portolan::iopf::Responder`]). Instead of
    /// [`portolan::iommu::Iommu::next_fault`], which answers stalls itself. *Context.* Interrupt.
    ///
    /// # Errors
    /// As [`portolan::iommu::Iommu::next_fault`].
    pub fn next_stall_or_fault(&self) -> Result<Option<StallOrFault>, IommuError> {
        self.next_record(|_| Ok(()))
    }

    fn next_record(
        &self,
        accept: impl FnOnce(&event::Event) -> Result<(), IommuError>,
    ) -> Result<Option<StallOrFault>, IommuError> {
        let machine = &*self.shared.machine;
        let next = self.events.lock().next(machine, accept)?;
        let event = match next {
            NextRecord::Record(words) => {
                let fault = decode_event(&words);
                match event::STALL.get(&words) {
                    0 => FaultEvent::Fault(fault),
                    _ => {
                        let request = stalled(&words, &fault);
                        return Ok(Some(StallOrFault::Stalled { request, fault }));
                    }
                }
            }
            NextRecord::Lost => FaultEvent::Lost,
            NextRecord::Nothing => {
                // The caller that serves the unit's lines may know no other call than this one.
                let errors = self.service_errors()?;
                if errors.contains(GlobalErrors::SERVICE_FAILURE) {
                    return Err(IommuError::Stopped);
                }
                if !errors.contains(GlobalErrors::EVENT_QUEUE) {
                    return Ok(None);
                }
                machine.acknowledge(reg::gerror::EVENTQ_ABT)?;
                FaultEvent::Lost
            }
        };
        Ok(Some(StallOrFault::Fault(event)))
    }

    /// Looks for global errors, deals with them and acknowledges them, for the handler of their
    /// interrupt; [`portolan::iommu::Iommu::next_fault`] does so as well, once there is no event
    /// left. A stopped command queue is put to work again; the caller that waits for the refused
    /// command is told. After [`GlobalErrors::SERVICE_FAILURE`] every operation fails. Lost events
    /// are left for [`portolan::iommu::Iommu::next_fault`] to report. *Context.* Interrupt.
    ///
    /// # Errors
    /// If the unit is gone.
    pub fn service_errors(&self) -> Result<GlobalErrors, IommuError> {
        let machine = &*self.shared.machine;
        if self.shared.queue.operation.is_off() {
            return Err(IommuError::Stopped);
        }
        let errors = machine.errors()?;
        if errors & reg::gerror::SFM != 0 {
            self.shared.queue.operation.set(OperationState::Stopped);
        } else if errors & (reg::gerror::CMDQ | reg::gerror::CMDQP) != 0 {
            self.shared.queues().try_for_each(CommandQueue::service)?;
        }
        // What fault readers and the queue acknowledge themselves, and what never goes.
        let kept = reg::gerror::SFM | reg::gerror::CMDQ | reg::gerror::EVENTQ_ABT;
        if errors & !kept != 0 {
            machine.acknowledge(errors & !kept)?;
        }
        Ok(GlobalErrors::from_bits_truncate(errors))
    }
}

fn decode_request(words: &[u64; 4]) -> RawPageRequest {
    let wants = [
        (layout::READ, Permissions::READ),
        (layout::WRITE, Permissions::WRITE),
        (layout::EXECUTE, Permissions::EXECUTE),
        (layout::PRIVILEGED, Permissions::PRIVILEGED),
    ];
    let set = wants.into_iter().filter(|(field, _)| field.get(words) != 0).map(|(_, flag)| flag);
    let pasid = Pasid::new(layout::SSID.get(words) as u32);
    let group = GroupId::new(layout::GROUP.get(words) as u16);
    let place = match layout::LAST.get(words) {
        0 => Place::More,
        _ => Place::Last,
    };
    RawPageRequest {
        stream: StreamId::new(layout::SID.get(words) as u32),
        pasid: (layout::SSV.get(words) != 0).then_some(pasid),
        iova: Iova::new(layout::ADDRESS.get(words) << 12),
        wants: set.collect(),
        kind: RequestKind::Pri { group, place },
    }
}

/// The command that answers.
pub(super) fn answer(to: ReplyTo, response: Response) -> Words {
    match to.name {
        ReplyName::Group(group) => {
            let code = match response {
                Response::Failure => 0,
                Response::Invalid => 1,
                Response::Success => 2,
            };
            command::page_response(to.stream, to.pasid, group.get(), code)
        }
        ReplyName::Stall(tag) => {
            let action = match response {
                Response::Success => Resume::Retry,
                Response::Invalid | Response::Failure => Resume::Abort,
            };
            command::resume(to.stream, tag.get(), action)
        }
    }
}

impl<P: UnitPlatform> Smmu<P> {
    /// The oldest page request, if any. *Context.* Interrupt.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if page requests are not enabled; if the unit is gone.
    pub fn next_page_request(&self) -> Result<Option<PageRequestEvent>, IommuError> {
        let machine = &*self.shared.machine;
        let requests = self.requests.as_ref().ok_or(IommuError::Unsupported)?;
        let next = requests.lock().next(machine, |_| Ok(()))?;
        match next {
            NextRecord::Record(words) => {
                Ok(Some(PageRequestEvent::Request(decode_request(&words))))
            }
            NextRecord::Lost => Ok(Some(PageRequestEvent::Lost)),
            NextRecord::Nothing => {
                if machine.errors()? & reg::gerror::PRIQ_ABT == 0 {
                    return Ok(None);
                }
                machine.acknowledge(reg::gerror::PRIQ_ABT)?;
                Ok(Some(PageRequestEvent::Lost))
            }
        }
    }
}

impl<P: UnitPlatform> Responder for Smmu<P> {
    type Error = IommuError;

    /// Sends a command and waits until the unit has taken it. *Context.* Atomic.
    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), IommuError> {
        self.shared.run([answer(to, response)])
    }
}
