//! I/O page faults: what devices ask for, who decides, and one response for each group.
//!
//! * [`RawPageRequest`] is what a driver read; [`PageRequest`] is one that makes sense by itself.
//! * [`Handler`] decides about a [`Group`], [`Responder`] carries the [`Response`].
//!
//! Not here: encodings (the drivers'), and what handlers do.

mod handler;
mod request;

pub use handler::{Group, Handler, Responder, Response};
pub use request::{
    BadRequest, GroupId, PageRequest, Place, RawPageRequest, ReplyName, ReplyTo, RequestKind,
    StallTag, Wants,
};
