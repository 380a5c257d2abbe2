//! Contents of a trace, the same for all policies: sizes, lifetimes, devices, CPUs, and the lines that show it.
//!
//! Streaming maps and coherent memory are apart. Everything counted has the first line of the trace that shows it.
//! Not looked at: pages in the middle of a buffer (a buffer is known by its beginning), and devices' accesses.

mod observer;

use std::collections::BTreeMap;

use serde::Serialize;

pub(super) use observer::Observer;

use crate::trace::Excerpt;

/// Operations that have something in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Number of operations.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Line of the first; its text is [`Shape::excerpt`]'s.
    pub first_line: Option<u64>,
}

/// By power of two: key `n` has those from 2^n on and below 2^(n+1); 0 is with 1.
pub type Histogram = BTreeMap<u8, Seen>;

/// Mappings of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClassShape {
    /// All of them.
    pub maps: Seen,
    /// Those that ended, with the line of the unmap.
    pub unmaps: Seen,
    /// By size in bytes.
    pub sizes: Histogram,
    /// Those that ended, by nanoseconds from map to unmap, with the line of the unmap.
    pub lifetimes_ns: Histogram,
    /// Sum of these times.
    pub lifetimes_sum_ns: u64,
    /// Those still mapped where the trace ends.
    pub left_mapped: u64,
}

/// Work of one device, or one CPU; of all devices (or CPUs) without counts of their own, their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The device's name, or the CPU's number.
    pub name: String,
    /// Maps, coherent ones included.
    pub maps: Seen,
    /// Unmaps, coherent ones included.
    pub unmaps: u64,
    /// Maps that were bounced, and the bytes bounced.
    pub bounced: Seen,
}

/// Streaming maps by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Directions {
    /// The device reads.
    pub to_device: Seen,
    /// The device writes.
    pub from_device: Seen,
    /// The device reads and writes.
    pub both: Seen,
    /// Neither.
    pub none: Seen,
}

/// Contents of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// From the first operation to the last one, where time does not step back.
    pub span_ns: u64,
    /// `dma_map_*`.
    pub streaming: ClassShape,
    /// `dma_alloc*`.
    pub coherent: ClassShape,
    /// Streaming maps by the number of pieces of contiguous memory.
    pub pieces: Histogram,
    /// Those pieces by size in bytes.
    pub piece_sizes: Histogram,
    /// Maps of several pieces, none longer than a page.
    pub scattered: Seen,
    /// The pieces of these.
    pub scattered_pieces: u64,
    /// Maps that begin inside a page.
    pub off_page: Seen,
    /// Maps shorter than a page.
    pub short: Seen,
    /// Maps of more pages than Linux's caches of addresses serve.
    pub above_caches: Seen,
    /// Maps of a buffer that the same device had mapped before.
    pub reused: Seen,
    /// Of these, as in [`ClassShape::lifetimes_ns`].
    pub reused_lifetimes_ns: Histogram,
    /// Of these, those that a device writes and that are shorter than a page, as packets are.
    pub packets_again: Seen,
    /// Different buffers.
    pub buffers: u64,
    /// Maps of buffers that may have been mapped before or not: there were too many buffers to know.
    pub reuse_unknown: u64,
    /// Streaming maps by direction.
    pub directions: Directions,
    /// Maps with DMA addresses of 4 GiB and more in the traced system; the others are below.
    pub dma_above_4g: Seen,
    /// Maps of memory at 4 GiB and more.
    pub memory_above_4g: Seen,
    /// Maps whose DMA address is the memory's own: nothing translated it.
    pub untranslated: Seen,
    /// Maps that the traced system bounced, and the bytes bounced.
    pub bounced: Seen,
    /// Bytes that these had copied: once for buffers that a device reads, twice for those that it writes.
    pub bounce_copied_bytes: u64,
    /// Most slots of 2 KiB that these took at once.
    pub bounced_slots_peak: u64,
    /// The line with which they were so many.
    pub bounced_slots_peak_at: Option<Excerpt>,
    /// By device, in the order in which the trace has them.
    pub devices: Vec<Share>,
    /// The devices beyond these.
    pub other_devices: Share,
    /// By CPU.
    pub cpus: Vec<Share>,
    /// The CPUs beyond these.
    pub other_cpus: Share,
    #[serde(skip)]
    excerpts: BTreeMap<u64, Excerpt>,
}

impl Shape {
    /// The line that shows the first of `seen`.
    pub fn excerpt(&self, seen: &Seen) -> Option<&Excerpt> {
        self.excerpts.get(&seen.first_line?)
    }
}
