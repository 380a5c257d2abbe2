//! Groups that are not answered yet, and all operations on them under the lock.
//!
//! A caller that takes a group out of here owes its response; so there is one. Nothing here
//! allocates or frees memory: devices decide on the requests, and a handler of interrupts may bring
//! them.

use alloc::collections::{TryReserveError, VecDeque};
use alloc::vec::Vec;

use super::bounds::{Admitted, Bounds};
use super::counts::{Cause, FaultCounts};
use super::device::{FaultingDevice, Refused, Stay};
use super::flat::{FlatMap, room};
use super::group::{Claim, Gone, Key, Open, Outcome, Owed, Phase, QueueIsFull, Ticket, Work};
use super::{GroupId, PageRequest, Place, RawPageRequest, ReplyName, ReplyTo, RequestKind};
use crate::addr::StreamId;
use crate::platform::Nanos;

/// Everything under the lock.
pub(super) struct State {
    pub devices: FlatMap<StreamId, FaultingDevice>,
    /// Room for as many as there may be.
    pub(super) open: FlatMap<Key, Open>,
    ready: VecDeque<Key>,
    /// Memory for the requests of groups to come.
    pool: Vec<Vec<PageRequest>>,
    /// Responses that are left to callers that may wait for the unit.
    unsent: VecDeque<Owed>,
    pub counts: FaultCounts,
    tickets: u64,
}

impl State {
    /// No device, and room for all groups that there may be.
    ///
    /// *Context.* Task: takes heap memory.
    pub fn new(bounds: &Bounds) -> Result<Self, TryReserveError> {
        let mut pool = room(bounds.groups)?;
        for _ in 0..bounds.groups {
            pool.push(room(bounds.requests)?);
        }
        let mut ready = VecDeque::new();
        ready.try_reserve_exact(bounds.groups)?;
        let mut unsent = VecDeque::new();
        unsent.try_reserve_exact(bounds.groups.max(1))?;
        Ok(Self {
            devices: FlatMap::default(),
            open: FlatMap::new(room(bounds.groups)?),
            ready,
            pool,
            unsent,
            counts: FaultCounts::default(),
            tickets: 0,
        })
    }

    /// Takes a request in, and leaves a response that it causes to [`State::next_unsent`].
    pub fn queue(
        &mut self,
        raw: RawPageRequest,
        now: Nanos,
        bounds: &Bounds,
    ) -> Result<Outcome, QueueIsFull> {
        if self.unsent.len() >= bounds.groups.max(1) {
            return Err(QueueIsFull);
        }
        let outcome = self.take_in(raw, now, bounds);
        if let Outcome::Refused(owed) = outcome {
            self.unsent.push_back(owed);
        }
        Ok(outcome)
    }

    /// A response that was left to be sent; of `stream` if that is said.
    pub fn next_unsent(&mut self, stream: Option<StreamId>) -> Option<Owed> {
        let Some(stream) = stream else {
            return self.unsent.pop_front();
        };
        let mut unsent = self.unsent.iter();
        let at = unsent.position(|owed| owed.to.stream == stream)?;
        self.unsent.remove(at)
    }

    /// Responses that are left to be sent.
    pub(super) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Takes a request in.
    pub fn take_in(&mut self, raw: RawPageRequest, now: Nanos, bounds: &Bounds) -> Outcome {
        self.counts.requests += 1;
        // All requests of a device count, so that a flood of any kind is one.
        let admitted = match self.devices.get_mut(&raw.stream) {
            Some(device) => device.bucket.take(now, bounds.flow),
            None => Admitted::Yes,
        };
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
        let judged = self.judge(raw, admitted);
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

    /// Checks that a request is one to be handled at all.
    fn judge(&self, raw: RawPageRequest, admitted: Admitted) -> Result<PageRequest, Cause> {
        let device = self.devices.get(&raw.stream);
        let device = device.ok_or(Cause::UnknownDevice)?;
        if device.stay == Stay::Leaving {
            return Err(Cause::Detached);
        }
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
            open.requests.push(request);
            return Ok(());
        }
        let device = self.devices.get_mut(&key.0);
        let device = device.filter(|device| device.open < bounds.groups_of_device);
        let device = device.ok_or(Cause::Full)?;
        if bounds.requests == 0 {
            return Err(Cause::Large);
        }
        // As many as there may be groups. A handler whose group was answered without it may still
        // have one.
        let mut requests = self.pool.pop().ok_or(Cause::Full)?;
        requests.push(request);
        self.tickets = self.tickets.wrapping_add(1);
        let deadline = now.get().saturating_add(bounds.timeout.get());
        let open = Open {
            ticket: Ticket(self.tickets),
            pasid: request.pasid(),
            to: device.reply_to(key.0, request.pasid(), key.1),
            phase: Phase::Partial { deadline: Nanos::new(deadline) },
            requests,
        };
        // There is room for as many groups as there was memory for requests of.
        let inserted = self.open.insert(key, open);
        inserted.map_err(|_| Cause::Full)?;
        device.open += 1;
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
                let no_record = usize::from(group.get()) >= GroupId::COUNT;
                if no_record || device.stay == Stay::Leaving {
                    self.counts.ignored += 1;
                    return Outcome::Ignored;
                }
                let deadline = Nanos::new(now.get().saturating_add(bounds.timeout.get()));
                let refused = Refused { cause, pasid: to.pasid, deadline };
                // There is room for each number that a group can have.
                let _ = device.refused.insert(group, refused);
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
        self.counts.count_refusal(cause);
        Owed { to, response, cause }
    }

    /// Takes a group out.
    pub(super) fn forget(&mut self, key: Key) -> Option<Gone> {
        let Open { to, phase, requests, .. } = self.open.remove(&key)?;
        if phase != Phase::Running {
            self.give_back(requests);
        }
        if phase == Phase::Ready {
            self.ready.retain(|ready| *ready != key);
        }
        if let Some(device) = self.devices.get_mut(&key.0) {
            device.open = device.open.saturating_sub(1);
        }
        Some(Gone { to, phase })
    }

    /// Takes the memory of a group's requests back into the pool, whose own memory has room for it.
    fn give_back(&mut self, mut requests: Vec<PageRequest>) {
        requests.clear();
        self.pool.push(requests);
    }

    /// Gives the oldest complete group to its handler, or a response to a group that no longer has
    /// one.
    pub fn next_ready(&mut self, bounds: &Bounds) -> Option<Result<Work, Owed>> {
        let key = self.ready.pop_front()?;
        let open = self.open.get_mut(&key)?;
        let (ticket, to, pasid) = (open.ticket, open.to, open.pasid);
        let device = self.devices.get(&key.0);
        let Some(handler) = device.and_then(|device| device.handler(pasid)) else {
            self.forget(key);
            return Some(Err(self.owe(to, Cause::Detached, bounds)));
        };
        open.phase = Phase::Running;
        let requests = core::mem::take(&mut open.requests);
        self.counts.handled += 1;
        Some(Ok(Work { key, ticket, to, requests, handler }))
    }

    /// Ends a group that a handler had, with its requests.
    pub fn finish(&mut self, key: Key, ticket: Ticket, requests: Vec<PageRequest>) -> Claim {
        let claim = self.claim(key, ticket);
        self.give_back(requests);
        if claim == Claim::Overtaken {
            self.counts.overtaken += 1;
        }
        claim
    }

    /// Ends a group whose handler never came back, with its requests.
    pub fn abandon(
        &mut self,
        key: Key,
        ticket: Ticket,
        requests: Vec<PageRequest>,
        bounds: &Bounds,
    ) -> Option<Owed> {
        self.give_back(requests);
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
