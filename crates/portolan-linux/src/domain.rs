//! An address space over an interface of the kernel's: VFIO type 1, or iommufd.
//!
//! There are no tables here: a map is a system call, made at once, so that its errors are known. An
//! unmap is noted, and [`Domain::sync`] makes the call: one for all unwanted mappings in a row, also
//! where there are holes between them. So deferred unmaps are one call, and strict ones a call each.
//!
//! The kernel neither cuts nor joins mappings. A piece of memory is one mapping, and is unmapped whole: an
//! unmap that would cut one is refused ([`TableUnmapError::NeedsSplit`]), and cannot be made possible.

use portolan::platform::DmaMemory;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use portolan::addr::{Iova, IovaRange, PageSize, PhysRange, TableId};
use portolan::inval::{Flushed, Gather, SyncError, WrongTable};
use portolan::iommu::{
    AttachError, Domain, DomainError, DomainUnmapError, IommuError, SpaceClaim, TrackDirtyError,
    WholeMapping, WholeMappings,
};
use portolan::table::format::DirtyTracking;
use portolan::table::{Access, DirtyError, Segment, TableMapError, TableUnmapError, Translation};

use crate::calls::{AfterRead, Calls, Spaces};
use crate::sys::iommufd::Part;

mod dirty;
#[cfg(test)]
pub(crate) mod tests;

/// Addresses and pages that devices can be given, as the kernel reports them.
#[derive(Debug)]
pub(crate) struct Reach {
    /// Ascending, at least one.
    pub(crate) ranges: Vec<IovaRange>,
    pub(crate) granule: PageSize,
}

impl Reach {
    pub(crate) fn window(&self) -> IovaRange {
        let whole = IovaRange::page(Iova::new(0), self.granule);
        let ends = self.ranges.first().zip(self.ranges.last());
        ends.map_or(whole, |(first, last)| first.hull(*last))
    }

    /// Holes between the ranges.
    pub(crate) fn holes(&self) -> impl Iterator<Item = IovaRange> {
        let neighbours = self.ranges.iter().zip(self.ranges.iter().skip(1));
        neighbours.filter_map(|(below, above)| {
            let last = above.start().get().checked_sub(1)?;
            IovaRange::new(below.last().checked_add(1)?, Iova::new(last))
        })
    }
}

/// Progress of a mapping on its way into the kernel and out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MappingState {
    /// The call that maps it is being made.
    Mapping,
    Mapped,
    /// Unmapped for its owner, and not yet for the kernel.
    Unwanted,
    /// The call that unmaps it is being made.
    Unmapping,
}

/// A mapping, and its progress.
#[derive(Clone, Copy, Debug)]
struct MappingRecord {
    mapping: WholeMapping,
    state: MappingState,
}

impl MappingRecord {
    fn bytes(&self) -> u64 {
        self.mapping.range.len_minus_one().saturating_add(1)
    }
}

#[derive(Debug, Default)]
struct DomainMappings {
    records: BTreeMap<Iova, MappingRecord>,
    /// Ranges that system calls are unmapping: nothing is mapped in between.
    unmapping: Vec<IovaRange>,
}

impl DomainMappings {
    /// The records that overlap `range`, ascending.
    fn within(&self, range: IovaRange) -> impl Iterator<Item = &MappingRecord> {
        let before = self.records.range(..range.start()).next_back();
        let before = before.map(|(_, record)| record);
        let from = self.records.range(range.start()..=range.last());
        let all = before.into_iter().chain(from.map(|(_, record)| record));
        all.filter(move |record| record.mapping.range.overlaps(range))
    }

    /// The mapping at `iova` that is mapped and wanted.
    fn mapped(&self, iova: Iova) -> Option<&WholeMapping> {
        let record = self.within(IovaRange::page(iova, PageSize::of_lg2(0))).next()?;
        (record.state == MappingState::Mapped).then_some(&record.mapping)
    }

    fn put(&mut self, range: IovaRange, from: MappingState, to: MappingState) {
        let starts: Vec<Iova> = self.within(range).map(|one| one.mapping.range.start()).collect();
        for start in starts {
            if let Some(record) = self.records.get_mut(&start) {
                record.state = if record.state == from { to } else { record.state };
            }
        }
    }

    fn remove(&mut self, range: IovaRange, of: MappingState) {
        let gone = |record: &&MappingRecord| record.state == of;
        let gone = self.within(range).filter(gone);
        let gone: Vec<Iova> = gone.map(|one| one.mapping.range.start()).collect();
        for start in gone {
            self.records.remove(&start);
        }
    }

    /// The first unwanted mapping in `range`, with all in a row behind it, also past the range; and the
    /// bytes in them.
    fn unwanted(&self, range: IovaRange) -> Option<(IovaRange, u64)> {
        let unwanted = |record: &&MappingRecord| record.state == MappingState::Unwanted;
        let first = self.within(range).find(unwanted)?;
        let from = self.records.range(first.mapping.range.start()..);
        extent(from.map(|(_, record)| record).take_while(unwanted))
    }
}

type Place = Option<Arc<dyn Calls>>;

/// An address space of a process's devices. Its physical addresses are addresses of the process; of memory that is
/// mapped as a device's, those of a [`DmaBuf`](crate::memory::DmaBuf).
///
/// Memory is pinned by the map, and stays pinned until [`Domain::sync`] has paid for the unmap.
///
/// *Context.* Task, all methods: they make system calls.
#[derive(Debug)]
pub struct UserDomain {
    table: TableId,
    claim: SpaceClaim,
    /// That of its unit.
    unit: Arc<Reach>,
    /// The same, or a part of it.
    reach: Arc<Reach>,
    dirty: DirtyTracking,
    /// Maker of an address space for it alone, if the kernel has such.
    spaces: Option<Box<dyn Spaces>>,
    /// Interface that keeps it; none, where the kernel has the address space with the device and no
    /// device is attached. Held for writing while it moves.
    place: RwLock<Place>,
    inner: Mutex<DomainMappings>,
    settled: Condvar,
}

impl UserDomain {
    pub(crate) fn new(
        reach: Arc<Reach>,
        dirty: DirtyTracking,
        spaces: Option<Box<dyn Spaces>>,
    ) -> Self {
        Self {
            table: TableId::fresh(),
            claim: SpaceClaim::default(),
            unit: reach.clone(),
            reach,
            dirty,
            spaces,
            place: RwLock::default(),
            inner: Mutex::default(),
            settled: Condvar::new(),
        }
    }

    /// The same in a part of its unit's addresses.
    pub(crate) fn within(self, reach: Reach) -> Self {
        Self { reach: Arc::new(reach), ..self }
    }

    /// Tracking of the pages that devices write.
    pub(crate) fn dirty(&self) -> DirtyTracking {
        self.dirty
    }

    /// Tells if it is of a unit with such a reach.
    pub(crate) fn is_of(&self, reach: &Arc<Reach>) -> bool {
        Arc::ptr_eq(&self.unit, reach)
    }

    // Nothing panics while one of the locks is held, so the state under a poisoned one is whole.
    fn inner(&self) -> MutexGuard<'_, DomainMappings> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> RwLockReadGuard<'_, Place> {
        self.place.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps all that is recorded in `calls`, which has nothing of it, and keeps to it from now on.
    ///
    /// # Errors
    /// If it is elsewhere, or the kernel refuses a mapping: none is there then.
    pub(crate) fn enter(&self, calls: Arc<dyn Calls>) -> Result<(), AttachError> {
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        match *place {
            Some(_) => Err(AttachError::Mismatch),
            None => Ok(self.fill(&mut place, calls)?),
        }
    }

    fn fill(&self, place: &mut Place, calls: Arc<dyn Calls>) -> Result<(), IommuError> {
        let mut inner = self.inner();
        inner.remove(self.reach.window(), MappingState::Unwanted);
        make(inner.records.values(), &*calls)?;
        *place = Some(calls);
        Ok(())
    }

    /// Returns the interface that keeps it: an address space of its own, from the first time on.
    ///
    /// # Errors
    /// If the kernel has no such, or refuses it or a mapping.
    pub(crate) fn placed(&self) -> Result<Arc<dyn Calls>, AttachError> {
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(calls) = &*place {
            return Ok(calls.clone());
        }
        let spaces = self.spaces.as_ref().ok_or(AttachError::Mismatch)?;
        let calls = spaces.new_space()?;
        self.fill(&mut place, calls.clone())?;
        Ok(calls)
    }

    /// The number of the address space of iommufd's that keeps it.
    pub(crate) fn ioas(&self) -> Option<u32> {
        self.place().as_ref().and_then(|calls| calls.ioas())
    }

    /// Place of `memory` in the kernel, if the domain lends it.
    pub(crate) fn lent(&self, memory: PhysRange) -> Option<Part> {
        self.place().as_ref()?.lent(memory)
    }

    /// Unmaps everything where it is; the records stay.
    pub(crate) fn leave(&self) -> Result<(), IommuError> {
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        let mut inner = self.inner();
        if let (Some(calls), Some((all, bytes))) = (&*place, extent(inner.records.values())) {
            calls.unmap(all, bytes)?;
        }
        inner.remove(self.reach.window(), MappingState::Unwanted);
        *place = None;
        Ok(())
    }

    fn rules(&self) -> WholeMappings<'_, Self> {
        let allows = |domain: &Self, access| domain.grants(access) == Some(access);
        WholeMappings { domain: self, ranges: &self.reach.ranges, allows }
    }

    fn map_segments(
        &self,
        iova: Iova,
        segments: impl Iterator<Item = Segment>,
        access: Access,
        owed: &Gather,
    ) -> Result<IovaRange, DomainError> {
        owed.check(self.table).map_err(TableMapError::from)?;
        let mut records: Vec<MappingRecord> = Vec::new();
        let all = self.rules().place(iova, segments, access, |mapping| {
            records.push(MappingRecord { mapping, state: MappingState::Mapping });
            Ok(())
        })?;
        let place = self.place();
        // Where something was unmapped and not yet paid for, that is first.
        let mut inner = self.settle(all, &place)?;
        if let Some(found) = inner.within(all).next() {
            let iova = found.mapping.range.start().max(all.start());
            return Err(TableMapError::AlreadyMapped { iova }.into());
        }
        let named = records.iter().map(|one| (one.mapping.range.start(), *one));
        inner.records.extend(named);
        drop(inner);
        let made = match &*place {
            Some(calls) => make(records.iter(), &**calls),
            None => Ok(()),
        };
        let mut inner = self.inner();
        match made {
            Ok(()) => inner.put(all, MappingState::Mapping, MappingState::Mapped),
            Err(_) => inner.remove(all, MappingState::Mapping),
        }
        made?;
        Ok(all)
    }

    /// Has the kernel unmap the unwanted mappings in `range`, and waits for other threads that do so
    /// there: each of them is in a system call, which ends as this one's would. As long as the caller
    /// keeps the returned guard, no thread begins to.
    fn settle(
        &self,
        range: IovaRange,
        place: &Place,
    ) -> Result<MutexGuard<'_, DomainMappings>, IommuError> {
        let mut inner = self.inner();
        loop {
            let Some((run, bytes)) = inner.unwanted(range) else {
                if !inner.unmapping.iter().any(|one| one.overlaps(range)) {
                    return Ok(inner);
                }
                let woken = self.settled.wait(inner);
                inner = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            inner.put(run, MappingState::Unwanted, MappingState::Unmapping);
            inner.unmapping.push(run);
            drop(inner);
            let calls = place.as_ref();
            let unmapped = calls.map_or(Ok(()), |calls| calls.unmap(run, bytes));
            inner = self.inner();
            inner.unmapping.retain(|one| *one != run);
            match unmapped {
                Ok(()) => inner.remove(run, MappingState::Unmapping),
                Err(_) => inner.put(run, MappingState::Unmapping, MappingState::Unwanted),
            }
            self.settled.notify_all();
            unmapped?;
        }
    }
}

/// Range from the first to the last of `records`, which ascend, and the bytes in them.
fn extent<'r>(records: impl Iterator<Item = &'r MappingRecord>) -> Option<(IovaRange, u64)> {
    let all = records.map(|record| (record.mapping.range, record.bytes()));
    all.reduce(|(range, bytes), (next, more)| (range.hull(next), bytes.saturating_add(more)))
}

/// Has the kernel map all of `records`, which ascend, or none.
fn make<'r>(
    records: impl Iterator<Item = &'r MappingRecord> + Clone,
    calls: &dyn Calls,
) -> Result<(), IommuError> {
    for (done, MappingRecord { mapping, .. }) in records.clone().enumerate() {
        if let Err(error) = calls.map(mapping.range, mapping.pa, mapping.access) {
            let undone = match extent(records.take(done)) {
                Some((range, bytes)) => calls.unmap(range, bytes),
                None => Ok(()),
            };
            return Err(undone.err().unwrap_or(error));
        }
    }
    Ok(())
}

impl Domain for UserDomain {
    fn id(&self) -> TableId {
        self.table
    }

    fn claim(&self) -> &SpaceClaim {
        &self.claim
    }

    fn input_range(&self) -> IovaRange {
        self.reach.window()
    }

    fn granule(&self) -> PageSize {
        self.reach.granule
    }

    fn grants(&self, access: Access) -> Option<Access> {
        let data = access.difference(Access::DEVICE);
        (Access::READ_WRITE.contains(data) && !data.is_empty()).then_some(access)
    }

    fn map_sg(
        &self,
        iova: Iova,
        pieces: &[DmaMemory],
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        let granule = self.granule();
        let whole = pieces.iter().map(|piece| Segment::around(piece.range(), granule));
        self.map_segments(iova, whole, access, owed)
    }

    fn absorb(&self, into: &mut Gather, from: &mut Gather) -> Result<(), WrongTable> {
        into.absorb_spans(self.table, from)
    }

    fn map(
        &self,
        iova: Iova,
        memory: DmaMemory,
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        let whole = std::iter::once(Segment::of(memory.range()));
        self.map_segments(iova, whole, access, owed)
    }

    fn unmap(&self, range: IovaRange, owed: &mut Gather) -> Result<(), DomainUnmapError> {
        let mut inner = self.inner();
        self.rules().check_unmap(range, owed, |iova| Some(inner.mapped(iova)?.range))?;
        inner.put(range, MappingState::Mapped, MappingState::Unwanted);
        drop(inner);
        owed.owe_unmap(self.table, range, self.granule()).map_err(TableUnmapError::from)?;
        Ok(())
    }

    fn sync(&self, owed: &mut Gather) -> Result<Flushed, SyncError<IommuError>> {
        owed.check(self.table)?;
        let place = self.place();
        // Ascending, so that a call that reaches into the next span leaves nothing to do there.
        let mut spans: Vec<IovaRange> = owed.unmapped().iter().map(|span| span.range).collect();
        spans.sort_unstable_by_key(|range| range.start());
        for range in spans {
            let settled = self.settle(range, &place);
            drop(settled.map_err(SyncError::Queue)?);
        }
        Ok(owed.paid(self.table)?)
    }

    /// The kernel marks pages of a domain that was made for that, whatever is asked for here: on means marks from
    /// this moment on.
    fn track_dirty(&self, marks: DirtyTracking) -> Result<(), TrackDirtyError> {
        match (marks, self.dirty) {
            (DirtyTracking::Off, _) => Ok(()),
            (DirtyTracking::Hardware, DirtyTracking::Off) => Err(TrackDirtyError::NotTracked),
            (DirtyTracking::Hardware, DirtyTracking::Hardware) => {
                let (all, mut owed) = (self.input_range(), Gather::new());
                let read = self.read_and_clear_dirty(all, &mut owed, &mut |_| ());
                read.map_err(|error| match error {
                    DirtyError::Refused { code } => IommuError::Refused { code }.into(),
                    _ => TrackDirtyError::NotTracked,
                })
            }
        }
    }

    /// Marks of unmapped pages are lost: read them before the unmap, which hands over all of a range.
    fn read_and_clear_dirty(
        &self,
        range: IovaRange,
        owed: &mut Gather,
        visit: &mut dyn FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        owed.check(self.table)?;
        self.read_kernels_marks(range, AfterRead::Cleared, visit)
    }

    fn read_dirty(
        &self,
        range: IovaRange,
        visit: &mut dyn FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        self.read_kernels_marks(range, AfterRead::Kept, visit)
    }

    /// A map is complete when it returns.
    fn is_due(&self, owed: &Gather) -> bool {
        !owed.unmapped().is_empty()
    }

    /// The size is the kernel's smallest page: it does not say which it uses.
    fn translate(&self, iova: Iova) -> Option<Translation> {
        let inner = self.inner();
        let mapping = inner.mapped(iova)?;
        let (pa, access) = (mapping.memory_at(iova)?, mapping.access);
        Some(Translation { pa, size: self.granule(), access })
    }

    /// Of no account: the kernel has invalidated when an unmap returns.
    fn shadowing(&self) -> portolan::iommu::Shadowing {
        portolan::iommu::Shadowing::None
    }
}
