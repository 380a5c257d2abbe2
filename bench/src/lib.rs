//! Benchmarks of the page tables and of the allocator of addresses: the same scenarios for wall
//! time, for instruction counts and for the command line.
//!
//! * [`scenarios`]: what is done: preparation, the operation, and the plain loop to compare with.
//! * [`measure`]: repeated timing of a scenario, and the rows that come of it.
//! * [`bounce`]: bounce slots on real threads, with copies.
//! * [`fault`]: serving I/O page faults on this process's own memory.
//! * [`text`]: the reports for people.
//!
//! Nothing here measures hardware.
#![deny(unsafe_code)]

pub mod addresses;
pub mod bounce;
mod buffers;
mod copied;
pub mod fault;
mod full;
pub mod linux_like;
mod lists;
mod mappings;
pub mod measure;
mod plain;
mod rig;
pub mod scenarios;
mod singles;
pub mod text;
mod workload;

pub use measure::BenchRow;
pub use scenarios::{Scenario, all};
pub use workload::{Cache, Failure, Workload};
