//! Addresses for mappings.
//!
//! [`RangeAllocator`] hands out contiguous ranges of one address space, from the top down, in a
//! number of steps that grows with the logarithm of the number of free ranges and with nothing
//! else. It is for one caller at a time: put it behind a lock, and a cache before that.
//!
//! Not here yet: per-CPU magazines and their depot, chunks.

mod ranges;
mod space;
mod tree;

pub use ranges::{FreeError, IovaError, RangeAllocator, Request};
pub use space::{IovaOptions, IovaSpace};
