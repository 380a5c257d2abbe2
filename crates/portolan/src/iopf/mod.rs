//! I/O page faults: requests of devices, handlers that decide, and one response for each group.
//!
//! * [`RawPageRequest`] is a request as a driver read it; [`PageRequest`] is one that makes sense
//!   by itself.
//! * [`Handler`] decides about a [`Group`], [`Responder`] carries the [`Response`].
//! * [`Dispatcher`] stands between: it collects groups, bounds the memory that devices use up
//!   ([`Bounds`]), gives each group to the handler that is registered for it, and makes sure that
//!   each gets one response.
//!
//! *Context.* Interrupt: everything here but [`Dispatcher`], [`Handler`] and [`Responder`] is a
//! value; those say it themselves.
//!
//! Not here: encodings (the drivers'), and the work of handlers.

mod bounds;
mod counts;
mod device;
mod dispatcher;
mod flat;
mod group;
mod handler;
mod leaving;
mod outcome;
mod registering;
mod request;
mod state;
#[cfg(test)]
mod tests;

pub use bounds::{Bounds, Flow};
pub use counts::{Cause, FaultCounts};
pub use device::ReplyPasid;
pub use dispatcher::Dispatcher;
pub use handler::{Group, Handler, Responder, Response};
pub use outcome::{Ended, NoMemory, QueueFull, RegisterError, Served, Taken};
pub use request::{
    BadRequest, GroupId, PageRequest, Permissions, Place, RawPageRequest, ReplyName, ReplyTo,
    RequestKind, StallTag,
};
