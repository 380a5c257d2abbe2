//! Page requests of devices, and the answers to them and to stalls.
//!
//! IHI 0070, sections 8.1 (page-request queue), 4.5.2 (CMD_PRI_RESP) and 4.7.1 (CMD_RESUME).
//! Grouping, handling and the promise of one answer a group are `portolan::iopf`'s. When requests
//! are lost for want of room the unit answers those that need an answer itself (8.1).

use super::command::{self, Resume};
use super::records::Next;
use super::unit::Smmu;
use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::IommuError;
use portolan::iopf::{
    GroupId, Permissions, Place, RawPageRequest, ReplyName, ReplyTo, RequestKind, Responder,
    Response,
};
use portolan::platform::UnitPlatform;
use portolan_spec::smmuv3::command::Words;
use portolan_spec::smmuv3::event::page_request as layout;
use portolan_spec::smmuv3::reg;

pub use crate::chassis::PageRequestEvent;

fn decode(words: &[u64; 4]) -> RawPageRequest {
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
            Next::Record(words) => Ok(Some(PageRequestEvent::Request(decode(&words)))),
            Next::Lost => Ok(Some(PageRequestEvent::Lost)),
            Next::Nothing => {
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
