//! Rights of devices: substreams, translations of their own (ATS), stalls; and devices that are
//! gone.
//!
//! IHI 0070, sections 3.9 (ATS and PASIDs), 3.12 (faults) and 5.2 (entries).
//!
//! *Context.* Task, all functions here: they wait for the unit and for another caller that moves
//! the same stream.

use super::attach::blocked;
use super::command;
use super::features::StallModel;
use super::stream_table::{Blocking, STREAM};
use super::unit::Smmu;
use crate::chassis::arm::Has;
use portolan::addr::StreamId;
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::{AllMemory, UnitPlatform};
use portolan_spec::smmuv3::ste;

impl<P: UnitPlatform> Smmu<P> {
    /// Gives a stream room for `2^lg2` substreams. The stream must not be attached.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit has not as many, [`AttachError::Mismatch`] if the
    /// stream is attached or had another number before.
    pub fn enable_pasids(&self, id: StreamId, lg2: u32) -> Result<(), AttachError> {
        if lg2 == 0 || lg2 > self.shared.features.pasid_lg2 {
            return Err(IommuError::Unsupported.into());
        }
        self.with_stream(id, |stream, _| {
            let other = stream.contexts.is_some() && stream.pasid_lg2 != lg2;
            if stream.main().is_some() || other {
                return Err(AttachError::Mismatch);
            }
            stream.pasid_lg2 = lg2;
            self.prepare_contexts(stream, true)?;
            Ok(())
        })
    }

    /// Lets a device use translations of its own (ATS): no unit checks where accesses go that the device has
    /// translated, to which `_all` gives leave. To be called before ATS is enabled at the
    /// device (3.9.2); the stream must be blocked. A stream that is passed through afterwards needs
    /// [`Smmu::enable_pasids`] before: its device's translation requests are refused otherwise.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit cannot, [`AttachError::Mismatch`] if the stream is not
    /// blocked, or stalls: no entry can have both (5.2).
    pub fn enable_ats(&self, id: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        if self.shared.features.ats == Has::No {
            return Err(IommuError::Unsupported.into());
        }
        self.with_stream(id, |stream, place| {
            let entry = self.shared.machine.read_entry(place);
            let passing =
                ste::V.get(&entry) != 0 && ste::CONFIG.get(&entry) & ste::config::BYPASS != 0;
            if !stream.is_free() || passing || stream.stalls == Has::Yes {
                return Err(AttachError::Mismatch);
            }
            stream.ats = Has::Yes;
            Ok(())
        })
    }

    /// Ends a device's use of translations of its own; the stream stays where it is. To be called
    /// after ATS was disabled at the device and its requests under way have ended: translations
    /// that it has left are invalidated, and the end of that is waited for; only then does the
    /// entry refuse translated accesses (3.9.2). [`Smmu::block`](portolan::iommu::Iommu::block)
    /// does not need it, but accesses of a device by old translations meanwhile are then aborted.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the device or the unit does not answer: ATS then counts as enabled still. For a device that
    /// will never answer there is [`Smmu::device_gone`].
    pub fn disable_ats(&self, id: StreamId) -> Result<(), AttachError> {
        self.with_stream(id, |stream, place| {
            if stream.ats == Has::No {
                return Ok(());
            }
            self.shared.run([command::invalidate_device(id, None, None)])?;
            let old = self.shared.machine.read_entry(place);
            let mut entry = old;
            ste::EATS.set(&mut entry, ste::eats::ABORT);
            let forget = [command::config_stream(id)];
            match old == entry {
                // An earlier attempt may have changed memory and nothing else.
                true => self.shared.run(forget)?,
                false => self.change(place, &STREAM, &entry, &forget)?,
            }
            self.shared.atcs.remove_all(|atc| atc.stream == id);
            (stream.ats, stream.filled) = (Has::No, Has::No);
            Ok(())
        })
    }

    /// Lets faulting accesses of a stream wait until they are answered. To be called before the
    /// device is told; the stream must not be attached. Not for devices of PCI Express, whose
    /// transactions must not be held up.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit cannot, [`AttachError::Mismatch`] if the stream is
    /// attached, or its device uses translations of its own: no entry can have both (5.2).
    pub fn enable_stalls(&self, id: StreamId) -> Result<(), AttachError> {
        if self.shared.features.stalls != StallModel::Either {
            return Err(IommuError::Unsupported.into());
        }
        self.with_stream(id, |stream, _| {
            if !stream.is_free() || stream.ats == Has::Yes {
                return Err(AttachError::Mismatch);
            }
            stream.stalls = Has::Yes;
            Ok(())
        })
    }

    /// Blocks a stream as [`Smmu::block`](portolan::iommu::Iommu::block) does, without a record of
    /// refused accesses, in spite of [`Config::blocking`](super::Config::blocking): for a device
    /// whose accesses fill the event queue.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Smmu::block`](portolan::iommu::Iommu::block).
    pub fn silence(&self, id: StreamId) -> Result<(), AttachError> {
        self.switch(id, blocked(Blocking::Silent))
    }

    /// Blocks the stream of a device that was removed, or has died and will be reset before it is
    /// used again, and lets go of the domains to which the stream and its substreams were attached,
    /// without asking the device to forget: no answer is waited for. The remains of earlier moves
    /// go as well. The stream is then as if it had never been named, without substreams, ATS and
    /// stalls.
    ///
    /// Accesses of a device that is there after all are refused, its translated ones too: the unit
    /// checks them against the entry (`CR0.ATSCHK`). Only once ATS is enabled for the stream again
    /// would old translations count, so a device has to be reset before that.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the unit does not complete: nothing is let go, and the call can be repeated. An
    /// invalidation that the device left unanswered may hold the unit up until the unit's own
    /// deadline for it has passed.
    pub fn device_gone(&self, id: StreamId) -> Result<(), AttachError> {
        self.with_stream(id, |stream, place| {
            self.cut(id, place)?;
            // From here on no caller waits for the device.
            self.shared.atcs.remove_all(|atc| atc.stream == id);
            let mut gone = core::mem::take(stream);
            for left in gone.attachments.settled(..) {
                self.discharge(id, left);
            }
            gone.release(&self.shared.machine);
            Ok(())
        })
    }
}
