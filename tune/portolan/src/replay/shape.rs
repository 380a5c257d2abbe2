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
pub struct OperationGroup {
    /// Number of operations.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Line of the first; its text is [`TraceShape::excerpt`]'s.
    pub first_line: Option<u64>,
}

/// Operations by power of two: key `n` counts from 2^n up to 2^(n+1), excluded; 0 is counted with 1.
pub type Histogram = BTreeMap<u8, OperationGroup>;

/// Mappings of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClassShape {
    /// All maps.
    pub maps: OperationGroup,
    /// Maps that ended, with the line of the unmap.
    pub unmaps: OperationGroup,
    /// Maps by size in bytes.
    pub sizes: Histogram,
    /// Maps that ended, by nanoseconds from map to unmap, with the line of the unmap.
    pub lifetimes_ns: Histogram,
    /// Sum of these times.
    pub lifetimes_sum_ns: u64,
    /// Maps that are still mapped at the end of the trace.
    pub left_mapped: u64,
}

/// Work of one device, or one CPU; of all devices (or CPUs) without counts of their own, their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The device's name, or the CPU's number.
    pub name: String,
    /// Maps, coherent ones included.
    pub maps: OperationGroup,
    /// Unmaps, coherent ones included.
    pub unmaps: u64,
    /// Maps that were bounced, and the bytes bounced.
    pub bounced: OperationGroup,
}

/// Streaming maps by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Directions {
    /// The device reads.
    pub to_device: OperationGroup,
    /// The device writes.
    pub from_device: OperationGroup,
    /// The device reads and writes.
    pub both: OperationGroup,
    /// Maps without a direction.
    pub none: OperationGroup,
}

/// Contents of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TraceShape {
    /// Time from the first operation to the last, in a time that never steps back.
    pub span_ns: u64,
    /// `dma_map_*`.
    pub streaming: ClassShape,
    /// `dma_alloc*`.
    pub coherent: ClassShape,
    /// Streaming maps by the number of pieces of contiguous memory.
    pub pieces: Histogram,
    /// Pieces by size in bytes.
    pub piece_sizes: Histogram,
    /// Maps of several pieces, none longer than a page.
    pub scattered: OperationGroup,
    /// The pieces of these.
    pub scattered_pieces: u64,
    /// Maps that begin inside a page.
    pub off_page: OperationGroup,
    /// Maps shorter than a page.
    pub short: OperationGroup,
    /// Maps of more pages than Linux's caches of addresses serve.
    pub above_caches: OperationGroup,
    /// Maps of a buffer that the same device had mapped before.
    pub reused: OperationGroup,
    /// Lifetimes of these, as in [`ClassShape::lifetimes_ns`].
    pub reused_lifetimes_ns: Histogram,
    /// Reused buffers that a device writes and that are shorter than a page, like packets.
    pub packets_again: OperationGroup,
    /// Different buffers.
    pub buffers: u64,
    /// Maps of buffers that may have been mapped before or not: there were too many buffers to know.
    pub reuse_unknown: u64,
    /// Streaming maps by direction.
    pub directions: Directions,
    /// Maps with DMA addresses of 4 GiB and above in the traced system.
    pub dma_above_4g: OperationGroup,
    /// Maps of memory at 4 GiB and more.
    pub memory_above_4g: OperationGroup,
    /// Maps whose DMA address is the memory's own: nothing translated it.
    pub untranslated: OperationGroup,
    /// Maps that the traced system bounced, and the bytes bounced.
    pub bounced: OperationGroup,
    /// Bytes copied for these: once if a device reads the buffer, twice if it writes.
    pub bounce_copied_bytes: u64,
    /// Most slots of 2 KiB that these took at once.
    pub bounced_slots_peak: u64,
    /// The line with which they were so many.
    pub bounced_slots_peak_at: Option<Excerpt>,
    /// Shares of devices, in the order in which they appear.
    pub devices: Vec<Share>,
    /// The devices beyond these.
    pub other_devices: Share,
    /// Shares of CPUs.
    pub cpus: Vec<Share>,
    /// The CPUs beyond these.
    pub other_cpus: Share,
    #[serde(skip)]
    excerpts: BTreeMap<u64, Excerpt>,
}

impl TraceShape {
    /// The line that shows the first of `seen`.
    pub fn excerpt(&self, seen: &OperationGroup) -> Option<&Excerpt> {
        self.excerpts.get(&seen.first_line?)
    }
}
