//! Spaces over a real table and a queue that completes or fails as it is told.

mod buffers;
mod copies;
mod failures;
mod ownership;
mod policies;
mod rig;
mod standing;
