//! A device: it does DMA, remembers where it has been, and tries again later.

use std::collections::VecDeque;

use portolan::addr::{Iova, PhysAddr, StreamId};

use crate::decode::{AccessKind, WalkMemory};
use crate::iommu::{Fault, Iommu};

/// A place that the device has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reached {
    /// Device address of the access.
    pub iova: Iova,
    /// Memory address that it reached.
    pub pa: PhysAddr,
    /// The kind of access.
    pub access: AccessKind,
}

/// A device behind an IOMMU.
#[derive(Debug)]
pub struct Device<'i, M> {
    iommu: &'i Iommu<M>,
    stream: StreamId,
    reached: VecDeque<Reached>,
    capacity: usize,
}

impl<'i, M: WalkMemory> Device<'i, M> {
    /// A device that remembers the last `capacity` places.
    pub fn new(iommu: &'i Iommu<M>, stream: StreamId, capacity: usize) -> Self {
        Self { iommu, stream, reached: VecDeque::new(), capacity }
    }

    /// Its stream.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Reads `bytes` bytes; returns the pieces, one for each page.
    ///
    /// # Errors
    /// The first [`Fault`]; pages before it have been read.
    pub fn read(&mut self, iova: Iova, bytes: u64) -> Result<Vec<Reached>, Fault> {
        self.transfer(iova, bytes, AccessKind::Read)
    }

    /// Writes `bytes` bytes; returns the pieces, one for each page.
    ///
    /// # Errors
    /// The first [`Fault`]; pages before it have been written.
    pub fn write(&mut self, iova: Iova, bytes: u64) -> Result<Vec<Reached>, Fault> {
        self.transfer(iova, bytes, AccessKind::Write)
    }

    fn transfer(
        &mut self,
        iova: Iova,
        bytes: u64,
        access: AccessKind,
    ) -> Result<Vec<Reached>, Fault> {
        let mut pieces = Vec::new();
        let done = self.iommu.dma(self.stream, iova, bytes, access, |iova, pa, _| {
            pieces.push(Reached { iova, pa, access });
        });
        for piece in &pieces {
            self.remember(*piece);
        }
        done.map(|()| pieces)
    }

    fn remember(&mut self, place: Reached) {
        if self.capacity == 0 {
            return;
        }
        if self.reached.len() >= self.capacity {
            self.reached.pop_front();
        }
        self.reached.push_back(place);
    }

    /// The places that it remembers, oldest first.
    pub fn reached(&self) -> impl Iterator<Item = &Reached> {
        self.reached.iter()
    }

    /// Forgets all places.
    pub fn forget(&mut self) {
        self.reached.clear();
    }

    /// Tries every remembered place again. Returns the ones that it still reached although `mapped` says that it
    /// should not; places that no longer answer are forgotten.
    pub fn try_stale(&mut self, mapped: impl Fn(&Reached) -> bool) -> Vec<Reached> {
        let mut stale = Vec::new();
        let (iommu, stream) = (self.iommu, self.stream);
        self.reached.retain_mut(|place| {
            let Ok(found) = iommu.translate(stream, place.iova, place.access) else {
                return false;
            };
            place.pa = found.pa;
            if !mapped(place) {
                stale.push(*place);
            }
            true
        });
        stale
    }
}
