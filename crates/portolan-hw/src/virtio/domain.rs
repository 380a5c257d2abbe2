//! An address space of the device.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.3 to 5.13.6.6. The device knows a domain only
//! while an endpoint is attached to it: until then mappings are recorded, and sent with the first
//! endpoint.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange, TableId};
use portolan::inval::{Gather, SyncError, WrongTable};
use portolan::platform::{Cpus, Guarded, Nanos, poll};
use portolan::table::{Access, AccessError, MapError, Segment, Translation, UnmapError};
use portolan::unit::{Awaited, Domain, DomainError, UnitError, UnmapFailed};

use super::answer::NO_SUCH;
use super::device::Device;
use super::intervals::{Intervals, Mapping, State};
use super::spec::{self, Request};
use super::transport::Transport;

/// How often a mapping is sent again because the domain came to life anew meanwhile.
const ATTEMPTS: u32 = 4;

#[derive(Debug, Default)]
struct Inner {
    map: Intervals,
    /// Endpoints that are, or may be, attached.
    endpoints: u32,
    /// How often the domain has lost its last endpoint.
    epoch: u64,
}

/// An address space of one virtio-iommu.
///
/// Each map and each unmap is one request that is waited for, without a lock; nothing is ever owed.
/// An unmap that leaves a piece of a mapping takes the whole mapping away and makes the piece anew:
/// the device faults there meanwhile, and if it does not take the piece back, the piece stays
/// unmapped and the error says that the device failed.
pub struct VirtioDomain<T: Transport + Send + Sync, C: Cpus> {
    device: Arc<Device<T, C>>,
    id: u32,
    table: TableId,
    inner: Guarded<C, Inner>,
}

impl<T: Transport + Send + Sync, C: Cpus> fmt::Debug for VirtioDomain<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtioDomain")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl<T: Transport + Send + Sync, C: Cpus> VirtioDomain<T, C> {
    pub(super) fn new(device: Arc<Device<T, C>>) -> Result<Self, UnitError> {
        let id = device.domains.take().ok_or(UnitError::OutOfContexts)?;
        Ok(Self {
            device,
            id,
            table: TableId::fresh(),
            inner: Guarded::new(Inner::default()),
        })
    }

    /// The device's number for it.
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
            inner.map.turn(State::Live, State::Recorded);
        }
    }

    /// Sends what is recorded to the device.
    pub(super) fn replay(&self) -> Result<(), UnitError> {
        let mut from = Iova::new(0);
        loop {
            let next = {
                let mut inner = self.inner.lock();
                let next = inner.map.next_in(State::Recorded, from);
                if let Some(mapping) = next {
                    inner.map.put(Mapping {
                        state: State::Busy,
                        ..mapping
                    });
                }
                next
            };
            match next {
                Some(mapping) => {
                    if let Err(error) = self.establish(mapping) {
                        // It was mapped before and stays so, unless the device may have it.
                        let mut inner = self.inner.lock();
                        if inner.map.first_overlap(mapping.range).is_none() {
                            inner.map.put(mapping);
                        }
                        return Err(error);
                    }
                    from = mapping.range.last();
                }
                // Others may have recorded something below meanwhile.
                None if from.get() != 0 => from = Iova::new(0),
                None => return Ok(()),
            }
        }
    }

    fn request(&self, mapping: Mapping) -> Request {
        let mut flags = 0;
        let bits = [
            (Access::READ, spec::MAP_READ),
            (Access::WRITE, spec::MAP_WRITE),
            (Access::DEVICE, spec::MAP_MMIO),
        ];
        for (access, flag) in bits {
            if mapping.access.contains(access) {
                flags |= flag;
            }
        }
        Request::Map {
            domain: self.id,
            start: mapping.range.start().get(),
            last: mapping.range.last().get(),
            phys: mapping.pa.get(),
            flags,
        }
    }

    /// Sends a mapping that is in the map as busy; it is live, recorded, doubtful or gone after.
    fn establish(&self, mapping: Mapping) -> Result<(), UnitError> {
        let settle = |state| Mapping { state, ..mapping };
        for _ in 0..ATTEMPTS {
            let epoch = {
                let mut inner = self.inner.lock();
                if inner.endpoints == 0 {
                    inner.map.put(settle(State::Recorded));
                    return Ok(());
                }
                inner.epoch
            };
            let sent = self.device.send(self.request(mapping));
            if sent == Err(NO_SUCH) {
                self.ended_since(epoch);
            }
            let mut inner = self.inner.lock();
            match sent {
                Err(error @ (UnitError::TimedOut { .. } | UnitError::Gone)) => {
                    inner.map.put(settle(State::Doubtful));
                    return Err(error);
                }
                _ if inner.epoch != epoch => {}
                Ok(()) => {
                    inner.map.put(settle(State::Live));
                    return Ok(());
                }
                Err(error) => {
                    inner.map.remove(&mapping);
                    return Err(error);
                }
            }
        }
        self.inner.lock().map.remove(&mapping);
        Err(turn(Nanos::new(0)))
    }

    /// Whether the last endpoint has left since `epoch`. If the device says that there is no such
    /// domain, one is on its way out and the epoch about to change, or the device is wrong.
    fn ended_since(&self, epoch: u64) -> bool {
        let changed = || {
            let inner = self.inner.lock();
            (inner.endpoints == 0 || inner.epoch != epoch).then_some(())
        };
        self.wait(changed).is_ok()
    }

    fn wait<R>(&self, look: impl FnMut() -> Option<R>) -> Result<R, Nanos> {
        poll(&self.device.clock, self.device.limits.turn_limit, look)
    }

    /// The mapping that is asked for, not yet in the map.
    fn checked(
        &self,
        iova: Iova,
        pa: PhysAddr,
        bytes: u64,
        access: Access,
    ) -> Result<Mapping, MapError> {
        let granule = self.granule();
        if bytes == 0 {
            return Err(MapError::Empty { iova });
        }
        if !iova.is_aligned(granule) {
            return Err(MapError::UnalignedIova { iova });
        }
        if !pa.is_aligned(granule) || bytes & (granule.bytes() - 1) != 0 {
            return Err(MapError::UnalignedMemory { pa, bytes });
        }
        let data = access.intersection(Access::READ | Access::WRITE);
        let mmio = self.device.features & spec::F_MMIO != 0;
        let device = access.contains(Access::DEVICE) && !mmio;
        if data.is_empty() || access.contains(Access::EXECUTE) || device {
            return Err(AccessError { access }.into());
        }
        let range = IovaRange::from_len(iova, bytes);
        let range = range.filter(|range| self.device.input.covers(*range));
        let range = range.ok_or(MapError::IovaOutOfRange { iova })?;
        PhysRange::from_len(pa, bytes).ok_or(MapError::MemoryOutOfRange { pa, bytes })?;
        Ok(Mapping {
            range,
            pa,
            access,
            state: State::Busy,
        })
    }

    /// Claims the mappings that hold `range`: they are busy, and returned as they were.
    fn claim(&self, range: IovaRange) -> Result<Vec<Mapping>, UnmapFailed> {
        let look = || {
            let mut inner = self.inner.lock();
            let found = match inner.map.covering(range) {
                Ok(found) => found,
                Err(iova) => return Some(Err(UnmapError::NotMapped { iova }.into())),
            };
            if found.iter().any(|mapping| mapping.state == State::Busy) {
                return None;
            }
            for &mapping in &found {
                inner.map.put(Mapping {
                    state: State::Busy,
                    ..mapping
                });
            }
            Some(Ok(found))
        };
        self.wait(look).map_err(turn)?
    }

    /// Has the device forget the mappings of `claimed`, from the first to the last.
    fn forget(&self, claimed: &[Mapping], range: IovaRange) -> Result<(), UnitError> {
        if claimed.iter().all(|m| m.state == State::Recorded) {
            return Ok(());
        }
        let all = claimed.iter().fold(range, |all, m| all.hull(m.range));
        let epoch = self.inner.lock().epoch;
        let sent = self.device.send(Request::Unmap {
            domain: self.id,
            start: all.start().get(),
            last: all.last().get(),
        });
        match sent {
            Ok(()) => Ok(()),
            // Without an endpoint there is no domain, and nothing mapped.
            Err(NO_SUCH) if self.ended_since(epoch) => Ok(()),
            Err(error) => {
                let refused = matches!(error, UnitError::Refused { .. });
                let mut inner = self.inner.lock();
                for &mapping in claimed {
                    let state = match mapping.state {
                        State::Live if refused && inner.endpoints == 0 => State::Recorded,
                        State::Live if !refused => State::Doubtful,
                        state => state,
                    };
                    inner.map.put(Mapping { state, ..mapping });
                }
                Err(error)
            }
        }
    }
}

fn turn(waited: Nanos) -> UnitError {
    UnitError::TimedOut {
        awaited: Awaited::Turn,
        waited,
    }
}

impl<T: Transport + Send + Sync, C: Cpus> Domain for VirtioDomain<T, C> {
    fn id(&self) -> TableId {
        self.table
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

    fn map_sg<I>(
        &self,
        iova: Iova,
        segments: I,
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError>
    where
        I: Iterator<Item = Segment> + Clone,
    {
        let mut mapped: Option<IovaRange> = None;
        for segment in segments {
            let past = MapError::IovaOutOfRange { iova };
            let at = match mapped {
                Some(range) => range.last().checked_add(1).ok_or(past),
                None => Ok(iova),
            };
            let one = at
                .map_err(DomainError::from)
                .and_then(|at| self.map(at, segment.pa, segment.bytes, access, owed));
            match (one, mapped) {
                (Ok(one), before) => mapped = Some(before.map_or(one, |range| range.hull(one))),
                (Err(error), None) => return Err(error),
                (Err(error), Some(range)) => {
                    // What the device does not take back it keeps, in doubt, and the unit says so.
                    let _ = self.unmap(range, owed);
                    return Err(error);
                }
            }
        }
        mapped.ok_or(MapError::Empty { iova }.into())
    }

    /// Debts of this kind of domain are empty.
    fn absorb(&self, into: &mut Gather, from: &mut Gather) -> Result<(), WrongTable> {
        from.check(self.table)?;
        into.check(self.table)
    }

    fn map(
        &self,
        iova: Iova,
        pa: PhysAddr,
        bytes: u64,
        access: Access,
        _owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        let mapping = self.checked(iova, pa, bytes, access)?;
        {
            let mut inner = self.inner.lock();
            if let Some(iova) = inner.map.first_overlap(mapping.range) {
                return Err(MapError::AlreadyMapped { iova }.into());
            }
            inner.map.put(mapping);
        }
        self.establish(mapping)?;
        Ok(mapping.range)
    }

    fn unmap(&self, range: IovaRange, _owed: &mut Gather) -> Result<(), UnmapFailed> {
        let granule = self.granule();
        let after = range.last().get().wrapping_add(1);
        if !range.start().is_aligned(granule) || !Iova::new(after).is_aligned(granule) {
            return Err(UnmapError::Unaligned { range }.into());
        }
        if !self.device.input.covers(range) {
            return Err(UnmapError::OutOfRange { range }.into());
        }
        let claimed = self.claim(range)?;
        self.forget(&claimed, range)?;
        let mut pieces = Vec::new();
        {
            let mut inner = self.inner.lock();
            for mapping in &claimed {
                inner.map.remove(mapping);
                for rest in mapping.outside(range).into_iter().flatten() {
                    let state = State::Busy;
                    let rest = Mapping { state, ..rest };
                    inner.map.put(rest);
                    pieces.push(rest);
                }
            }
        }
        // Every piece has its try, whatever becomes of the others.
        let mut failed = None;
        for piece in pieces {
            failed = failed.or(self.establish(piece).err());
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Nothing is owed to a domain of this kind.
    fn sync(&self, owed: &mut Gather) -> Result<(), SyncError<UnitError>> {
        Ok(owed.check(self.table)?)
    }

    /// The size is the device's smallest page: the device does not say which it uses.
    fn translate(&self, iova: Iova) -> Option<Translation> {
        let inner = self.inner.lock();
        let mapping = inner.map.at(iova)?;
        if mapping.state == State::Doubtful {
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
    fn drop(&mut self) {
        let inner = &mut *self.inner.lock();
        let from = Iova::new(0);
        let doubtful = inner.map.next_in(State::Doubtful, from).is_some();
        // A request that was given up may still be carried out, on whatever has the number then.
        if inner.endpoints == 0 && !doubtful {
            self.device.domains.give_back(self.id);
        }
    }
}
