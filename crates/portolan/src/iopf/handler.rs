//! Handlers, which decide about groups, and responders, which carry the responses.

use super::request::{PageRequest, ReplyTo};
use crate::addr::{Pasid, StreamId};

/// Response to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Response {
    /// The device is to try again: all that it asked for is there.
    Success,
    /// It may not have it; this access fails, others go on.
    Invalid,
    /// It cannot be served. Devices stop asking until they are set up anew.
    Failure,
}

impl Response {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Success, Self::Invalid, Self::Failure];
}

/// The requests that get one response: at least one, all of one device and one address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    to: ReplyTo,
    requests: &'a [PageRequest],
}

impl<'a> Group<'a> {
    /// `requests`, to be answered at `to`.
    pub const fn new(to: ReplyTo, requests: &'a [PageRequest]) -> Self {
        Self { to, requests }
    }

    /// Stream of the device that asks.
    pub const fn stream(&self) -> StreamId {
        self.to.stream
    }

    /// Address space of the requests; the response may be told without.
    pub fn pasid(&self) -> Option<Pasid> {
        self.requests.first().map_or(self.to.pasid, PageRequest::pasid)
    }

    /// Address of the response.
    pub const fn to(&self) -> ReplyTo {
        self.to
    }

    /// Requests of the group, in the order in which they came; a page may be there twice.
    pub const fn requests(&self) -> &'a [PageRequest] {
        self.requests
    }
}

/// Handler of the groups of one address space.
///
/// *Implementer's duties.* To make all requested addresses accessible before it says
/// [`Response::Success`], debts paid. It may take its time: no lock is held while it runs, and
/// other groups may be handled at the same time. If its address space is unregistered meanwhile,
/// its response is dropped, since the device has got one.
///
/// ```
/// # use portolan::iopf::{Group, Handler, Response};
/// /// Nothing may fault: the device is to stop.
/// struct Pinned;
/// impl Handler for Pinned {
///     fn handle(&self, group: &Group<'_>) -> Response {
///         let _told = (group.stream(), group.requests().len());
///         Response::Invalid
///     }
/// }
/// ```
///
/// *Context.* Task, unless the implementer promises more: it is called by
/// [`Dispatcher::serve`](super::Dispatcher::serve) alone, never by the methods that take requests
/// in.
pub trait Handler: Send + Sync {
    /// Decides about `group`.
    fn handle(&self, group: &Group<'_>) -> Response;
}

impl<H: Handler + ?Sized> Handler for &H {
    fn handle(&self, group: &Group<'_>) -> Response {
        (**self).handle(group)
    }
}

impl<H: Handler + ?Sized> Handler for alloc::sync::Arc<H> {
    fn handle(&self, group: &Group<'_>) -> Response {
        (**self).handle(group)
    }
}

/// Carrier of responses to devices: a driver.
///
/// *Implementer's duties.* To send one response for each call, and not to wait for ever.
///
/// *Context.* Atomic: it may wait for the unit to take the response.
pub trait Responder {
    /// Error of a response that could not be sent.
    type Error: core::fmt::Debug;

    /// Sends `response` to `to`.
    ///
    /// # Errors
    /// If it is not known that the device has got it. The caller does not try again: by then the
    /// number may name another group.
    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), Self::Error>;
}

impl<R: Responder + ?Sized> Responder for &R {
    type Error = R::Error;

    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), Self::Error> {
        (**self).respond(to, response)
    }
}

impl<R: Responder + ?Sized> Responder for alloc::sync::Arc<R> {
    type Error = R::Error;

    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), Self::Error> {
        (**self).respond(to, response)
    }
}
