//! A device's IOTLB: what a front-end has said, with bounds, for threads that look up and one that changes.
//!
//! [`sets`] has the translations, [`held`] what a look-up hands out, [`questions`] the misses that wait for an
//! answer, [`vhost`] puts them together, [`counts`] counts.

mod counts;
mod held;
mod questions;
mod set;
mod sets;
mod vhost;

pub use counts::Counts;
pub use held::IotlbGuard;
pub(crate) use set::Translation;
pub(crate) use sets::{Missing, Sets};
pub use sets::{Replacement, StillHeld};
pub(crate) use vhost::nothing;
pub use vhost::{ApplyError, IotlbOptions, SetMemoryError, VhostIotlb};
