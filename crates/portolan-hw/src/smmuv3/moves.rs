//! Moves of streams, and of their substreams.
//!
//! IHI 0070, sections 3.21 (configuration and invalidation order), 3.9 (ATS), 4.3 (CMD_CFGI), 5.2 and
//! 5.4. A stream is moved by one caller at a time. If the unit or a device does not complete a move, the
//! stream's entry is made invalid in memory and everything that may still be used of it is kept
//! until the unit and the device have forgotten it, or until the device is known to be gone. A substream
//! is moved by its descriptor, and by the entry that points at the descriptors.

use super::command;
use super::command::SmmuTag;
use super::features::{Features, StallModel};
use super::tables::STREAM;
use super::tables::{AttachedStage, Attachment, Stream};
use super::tables::{CONTEXT, ContextTable};
use super::unit::Smmu;
use crate::chassis::entry::{At, Kind, Words as Entry};
use crate::chassis::sets::Atc;
use crate::turn::TurnWait;
use arrayvec::ArrayVec;
use portolan::addr::{Pasid, StreamId};
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::UnitPlatform;
use portolan_spec::smmuv3::command::Words;
use portolan_spec::smmuv3::{cd, ste};

/// Destination of a stream.
pub(super) struct StreamTarget {
    /// Its entry, but for the descriptors.
    pub entry: ste::Ste,
    /// Its descriptor, for a first stage of ours.
    pub descriptor: Option<cd::Cd>,
    pub attachment: Option<Attachment>,
}

/// Forgetting a stream: its entry and, if it had any, its descriptors.
type StreamCommands = ArrayVec<Words, 2>;

impl<P: UnitPlatform> Smmu<P> {
    /// Works on a stream on which no other caller works meanwhile.
    pub(super) fn with_stream<T>(
        &self,
        id: StreamId,
        work: impl FnOnce(&mut Stream, At) -> Result<T, AttachError>,
    ) -> Result<T, AttachError> {
        self.shared.queue.operation.running()?;
        let machine = &*self.shared.machine;
        let place = self.table.place(machine, id)?;
        let wait = TurnWait::new(&machine.clock, machine.limit);
        self.streams.of(id).with(wait, |stream| work(stream, place))?
    }

    /// Moves a stream.
    pub(super) fn switch(&self, id: StreamId, target: StreamTarget) -> Result<(), AttachError> {
        self.with_stream(id, |stream, place| {
            let StreamTarget { mut entry, descriptor, attachment } = target;
            let second = ste::CONFIG.get(&entry) & 0b10 != 0;
            if second && stream.has_substreams() {
                return Err(AttachError::Mismatch);
            }
            self.prepare_contexts(stream, descriptor.is_some())?;
            self.point(stream, &mut entry, descriptor.is_some());
            if stream.ats && ste::CONFIG.get(&entry) == ste::config::BYPASS {
                // Such an entry refuses translation requests.
                return Err(AttachError::Mismatch);
            }
            self.settle(id, stream)?;
            self.enlist(id, stream, None, attachment.as_ref());
            let moved = self.move_main(id, stream, place, &entry, descriptor.as_ref());
            self.note(id, stream, place, None, attachment, moved)
        })
    }

    /// Writes an entry, and makes the device forget translations that it got through the one
    /// before.
    ///
    /// A device that gets no translations from now on is asked before the entry says so, as it is
    /// when ATS is disabled (3.9.2), and once more after that, since it may have asked for others.
    fn move_main(
        &self,
        id: StreamId,
        stream: &mut Stream,
        place: At,
        entry: &ste::Ste,
        descriptor: Option<&cd::Cd>,
    ) -> Result<(), IommuError> {
        let forget = || self.shared.run([command::invalidate_device(id, None, None)]);
        let ask = stream.ats && stream.filled;
        let ends = ste::EATS.get(entry) == 0;
        let before = if ask && ends { forget() } else { Ok(()) };
        self.write_main(id, stream, place, entry, descriptor)?;
        before?;
        if ask {
            forget()?;
        }
        stream.filled = !ends;
        Ok(())
    }

    /// Allocates descriptors if they are needed.
    pub(super) fn prepare_contexts(
        &self,
        stream: &mut Stream,
        needed: bool,
    ) -> Result<(), IommuError> {
        if needed && stream.contexts.is_none() {
            let features = &self.shared.features;
            let table =
                ContextTable::new(&self.shared.machine, stream.pasid_lg2, features.two_level_cd)?;
            stream.contexts = Some(table);
        }
        if let Some(contexts) = stream.contexts.as_mut().filter(|c| c.lg2() != 0) {
            // The second-level table, if there is one.
            contexts.place(&self.shared.machine, 0)?;
        }
        Ok(())
    }

    /// Completes an entry for a stream with descriptors of ours, as far as it uses them.
    pub(super) fn point(&self, stream: &Stream, entry: &mut ste::Ste, own: bool) {
        use ste::{config, s1dss};
        if stream.ats && ste::CONFIG.get(entry) & 0b11 != 0 {
            ste::EATS.set(entry, ste::eats::FULL);
        }
        if stream.stalls && ste::CONFIG.get(entry) & ste::config::STAGE2 == ste::config::STAGE2 {
            ste::S2S.set(entry, 1);
            // A guest's own faults may wait as well, if its descriptor says so.
            ste::S1STALLD.set(entry, 0);
        }
        let Some(contexts) = stream.contexts.as_ref() else {
            return;
        };
        // With ATS a stream is passed through by an entry with substreams, which answers translation
        // requests with the addresses themselves (13.6.4).
        let identity =
            stream.ats && ste::CONFIG.get(entry) == config::BYPASS && contexts.lg2() != 0;
        if !own && !stream.has_substreams() && !identity {
            return;
        }
        let without = match (own, ste::CONFIG.get(entry)) {
            (true, _) => s1dss::SSID0,
            (false, config::BYPASS) => s1dss::BYPASS,
            (false, _) => s1dss::TERMINATE,
        };
        first_stage_entry(entry, &self.shared.features);
        let may_stall = self.shared.features.stalls == StallModel::Either;
        if may_stall && !stream.stalls {
            ste::S1STALLD.set(entry, 1);
        }
        if stream.ats {
            ste::EATS.set(entry, ste::eats::FULL);
        }
        contexts.describe(entry);
        if contexts.lg2() != 0 {
            ste::S1DSS.set(entry, without);
        }
    }

    /// Writes the descriptor of accesses without a substream, and the entry.
    fn write_main(
        &self,
        id: StreamId,
        stream: &mut Stream,
        place: At,
        entry: &ste::Ste,
        descriptor: Option<&cd::Cd>,
    ) -> Result<(), IommuError> {
        let machine = &*self.shared.machine;
        let mut entry = *entry;
        let descriptor = descriptor.map(|descriptor| stream.stalling(descriptor));
        let descriptor = descriptor.as_ref();
        match (stream.contexts.as_mut(), descriptor) {
            (Some(contexts), Some(descriptor)) if contexts.lg2() == 0 => {
                contexts.flip(machine, descriptor);
                contexts.describe(&mut entry);
            }
            (Some(contexts), descriptor) if contexts.lg2() != 0 => {
                let at = contexts.place(machine, 0)?;
                let none = [0; cd::WORDS];
                self.write_context(id, 0, at, descriptor.unwrap_or(&none))?;
            }
            _ => {}
        }
        let old = machine.read_entry(place);
        let mut forget = StreamCommands::new();
        forget.push(command::config_stream(id));
        let first = ste::V.get(&old) != 0 && ste::CONFIG.get(&old) & 0b101 == ste::config::STAGE1;
        if first {
            forget.push(command::config_contexts(id));
        }
        self.change(place, &STREAM, &entry, &forget)
    }

    /// Makes the unit take a stream's accesses for invalid, with any cached state.
    pub(super) fn cut(&self, id: StreamId, place: At) -> Result<(), IommuError> {
        let blocked = self.config.blocking.entry()[0];
        self.shared.machine.decide(place, blocked);
        self.shared.run([command::config_stream(id), command::config_contexts(id)])
    }

    pub(super) fn write_context(
        &self,
        id: StreamId,
        pasid: u32,
        place: At,
        descriptor: &cd::Cd,
    ) -> Result<(), IommuError> {
        let forget = [command::config_context(id, Pasid::new(pasid))];
        self.change(place, &CONTEXT, descriptor, &forget)
    }

    /// Changes an entry or a descriptor, with `forget` wherever the unit has to forget it.
    pub(super) fn change(
        &self,
        place: At,
        kind: &Kind,
        new: &Entry,
        forget: &[Words],
    ) -> Result<(), IommuError> {
        let (machine, queue) = (&self.shared.machine, &self.shared.queue);
        place.change(&machine.mem, machine.walker(), kind, new, |_| {
            queue.run(forget.iter().copied())
        })
    }

    /// Before a stream reaches a domain: adds it to the devices that the domain has to tell from
    /// now on.
    pub(super) fn enlist(
        &self,
        id: StreamId,
        stream: &Stream,
        pasid: Option<Pasid>,
        new: Option<&Attachment>,
    ) {
        let Some(AttachedStage { tag, nested }) = new.map(|new| new.to) else {
            return;
        };
        if stream.ats {
            self.shared.atcs.add(tag, Atc { stream: id, pasid });
        }
        if nested {
            self.shared.nested.add(tag, id);
        }
    }

    /// Once nothing of the stream reaches `old`, which is let go.
    pub(super) fn discharge(&self, id: StreamId, pasid: Option<Pasid>, old: Attachment) {
        let AttachedStage { tag, nested } = old.to;
        self.shared.atcs.remove(tag, Atc { stream: id, pasid });
        if nested {
            self.shared.nested.remove(tag, id);
        }
    }

    /// Before a move: makes the unit and the device forget the remains of failed moves, and lets
    /// them go. In memory the stream is blocked; the entry in memory is no measure of the unit's
    /// copy.
    pub(super) fn settle(&self, id: StreamId, stream: &mut Stream) -> Result<(), IommuError> {
        let ats = stream.ats;
        let settled = stream.attachments.settle_all(|| {
            let forget = [command::config_stream(id), command::config_contexts(id)];
            self.shared.run(forget)?;
            if ats {
                let forget = command::invalidate_device(id, None, None);
                self.shared.run([forget])?;
            }
            Ok(())
        })?;
        for (pasid, old) in settled {
            self.discharge(id, pasid, old);
        }
        for contexts in core::mem::take(&mut stream.stale_contexts) {
            contexts.release(&self.shared.machine);
        }
        Ok(())
    }

    /// After a move: the old domain is let go. If anything failed, the stream is blocked in memory
    /// and nothing is let go.
    pub(super) fn note(
        &self,
        id: StreamId,
        stream: &mut Stream,
        place: At,
        pasid: Option<Pasid>,
        new: Option<Attachment>,
        moved: Result<(), IommuError>,
    ) -> Result<(), AttachError> {
        let noted = stream.attachments.note(pasid, new, moved);
        if noted.is_err() {
            let machine = &self.shared.machine;
            machine.decide(place, 0);
            stream.attachments.unsettle(None..=None);
            // The places of a single descriptor can no longer take turns.
            let single = stream.contexts.take_if(|contexts| contexts.lg2() == 0);
            stream.stale_contexts.extend(single);
            // The first descriptor of several is substream 0's as well once the entry is valid.
            for index in [0, pasid.map_or(0, Pasid::get)] {
                let contexts = stream.contexts.as_mut();
                if let Some(Ok(at)) = contexts.map(|contexts| contexts.place(machine, index)) {
                    machine.decide(at, 0);
                }
            }
        }
        if let Some(old) = noted? {
            self.discharge(id, pasid, old);
        }
        Ok(())
    }
}

/// Has the stream's accesses keep the shareability that they come with. Where the unit cannot replace it,
/// it does so by itself, and the field is reserved (IHI 0070, 5.2, SHCFG).
pub(super) fn keep_shareability(entry: &mut ste::Ste, features: &Features) {
    if features.attribute_override {
        ste::SHCFG.set(entry, ste::SHARE_INCOMING);
    }
}

/// Sets the fields that every entry with a first stage has.
pub(super) fn first_stage_entry(entry: &mut ste::Ste, features: &Features) {
    let (cacheable, shareable) = super::domain::walk_attributes(features.coherent);
    ste::V.set(entry, 1);
    let second = ste::CONFIG.get(entry) & 0b10;
    let second = if ste::CONFIG.get(entry) & ste::config::BYPASS == 0 { 0 } else { second };
    ste::CONFIG.set(entry, ste::config::STAGE1 | second);
    ste::S1CIR.set(entry, cacheable);
    ste::S1COR.set(entry, cacheable);
    ste::S1CSH.set(entry, shareable);
    keep_shareability(entry, features);
}

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
            let second = matches!(main, Some(SmmuTag::Vmid(_)));
            let contexts = stream.contexts.as_mut().filter(|c| c.lg2() != 0 && !second);
            let contexts = contexts.ok_or(AttachError::Mismatch)?;
            if index == 0 || u64::from(index) >> contexts.lg2() != 0 {
                return Err(AttachError::Mismatch);
            }
            let at = contexts.place(&self.shared.machine, index)?;
            self.settle(id, stream)?;
            self.enlist(id, stream, Some(pasid), new.as_ref());
            let descriptor = stream.stalling(descriptor);
            let moved = self.move_pasid(id, stream, place, pasid, at, &descriptor);
            self.note(id, stream, place, Some(pasid), new, moved)
        })
    }

    /// Writes a descriptor, and makes the device forget translations that it got through the one
    /// before.
    fn move_pasid(
        &self,
        id: StreamId,
        stream: &mut Stream,
        place: At,
        pasid: Pasid,
        at: At,
        descriptor: &cd::Cd,
    ) -> Result<(), IommuError> {
        self.write_context(id, pasid.get(), at, descriptor)?;
        self.look_at_contexts(id, stream, place)?;
        if !stream.ats {
            return Ok(());
        }
        stream.filled = true;
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
        if stream.ats {
            ste::EATS.set(&mut entry, ste::eats::FULL);
        }
        let forget = [command::config_stream(id)];
        self.change(place, &STREAM, &entry, &forget)
    }
}
