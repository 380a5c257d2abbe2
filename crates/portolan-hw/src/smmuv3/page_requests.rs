//! Page requests of devices, as they come, and the answers to them.
//!
//! IHI 0070, sections 8.1 (page-request queue) and 4.5.2 (CMD_PRI_RESP). Grouping, handling and the
//! promise of one answer a group are the caller's. When requests are lost for want of room the unit
//! answers those that need an answer itself (8.2).

use super::command;
use super::records::Next;
use super::spec::event::page_request as layout;
use super::spec::reg;
use super::unit::Smmu;
use core::sync::atomic::AtomicU64;
use portolan::addr::{Iova, Pasid, StreamId};
use portolan::platform::{Clock, Mmio, TableMem};
use portolan::unit::UnitError;

bitflags::bitflags! {
    /// What a request asks for, and its place in its group.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PageRequestFlags: u8 {
        /// Reading.
        const READ = 1;
        /// Writing.
        const WRITE = 1 << 1;
        /// Executing.
        const EXECUTE = 1 << 2;
        /// Privileged.
        const PRIVILEGED = 1 << 3;
        /// The last of its group, which wants an answer.
        const LAST = 1 << 4;
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Who.
    pub stream: StreamId,
    /// In which of its address spaces, if it said.
    pub pasid: Option<Pasid>,
    /// First address of the page.
    pub iova: Iova,
    /// Its group.
    pub group: u16,
    /// What for.
    pub flags: PageRequestFlags,
}

/// What comes out of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRequestEvent {
    /// A request. With neither reading nor writing and [`PageRequestFlags::LAST`] it only marks
    /// the end of what a device had under way (a stop marker), and wants no answer.
    Request(PageRequest),
    /// Requests were lost; the unit answered them.
    Lost,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageResponse {
    /// The device may not have it.
    Deny,
    /// It cannot be had, and the device should ask no more.
    Fail,
    /// It is there.
    Success,
}

fn decode(words: &[u64; 4]) -> PageRequest {
    let flags = [
        (layout::READ, PageRequestFlags::READ),
        (layout::WRITE, PageRequestFlags::WRITE),
        (layout::EXECUTE, PageRequestFlags::EXECUTE),
        (layout::PRIVILEGED, PageRequestFlags::PRIVILEGED),
        (layout::LAST, PageRequestFlags::LAST),
    ];
    let set = flags
        .into_iter()
        .filter(|(field, _)| field.get(words) != 0)
        .map(|(_, flag)| flag);
    let pasid = Pasid::new(layout::SSID.get(words) as u32);
    PageRequest {
        stream: StreamId::new(layout::SID.get(words) as u32),
        pasid: (layout::SSV.get(words) != 0).then_some(pasid),
        iova: Iova::new(layout::ADDRESS.get(words) << 12),
        group: layout::GROUP.get(words) as u16,
        flags: set.fold(PageRequestFlags::empty(), |all, flag| all | flag),
    }
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Clock> Smmu<R, M, C> {
    /// The oldest page request, if any.
    ///
    /// # Errors
    /// [`UnitError::Unsupported`] if page requests are not enabled; if the unit is gone.
    pub fn next_page_request(&self) -> Result<Option<PageRequestEvent>, UnitError> {
        let machine = &*self.shared.machine;
        let requests = self.requests.as_ref().ok_or(UnitError::Unsupported)?;
        let next = requests.lock().next(machine)?;
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

    /// Answers a group. `pasid` as in the request, if the device wants it back.
    ///
    /// # Errors
    /// If the unit did not complete the command.
    pub fn respond(
        &self,
        stream: StreamId,
        pasid: Option<Pasid>,
        group: u16,
        response: PageResponse,
    ) -> Result<(), UnitError> {
        let code = match response {
            PageResponse::Deny => 0,
            PageResponse::Fail => 1,
            PageResponse::Success => 2,
        };
        let command = command::page_response(stream, pasid, group, code);
        self.shared.run([command])
    }
}
