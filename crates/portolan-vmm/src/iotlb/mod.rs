//! A device's IOTLB: the translations of a front-end, with bounds, for threads that look up and one that
//! changes.
//!
//! [`asked`] has the question of a look-up, [`sets`] the translations, [`held`] the result of a
//! look-up, [`questions`] the misses that wait for an answer, [`vhost`] puts them together, [`counts`]
//! counts.

mod asked;
mod counts;
mod held;
mod questions;
mod set;
mod sets;
mod vhost;

pub(crate) use asked::translate;
pub use counts::Counts;
pub use held::IotlbGuard;
pub(crate) use set::{EVERYTHING, Translation};
pub(crate) use sets::Sets;
pub use sets::{Replacement, StillHeld};
pub use vhost::{ApplyError, IotlbOptions, SetMemoryError, VhostIotlb};
