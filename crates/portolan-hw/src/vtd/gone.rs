//! Devices that are gone: removed by surprise, or dead.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 6.5.2.10 (a
//! device that does not complete an invalidation) and 6.5.3.

use alloc::vec::Vec;

use portolan::addr::StreamId;
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::UnitPlatform;

use super::streams::{Attachment, Key, Streams};
use super::structures::{ABSENT, Forget, Mode, change};
use super::unit::Vtd;
use crate::chassis::entry::At;
use crate::chassis::with_room;

impl<P: UnitPlatform> Vtd<P> {
    /// Blocks `stream`, all its PASIDs and its interrupts too, without asking the device for
    /// anything: for one that was removed by surprise, or no longer completes invalidations of its
    /// TLB. Returns once nothing is under way through its domains, which may then be dropped, and
    /// from then on their invalidations no longer ask it.
    ///
    /// No promise about the device is needed: its TLB may still hold translations, but the unit
    /// refuses translated requests of a stream without an entry (3.9). If it comes back, its TLB
    /// has to be declared again ([`Vtd::use_device_tlb`]), and is told to forget everything before
    /// its stream is attached.
    ///
    /// # Errors
    /// As [`Iommu::block`](portolan::iommu::Iommu::block); to be tried again.
    pub fn device_gone(&self, stream: StreamId) -> Result<(), AttachError> {
        let sid = u16::try_from(stream.get()).map_err(|_| AttachError::NoSuchStream { stream })?;
        with_room(&self.known, |known| known.gone.list(), |known| known.gone.insert(sid, ()));
        let leave = |streams: &mut Streams| self.leave_behind(streams, sid);
        let left = self.book.with(self.turn(), leave)?;
        left.map(drop)?;
        Ok(self.revoke_interrupts(Some(stream))?)
    }

    /// Blocks a stream as [`Vtd::device_gone`] does; returns its attachments.
    fn leave_behind(
        &self,
        streams: &mut Streams,
        stream: u16,
    ) -> Result<Vec<(Key, Attachment)>, IommuError> {
        // From here on nothing asks the device again because the stream is moved.
        self.known.lock().devices.remove(stream);
        let all = (stream, 0)..=(stream, u32::MAX);
        let keys: Vec<Key> = streams.not_blocked(all.clone()).collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let tables = &mut streams.state;
        self.clear(tables.context(&self.core, stream)?)?;
        if self.config.mode == Mode::Scalable {
            for (_, pasid) in keys {
                self.clear(tables.pasid(&self.core, stream, pasid)?)?;
            }
        }
        // Until the unit has forgotten it, the hardware may still reach all of it.
        tables.stale.insert(stream);
        streams.unsettle(all.clone());
        // Everything, as what the stream had may be tagged by any domain.
        self.forget_everything()?;
        streams.state.stale.remove(&stream);
        let left = streams.settled(all);
        for ((_, pasid), attachment) in &left {
            self.forget_note(attachment.to, *pasid);
        }
        Ok(left)
    }

    fn clear(&self, at: At) -> Result<(), IommuError> {
        change(&self.core, at, &ABSENT, Forget::NOTHING)
    }
}
