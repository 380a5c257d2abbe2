//! Addresses for mappings.
//!
//! * [`IovaSpace`]: for all CPUs: per-CPU caches of magazines, depots, and ranges below them.
//! * [`RangeAllocator`]: contiguous ranges of one address space, from the top down, in a number of
//!   steps that grows with the logarithm of the number of free ranges and with nothing else; for
//!   one caller at a time.

mod class;
mod drain;
mod error;
mod exchange;
mod front;
mod ledger;
mod magazine;
mod order;
mod ranges;
mod reserve;
mod returns;
mod shortage;
mod space;
mod tree;

pub use drain::IovaStats;
pub use error::{FreeError, IovaError};
pub use order::AddressOrder;
pub use ranges::{RangeAllocator, Request};
pub use space::{Checks, IovaOptions, IovaSpace};
