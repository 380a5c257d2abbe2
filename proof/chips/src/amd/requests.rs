//! Devices that ask: page requests and their log. Sections 2.6 and 3.4.
//!
//! A request that finds no room is lost, and the log stops. Where the control register says so
//! (`PPRAutoRspEn`) the device is told to try again if it was the last of its group; otherwise there is no answer.

use portolan::addr::{PhysAddr, StreamId};
use portolan::iopf::{Permissions, Place, RawPageRequest, RequestKind, Response};

use super::entries::{Entry, RequestPermission};
use super::registers::{control, status};
use super::{AmdRegisters, State};

/// Code of a record.
const REQUEST: u64 = 1 << 60;

impl AmdRegisters {
    /// Takes a page request of a device, with any contents.
    pub fn ask(&self, raw: RawPageRequest) {
        let RequestKind::Pri { group, place } = raw.kind else {
            return;
        };
        let mut state = self.lock();
        self.go_on(&mut state);
        state.asking.ask(&raw);
        let flag = |wants, bit: u32| u64::from(raw.wants.contains(wants)) << bit;
        let named = raw.pasid.map_or(0, |pasid| {
            let pasid = u64::from(pasid.get() & 0xf_ffff);
            let user = u64::from(!raw.wants.contains(Permissions::PRIVILEGED)) << 54;
            1 << 56 | user | (pasid & 0xffff) << 16 | (pasid >> 16) << 42
        });
        let low = REQUEST
            | u64::from(raw.stream.get() & 0xffff)
            | named
            | u64::from(group.get() & 0x1ff) << 32
            | u64::from(place == Place::Last) << 41
            | flag(Permissions::EXECUTE, 49)
            | flag(Permissions::READ, 50)
            | flag(Permissions::WRITE, 53);
        let answer = match self.may_ask(&mut state, raw.stream) {
            RequestPermission::Given => {
                self.record_request(&mut state, [low, raw.iova.get() & !0xfff])
            }
            RequestPermission::Refused => Some(Response::Invalid),
        };
        if let Some(response) = answer.filter(|_| place == Place::Last && !raw.is_stop_marker()) {
            state.asking.tell(raw.reply_to(), response);
        }
    }

    fn may_ask(&self, state: &mut State, stream: StreamId) -> RequestPermission {
        match self.entry(state, stream) {
            Ok(Entry::Translates { requests, .. }) => requests,
            _ => RequestPermission::Refused,
        }
    }

    /// Writes a request to its log; returns the unit's own answer if that cannot be.
    fn record_request(&self, state: &mut State, [low, high]: [u64; 2]) -> Option<Response> {
        let registers = &mut state.own.registers;
        if registers.control & control::REQUESTS == 0 {
            return Some(Response::Failure);
        }
        let bytes = 16u64 << (registers.request_base >> 56 & 0xf);
        let (head, tail) = (registers.request_head, registers.request_tail);
        let next = (tail + 16) % bytes;
        if registers.status & status::REQUEST_RUN == 0 || next == head % bytes {
            registers.status |= status::REQUEST_OVERFLOW;
            registers.status &= !status::REQUEST_RUN;
            state.counts.lost_requests += 1;
            let answers = registers.control & control::AUTO_RESPONSE != 0;
            return answers.then_some(Response::Success);
        }
        let at = (registers.request_base & 0x000f_ffff_ffff_f000) + tail;
        registers.request_tail = next;
        registers.status |= status::REQUEST_INTERRUPT;
        let _ = self.memory.write_u64(PhysAddr::new(at + 8), high);
        let _ = self.memory.write_u64(PhysAddr::new(at), low);
        None
    }
}
