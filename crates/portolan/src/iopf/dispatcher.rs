//! From requests to handlers, and from those to one response for each group.
//!
//! The lock is held while groups are looked up and moved, never while a handler runs, a response is
//! sent, or memory is made or freed.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::bounds::Bounds;
use super::counts::FaultCounts;
use super::device::{ReplyPasid, Space};
use super::group::{Claim, Key, Outcome, Owed, QueueIsFull, Ticket, Work};
use super::outcome::{Ended, NoMemory, QueueFull, RegisterError, Served, Taken};
use super::registering::{Missing, Offer};
use super::state::State;
use super::{Group, Handler, PageRequest, RawPageRequest, ReplyTo, Responder, Response};
use crate::addr::{IovaRange, Pasid, StreamId};
use crate::platform::{Cpus, Lock, Nanos};

/// Page requests of the devices behind one unit.
///
/// A driver's loop gives every request to [`Dispatcher::accept`], or the handler of its interrupt
/// to [`Dispatcher::queue`]; one CPU or many call [`Dispatcher::serve`], and any CPU calls
/// [`Dispatcher::expire`] when that is due.
///
/// ```no_run
/// # use portolan::addr::{IovaRange, StreamId};
/// # use portolan::iopf::{Bounds, Dispatcher, Handler, RawPageRequest, Responder};
/// # use portolan::platform::Platform;
/// # use std::sync::Arc;
/// /// One card, whose requests `memory` serves.
/// fn serve<P: Platform, R: Responder>(
///     platform: P, unit: R, card: StreamId, reach: IovaRange, memory: Arc<dyn Handler>,
///     mut next: impl FnMut() -> Option<RawPageRequest>,
/// ) -> Result<(), R::Error> {
///     let requests = Dispatcher::new(platform, unit, Bounds::default()).expect("heap memory");
///     requests.register(card, None, reach, memory).expect("a card without a handler");
///     while let Some(request) = next() {
///         requests.accept(request)?;
///         while requests.serve()?.is_some() {}
///     }
///     Ok(())
/// }
/// ```
///
/// Each group gets one response: by its handler, or, if that is not to be, by the call that finds
/// it out ([`Cause`](super::Cause)). When it is dropped, all groups are answered.
pub struct Dispatcher<P: Cpus, R: Responder> {
    cpus: P,
    responder: R,
    bounds: Bounds,
    state: P::Lock<State>,
}

impl<P: Cpus, R: Responder> core::fmt::Debug for Dispatcher<P, R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Dispatcher").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

impl<P: Cpus, R: Responder> Dispatcher<P, R> {
    /// A dispatcher without registrations. All memory that devices can make it use up is allocated
    /// here: [`Bounds::groups`] times [`Bounds::requests`] requests.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// Without memory for that.
    pub fn new(cpus: P, responder: R, bounds: Bounds) -> Result<Self, NoMemory> {
        let state = State::new(&bounds)
            .map_err(|_| NoMemory { groups: bounds.groups, requests: bounds.requests })?;
        Ok(Self { cpus, responder, bounds, state: Lock::new(state) })
    }

    /// Responder that carries responses.
    ///
    /// *Context.* Interrupt.
    pub fn responder(&self) -> &R {
        &self.responder
    }

    /// Sets the address space in responses to `stream`. To be called before the device is let ask.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`RegisterError::NoMemory`].
    pub fn set_reply_pasid(
        &self,
        stream: StreamId,
        reply: ReplyPasid,
    ) -> Result<(), RegisterError> {
        self.with_memory(stream, |state, offer| state.set_reply_pasid(stream, reply, offer))
    }

    /// Calls `act` under the lock, and again with the memory that it lacked, which is made without
    /// the lock.
    fn with_memory<T>(
        &self,
        stream: StreamId,
        mut act: impl FnMut(&mut State, &mut Offer) -> Result<T, Missing>,
    ) -> Result<T, RegisterError> {
        let mut offer = Offer::default();
        loop {
            match self.state.with(|state| act(state, &mut offer)) {
                Ok(done) => return Ok(done),
                Err(missing) => {
                    (offer.make(missing)).map_err(|_| RegisterError::NoMemory { stream })?
                }
            }
        }
    }

    /// Makes `handler` decide from now on about requests of `stream` within `reach` with `pasid`,
    /// or without one.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(
        &self,
        stream: StreamId,
        pasid: Option<Pasid>,
        reach: IovaRange,
        handler: Arc<dyn Handler>,
    ) -> Result<(), RegisterError> {
        self.with_memory(stream, |state, offer| {
            state.register(stream, pasid, reach, &handler, offer)
        })?
    }

    /// Ends a registration, and answers every group of it that is complete with
    /// [`Response::Invalid`], also those that a handler has: its response is dropped when it comes.
    /// Groups without their last request get the same response when that comes, or in time. This
    /// waits for no handler: it may still have groups that were given to it before, and gets no
    /// others.
    ///
    /// Requests that the device sent and the driver has not read yet meet the handler that is
    /// registered then: let a driver drain its queue before the same address space is registered
    /// again.
    ///
    /// *Context.* Task: it may drop the last handle of the handler.
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
        let left = self.state.with(|state| {
            let device = state.devices.get_mut(&stream);
            device.and_then(|device| device.spaces.remove(&pasid))
        });
        // Perhaps its last owner: not under the lock.
        drop((handler, left));
        ended
    }

    /// Forgets a device, and answers all of its groups with [`Response::Invalid`], also those
    /// without their last request. It may go on asking: requests that come meanwhile are answered
    /// and not remembered, and later ones are of a device that is not registered.
    ///
    /// *Context.* Task.
    pub fn remove_device(&self, stream: StreamId) -> Ended {
        let mut ended = Ended::default();
        self.state.with(|state| state.begin_leaving(stream));
        loop {
            let space = self.state.with(|state| {
                let device = state.devices.get(&stream)?;
                let first = device.spaces.entries().first();
                first.map(|(pasid, _)| *pasid)
            });
            let Some(pasid) = space else { break };
            ended.add(self.unregister(stream, pasid));
            // Another caller may be at it; the rest is answered below.
            let removed = self.state.with(|state| {
                let device = state.devices.get_mut(&stream);
                device.and_then(|device| device.spaces.remove(&pasid))
            });
            drop(removed);
        }
        ended.add(self.answer_unsent(Some(stream)));
        loop {
            ended.add(self.answer_all(|state, bounds| state.next_of_device(stream, bounds)));
            // Requests of it that were being taken in may have come meanwhile.
            if let Ok(device) = self.state.with(|state| state.remove_idle(stream)) {
                drop(device);
                return ended;
            }
        }
    }

    /// Forgets all devices, as [`Dispatcher::remove_device`].
    ///
    /// *Context.* Task.
    pub fn close(&self) -> Ended {
        let mut ended = Ended::default();
        let first = |state: &mut State| state.devices.entries().first().map(|(stream, _)| *stream);
        while let Some(stream) = self.state.with(first) {
            ended.add(self.remove_device(stream));
        }
        // Those of devices that are not registered.
        ended.add(self.answer_unsent(None));
        ended
    }

    /// Sends the responses that are left to be sent by now, of `stream` if that is said. Each may
    /// bring the next: those are left to [`Dispatcher::serve`].
    fn answer_unsent(&self, stream: Option<StreamId>) -> Ended {
        let mut left = self.state.with(|state| state.unsent());
        self.answer_all(|state, _| {
            left = left.checked_sub(1)?;
            state.next_unsent(stream)
        })
    }

    fn answer_all(&self, mut next: impl FnMut(&mut State, &Bounds) -> Option<Owed>) -> Ended {
        let mut ended = Ended::default();
        while let Some(owed) = self.state.with(|state| next(state, &self.bounds)) {
            ended.answered += 1;
            ended.unsent += u64::from(self.send(owed.to, owed.response).is_err());
        }
        ended
    }

    /// Sends a response that was counted as answered.
    fn send(&self, to: ReplyTo, response: Response) -> Result<(), R::Error> {
        self.responder
            .respond(to, response)
            .inspect_err(|_| self.state.with(|state| state.counts.unsent += 1))
    }

    /// Takes a request in, and answers its group at once if it is refused.
    ///
    /// *Context.* Atomic: a response waits for the unit, as the [`Responder`] does.
    ///
    /// # Errors
    /// If its group was to be answered at once and the response could not be sent.
    pub fn accept(&self, raw: RawPageRequest) -> Result<Taken, R::Error> {
        let now = self.cpus.now();
        let outcome = self.state.with(|state| state.take_in(raw, now, &self.bounds));
        if let Outcome::Refused(owed) = outcome {
            self.send(owed.to, owed.response)?;
        }
        Ok(outcome.taken())
    }

    /// Takes a request in, and leaves all that waits for anything to [`Dispatcher::serve`]: for the
    /// handler of the unit's interrupt.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// [`QueueFull`]: no CPU has called [`Dispatcher::serve`] for too long. The request was not
    /// taken in; let the driver read no more of them until one has.
    pub fn queue(&self, raw: RawPageRequest) -> Result<Taken, QueueFull> {
        let now = self.cpus.now();
        let queued = self.state.with(|state| {
            let waiting = state.unsent();
            let queued = state.queue(raw, now, &self.bounds);
            queued.map_err(|QueueIsFull| QueueFull { waiting })
        });
        queued.map(Outcome::taken)
    }

    /// Notes that the unit lost requests. It has answered those that were the last of their groups,
    /// so that groups without their last request are forgotten: later requests of them are a group
    /// by themselves. Stalled accesses are never lost.
    ///
    /// *Context.* Interrupt.
    pub fn lost(&self) {
        self.state.with(State::lose);
    }

    /// Sends a response that [`Dispatcher::queue`] left, or has the oldest complete group handled
    /// and sends its response; `None` if there is none of either. If the handler unwinds, the response
    /// is [`Response::Failure`].
    ///
    /// *Context.* The handler's, and atomic at least.
    ///
    /// # Errors
    /// If the response could not be sent.
    pub fn serve(&self) -> Result<Option<Served>, R::Error> {
        if let Some(owed) = self.state.with(|state| state.next_unsent(None)) {
            let Owed { to, response, .. } = owed;
            self.send(to, response)?;
            return Ok(Some(Served::Answered { to, response }));
        }
        match self.state.with(|state| state.next_ready(&self.bounds)) {
            None => Ok(None),
            Some(Err(Owed { to, response, .. })) => {
                self.send(to, response)?;
                Ok(Some(Served::Answered { to, response }))
            }
            Some(Ok(Work { key, ticket, to, requests, handler })) => {
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
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// If a response could not be sent; others may still be late then.
    pub fn expire(&self) -> Result<Option<Nanos>, R::Error> {
        let now = self.cpus.now();
        // Each response may bring the next request, which may be late at once.
        for _ in 0..=self.outstanding() {
            match self.state.with(|state| state.next_late(now, &self.bounds)) {
                Ok(owed) => self.send(owed.to, owed.response)?,
                Err(next) => return Ok(next),
            }
        }
        Ok(Some(now))
    }

    /// Counts of events.
    ///
    /// *Context.* Interrupt.
    pub fn counts(&self) -> FaultCounts {
        self.state.with(|state| state.counts)
    }

    /// Groups that are not answered yet.
    ///
    /// *Context.* Interrupt.
    pub fn outstanding(&self) -> usize {
        self.state.with(|state| state.outstanding())
    }
}

impl<P: Cpus, R: Responder> Drop for Dispatcher<P, R> {
    /// Closes it.
    ///
    /// *Context.* Task.
    fn drop(&mut self) {
        self.close();
    }
}

/// Progress of a group's handler.
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
        let requests = core::mem::take(&mut self.requests);
        let ours = dispatcher.state.with(|state| state.finish(self.key, self.ticket, requests));
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
        let requests = core::mem::take(&mut self.requests);
        let owed =
            dispatcher.state.with(|state| state.abandon(self.key, self.ticket, requests, bounds));
        if let Some(Owed { to, response, .. }) = owed {
            // No caller is left to be told of an error; it is counted.
            let _ = dispatcher.send(to, response);
        }
    }
}
