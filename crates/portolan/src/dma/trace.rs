//! Events for the platform's tracer, in Linux's words.
//!
//! *Context.* Interrupt: no heap; each function does nothing without a tracer.

use core::fmt::{self, Display, Formatter};

use super::direction::Direction;
use super::segments::DmaSegments;
use super::space::DmaSpace;
use super::streams::Requester;
use crate::addr::{Iova, IovaRange, PhysRange};
use crate::iommu::{FaultAccess, FaultEvent, FaultRecord, IommuError};
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

struct Name(Direction);

impl Display for Name {
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
pub(super) struct Traced<'m> {
    pub requester: Requester,
    pub direction: Direction,
    pub pieces: Pieces<'m>,
    pub segments: DmaSegments<'m>,
}

impl Traced<'_> {
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
        let (device, direction) = (self.requester, Name(self.direction));
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
        let (device, direction) = (self.requester, Name(self.direction));
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
    (iova, memory): (Iova, PhysRange),
) {
    if let Some(tracer) = cpus.tracer() {
        let (iova, pa) = (iova.get(), memory.start().get());
        let (direction, bytes) = (Name(Direction::Bidirectional), memory.len_minus_one() + 1);
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

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Reports pieces that were mapped one behind the other from `at`.
    #[inline]
    pub(super) fn trace_map(&self, at: Iova, pieces: &[PhysRange]) {
        if let Some(tracer) = self.cpus.tracer() {
            let (granule, mut iova) = (self.granule(), at.get());
            for piece in pieces {
                let pa = piece.start().align_down(granule).get();
                let bytes = piece.pages(granule) << granule.lg2();
                let after = iova.wrapping_add(bytes);
                emit(
                    tracer,
                    TraceKind::TableMap,
                    format_args!(
                        "IOMMU: iova={iova:#018x} - {after:#018x} paddr={pa:#018x} size={bytes}"
                    ),
                );
                iova = after;
            }
        }
    }

    /// Reports a range that was unmapped.
    #[inline]
    pub(super) fn trace_unmap(&self, range: IovaRange) {
        if let Some(tracer) = self.cpus.tracer() {
            let (iova, bytes) = (range.start().get(), range.len_minus_one().wrapping_add(1));
            let after = iova.wrapping_add(bytes);
            emit(
                tracer,
                TraceKind::TableUnmap,
                format_args!(
                    "IOMMU: iova={iova:#018x} - {after:#018x} size={bytes} unmapped_size={bytes}"
                ),
            );
        }
    }

    /// Reports that `ranges` ranges became quiet.
    #[inline]
    pub(super) fn trace_flush(&self, ranges: usize) {
        if let Some(tracer) = self.cpus.tracer() {
            emit(tracer, TraceKind::Flush, format_args!("ranges={ranges}"));
        }
    }

    /// The oldest thing that the space's unit has to say of refused accesses, which is reported to
    /// the tracer. A unit's other spaces share its records.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// As [`Iommu::next_fault`](crate::iommu::Iommu::next_fault).
    pub fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        let event = self.bound.unit().next_fault()?;
        if let (Some(FaultEvent::Fault(fault)), Some(tracer)) = (event, self.cpus.tracer()) {
            trace_fault(tracer, &fault);
        }
        Ok(event)
    }
}

#[cold]
fn trace_fault(tracer: &dyn Tracer, fault: &FaultRecord) {
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
