//! Addresses that streams of a space must not be given: interrupt windows, and the memory of
//! firmware's devices.

use alloc::vec::Vec;

use super::DmaSpace;
use crate::addr::{Iova, IovaRange, PhysAddr, PhysRange, StreamId};
use crate::dma::error::{DeviceError, MapError};
use crate::dma::flush_queue::HeldRange;
use crate::dma::policy::Trust;
use crate::inval::Gather;
use crate::iommu::{ReservedKind, ReservedRegion, disjoint};
use crate::iova::FreeError;
use crate::platform::contract::DmaMemory;
use crate::platform::{Cpus, Lock};
use crate::table::Access;

/// Addresses that were set aside in a space, those of them that are mapped one to one, those of
/// doorbells, and those that are held until they are quiet.
///
/// *Context.* Interrupt: made with no heap memory.
pub(in crate::dma) struct Regions {
    pub aside: Vec<IovaRange>,
    pub direct: Vec<(IovaRange, Access)>,
    /// Pages of registers, and where they are mapped.
    pub doorbells: Vec<(PhysRange, IovaRange)>,
    /// Unmapped, and given back once they are quiet.
    pub held: Vec<HeldRange>,
    /// Those of `aside` that a former kernel has mapped, and that no driver has taken over.
    pub former: Vec<IovaRange>,
}

impl Regions {
    pub const fn new() -> Self {
        Self {
            aside: Vec::new(),
            direct: Vec::new(),
            doorbells: Vec::new(),
            held: Vec::new(),
            former: Vec::new(),
        }
    }

    /// The range with `iova` that is held.
    pub fn held_with(&self, iova: Iova) -> Option<IovaRange> {
        let mut ranges = self.held.iter().map(|held| held.range);
        ranges.find(|range| range.contains(iova))
    }

    /// Range that was set aside with `iova`.
    pub fn set_aside(&self, iova: Iova) -> Option<IovaRange> {
        self.aside.iter().find(|range| range.contains(iova)).copied()
    }
}

/// The lowest part of `range` that none of `there` has.
pub(super) fn missing(
    range: IovaRange,
    there: impl Iterator<Item = IovaRange> + Clone,
) -> Option<IovaRange> {
    let mut start = range.start();
    while let Some(over) = there.clone().find(|over| over.contains(start)) {
        start = over.last().checked_add(1).filter(|at| *at <= range.last())?;
    }
    let above = there.filter(|over| over.start() > start);
    let last = above.map(|over| Iova::new(over.start().get() - 1)).min();
    IovaRange::new(start, last.unwrap_or(range.last()).min(range.last()))
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Sets `range` aside, so that no mapping gets it: for addresses with a meaning of their own.
    /// Addresses that a unit reserves for a stream are set aside when the stream is attached.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If part of it is in use: [`FreeError::InUse`].
    pub fn reserve(&self, range: IovaRange) -> Result<(), FreeError> {
        let Some(range) = self.granules(range).intersection(self.iova.window()) else {
            return Ok(());
        };
        let next = || self.regions.with(|known| missing(range, known.aside.iter().copied()));
        while let Some(part) = next() {
            if let Err(error) = self.or_flushed(|| self.iova.reserve_free(part)) {
                // Unless another caller has set it aside meanwhile.
                if next() == Some(part) {
                    return Err(error);
                }
                continue;
            }
            self.note(part, |known| &mut known.aside).map_err(|()| FreeError::Memory)?;
        }
        Ok(())
    }

    /// Adds `one` to a list, whose memory is taken and given back outside of the lock.
    pub(in crate::dma) fn note<T: Copy + Send>(
        &self,
        one: T,
        list: impl Fn(&mut Regions) -> &mut Vec<T>,
    ) -> Result<(), ()> {
        self.with_room(&list, |known| list(known).push(one))
    }

    /// Changes the regions, once a list has room for one more.
    pub(super) fn with_room<T: Copy + Send, R: Send>(
        &self,
        list: impl Fn(&mut Regions) -> &mut Vec<T>,
        change: impl Fn(&mut Regions) -> R,
    ) -> Result<R, ()> {
        let mut spare = Vec::new();
        loop {
            let changed = self.regions.with(|known| {
                let of = list(known);
                if of.len() == of.capacity() && spare.capacity() > of.len() {
                    spare.append(of);
                    core::mem::swap(&mut spare, of);
                }
                match of.len() < of.capacity() {
                    true => Ok(change(known)),
                    false => Err(of.len()),
                }
            });
            match changed {
                Ok(result) => return Ok(result),
                Err(length) => {
                    spare.try_reserve_exact((length + 1).next_power_of_two()).map_err(|_| ())?;
                }
            }
        }
    }

    /// The whole granules around `range`.
    pub(in crate::dma) fn granules(&self, range: IovaRange) -> IovaRange {
        let inside = self.granule().bytes() - 1;
        let (start, last) = (range.start().get() & !inside, range.last().get() | inside);
        IovaRange::new(Iova::new(start), Iova::new(last)).unwrap_or(range)
    }

    /// Sets aside the addresses that the unit reserves for `stream`, and maps the memory of
    /// firmware's devices one to one.
    pub(in crate::dma) fn keep_off_reserved(&self, stream: StreamId) -> Result<(), DeviceError> {
        let (mut regions, mut memory) = (Vec::new(), Ok(()));
        self.bound.unit().reserved(stream, &mut |region| {
            memory = memory.and_then(|()| regions.try_reserve(1).map_err(drop));
            if memory.is_ok() {
                regions.push(region);
            }
        });
        memory.map_err(|()| DeviceError::Memory)?;
        let regions = disjoint(&regions, self.granule())?;
        if self.trust() == Some(Trust::Untrusted) {
            self.check_direct(&regions)?;
        }
        for region in regions {
            self.keep_off(region)?;
        }
        Ok(())
    }

    /// Checks the regions that firmware's devices use one to one, as all devices of a space reach
    /// them: where not all are trusted, a stream beside others has the same regions as they, to the
    /// byte, or is refused.
    fn check_direct(&self, own: &[ReservedRegion]) -> Result<(), DeviceError> {
        if self.streams.with(|streams| streams.members.len()) <= 1 {
            return Ok(());
        }
        let direct = own.iter().filter(|region| region.kind.direct().is_some());
        let own = || direct.clone().map(|region| region.range);
        let same = self.regions.with(|known| {
            let there = || known.direct.iter().map(|(range, _)| *range);
            own().all(|range| missing(range, there()).is_none())
                && there().all(|range| missing(range, own()).is_none())
        });
        match same {
            true => Ok(()),
            false => Err(DeviceError::LessTrusted),
        }
    }

    fn keep_off(&self, region: ReservedRegion) -> Result<(), DeviceError> {
        let range = region.range;
        match region.kind {
            ReservedKind::Interrupts | ReservedKind::Unusable => self.set_aside(range),
            // No driver has the device yet, and the mapping stays for the drivers that come after
            // it.
            ReservedKind::Direct(access) | ReservedKind::DirectUntilDriven(access) => {
                self.set_aside(range)?;
                // An access that cannot be granted is the map's to refuse.
                let granted = self.domain.grants(access).unwrap_or(access);
                self.map_direct(range, granted)
            }
            // A page of memory, which other callers map anywhere they like.
            ReservedKind::Doorbell => Ok(()),
        }
    }

    fn set_aside(&self, range: IovaRange) -> Result<(), DeviceError> {
        self.reserve(range).map_err(|error| match error {
            FreeError::Memory => DeviceError::Memory,
            _ => DeviceError::Reserved { range },
        })
    }

    /// Maps those parts of `range`, which is set aside, that are not yet mapped, at their physical
    /// addresses.
    fn map_direct(&self, range: IovaRange, access: Access) -> Result<(), DeviceError> {
        let less = self.regions.with(|known| {
            let over = known
                .direct
                .iter()
                .find(|(there, granted)| there.overlaps(range) && !granted.contains(access));
            over.copied()
        });
        if let Some((range, _)) = less {
            return Err(DeviceError::Reserved { range });
        }
        let next = || {
            self.regions.with(|known| {
                let there = known.direct.iter().map(|(there, _)| *there);
                missing(range, there)
            })
        };
        while let Some(part) = next() {
            self.map_one_to_one(part, access)?;
            self.note((part, access), |known| &mut known.direct)
                .map_err(|()| DeviceError::Memory)?;
        }
        Ok(())
    }

    /// Tells if each page of `range` is mapped at its own physical address, with `access`.
    #[cold]
    fn leads_to_itself(&self, range: IovaRange, access: Access) -> bool {
        let page = self.granule().bytes();
        let pages = range.len_minus_one() / page;
        (0..=pages).all(|page_number| {
            let at = range.start().get() + page_number * page;
            let found = self.domain.translate(Iova::new(at));
            found.is_some_and(|found| found.pa.get() == at && found.access.contains(access))
        })
    }

    fn map_one_to_one(&self, range: IovaRange, access: Access) -> Result<(), MapError> {
        let bytes = range.len_minus_one().checked_add(1);
        let bytes = bytes.ok_or(MapError::TooLong)?;
        let (at, pa) = (range.start(), PhysAddr::new(range.start().get()));
        let mut owed = Gather::paid_before_use();
        let memory = PhysRange::from_len(pa, bytes).ok_or(MapError::TooLong)?;
        // The embedder that named the region to the unit has promised that its devices may reach
        // it.
        let mapped = self.or_flushed(|| {
            let memory = DmaMemory::promised(memory);
            self.domain.map(at, memory, access, &mut owed)
        });
        if let Err(error) = mapped {
            if !owed.is_empty() {
                self.owe(owed);
            }
            // A former kernel, whose tables these are, has mapped it.
            return match self.leads_to_itself(range, access) {
                true => Ok(()),
                false => Err(error.into()),
            };
        }
        self.trace_map(at, &[memory]);
        if !self.domain.is_due(&owed) {
            return Ok(());
        }
        self.domain.sync(&mut owed).map(drop).map_err(|error| {
            let error = MapError::of(error.into());
            // It stays mapped: the next sync pays for it.
            self.owe(owed);
            if let MapError::Iommu(error) = error {
                self.fail(error);
            }
            error
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, last: u64) -> IovaRange {
        IovaRange::new(Iova::new(start), Iova::new(last)).unwrap()
    }

    #[test]
    fn what_is_missing_is_found_piece_by_piece() {
        let there = [range(0x10, 0x1f), range(0x18, 0x2f), range(0x40, 0x4f)];
        let of = |start, last| missing(range(start, last), there.iter().copied());
        assert_eq!(of(0, 0xff), Some(range(0, 0xf)));
        assert_eq!(of(0x10, 0xff), Some(range(0x30, 0x3f)));
        assert_eq!(of(0x42, 0xff), Some(range(0x50, 0xff)));
        assert_eq!(of(0x11, 0x2f), None);
        let all = [range(0, u64::MAX)];
        assert_eq!(missing(range(5, u64::MAX), all.into_iter()), None);
    }
}
