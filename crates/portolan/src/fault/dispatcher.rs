//! From requests to handlers, and from those to one response for each group.
//!
//! The lock is held while groups are looked up and moved, never while a handler runs or a response
//! is sent.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::bounds::Bounds;
use super::counts::FaultCounts;
use super::device::{ReplyPasid, Space};
use super::outcome::{Ended, RegisterError, Served, Taken};
use super::state::{Claim, Key, Outcome, Owed, State, Ticket, Work};
use super::{Group, Handler, PageRequest, RawPageRequest, ReplyTo, Responder, Response};
use crate::addr::{IovaRange, Pasid, StreamId};
use crate::platform::{Cpus, Lock, Nanos};

/// Page requests of the devices behind one unit.
///
/// A driver's loop gives every request to [`Dispatcher::accept`]; one CPU or many call
/// [`Dispatcher::serve`], and somebody calls [`Dispatcher::expire`] when it says so.
///
/// Each group gets one response: by its handler, or, if that is not to be, by whoever finds out
/// ([`Cause`](super::Cause)). When it is dropped, all groups are answered.
pub struct Dispatcher<P: Cpus, R: Responder> {
    cpus: P,
    responder: R,
    bounds: Bounds,
    state: P::Lock<State>,
}

impl<P: Cpus, R: Responder> core::fmt::Debug for Dispatcher<P, R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Dispatcher")
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

impl<P: Cpus, R: Responder> Dispatcher<P, R> {
    /// Nobody is registered yet.
    pub fn new(cpus: P, responder: R, bounds: Bounds) -> Self {
        let state = Lock::new(State::default());
        Self {
            cpus,
            responder,
            bounds,
            state,
        }
    }

    /// Who carries responses.
    pub fn responder(&self) -> &R {
        &self.responder
    }

    /// Says whether `stream` wants its address space back in responses. To be said before it is
    /// let ask.
    pub fn set_reply_pasid(&self, stream: StreamId, reply: ReplyPasid) {
        self.state
            .with(|state| state.devices.entry(stream).or_default().reply_pasid = reply);
    }

    /// From now on `handler` decides about what `stream` asks for within `reach` with `pasid`, or
    /// without one.
    ///
    /// # Errors
    /// [`RegisterError::Taken`].
    pub fn register(
        &self,
        stream: StreamId,
        pasid: Option<Pasid>,
        reach: IovaRange,
        handler: Arc<dyn Handler>,
    ) -> Result<(), RegisterError> {
        self.state.with(|state| {
            let device = state.devices.entry(stream).or_default();
            if device.spaces.contains_key(&pasid) {
                return Err(RegisterError::Taken { stream, pasid });
            }
            let space = Space::Registered { reach, handler };
            device.spaces.insert(pasid, space);
            Ok(())
        })
    }

    /// Ends a registration, and answers every group of it that is complete with
    /// [`Response::Invalid`], also those that a handler has: its response is dropped when it
    /// comes. Groups without their last request get the same response when that comes, or in
    /// time. Nobody is waited for: the handler may still have groups that were given to it before,
    /// and gets no others.
    ///
    /// What the device sent and nobody has read yet meets whoever is registered then: let a driver
    /// drain its queue before the same address space is registered again.
    pub fn unregister(&self, stream: StreamId, pasid: Option<Pasid>) -> Ended {
        let registered = self.state.with(|state| {
            let device = state.devices.get_mut(&stream)?;
            let space = device.spaces.get_mut(&pasid)?;
            match core::mem::replace(space, Space::Leaving) {
                Space::Registered { handler, .. } => Some(handler),
                Space::Leaving => None,
            }
        });
        let Some(handler) = registered else {
            return Ended::default();
        };
        let ended = self.answer_all(|state, bounds| state.next_leaving(stream, pasid, bounds));
        self.state.with(|state| {
            if let Some(device) = state.devices.get_mut(&stream) {
                device.spaces.remove(&pasid);
            }
        });
        // Perhaps its last owner: not under the lock.
        drop(handler);
        ended
    }

    /// Forgets a device, and answers all of its groups with [`Response::Invalid`], also those
    /// without their last request. To be called once it sends no more: a group of which a request
    /// comes later is another group.
    pub fn remove_device(&self, stream: StreamId) -> Ended {
        let mut ended = Ended::default();
        loop {
            let space = self.state.with(|state| {
                let device = state.devices.get(&stream)?;
                device.spaces.keys().next().copied()
            });
            let Some(pasid) = space else { break };
            ended.add(self.unregister(stream, pasid));
            // Somebody else may be at it; what is left is answered below.
            let removed = self.state.with(|state| {
                let device = state.devices.get_mut(&stream);
                device.and_then(|device| device.spaces.remove(&pasid))
            });
            drop(removed);
        }
        loop {
            ended.add(self.answer_all(|state, bounds| state.next_of_device(stream, bounds)));
            // Requests may have come meanwhile.
            if let Ok(device) = self.state.with(|state| state.remove_idle(stream)) {
                drop(device);
                return ended;
            }
        }
    }

    /// Forgets all devices, as [`Dispatcher::remove_device`].
    pub fn close(&self) -> Ended {
        let mut ended = Ended::default();
        while let Some(stream) = self
            .state
            .with(|state| state.devices.keys().next().copied())
        {
            ended.add(self.remove_device(stream));
        }
        ended
    }

    fn answer_all(&self, mut next: impl FnMut(&mut State, &Bounds) -> Option<Owed>) -> Ended {
        let mut ended = Ended::default();
        while let Some(owed) = self.state.with(|state| next(state, &self.bounds)) {
            ended.answered += 1;
            ended.unsent += u64::from(self.send(owed.to, owed.response).is_err());
        }
        ended
    }

    /// Sends what was counted as answered.
    fn send(&self, to: ReplyTo, response: Response) -> Result<(), R::Error> {
        self.responder
            .respond(to, response)
            .inspect_err(|_| self.state.with(|state| state.counts.unsent += 1))
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// If its group was to be answered at once and the response could not be sent.
    pub fn accept(&self, raw: RawPageRequest) -> Result<Taken, R::Error> {
        let now = self.cpus.now();
        let outcome = self
            .state
            .with(|state| state.take_in(raw, now, &self.bounds));
        Ok(match outcome {
            Outcome::Partial => Taken::Partial,
            Outcome::Ready => Taken::Ready,
            Outcome::StopMarker => Taken::StopMarker,
            Outcome::Duplicate => Taken::Duplicate,
            Outcome::Ignored => Taken::Ignored,
            Outcome::RefusedPart(cause) => Taken::RefusedPart { cause },
            Outcome::Refused(Owed {
                to,
                response,
                cause,
            }) => {
                self.send(to, response)?;
                Taken::Refused {
                    to,
                    response,
                    cause,
                }
            }
        })
    }

    /// The unit lost requests. It has answered those that were the last of their groups, so that
    /// groups without their last request are forgotten: what comes of them later is a group by
    /// itself. Stalled accesses are never lost.
    pub fn lost(&self) {
        self.state.with(State::lose);
    }

    /// Has the oldest complete group handled, and sends the response; `None` if there is none.
    /// If the handler unwinds, the response is [`Response::Failure`].
    ///
    /// # Errors
    /// If the response could not be sent.
    pub fn serve(&self) -> Result<Option<Served>, R::Error> {
        match self.state.with(|state| state.next_ready(&self.bounds)) {
            None => Ok(None),
            Some(Err(Owed { to, response, .. })) => {
                self.send(to, response)?;
                Ok(Some(Served::Answered { to, response }))
            }
            Some(Ok(Work {
                key,
                ticket,
                to,
                requests,
                handler,
            })) => {
                let handling = Handling {
                    dispatcher: self,
                    key,
                    ticket,
                    to,
                    requests,
                    handled: Handled::NotYet,
                };
                let response = handler.handle(&Group::new(to, &handling.requests));
                handling.finish(response).map(Some)
            }
        }
    }

    /// Answers groups whose last request did not come in time; returns when to call again.
    ///
    /// # Errors
    /// If a response could not be sent; others may still be late then.
    pub fn expire(&self) -> Result<Option<Nanos>, R::Error> {
        let now = self.cpus.now();
        loop {
            match self.state.with(|state| state.next_late(now, &self.bounds)) {
                Ok(owed) => self.send(owed.to, owed.response)?,
                Err(next) => return Ok(next),
            }
        }
    }

    /// How often each thing happened.
    pub fn counts(&self) -> FaultCounts {
        self.state.with(|state| state.counts)
    }

    /// Groups that are not answered yet.
    pub fn outstanding(&self) -> usize {
        self.state.with(|state| state.outstanding())
    }
}

impl<P: Cpus, R: Responder> Drop for Dispatcher<P, R> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether a group's handler has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handled {
    NotYet,
    Done,
}

/// A group while its handler has it. Dropped before it is finished, the device is told that it
/// failed.
struct Handling<'a, P: Cpus, R: Responder> {
    dispatcher: &'a Dispatcher<P, R>,
    key: Key,
    ticket: Ticket,
    to: ReplyTo,
    requests: Vec<PageRequest>,
    handled: Handled,
}

impl<P: Cpus, R: Responder> Handling<'_, P, R> {
    fn finish(mut self, response: Response) -> Result<Served, R::Error> {
        self.handled = Handled::Done;
        let (to, dispatcher) = (self.to, self.dispatcher);
        let ours = dispatcher
            .state
            .with(|state| state.finish(self.key, self.ticket, response));
        match ours {
            Claim::Ours => {
                dispatcher.send(to, response)?;
                Ok(Served::Answered { to, response })
            }
            Claim::Overtaken => Ok(Served::Overtaken { to }),
        }
    }
}

impl<P: Cpus, R: Responder> Drop for Handling<'_, P, R> {
    fn drop(&mut self) {
        if self.handled == Handled::Done {
            return;
        }
        let dispatcher = self.dispatcher;
        let bounds = &dispatcher.bounds;
        let owed = dispatcher
            .state
            .with(|state| state.abandon(self.key, self.ticket, bounds));
        if let Some(Owed { to, response, .. }) = owed {
            // There is nobody left to be told of an error; it is counted.
            let _ = dispatcher.send(to, response);
        }
    }
}
