//! Addresses for mappings.
//!
//! * [`IovaSpace`]: for all CPUs: magazines, depots, and ranges below them.
//! * [`IovaLane`]: stocks of one owner, which nobody else reaches and which therefore need no lock.
//! * [`Chunk`]: a range in which many mappings are placed and which goes back whole.
//! * [`RangeAllocator`]: contiguous ranges of one address space, from the top down, in a number of
//!   steps that grows with the logarithm of the number of free ranges and with nothing else; for
//!   one caller at a time.

mod chunk;
mod class;
mod drain;
mod error;
mod exchange;
mod lane;
mod ledger;
mod magazine;
mod ranges;
mod reserve;
mod space;
mod tree;

pub use chunk::{Chunk, ChunkError, ChunkFull, ChunkInUse};
pub use drain::IovaStats;
pub use error::{FreeError, IovaError};
pub use lane::IovaLane;
pub use ranges::{RangeAllocator, Request};
pub use space::{Checks, IovaOptions, IovaSpace};
