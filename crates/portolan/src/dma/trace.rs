//! Events for the platform's tracer, in Linux's words.
//!
//! *Context.* Interrupt: no heap; each function does nothing without a tracer.

use core::fmt::{self, Display, Formatter};

use super::layout::DmaSegment;
use super::policy::Direction;
use crate::addr::{Iova, IovaRange, PageSize, PhysRange};
use crate::iommu::{FaultAccess, FaultRecord, Requester};
use crate::platform::contract::Pieces;
use crate::platform::{Cpus, TraceEvent, TraceKind, Tracer};

impl Display for Requester {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "stream-{:x}", self.stream.get())?;
        match self.pasid {
            None => Ok(()),
            Some(pasid) => write!(f, ".{:x}", pasid.get()),
        }
    }
}

struct DirectionName(Direction);

impl Display for DirectionName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Direction::ToDevice => "TO_DEVICE",
            Direction::FromDevice => "FROM_DEVICE",
            Direction::Bidirectional => "BIDIRECTIONAL",
        })
    }
}

/// Numbers as an array: `{0x1,0x2}`.
struct Array<I>(I);

impl<I: Iterator<Item = u64> + Clone> Display for Array<I> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (at, number) in self.0.clone().enumerate() {
            let before = if at == 0 { "{" } else { "," };
            write!(f, "{before}{number:#x}")?;
        }
        f.write_str("}")
    }
}

fn emit(tracer: &dyn Tracer, kind: TraceKind, fields: fmt::Arguments<'_>) {
    tracer.event(&TraceEvent::new(kind, fields));
}

/// A buffer of a device, mapped.
pub(super) struct Traced<'m, S> {
    pub requester: Requester,
    pub direction: Direction,
    pub pieces: Pieces<'m>,
    pub segments: S,
}

impl<S: Iterator<Item = DmaSegment> + Clone> Traced<'_, S> {
    /// The only piece, and its first address.
    fn single(&self) -> Option<(PhysRange, u64)> {
        let mut segments = self.segments.clone();
        match (self.pieces.as_slice(), segments.next(), segments.next()) {
            ([piece], Some(segment), None) => Some((*piece, segment.iova.get())),
            _ => None,
        }
    }

    fn memory(&self) -> Array<impl Iterator<Item = u64> + Clone> {
        let pieces = self.pieces.as_slice().iter();
        Array(pieces.map(|piece| piece.start().get()))
    }

    /// Reports that it was mapped.
    #[cold]
    pub fn mapped(&self, tracer: &dyn Tracer) {
        let (device, direction) = (self.requester, DirectionName(self.direction));
        if let Some((piece, iova)) = self.single() {
            let (pa, bytes) = (piece.start().get(), piece.len_minus_one().saturating_add(1));
            return emit(
                tracer,
                TraceKind::Map,
                format_args!(
                    "{device} dir={direction} dma_addr={iova:x} size={bytes} phys_addr={pa:x} attrs="
                ),
            );
        }
        let count = self.segments.clone().count();
        let (pieces, memory) = (self.pieces.as_slice().len(), self.memory());
        let addresses = Array(self.segments.clone().map(|segment| segment.iova.get()));
        let sizes = Array(self.segments.clone().map(|segment| segment.bytes.get()));
        emit(
            tracer,
            TraceKind::MapList,
            format_args!(
                "{device} dir={direction} nents={pieces}/{pieces} ents={count}/{count} \
                 dma_addrs={addresses} sizes={sizes} phys_addrs={memory} attrs="
            ),
        );
    }

    /// Reports that it was unmapped.
    #[cold]
    pub fn unmapped(&self, tracer: &dyn Tracer) {
        let (device, direction) = (self.requester, DirectionName(self.direction));
        if let Some((piece, iova)) = self.single() {
            let bytes = piece.len_minus_one().saturating_add(1);
            return emit(
                tracer,
                TraceKind::Unmap,
                format_args!("{device} dir={direction} dma_addr={iova:x} size={bytes} attrs="),
            );
        }
        let memory = self.memory();
        emit(
            tracer,
            TraceKind::UnmapList,
            format_args!("{device} dir={direction} phys_addrs={memory} attrs="),
        );
    }
}

/// Reports coherent memory, allocated or freed.
#[inline]
pub(super) fn coherent(
    cpus: &impl Cpus,
    kind: TraceKind,
    device: Requester,
    iova: Iova,
    memory: PhysRange,
) {
    if let Some(tracer) = cpus.tracer() {
        let (iova, pa) = (iova.get(), memory.start().get());
        let (direction, bytes) =
            (DirectionName(Direction::Bidirectional), memory.len_minus_one() + 1);
        emit(
            tracer,
            kind,
            format_args!(
                "{device} dir={direction} dma_addr={iova:x} size={bytes} phys_addr={pa:x} \
                 flags= attrs="
            ),
        );
    }
}

/// Reports pieces that were mapped in pages of `granule`, one behind the other from `at`.
#[cold]
pub(super) fn table_mapped(tracer: &dyn Tracer, granule: PageSize, at: Iova, pieces: &[PhysRange]) {
    let mut iova = at.get();
    for piece in pieces {
        let pa = piece.start().align_down(granule).get();
        let bytes = piece.pages(granule) << granule.lg2();
        let after = iova.wrapping_add(bytes);
        emit(
            tracer,
            TraceKind::TableMap,
            format_args!("IOMMU: iova={iova:#018x} - {after:#018x} paddr={pa:#018x} size={bytes}"),
        );
        iova = after;
    }
}

/// Reports a range that was unmapped.
#[cold]
pub(super) fn table_unmapped(tracer: &dyn Tracer, range: IovaRange) {
    let (iova, bytes) = (range.start().get(), range.len_minus_one().wrapping_add(1));
    let after = iova.wrapping_add(bytes);
    emit(
        tracer,
        TraceKind::TableUnmap,
        format_args!("IOMMU: iova={iova:#018x} - {after:#018x} size={bytes} unmapped_size={bytes}"),
    );
}

/// Reports that `ranges` ranges were flushed.
#[cold]
pub(super) fn flushed(tracer: &dyn Tracer, ranges: usize) {
    emit(tracer, TraceKind::Flush, format_args!("ranges={ranges}"));
}

/// Reports an access that was refused.
#[cold]
pub(super) fn fault(tracer: &dyn Tracer, fault: &FaultRecord) {
    let (stream, pasid) = (fault.stream, fault.pasid);
    let device = Requester { stream, pasid };
    let iova = fault.iova.map_or(0, Iova::get);
    // IOMMU_FAULT_WRITE of Linux.
    let flags = u32::from(fault.access == Some(FaultAccess::Write));
    emit(
        tracer,
        TraceKind::Fault,
        format_args!("IOMMU:portolan {device} iova={iova:#018x} flags={flags:#06x}"),
    );
}
