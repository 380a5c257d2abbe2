//! I/O page faults: what devices ask for, who decides, and one response for each group.
//!
//! * [`RawPageRequest`] is what a driver read; [`PageRequest`] is one that makes sense by itself.
//! * [`Handler`] decides about a [`Group`], [`Responder`] carries the [`Response`].
//! * [`Dispatcher`] stands between: it collects groups, bounds what devices use up ([`Bounds`]),
//!   gives each group to who has registered for it, and sees to it that each gets one response.
//!
//! *Context.* Interrupt: everything here but [`Dispatcher`], [`Handler`] and [`Responder`] is a
//! value; those say it themselves.
//!
//! Not here: encodings (the drivers'), and what handlers do.

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
