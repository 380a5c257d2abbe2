//! Addresses for mappings.
//!
//! * [`IovaSpace`]: for all CPUs: magazines, depots, and ranges below them.
//! * [`RangeAllocator`]: contiguous ranges of one address space, from the top down, in a number of
//!   steps that grows with the logarithm of the number of free ranges and with nothing else; for
//!   one caller at a time.

mod magazine;
mod ranges;
mod space;
mod tree;

pub use ranges::{FreeError, IovaError, RangeAllocator, Request};
pub use space::{IovaOptions, IovaSpace, IovaStats};
