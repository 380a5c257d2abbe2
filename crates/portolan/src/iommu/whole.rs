//! Mappings that another party keeps whole: a hypervisor, or the kernel.
//!
//! Such a domain has no tables. It records what it has asked for, and the other party neither cuts nor joins
//! mappings. The rules for what can be mapped and unmapped are here, the records and their progress the domain's.
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use core::iter::Peekable;

use super::Domain;
use crate::addr::{Iova, IovaRange, PhysAddr, PhysRange};
use crate::inval::Gather;
use crate::table::{Access, Segment, TableAccessError, TableMapError, TableUnmapError};

/// A mapping that is kept whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeMapping {
    /// Addresses of the device.
    pub range: IovaRange,
    /// Start of the memory.
    pub pa: PhysAddr,
    /// Access of the device.
    pub access: Access,
}

impl WholeMapping {
    /// The memory at `iova`; `None` if the mapping does not hold it.
    pub fn memory_at(&self, iova: Iova) -> Option<PhysAddr> {
        let above = iova.get().checked_sub(self.range.start().get())?;
        self.pa.checked_add(above).filter(|_| self.range.contains(iova))
    }
}

/// Limits of a domain for whole mappings.
#[derive(Clone, Copy, Debug)]
pub struct WholeMappings<'d, D: ?Sized> {
    /// The domain.
    pub domain: &'d D,
    /// Ranges that can be mapped. No mapping lies in two.
    pub ranges: &'d [IovaRange],
    /// Tells if the other party can map with an access.
    pub allows: fn(&D, Access) -> bool,
}

impl<D: Domain + ?Sized> WholeMappings<'_, D> {
    /// Hands `each` the mappings for `segments` from `iova` on, one for neighbours in memory; returns the range of
    /// all.
    ///
    /// # Errors
    /// For the first segment that cannot be mapped, or the first error of `each`. Mappings before it were handed
    /// over.
    pub fn place(
        &self,
        iova: Iova,
        segments: impl Iterator<Item = Segment>,
        access: Access,
        mut each: impl FnMut(WholeMapping) -> Result<(), TableMapError>,
    ) -> Result<IovaRange, TableMapError> {
        let mut all: Option<IovaRange> = None;
        for segment in JoinedSegments(segments.peekable()) {
            let past = TableMapError::IovaOutOfRange { iova };
            let at = match all {
                Some(range) => range.last().checked_add(1).ok_or(past)?,
                None => iova,
            };
            let mapping = self.checked(at, segment, access)?;
            all = Some(all.map_or(mapping.range, |range| range.hull(mapping.range)));
            each(mapping)?;
        }
        all.ok_or(TableMapError::Empty { iova })
    }

    fn checked(
        &self,
        iova: Iova,
        segment: Segment,
        access: Access,
    ) -> Result<WholeMapping, TableMapError> {
        let Segment { pa, bytes } = segment;
        let granule = self.domain.granule();
        if bytes == 0 {
            return Err(TableMapError::Empty { iova });
        }
        if !iova.is_aligned(granule) {
            return Err(TableMapError::UnalignedIova { iova });
        }
        if !pa.is_aligned(granule) || bytes & (granule.bytes() - 1) != 0 {
            return Err(TableMapError::UnalignedMemory { pa, bytes });
        }
        if !(self.allows)(self.domain, access) {
            return Err(TableAccessError { access }.into());
        }
        let range = IovaRange::from_len(iova, bytes);
        let range = range.filter(|range| self.ranges.iter().any(|one| one.covers(*range)));
        let range = range.ok_or(TableMapError::IovaOutOfRange { iova })?;
        PhysRange::from_len(pa, bytes).ok_or(TableMapError::MemoryOutOfRange { pa, bytes })?;
        Ok(WholeMapping { range, pa, access })
    }

    /// Checks that `range` can be unmapped: whole mappings hold all of it, and nothing else. `mapped` gives the
    /// range of the mapping at an address, if there is one that is not unmapped yet.
    ///
    /// # Errors
    /// [`TableUnmapError::NotMapped`] with the first address of a hole; if there is none,
    /// [`TableUnmapError::NeedsSplit`] with a mapping that would be cut; otherwise as the range or the debt says.
    pub fn check_unmap(
        &self,
        range: IovaRange,
        owed: &Gather,
        mut mapped: impl FnMut(Iova) -> Option<IovaRange>,
    ) -> Result<(), TableUnmapError> {
        owed.check(self.domain.id())?;
        let granule = self.domain.granule();
        let after = Iova::new(range.last().get().wrapping_add(1));
        if !range.start().is_aligned(granule) || !after.is_aligned(granule) {
            return Err(TableUnmapError::Unaligned { range });
        }
        if !self.domain.input_range().covers(range) {
            return Err(TableUnmapError::OutOfRange { range });
        }
        let (mut cut, mut next) = (None, Some(range.start()));
        while let Some(iova) = next {
            let block = mapped(iova).ok_or(TableUnmapError::NotMapped { iova })?;
            cut = cut.or((!range.covers(block)).then_some(block));
            next = block.last().checked_add(1).filter(|next| *next <= range.last());
        }
        match cut {
            Some(block) => Err(TableUnmapError::NeedsSplit { block }),
            None => Ok(()),
        }
    }
}

/// Segments, with those that are neighbours in memory made one.
struct JoinedSegments<I: Iterator<Item = Segment>>(Peekable<I>);

impl<I: Iterator<Item = Segment>> Iterator for JoinedSegments<I> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let mut one = self.0.next()?;
        while let Some(next) = self.0.peek() {
            let joined = one.bytes.checked_add(next.bytes);
            let touch = one.pa.checked_add(one.bytes) == Some(next.pa);
            match joined {
                // A segment of no bytes is an error of its own.
                Some(bytes) if touch && one.bytes != 0 && next.bytes != 0 => one.bytes = bytes,
                _ => break,
            }
            self.0.next();
        }
        Some(one)
    }
}
