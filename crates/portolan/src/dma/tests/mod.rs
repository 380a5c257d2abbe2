//! Spaces over a real table and a queue that completes or fails as it is told.

mod bounded;
pub(crate) mod buffers;
mod bytes;
mod claimed;
mod confidential;
mod copies;
mod defaults;
mod direct;
mod doorbells;
mod failures;
mod handlers;
mod like_in_place;
mod machine;
mod ownership;
mod placing;
mod policies;
mod premapped;
mod records;
mod registers;
mod rig;
mod sequences;
mod shared;
mod shortages;
mod streams;
mod traced;
mod trusted;
