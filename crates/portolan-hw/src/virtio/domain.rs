//! An address space of the device.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.3 to 5.13.6.6. The device knows a domain only
//! while an endpoint is attached to it: until then mappings are recorded, and sent with the first
//! endpoint.

use alloc::sync::Arc;
use core::fmt;

use portolan::addr::{Iova, IovaRange, PageSize, TableId};
use portolan::inval::{Flushed, Gather, SyncError, WrongTable};
use portolan::iommu::{
    Awaited, Domain, DomainError, DomainSplitError, DomainUnmapError, IommuError, Shadowing,
    SpaceClaim, WholeMappings,
};
use portolan::platform::{Cpus, DmaMemory, Guarded, OutOfTableMemory, poll};
use portolan::table::{Access, Segment, SplitError, TableMapError, TableUnmapError, Translation};

use super::device::Device;
use super::records::{Known, Mapping, NoRoom, Records, Stock, Wanted};
use super::transport::Transport;
use portolan_spec::virtio as spec;

/// Records that are looked at under one lock.
const LOOKS: usize = 64;

/// Records that the device is to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// All that is owed.
    All,
    /// Only mappings to be made: the device does not know the domain yet.
    Maps,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) map: Records,
    /// Endpoints that are, or may be, attached.
    pub(super) endpoints: u32,
    /// Number of times that the domain has lost its last endpoint.
    pub(super) epoch: u64,
    /// Number of requests of this domain that were given up.
    pub(super) given_up: u64,
}

/// An address space of one virtio-iommu.
///
/// Maps and unmaps are recorded and owed; [`Domain::sync`] sends the requests and waits for them. The
/// device unmaps whole mappings only: a segment that was mapped has to be split before a part of it
/// is unmapped. A split takes the mapping away and makes the parts anew; the device faults there
/// meanwhile.
///
/// *Context.* As [`Domain`] says, but for maps: they are tasks, since records take memory. No lock is
/// held meanwhile, and unmaps take none.
pub struct VirtioDomain<T: Transport + Send + Sync, C: Cpus> {
    pub(super) device: Arc<Device<T, C>>,
    pub(super) id: u32,
    table: TableId,
    claim: SpaceClaim,
    pub(super) inner: Guarded<C, Inner>,
}

impl<T: Transport + Send + Sync, C: Cpus> fmt::Debug for VirtioDomain<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtioDomain").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<T: Transport + Send + Sync, C: Cpus> VirtioDomain<T, C> {
    pub(super) fn new(device: Arc<Device<T, C>>) -> Result<Self, IommuError> {
        let id = device.domains.take().ok_or(IommuError::OutOfContexts)?;
        Ok(Self {
            device,
            id,
            table: TableId::fresh(),
            claim: SpaceClaim::default(),
            inner: Guarded::new(Inner::default()),
        })
    }

    /// The device's number for it.
    ///
    /// *Context.* Interrupt.
    pub fn number(&self) -> u32 {
        self.id
    }

    pub(super) fn is_of(&self, device: &Arc<Device<T, C>>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// An endpoint was, or may have been, attached.
    pub(super) fn gained_endpoint(&self) {
        let mut inner = self.inner.lock();
        inner.endpoints = inner.endpoints.saturating_add(1);
    }

    /// An endpoint was detached.
    pub(super) fn lost_endpoint(&self) {
        let mut inner = self.inner.lock();
        inner.endpoints = inner.endpoints.saturating_sub(1);
        if inner.endpoints == 0 {
            inner.epoch = inner.epoch.wrapping_add(1);
        }
    }

    /// Sends mappings that were made while the device did not know the domain.
    pub(super) fn replay(&self) -> Result<(), IommuError> {
        self.settle(self.device.input, Which::Maps)
    }

    fn rules(&self) -> WholeMappings<'_, Self> {
        let allows = |domain: &Self, access: Access| {
            let data = access.intersection(Access::READ_WRITE);
            let mmio = domain.device.features & spec::F_MMIO != 0;
            let device = access.contains(Access::DEVICE) && !mmio;
            !data.is_empty() && !access.contains(Access::EXECUTE) && !device
        };
        WholeMappings { domain: self, ranges: core::slice::from_ref(&self.device.input), allows }
    }

    /// Adds a record. Memory for it is got without the lock.
    fn record(&self, mapping: Mapping) -> Result<(), TableMapError> {
        let mut stock = Stock::default();
        loop {
            let mut inner = self.inner.lock();
            if let Some(iova) = inner.map.first_overlap(mapping.range) {
                return Err(TableMapError::AlreadyMapped { iova });
            }
            let recorded = inner.map.insert(mapping, &mut stock);
            drop(inner);
            match recorded {
                Ok(()) => return Ok(()),
                Err(NoRoom) => self.fill(&mut stock)?,
            }
        }
    }

    fn fill(&self, stock: &mut Stock) -> Result<(), OutOfTableMemory> {
        let size = self.granule();
        stock.fill().map_err(|_| OutOfTableMemory { size })
    }

    /// Withdraws the mappings of `range`. Those that the device does not have go at once.
    fn withdraw(&self, range: IovaRange) {
        let mut next = Some(range.start());
        while next.is_some() {
            let inner = &mut *self.inner.lock();
            for _ in 0..LOOKS {
                let found = next.and_then(|from| inner.map.next(from).copied());
                let Some(mapping) = found.filter(|found| found.range.start() <= range.last())
                else {
                    return;
                };
                next = mapping.range.last().checked_add(1);
                let start = mapping.range.start();
                match mapping.known.in_epoch(inner.epoch) {
                    Known::Absent => inner.map.remove(start),
                    _ => {
                        if let Some(record) = inner.map.get_mut(start) {
                            record.wanted = Wanted::Unmapped;
                        }
                    }
                }
            }
        }
    }

    /// Claims the mapping that is to be cut at `cut`: it is busy, and returned as it was.
    fn claim_block(&self, at: Iova, cut: Iova) -> Result<(Mapping, u64), DomainSplitError> {
        let none = SplitError::NoBlock { iova: at };
        let look = || {
            let inner = &mut *self.inner.lock();
            let (epoch, found) = (inner.epoch, inner.map.at(at).copied());
            let found = found.filter(|block| {
                let inside = block.range.start() < cut && cut <= block.range.last();
                inside && block.wanted == Wanted::Mapped
            });
            let Some(block) = found else {
                return Some(Err(none.into()));
            };
            let known = block.known.in_epoch(epoch);
            match known {
                Known::Busy => return None,
                // What the device has is not certain: that is settled first.
                Known::Unsure { .. } | Known::Unanswered => {
                    let contended = SplitError::Contended { iova: at };
                    return Some(Err(contended.into()));
                }
                Known::Absent | Known::Present { .. } => {}
            }
            if let Some(record) = inner.map.get_mut(block.range.start()) {
                record.known = Known::Busy;
            }
            Some(Ok((Mapping { known, ..block }, epoch)))
        };
        let awaited = Awaited::Turn;
        poll(&self.device.clock, self.device.limits.turn_timeout, look).unwrap_or_else(|waited| {
            let error = IommuError::TimedOut { awaited, waited };
            Err(SyncError::Queue(error).into())
        })
    }

    /// Puts two records in place of the one of `block`, which is busy and which the device does not
    /// have; both are absent.
    fn cut(&self, block: Mapping, cut: Iova) -> Result<(), OutOfTableMemory> {
        let known = Known::Absent;
        let mut stock = Stock::default();
        loop {
            let mut inner = self.inner.lock();
            // Another caller may have unmapped it meanwhile.
            let start = block.range.start();
            let wanted = inner.map.get_mut(start).map_or(block.wanted, |now| now.wanted);
            let whole = Mapping { known, wanted, ..block };
            let (Some(lower), Some(upper)) = (whole.below(cut), whole.from(cut)) else {
                return Ok(());
            };
            let put = inner.map.insert(upper, &mut stock);
            let filled = match put {
                Ok(()) => {
                    if let Some(record) = inner.map.get_mut(start) {
                        *record = lower;
                    }
                    return Ok(());
                }
                Err(NoRoom) => {
                    drop(inner);
                    self.fill(&mut stock)
                }
            };
            if let Err(error) = filled {
                if let Some(record) = self.inner.lock().map.get_mut(start) {
                    record.known = known;
                }
                return Err(error);
            }
        }
    }
}

impl<T: Transport + Send + Sync, C: Cpus> VirtioDomain<T, C> {
    /// Records the mappings of `segments`, all of them or none.
    fn map_segments<I>(
        &self,
        iova: Iova,
        segments: I,
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError>
    where
        I: Iterator<Item = Segment> + Clone,
    {
        owed.check(self.table).map_err(TableMapError::from)?;
        // First everything that can be wrong with the request itself.
        let all = self.rules().place(iova, segments.clone(), access, |_| Ok(()))?;
        if let Some(iova) = self.inner.lock().map.first_overlap(all) {
            return Err(TableMapError::AlreadyMapped { iova }.into());
        }
        let mut recorded: Option<IovaRange> = None;
        let mapped = self.rules().place(iova, segments, access, |mapping| {
            self.record(Mapping::absent(mapping))?;
            let range = mapping.range;
            recorded = Some(recorded.map_or(range, |before| before.hull(range)));
            Ok(())
        });
        let granule = self.granule();
        match mapped {
            Ok(range) => {
                owed.owe_map(self.table, range, granule).map_err(TableMapError::from)?;
                Ok(range)
            }
            Err(error) => {
                if let Some(range) = recorded {
                    self.withdraw(range);
                    // Another CPU may have sent a part of it meanwhile.
                    owed.owe_unmap(self.table, range, granule).map_err(TableMapError::from)?;
                }
                Err(error.into())
            }
        }
    }
}

impl<T: Transport + Send + Sync, C: Cpus> Domain for VirtioDomain<T, C> {
    fn id(&self) -> TableId {
        self.table
    }

    fn claim(&self) -> &SpaceClaim {
        &self.claim
    }

    fn input_range(&self) -> IovaRange {
        self.device.input
    }

    fn granule(&self) -> PageSize {
        let smallest = self.device.page_sizes.smallest();
        smallest.unwrap_or(PageSize::SIZE_4K)
    }

    fn grants(&self, access: Access) -> Option<Access> {
        Some(access)
    }

    fn shadowing(&self) -> Shadowing {
        Shadowing::Requests
    }

    fn map_sg(
        &self,
        iova: Iova,
        pieces: &[DmaMemory],
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        let granule = self.granule();
        let whole = |piece: &DmaMemory| Segment::around(piece.range(), granule);
        self.map_segments(iova, pieces.iter().map(whole), access, owed)
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
        let whole = core::iter::once(Segment::of(memory.range()));
        self.map_segments(iova, whole, access, owed)
    }

    fn unmap(&self, range: IovaRange, owed: &mut Gather) -> Result<(), DomainUnmapError> {
        self.rules().check_unmap(range, owed, |iova| {
            let inner = self.inner.lock();
            let mapping = inner.map.at(iova).filter(|mapping| mapping.wanted == Wanted::Mapped);
            mapping.map(|mapping| mapping.range)
        })?;
        self.withdraw(range);
        owed.owe_unmap(self.table, range, self.granule()).map_err(TableUnmapError::from)?;
        Ok(())
    }

    fn split(&self, at: Iova, owed: &mut Gather) -> Result<(), DomainSplitError> {
        owed.check(self.table).map_err(SplitError::from)?;
        let granule = self.granule();
        // An address that no page begins with stands for the end of its page.
        let none = SplitError::NoBlock { iova: at };
        let cut = match at.is_aligned(granule) {
            true => at,
            false => {
                let page = Iova::new(at.get() | (granule.bytes() - 1));
                page.checked_add(1).ok_or(none)?
            }
        };
        let (block, epoch) = self.claim_block(at, cut)?;
        // From here on the device may have to be told of it again.
        owed.owe_map(self.table, block.range, granule).map_err(SplitError::from)?;
        if block.known != Known::Absent {
            self.forget(block.range, epoch).map_err(SyncError::Queue)?;
        }
        self.cut(block, cut).map_err(SplitError::from)?;
        self.settle(block.range, Which::All).map_err(SyncError::Queue)?;
        Ok(())
    }

    fn sync(&self, owed: &mut Gather) -> Result<Flushed, SyncError<IommuError>> {
        owed.check(self.table)?;
        for span in owed.unmapped().iter().chain(owed.mapped()) {
            self.settle(span.range, Which::All).map_err(SyncError::Queue)?;
        }
        Ok(owed.paid(self.table)?)
    }

    /// The size is the device's smallest page: the device does not say which it uses.
    fn translate(&self, iova: Iova) -> Option<Translation> {
        let inner = self.inner.lock();
        let mapping = inner.map.at(iova)?;
        let doubtful = matches!(mapping.known, Known::Unanswered | Known::Unsure { .. });
        if doubtful || mapping.wanted == Wanted::Unmapped {
            return None;
        }
        let above = iova.get() - mapping.range.start().get();
        Some(Translation {
            pa: mapping.pa.checked_add(above)?,
            size: self.granule(),
            access: mapping.access,
        })
    }
}

impl<T: Transport + Send + Sync, C: Cpus> Drop for VirtioDomain<T, C> {
    /// *Context.* Task: frees the records.
    fn drop(&mut self) {
        let (endpoints, given_up) = {
            let inner = self.inner.lock();
            (inner.endpoints, inner.given_up)
        };
        // A request that was given up may still be carried out, on any domain that has the number
        // then.
        if endpoints == 0 && (given_up == 0 || self.device.transport.all_returned()) {
            self.device.domains.give_back(self.id);
        }
    }
}
