//! Devices that ask: page requests. Sections "PCIe ATS Page Request handling" and "Page-Request-Queue".
//!
//! A request that finds no room, or comes while an error is not acknowledged, is lost; the device is told to
//! try again if it was the last of its group.

use portolan::addr::StreamId;
use portolan::iopf::{Permissions, Place, RawPageRequest, ReplyTo, RequestKind, Response};

use super::contexts::TranslationControl;
use super::faults::RiscvRefusal;
use super::registers::{InterruptCause, mode, queue};
use super::{RiscvRegisters, State};

impl RiscvRegisters {
    /// Rights of a device to act by itself.
    pub(super) fn remote_of(
        &self,
        state: &mut State,
        stream: StreamId,
    ) -> Result<TranslationControl, RiscvRefusal> {
        match state.own.registers.mode() {
            mode::OFF => Err(RiscvRefusal::Off),
            mode::BARE => Err(RiscvRefusal::Disallowed),
            _ => self.context(state, stream).map(|(_, remote)| remote),
        }
    }

    /// Takes a page request of a device, with any contents.
    pub fn ask(&self, raw: RawPageRequest) {
        let RequestKind::Pri { group, place } = raw.kind else {
            return;
        };
        let mut state = self.lock();
        self.go_on(&mut state);
        state.asking.ask(&raw);
        let flag = |wants, bit: u32| u64::from(raw.wants.contains(wants)) << bit;
        // Without a PASID there is neither.
        let named = raw.pasid.map_or(0, |pasid| {
            let more = flag(Permissions::PRIVILEGED, 33) | flag(Permissions::EXECUTE, 34);
            u64::from(pasid.get() & 0xf_ffff) << 12 | 1 << 32 | more
        });
        let last = u64::from(place == Place::Last) << 2;
        let words = [
            named | u64::from(raw.stream.get() & 0xff_ffff) << 40,
            raw.iova.get() & !0xfff
                | u64::from(group.get() & 0x1ff) << 3
                | last
                | flag(Permissions::READ, 0)
                | flag(Permissions::WRITE, 1),
        ];
        let remote = self.remote_of(&mut state, raw.stream);
        let answer = match remote {
            Ok(remote) if remote.asks() => self.record_request(&mut state, words),
            Ok(_) | Err(RiscvRefusal::Disallowed) => Some(Response::Invalid),
            Err(_) => Some(Response::Failure),
        };
        let answer = answer.filter(|_| place == Place::Last && !raw.is_stop_marker());
        if let Some(response) = answer {
            let names =
                response == Response::Failure || remote.is_ok_and(TranslationControl::hears_pasid);
            let to = raw.reply_to();
            let pasid = to.pasid.filter(|_| names);
            state.asking.tell(ReplyTo { pasid, ..to }, response);
        }
    }

    /// Writes a request to its queue; returns the unit's own answer if that cannot be.
    fn record_request(&self, state: &mut State, words: [u64; 2]) -> Option<Response> {
        let registers = &mut state.own.registers;
        let (head, tail) = (registers.pqh, registers.pqt);
        let next = (tail + 1) % (2u32 << (registers.pqb & 0x1f));
        let status = registers.pqcsr;
        if status & queue::ON == 0 || status & queue::MEMORY_FAULT != 0 {
            return Some(Response::Failure);
        }
        let answer = if status & queue::OVERFLOW != 0 || next == head {
            registers.pqcsr |= queue::OVERFLOW;
            state.counts.lost_requests += 1;
            Some(Response::Success)
        } else if self.write_record(registers.pqb, tail, &words).is_none() {
            registers.pqcsr |= queue::MEMORY_FAULT;
            state.counts.lost_requests += 1;
            Some(Response::Failure)
        } else {
            registers.pqt = next;
            None
        };
        self.pend(state, InterruptCause::Requests);
        answer
    }
}

#[cfg(test)]
mod tests;
