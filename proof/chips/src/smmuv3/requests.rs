//! Accesses that wait and devices that ask: stalls (3.12.2, 4.7), page requests (8, 4.5.2) and
//! translations that devices keep (3.9).
//!
//! Stalls are never lost: an event that finds no room is recorded when there is some. Page requests are: a device
//! that asked with the last of its group is told to try again.

use portolan::addr::{Iova, Pasid, PhysAddr, StreamId};
use portolan::iopf::{
    Permissions, Place, RawPageRequest, ReplyTo, RequestKind, Response, StallTag,
};

use super::events::SmmuV3Refusal;
use super::registers::irq;
use super::{EventRecord, SmmuRegisters, State};
use crate::asking::Transfer;
use crate::inject::DmaFault;
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

/// An access that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    of: Request,
    bytes: u64,
    /// The event, if it is still to be recorded.
    event: Option<EventRecord>,
}

/// End of a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resume {
    Retry,
    End,
}

const PRIQ_ENABLE: u32 = 1 << 1;
const OVERFLOW: u32 = 1 << 31;
/// `GERROR.PRIQ_ABT_ERR`.
const PRIQ_ABORT: u32 = 1 << 3;

impl SmmuRegisters {
    /// Lets a device access memory as [`SmmuRegisters::dma`], and wait where its stream stalls.
    pub fn transfer(
        &self,
        stream: StreamId,
        pasid: Option<Pasid>,
        iova: Iova,
        access: AccessKind,
        bytes: u64,
    ) -> Transfer {
        let mut state = self.lock();
        self.go_on(&mut state);
        let of = Request::new(stream, pasid, iova, access);
        let waiting = Waiting { of, bytes, event: None };
        self.attempt(&mut state, waiting)
    }

    pub(super) fn attempt(&self, state: &mut State, wanted: Waiting) -> Transfer {
        match self.go_through(state, wanted.of, wanted.bytes) {
            Ok(pieces) => Transfer::Done(pieces),
            Err((at, refusal)) => {
                let stalled = matches!(refusal, SmmuV3Refusal::Stalled { .. });
                let free = (0..=u16::MAX).find(|tag| !state.own.stalled.contains_key(tag));
                let record = refusal.record(at);
                let Some((tag, mut record)) = free.zip(record).filter(|_| stalled) else {
                    let fault = self.refuse(state, refusal, at);
                    return Transfer::Refused(fault);
                };
                record.words[1] |= 1 << 31 | u64::from(tag);
                state.counts.faults += 1;
                let event = Some(record);
                state.own.stalled.insert(tag, Waiting { event, ..wanted });
                let tag = StallTag::new(tag);
                state.asking.ask(&RawPageRequest {
                    stream: wanted.of.stream,
                    pasid: wanted.of.pasid,
                    iova: wanted.of.iova,
                    wants: Permissions::READ,
                    kind: RequestKind::Stall { tag },
                });
                self.record_stalls(state);
                Transfer::Stalled(tag)
            }
        }
    }

    /// Records stalls that have room now.
    pub(super) fn record_stalls(&self, state: &mut State) {
        let tags: Vec<u16> = state.own.stalled.keys().copied().collect();
        for tag in tags {
            let event = state.own.stalled.get(&tag).and_then(|of| of.event);
            let Some(record) = event.filter(|_| self.has_event_room(state)) else {
                continue;
            };
            state.own.events.push(record);
            self.append(state, record);
            if let Some(waiting) = state.own.stalled.get_mut(&tag) {
                waiting.event = None;
            }
        }
    }

    /// Ends a stall by a command. An unknown stall is ignored.
    pub(super) fn resume(&self, state: &mut State, to: ReplyTo, tag: u16, how: Resume) {
        let response = match how {
            Resume::Retry => Response::Success,
            Resume::End => Response::Invalid,
        };
        state.asking.tell(to, response);
        let ours = |waiting: &Waiting| waiting.of.stream == to.stream;
        let Some(waiting) = state.own.stalled.get(&tag).copied().filter(ours) else {
            return;
        };
        state.own.stalled.remove(&tag);
        let transfer = match how {
            Resume::Retry => self.attempt(state, waiting),
            Resume::End => Transfer::Refused(DmaFault::of(waiting.of, 0)),
        };
        state.own.finished.push((StallTag::new(tag), transfer));
    }

    /// Stalls that have ended since the last call, and the results of their accesses.
    pub fn finished(&self) -> Vec<(StallTag, Transfer)> {
        let mut state = self.lock();
        self.go_on(&mut state);
        std::mem::take(&mut state.own.finished)
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
        let (pasid, named) = match raw.pasid {
            Some(pasid) => (u64::from(pasid.get() & 0xf_ffff), 1),
            None => (0, 0),
        };
        let permissions = flag(Permissions::PRIVILEGED, 58)
            | flag(Permissions::EXECUTE, 59)
            | flag(Permissions::READ, 60)
            | flag(Permissions::WRITE, 61);
        let last = u64::from(place == Place::Last) << 62;
        let words = [
            u64::from(raw.stream.get()) | pasid << 32 | permissions | last | named << 63,
            raw.iova.get() & !0xfff | u64::from(group.get() & 0x1ff),
        ];
        let answer = self.record_request(&mut state, words);
        if let Some(response) = answer.filter(|_| place == Place::Last && !raw.is_stop_marker()) {
            state.asking.tell(raw.reply_to(), response);
        }
    }

    /// Writes a request to its queue; returns the unit's own answer if that cannot be.
    fn record_request(&self, state: &mut State, words: [u64; 2]) -> Option<Response> {
        let most = self.setup.identification.field(1, 11, 5);
        let registers = &mut state.own.registers;
        if registers.cr0 & PRIQ_ENABLE == 0 || registers.is_raised(PRIQ_ABORT) {
            return Some(Response::Failure);
        }
        let lg2 = ((registers.priq_base & 0x1f) as u32).min(most);
        let (mask, wrap) = ((1u32 << lg2) - 1, 1u32 << lg2);
        let (prod, cons) = (registers.priq_prod, registers.priq_cons);
        let overflown = (prod ^ cons) & OVERFLOW != 0;
        let full = prod & mask == cons & mask && (prod ^ cons) & wrap != 0;
        if full || overflown {
            state.counts.lost_requests += 1;
            if !overflown {
                registers.priq_prod ^= OVERFLOW;
            }
            return Some(Response::Success);
        }
        let at = (registers.priq_base & 0x000f_ffff_ffff_ffe0) + u64::from(prod & mask) * 16;
        let [low, high] = words;
        let low = self.memory.write_u64(PhysAddr::new(at), low);
        let written = low.and(self.memory.write_u64(PhysAddr::new(at + 8), high));
        if written.is_none() {
            registers.raise(PRIQ_ABORT);
            return Some(Response::Failure);
        }
        registers.priq_prod = prod & OVERFLOW | prod.wrapping_add(1) & (mask | wrap);
        if (prod ^ cons) & (mask | wrap) == 0 {
            registers.signal(irq::REQUESTS);
        }
        None
    }
}

#[cfg(test)]
mod tests;
