//! Groups that are not answered yet, and what becomes of them: all that is done under the lock.
//!
//! Whoever takes a group out of here owes its response; so there is one.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::bounds::{Admitted, Bounds};
use super::counts::{Cause, FaultCounts};
use super::device::{Device, Refused};
use super::{
    GroupId, Handler, PageRequest, Place, RawPageRequest, ReplyName, ReplyTo, RequestKind, Response,
};
use crate::addr::{Pasid, StreamId};
use crate::platform::Nanos;

/// What names a group that is not answered yet.
pub(super) type Key = (StreamId, ReplyName);

/// Tells a group from a later one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// How far a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its last request is still to come.
    Partial { deadline: Nanos },
    /// It waits for a handler.
    Ready,
    /// A handler has it.
    Running,
}

/// A group that is not answered yet.
#[derive(Debug)]
pub(super) struct Open {
    ticket: Ticket,
    pub(super) pasid: Option<Pasid>,
    pub(super) to: ReplyTo,
    pub(super) phase: Phase,
    requests: Vec<PageRequest>,
}

/// A response that somebody now owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owed {
    pub to: ReplyTo,
    pub response: Response,
    pub cause: Cause,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Partial,
    Ready,
    StopMarker,
    Duplicate,
    Ignored,
    /// Of a group that is answered later.
    RefusedPart(Cause),
    Refused(Owed),
}

/// Who answers a group that a handler had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    Ours,
    /// Somebody else has.
    Overtaken,
}

/// A group on its way to a handler.
pub(super) struct Work {
    pub key: Key,
    pub ticket: Ticket,
    pub to: ReplyTo,
    pub requests: Vec<PageRequest>,
    pub handler: Arc<dyn Handler>,
}

/// Everything under the lock.
#[derive(Default)]
pub(super) struct State {
    pub devices: BTreeMap<StreamId, Device>,
    pub(super) open: BTreeMap<Key, Open>,
    ready: VecDeque<Key>,
    pub counts: FaultCounts,
    tickets: u64,
}

impl State {
    /// Takes a request in.
    pub fn take_in(&mut self, raw: RawPageRequest, now: Nanos, bounds: &Bounds) -> Outcome {
        self.counts.requests += 1;
        if raw.is_stop_marker() {
            self.counts.stop_markers += 1;
            return Outcome::StopMarker;
        }
        let key = (raw.stream, raw.reply_to().name);
        let phase = self.open.get(&key).map(|open| open.phase);
        if matches!(phase, Some(Phase::Ready | Phase::Running)) {
            self.counts.duplicates += 1;
            return Outcome::Duplicate;
        }
        let judged = self.judge(raw, now, bounds);
        let place = match raw.kind {
            RequestKind::Pri { place, .. } => place,
            RequestKind::Stall { .. } => Place::Last,
        };
        match judged.and_then(|request| self.join(key, request, now, bounds)) {
            Ok(()) if place == Place::Last => {
                if let Some(open) = self.open.get_mut(&key) {
                    open.phase = Phase::Ready;
                    self.ready.push_back(key);
                }
                Outcome::Ready
            }
            Ok(()) => Outcome::Partial,
            Err(cause) => self.refuse(key, raw, place, cause, now, bounds),
        }
    }

    /// Whether a request is one to be handled at all.
    fn judge(
        &mut self,
        raw: RawPageRequest,
        now: Nanos,
        bounds: &Bounds,
    ) -> Result<PageRequest, Cause> {
        let device = self.devices.get_mut(&raw.stream);
        let device = device.ok_or(Cause::UnknownDevice)?;
        let admitted = device.bucket.take(now, bounds.flow);
        let refused = match raw.kind {
            RequestKind::Pri { group, .. } => device.refused.get(&group),
            RequestKind::Stall { .. } => None,
        };
        if let Some(refused) = refused {
            return Err(refused.cause);
        }
        if admitted == Admitted::No {
            return Err(Cause::Flooded);
        }
        let request = raw.check().map_err(|_| Cause::Impossible)?;
        let reach = device.reach(raw.pasid).ok_or(Cause::UnknownPasid)?;
        if !reach.contains(raw.iova) {
            return Err(Cause::Outside);
        }
        Ok(request)
    }

    /// Adds a request to its group.
    fn join(
        &mut self,
        key: Key,
        request: PageRequest,
        now: Nanos,
        bounds: &Bounds,
    ) -> Result<(), Cause> {
        if let Some(open) = self.open.get_mut(&key) {
            if open.pasid != request.pasid() {
                return Err(Cause::Mixed);
            }
            if open.requests.len() >= bounds.requests {
                return Err(Cause::Large);
            }
            open.requests.try_reserve(1).map_err(|_| Cause::Full)?;
            open.requests.push(request);
            return Ok(());
        }
        let room = self.open.len() < bounds.groups;
        let device = self.devices.get_mut(&key.0);
        let device = device.filter(|device| room && device.open < bounds.groups_of_device);
        let device = device.ok_or(Cause::Full)?;
        if bounds.requests == 0 {
            return Err(Cause::Large);
        }
        let mut requests = Vec::new();
        requests.try_reserve(1).map_err(|_| Cause::Full)?;
        self.ready
            .try_reserve(self.open.len() + 1)
            .map_err(|_| Cause::Full)?;
        requests.push(request);
        device.open += 1;
        self.tickets = self.tickets.wrapping_add(1);
        let deadline = now.get().saturating_add(bounds.patience.get());
        let open = Open {
            ticket: Ticket(self.tickets),
            pasid: request.pasid(),
            to: device.reply_to(key.0, request.pasid(), key.1),
            phase: Phase::Partial {
                deadline: Nanos::new(deadline),
            },
            requests,
        };
        self.open.insert(key, open);
        Ok(())
    }

    /// Refuses a request, and its group with it: at once if it is the last, else when that comes.
    fn refuse(
        &mut self,
        key: Key,
        raw: RawPageRequest,
        place: Place,
        cause: Cause,
        now: Nanos,
        bounds: &Bounds,
    ) -> Outcome {
        self.forget(key);
        let Some(device) = self.devices.get_mut(&key.0) else {
            if place == Place::More {
                self.counts.ignored += 1;
                return Outcome::Ignored;
            }
            return Outcome::Refused(self.owe(raw.reply_to(), cause, bounds));
        };
        let to = device.reply_to(key.0, raw.pasid, key.1);
        match (place, key.1) {
            (Place::More, ReplyName::Group(group)) => {
                if usize::from(group.get()) >= GroupId::COUNT {
                    self.counts.ignored += 1;
                    return Outcome::Ignored;
                }
                let deadline = Nanos::new(now.get().saturating_add(bounds.patience.get()));
                let refused = Refused {
                    cause,
                    to,
                    deadline,
                };
                device.refused.entry(group).or_insert(refused);
                Outcome::RefusedPart(cause)
            }
            (_, name) => {
                if let ReplyName::Group(group) = name {
                    device.refused.remove(&group);
                }
                Outcome::Refused(self.owe(to, cause, bounds))
            }
        }
    }

    pub(super) fn owe(&mut self, to: ReplyTo, cause: Cause, bounds: &Bounds) -> Owed {
        let response = bounds.response(cause);
        self.counts.count_response(response);
        self.counts.count_refusal(cause);
        Owed {
            to,
            response,
            cause,
        }
    }

    /// Takes a group out.
    pub(super) fn forget(&mut self, key: Key) -> Option<Open> {
        let open = self.open.remove(&key)?;
        if open.phase == Phase::Ready {
            self.ready.retain(|ready| *ready != key);
        }
        if let Some(device) = self.devices.get_mut(&key.0) {
            device.open = device.open.saturating_sub(1);
        }
        Some(open)
    }

    /// Gives the oldest complete group to a handler, or a response to who no longer has one.
    pub fn next_ready(&mut self, bounds: &Bounds) -> Option<Result<Work, Owed>> {
        let key = self.ready.pop_front()?;
        let open = self.open.get_mut(&key)?;
        let (ticket, to, pasid) = (open.ticket, open.to, open.pasid);
        open.phase = Phase::Running;
        let device = self.devices.get(&key.0);
        let Some(handler) = device.and_then(|device| device.handler(pasid)) else {
            self.forget(key);
            return Some(Err(self.owe(to, Cause::Detached, bounds)));
        };
        let requests = core::mem::take(&mut open.requests);
        self.counts.handled += 1;
        Some(Ok(Work {
            key,
            ticket,
            to,
            requests,
            handler,
        }))
    }

    /// Ends a group that a handler had.
    pub fn finish(&mut self, key: Key, ticket: Ticket, response: Response) -> Claim {
        let claim = self.claim(key, ticket);
        match claim {
            Claim::Ours => self.counts.count_response(response),
            Claim::Overtaken => self.counts.overtaken += 1,
        }
        claim
    }

    /// Ends a group whose handler never came back.
    pub fn abandon(&mut self, key: Key, ticket: Ticket, bounds: &Bounds) -> Option<Owed> {
        let to = self.open.get(&key)?.to;
        match self.claim(key, ticket) {
            Claim::Ours => Some(self.owe(to, Cause::HandlerLost, bounds)),
            Claim::Overtaken => None,
        }
    }

    fn claim(&mut self, key: Key, ticket: Ticket) -> Claim {
        if self.open.get(&key).is_none_or(|open| open.ticket != ticket) {
            return Claim::Overtaken;
        }
        self.forget(key);
        Claim::Ours
    }
}
