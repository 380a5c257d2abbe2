//! Benchmarks of the page tables and of the allocator of addresses: the same scenarios for wall
//! time, for instruction counts and for the command line.
//!
//! * [`scenarios`]: the operations: preparation, the operation, and the plain loop to compare with.
//! * [`measure`]: repeated timing of a scenario, and the rows that come of it.
//! * [`bounce`]: bounce slots on real threads, with copies.
//! * [`fault`]: serving I/O page faults on this process's own memory.
//! * [`iotlb`]: look-ups in a virtual machine's device's IOTLB.
//! * [`sharing`]: two threads in one table, beside two virtual CPUs.
//! * [`linux`]: Linux's own code as a peer.
//! * [`memory`]: heap memory of a device's space.
//! * [`no_sse`]: the library compiled as a kernel is, without SSE.
//! * [`text`]: the reports for people.
//! * [`page`]: docs/performance.md, made of the figures of machines.
//!
//! Nothing here measures hardware.
#![deny(unsafe_code)]

extern crate alloc;

mod addresses;
pub mod bounce;
mod commands;
pub mod fault;
mod figures;
mod formats;
pub mod iotlb;
pub mod linux;
mod lists;
mod live;
mod mappings;
mod markdown;
mod marks;
pub mod measure;
pub mod memory;
pub mod no_sse;
mod owned;
pub mod page;
mod plain;
mod raw;
mod rig;
pub mod scenarios;
pub mod sharing;
mod singles;
mod space;
mod spans;
pub mod spread;
mod tables_of_others;
pub mod text;
mod threads;
mod unit;
mod workload;

pub use measure::BenchRow;
pub use scenarios::{Scenario, all};
pub use workload::{Cache, Failure, Workload};
