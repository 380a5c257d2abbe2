//! Devices that are gone: removed by surprise, or dead.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 6.5.2.10 (a
//! device that does not complete an invalidation) and 6.5.3.

use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use portolan::addr::StreamId;
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::{Cpus, Mmio, TableMem};

use super::lists::with_room;
use super::request::{Contexts, Iotlb, Request};
use super::structures::{ABSENT, Forget, Mode, Structures, change};
use super::unit::Left;
use super::unit::Vtd;
use crate::chassis::entry::At;

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Vtd<R, M, C> {
    /// Blocks `stream`, all its PASIDs too, without asking the device for anything: for one that
    /// was removed by surprise, or no longer completes invalidations of its TLB. Returns once
    /// nothing is under way through what it was attached to, which may then be dropped, and from
    /// then on its domains' invalidations no longer ask it.
    ///
    /// No promise about the device is needed: whatever its TLB still holds, the unit refuses
    /// translated requests of a stream without an entry (3.9). If it comes back, its TLB has to be
    /// declared again ([`Vtd::use_device_tlb`]), and is told to forget everything before its stream
    /// is attached.
    ///
    /// # Errors
    /// As [`Iommu::block`](portolan::iommu::Iommu::block); to be tried again.
    pub fn device_gone(&self, stream: StreamId) -> Result<(), AttachError> {
        let sid = u16::try_from(stream.get()).map_err(|_| AttachError::NoSuchStream { stream })?;
        let (clock, limit) = (&self.core.control.clock, self.config.limit);
        with_room(
            &self.known,
            |known| known.gone.list(),
            1,
            |known| known.gone.insert(sid, ()),
        );
        let leave = |tables: &mut Structures| self.leave_behind(tables, sid);
        let left = self.structures.with(clock, limit, leave)?;
        self.wait_for_looks();
        left.map(drop).map_err(AttachError::from)
    }

    /// Blocks a stream as [`Vtd::device_gone`] does; returns where it was.
    fn leave_behind(&self, tables: &mut Structures, stream: u16) -> Result<Vec<Left>, IommuError> {
        // From here on nothing asks the device again because the stream is moved.
        let of_stream = |of: u16| of == stream;
        let count = {
            let mut known = self.known.lock();
            known.devices.remove(stream);
            let homes = known.homes.range((stream, 0), (stream, u32::MAX)).count();
            homes + known.limbo.iter().filter(|(at, _)| of_stream(at.0)).count()
        };
        if count == 0 {
            return Ok(Vec::new());
        }
        let keys = self.keys(stream, count);
        let context = tables.context(&self.core, stream)?;
        self.clear(context)?;
        if self.config.mode == Mode::Scalable {
            for &pasid in &keys {
                let at = tables.pasid(&self.core, stream, pasid)?;
                self.clear(at)?;
            }
        }
        self.to_limbo(stream, &keys);
        self.forget_stream()?;
        let mut left = Vec::with_capacity(count);
        {
            let mut known = self.known.lock();
            while let Some(at) = known.limbo.iter().position(|(at, _)| of_stream(at.0)) {
                left.push(known.limbo.remove(at));
                if left.len() == left.capacity() {
                    break;
                }
            }
            known.stale.remove(stream);
        }
        for ((_, pasid), home) in &left {
            self.forget_note(home, *pasid);
        }
        Ok(left)
    }

    /// PASIDs of a stream with a home or in limbo, `count` at most.
    fn keys(&self, stream: u16, count: usize) -> Vec<u32> {
        let mut keys = Vec::with_capacity(count);
        let known = self.known.lock();
        let homes = known.homes.range((stream, 0), (stream, u32::MAX));
        let homes = homes.map(|((_, pasid), _)| *pasid);
        let limbo = known.limbo.iter().filter(|(at, _)| at.0 == stream);
        let limbo = limbo.map(|((_, pasid), _)| *pasid);
        keys.extend(homes.chain(limbo).take(count));
        keys
    }

    fn clear(&self, at: At) -> Result<(), IommuError> {
        change(&self.core, at, &ABSENT, Forget::NOTHING)
    }

    /// Until the unit has forgotten it, the hardware may still reach all of it.
    fn to_limbo(&self, stream: u16, keys: &[u32]) {
        let mut known = self.known.lock();
        for &pasid in keys {
            let key = (stream, pasid);
            // Each home has made room for this when it was taken.
            if let Some(home) = known.homes.remove(key) {
                known.limbo.push((key, home));
            }
        }
        known.stale.insert(stream, ());
    }

    /// Everything, as what the stream had may be tagged by any domain.
    fn forget_stream(&self) -> Result<(), IommuError> {
        let pasids: &[Request] = match self.config.mode {
            Mode::Legacy => &[],
            Mode::Scalable => &[Request::PasidCacheAll],
        };
        let contexts = [Request::Contexts(Contexts::All)];
        self.core
            .run(&[&contexts, pasids, &[Request::Iotlb(Iotlb::All)]])
    }
}
