//! Devices that ask and that keep translations: page requests (7.4 to 7.6) and device TLBs (4.2).
//!
//! A request that finds no room, or comes while an overflow is not acknowledged, is lost; the device
//! is told to try again if it was the last of its group.

use portolan::addr::{PhysAddr, StreamId};
use portolan::iopf::{Permissions, Place, RawPageRequest, RequestKind, Response};

use super::entries::{ContextEntry, DeviceRights, Lets};
use super::{State, VtdRegisters};

/// `PRS.PPR` and `PRS.PRO`.
const PENDING: u32 = 1;
const OVERFLOW: u32 = 1 << 1;
/// Bytes of a request.
const ENTRY: u64 = 32;

/// The registers of the page-request queue.
#[derive(Debug, Default)]
pub(super) struct PageQueue {
    pub head: u64,
    pub tail: u64,
    pub address: u64,
    pub status: u32,
}

impl PageQueue {
    pub fn acknowledge(&mut self, bits: u32) {
        self.status &= !(bits & (PENDING | OVERFLOW));
    }
}

impl VtdRegisters {
    pub(super) fn remote_of(&self, state: &mut State, stream: StreamId) -> DeviceRights {
        if !state.own.registers.translates() {
            return DeviceRights::NOTHING;
        }
        match self.context(state, stream.get() as u16) {
            Ok(ContextEntry::Scalable { remote, .. }) => remote,
            _ => DeviceRights::NOTHING,
        }
    }

    /// Takes a page request of a device, with any contents. In scalable mode.
    pub fn ask(&self, raw: RawPageRequest) {
        let RequestKind::Pri { group, place } = raw.kind else {
            return;
        };
        let mut state = self.lock();
        self.go_on(&mut state);
        state.asking.ask(&raw);
        let flag = |wants, bit: u32| u64::from(raw.wants.contains(wants)) << bit;
        let named = raw.pasid.map_or(0, |pasid| 1 << 8 | u64::from(pasid.get() & 0xf_ffff) << 32);
        let who = 1
            | u64::from(raw.stream.get() & 0xffff) << 16
            | named
            | flag(Permissions::EXECUTE, 52)
            | flag(Permissions::PRIVILEGED, 53);
        let last = u64::from(place == Place::Last) << 2;
        let what = raw.iova.get() & !0xfff
            | u64::from(group.get() & 0x1ff) << 3
            | last
            | flag(Permissions::READ, 0)
            | flag(Permissions::WRITE, 1);
        let answer = match self.remote_of(&mut state, raw.stream).requests {
            Lets::Yes => self.record_request(&mut state, [who, what]),
            Lets::No => Some(Response::Failure),
        };
        if let Some(response) = answer.filter(|_| place == Place::Last && !raw.is_stop_marker()) {
            state.asking.tell(raw.reply_to(), response);
        }
    }

    /// Writes a request to its queue; returns the unit's own answer if that cannot be.
    fn record_request(&self, state: &mut State, words: [u64; 2]) -> Option<Response> {
        let queue = &mut state.own.registers.page_queue;
        let bytes = 0x1000u64 << (queue.address & 7);
        let next = (queue.tail + ENTRY) % bytes;
        if queue.address == 0 || self.setup.identification.ecap(29, 1) == 0 {
            return Some(Response::Failure);
        }
        if queue.status & OVERFLOW != 0 || next == queue.head % bytes {
            queue.status |= OVERFLOW;
            state.counts.lost_requests += 1;
            return Some(Response::Success);
        }
        let at = (queue.address & !0xfff) + queue.tail;
        let words = [words[0], words[1], 0, 0];
        for (i, word) in words.into_iter().enumerate() {
            let at = PhysAddr::new(at + 8 * i as u64);
            if self.memory.write_u64(at, word).is_none() {
                return Some(Response::Failure);
            }
        }
        queue.tail = next;
        state.own.registers.requested(PENDING);
        None
    }
}

#[cfg(test)]
mod tests;
