//! Reports of the library's operations, as Linux's ftrace prints the same.
//!
//! Events and fields are those of Linux 6.12 (include/trace/events/dma.h and iommu.h), so that tools
//! for its traces read them: `portolan replay` does. A flush has no event there.
//!
//! *Context.* Interrupt: everything here is a value, or formats one.

use core::fmt::{self, Display, Formatter};

use super::Nanos;
use crate::addr::CpuId;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceKind {
    /// A contiguous buffer was mapped.
    Map,
    /// A scatter list was mapped.
    MapList,
    /// A contiguous buffer was unmapped.
    Unmap,
    /// A scatter list was unmapped.
    UnmapList,
    /// Coherent memory was allocated.
    Alloc,
    /// Coherent memory was freed.
    Free,
    /// A piece was entered in a table.
    TableMap,
    /// A range was taken out of a table.
    TableUnmap,
    /// Unmapped ranges were invalidated, and no device reaches them any more.
    Flush,
    /// A unit refused an access.
    Fault,
}

impl TraceKind {
    /// The event's name in Linux.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Map => "dma_map_phys",
            Self::MapList => "dma_map_sg",
            Self::Unmap => "dma_unmap_phys",
            Self::UnmapList => "dma_unmap_sg",
            Self::Alloc => "dma_alloc",
            Self::Free => "dma_free",
            Self::TableMap => "map",
            Self::TableUnmap => "unmap",
            Self::Flush => "iotlb_flush",
            Self::Fault => "io_page_fault",
        }
    }
}

/// One event. It displays as Linux prints its name and fields.
#[derive(Clone, Copy)]
pub struct TraceEvent<'e> {
    kind: TraceKind,
    fields: fmt::Arguments<'e>,
}

impl<'e> TraceEvent<'e> {
    pub(crate) const fn new(kind: TraceKind, fields: fmt::Arguments<'e>) -> Self {
        Self { kind, fields }
    }

    /// Kind of the event.
    pub const fn kind(&self) -> TraceKind {
        self.kind
    }

    /// The event as a line of ftrace, without its end.
    pub const fn line(&self, cpu: CpuId, at: Nanos) -> TraceLine<'e> {
        let event = *self;
        TraceLine { event, cpu, at }
    }
}

impl Display for TraceEvent<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.fields)
    }
}

impl fmt::Debug for TraceEvent<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// An event with its time and place: `portolan-0 [001] ..... 12.000000345: unmap: IOMMU: iova=…`.
#[derive(Clone, Copy, Debug)]
pub struct TraceLine<'e> {
    event: TraceEvent<'e>,
    cpu: CpuId,
    at: Nanos,
}

impl Display for TraceLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (cpu, at) = (self.cpu.get(), self.at.get());
        let (seconds, rest) = (at / 1_000_000_000, at % 1_000_000_000);
        let event = &self.event;
        write!(f, "portolan-0 [{cpu:03}] ..... {seconds}.{rest:09}: {event}")
    }
}

/// Takes the library's events: see [`Cpus::tracer`](super::Cpus::tracer).
///
/// ```
/// use std::sync::Mutex;
/// use portolan::addr::CpuId;
/// use portolan::platform::{Nanos, TraceEvent, Tracer};
///
/// /// Lines for `portolan replay`.
/// #[derive(Default)]
/// struct Lines(Mutex<String>);
///
/// impl Tracer for Lines {
///     fn event(&self, event: &TraceEvent<'_>) {
///         // A kernel takes its own CPU and time, and writes into a buffer of that CPU.
///         let line = event.line(CpuId::new(0), Nanos::new(0));
///         *self.0.lock().unwrap() += &format!("{line}\n");
///     }
/// }
/// ```
pub trait Tracer {
    /// Called after each event, where the library was called: in interrupts too. It must not call the
    /// library, and holds up the caller for as long as it takes.
    fn event(&self, event: &TraceEvent<'_>);
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    #[test]
    fn a_line_has_its_cpu_and_its_time_to_the_nanosecond() {
        let event = TraceEvent::new(TraceKind::Flush, format_args!("domain=7"));
        let line = event.line(CpuId::new(12), Nanos::new(3_000_000_045));
        let text = "portolan-0 [012] ..... 3.000000045: iotlb_flush: domain=7";
        assert_eq!(line.to_string(), text);
        assert_eq!(alloc::format!("{event:?}"), "iotlb_flush: domain=7");
        assert_eq!(event.kind(), TraceKind::Flush);
    }
}
