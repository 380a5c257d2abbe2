//! The scenarios: the measured operations, and the code that each is compared with.
//!
//! Tables are Armv8 stage 1, 39-bit input addresses, 4 KiB granule, on the heap, except where a name begins with
//! another format's. Each scenario starts
//! from the state that its description names and comes back to it through the library itself.

mod buffers;
mod formats;
mod live;
mod mappings;
mod marks;
mod tables;

use crate::linux;
use crate::workload::{Cache, Failure, Workload};

/// Kind of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// The mean of a pass of many calls.
    Pass,
    /// A single call, so that the slowest are seen; with the time that reading the clock takes.
    Call,
}

/// Target of a scenario, in the same run, by medians unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// At least this many times as fast as Linux's code.
    Linux(f64),
    /// At least this many times as fast as Linux's code, by the mean.
    LinuxMean(f64),
    /// At least this many times as fast as Linux's code, by the slowest hundredth.
    LinuxP99(f64),
    /// At least this many times as fast as Linux's code, by the slowest thousandth.
    LinuxP999(f64),
    /// At most this many times the limit.
    Limit(f64),
}

type Make = fn() -> Result<Box<dyn Workload>, Failure>;

/// A benchmark.
pub struct Scenario {
    /// Name, as given on the command line.
    pub name: &'static str,
    /// Operation that is measured.
    pub what: &'static str,
    /// Bytes that one call maps or unmaps.
    pub size_bytes: u64,
    /// Unit of the figures.
    pub unit: &'static str,
    /// State of the caches.
    pub cache: Cache,
    /// Threads at work.
    pub threads: u32,
    /// Kind of a sample: a pass of many calls, or one call.
    pub sample: Sample,
    /// Peers that are measured in the same run.
    pub peers: &'static [(&'static str, Make)],
    /// Targets of the scenario.
    pub targets: &'static [Target],
    /// Work of the plain loop.
    pub limit: &'static str,
    /// Makes the operation.
    pub make: Make,
    /// Makes the plain loop.
    pub make_limit: Make,
}

/// All scenarios.
pub fn all() -> Vec<Scenario> {
    let mut all = tables::all();
    all.extend(formats::all());
    all.extend(marks::all());
    all.extend(buffers::all());
    all.extend(mappings::all());
    all.extend(live::all());
    all
}

/// The name of Linux's code as a peer.
const LINUX: &str = linux::NAME;
/// The name of the newer version's DMA layer as a peer.
const NEWER_LINUX: &str = linux::NEWER_NAME;
/// The name of Linux's generic page tables as a peer.
const GENERIC_PT: &str = linux::GENERIC_PT_NAME;
