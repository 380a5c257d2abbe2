//! Substreams: changes of one of a stream's descriptors, and of the entry that points at them.
//!
//! IHI 0070, sections 3.21 (configuration and invalidation order), 5.2 and 5.4.

use super::command;
use super::context::Tag;
use super::moves::first_stage_entry;
use super::stream::{Attachment, Stream};
use super::stream_table::STREAM;
use super::unit::Smmu;
use crate::chassis::arm::Has;
use crate::chassis::entry::At;
use portolan::addr::{Pasid, StreamId};
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::UnitPlatform;
use portolan_spec::smmuv3::{cd, ste};

impl<P: UnitPlatform> Smmu<P> {
    /// Moves a substream.
    pub(super) fn switch_pasid(
        &self,
        id: StreamId,
        pasid: Pasid,
        descriptor: &cd::Cd,
        new: Option<Attachment>,
    ) -> Result<(), AttachError> {
        let index = pasid.get();
        self.with_stream(id, |stream, place| {
            let main = stream.main().map(|to| to.tag);
            let second = matches!(main, Some(Tag::Vmid(_)));
            let contexts = stream.contexts.as_mut().filter(|c| c.lg2() != 0 && !second);
            let contexts = contexts.ok_or(AttachError::Mismatch)?;
            if index == 0 || u64::from(index) >> contexts.lg2() != 0 {
                return Err(AttachError::Mismatch);
            }
            let at = contexts.place(&self.shared.machine, index)?;
            self.settle(id, stream)?;
            self.enlist(id, stream, Some(pasid), new.as_ref());
            let descriptor = stream.stalling(descriptor);
            let moved = self.move_pasid(id, stream, place, (pasid, at), &descriptor);
            self.note(id, stream, place, (Some(pasid), new), moved)
        })
    }

    /// Writes a descriptor, and makes the device forget translations that it got through the one
    /// before.
    fn move_pasid(
        &self,
        id: StreamId,
        stream: &mut Stream,
        place: At,
        (pasid, at): (Pasid, At),
        descriptor: &cd::Cd,
    ) -> Result<(), IommuError> {
        self.write_context(id, pasid.get(), at, descriptor)?;
        self.look_at_contexts(id, stream, place)?;
        if stream.ats == Has::No {
            return Ok(());
        }
        stream.filled = Has::Yes;
        match stream.attachments.attachment(Some(pasid)) {
            Some(_) => self.shared.run([command::invalidate_device(id, Some(pasid), None)]),
            None => Ok(()),
        }
    }

    /// Has the entry of a stream point at its descriptors if it does not yet.
    fn look_at_contexts(&self, id: StreamId, stream: &Stream, place: At) -> Result<(), IommuError> {
        let old = self.shared.machine.read_entry(place);
        let first = ste::CONFIG.get(&old) == ste::config::STAGE1;
        if ste::V.get(&old) != 0 && first {
            return Ok(());
        }
        let mut entry = old;
        if ste::V.get(&old) == 0 {
            entry = [0; ste::WORDS];
        }
        let without = match ste::CONFIG.get(&entry) {
            ste::config::BYPASS => ste::s1dss::BYPASS,
            _ => ste::s1dss::TERMINATE,
        };
        first_stage_entry(&mut entry, &self.shared.features);
        if let Some(contexts) = stream.contexts.as_ref() {
            contexts.describe(&mut entry);
        }
        ste::S1DSS.set(&mut entry, without);
        if stream.ats == Has::Yes {
            ste::EATS.set(&mut entry, ste::eats::FULL);
        }
        let forget = [command::config_stream(id)];
        self.change(place, &STREAM, &entry, &forget)
    }
}
