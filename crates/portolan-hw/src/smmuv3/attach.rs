//! The unit behind the traits of the core: attachments of streams and substreams, first stages of a
//! guest's over second stages of ours, and rights of devices (ATS, stalls).
//!
//! IHI 0070, sections 3.4 (stages), 3.9 (ATS and substreams), 3.12 (faults) and 5.2 (entries). Reserved
//! addresses and streams whose devices are at work already are firmware's word: Arm I/O Remapping Table
//! (DEN0049), revision E.f, sections 3.1.1.7 (reserved memory) and 3.1.1.1 (ITS groups); or a device
//! tree's `reserved-memory` with `iommu-addresses`.
//!
//! *Context.* Task where a function does not say otherwise: streams are moved. The types are values.

use super::command::SmmuTag;
use super::domain::SecondStage;
use super::features::{Features, StallModel};
use super::moves::{StreamTarget, first_stage_entry, keep_shareability};
use super::queue::{SmmuQueue, SmmuShared};
use super::quirks::Errata;
use super::tables::{AttachedStage, Attachment};
use super::tables::{Blocking, STREAM};
use super::unit::Smmu;
use super::{command, domain};
use crate::reservations::Reservations;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::{
    Attach, AttachError, FaultEvent, Iommu, IommuError, PagedDomain, ReservedRegion, TagPool,
};
use portolan::platform::{AllMemory, TableMem, UnitPlatform};
use portolan::table::format::{Armv8Stage1, Format};
use portolan_spec::smmuv3::command::{Words, op};
use portolan_spec::smmuv3::{Field, command as layout, ste};

/// Nowhere.
pub(super) fn blocked(blocking: Blocking) -> StreamTarget {
    StreamTarget { entry: blocking.entry(), descriptor: None, attachment: None }
}

/// To memory, untranslated.
pub(super) fn passed_through(features: &Features) -> StreamTarget {
    let mut entry = [0; ste::WORDS];
    ste::V.set(&mut entry, 1);
    ste::CONFIG.set(&mut entry, ste::config::BYPASS);
    keep_shareability(&mut entry, features);
    StreamTarget { entry, descriptor: None, attachment: None }
}

/// *Context.* Task for functions that move streams: they may allocate, wait for the unit and for
/// another caller that moves the same stream. Interrupt for the others.
impl<P: UnitPlatform> Iommu for Smmu<P> {
    /// Blocks a stream. A device with translations of its own (ATS) is asked to forget them before
    /// and after its entry refuses them; [`Smmu::disable_ats`] before, and accesses that are under
    /// way meanwhile are not aborted. For a device that will not answer there is
    /// [`Smmu::device_gone`].
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.switch(stream, blocked(self.config.blocking))
    }

    fn block_pasid(&self, stream: StreamId, pasid: Pasid) -> Result<(), AttachError> {
        self.switch_pasid(stream, pasid, &[0; 8], None)
    }

    /// Passes a stream through. With ATS it needs substreams ([`Smmu::enable_pasids`]): an entry
    /// without refuses translation requests, and is refused itself ([`AttachError::Mismatch`]).
    fn pass_through(&self, stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        self.switch(stream, passed_through(&self.shared.features))
    }

    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.reservations().of(stream, each);
    }

    fn suspend(&self) -> Result<(), IommuError> {
        self.power_down()
    }

    fn resume(&self) -> Result<(), IommuError> {
        self.power_up()
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        self.next_event()
    }
}

/// Returns the tag of a domain, if it is of this unit.
fn tag_of<F, T, P: UnitPlatform>(
    shared: &Arc<SmmuShared<P>>,
    domain: &PagedDomain<F, T, SmmuQueue<P>>,
) -> Result<SmmuTag, AttachError>
where
    F: Format<Word = AtomicU64>,
    T: TableMem<AtomicU64>,
    SmmuQueue<P>: TagPool,
{
    let own = Arc::ptr_eq(&domain.queue().0, shared);
    let tag = SmmuTag::of(domain.context()).filter(|_| own);
    tag.ok_or(AttachError::Mismatch)
}

/// First-stage tables, wherever they are.
type First<const G: u32, T, P> = PagedDomain<Armv8Stage1<G>, T, SmmuQueue<P>>;

impl<const G: u32, T, P: UnitPlatform> Attach<First<G, T, P>> for Smmu<P>
where
    T: TableMem<AtomicU64> + 'static,
{
    fn attach(&self, stream: StreamId, domain: &Arc<First<G, T, P>>) -> Result<(), AttachError> {
        self.switch(stream, self.first(domain)?)
    }

    /// See [`Smmu::enable_pasids`].
    fn attach_pasid(
        &self,
        stream: StreamId,
        pasid: Pasid,
        domain: &Arc<First<G, T, P>>,
    ) -> Result<(), AttachError> {
        let StreamTarget { descriptor, attachment, .. } = self.first(domain)?;
        self.switch_pasid(stream, pasid, &descriptor.unwrap_or_default(), attachment)
    }
}

impl<const G: u32, P: UnitPlatform> Attach<SecondStage<G, P>> for Smmu<P> {
    fn attach(&self, stream: StreamId, domain: &Arc<SecondStage<G, P>>) -> Result<(), AttachError> {
        self.switch(stream, self.second(domain)?)
    }
}

/// Form of a guest's context descriptor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestFormat {
    /// One table.
    Linear,
    /// Two levels, the second of 4 KiB.
    TwoLevel4K,
    /// Two levels, the second of 64 KiB.
    TwoLevel64K,
}

/// Treatment of accesses without a substream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutSubstream {
    /// They are terminated.
    Terminate,
    /// They skip the first stage.
    Bypass,
    /// They use the first descriptor.
    First,
}

/// A guest's context descriptors, at an address that the second stage translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestContexts {
    /// First address, a multiple of 64.
    pub table: Iova,
    /// Form.
    pub format: GuestFormat,
    /// Exponent of the number of descriptors.
    pub lg2: u32,
    /// Accesses without a substream.
    pub without: WithoutSubstream,
}

impl<P: UnitPlatform> Smmu<P> {
    pub(super) fn first<const G: u32, T: TableMem<AtomicU64> + 'static>(
        &self,
        domain: &Arc<First<G, T, P>>,
    ) -> Result<StreamTarget, AttachError> {
        let tag = tag_of(&self.shared, domain)?;
        let SmmuTag::Asid(asid) = tag else {
            return Err(AttachError::Mismatch);
        };
        let table = domain.table();
        let features = &self.shared.features;
        let descriptor = domain::descriptor(features, table.format(), table.root(), asid);
        let mut entry = [0; ste::WORDS];
        first_stage_entry(&mut entry, features);
        let to = AttachedStage { tag, nested: false };
        Ok(StreamTarget {
            entry,
            descriptor: Some(descriptor),
            attachment: Some(Attachment::new(to, domain)),
        })
    }

    pub(super) fn second<const G: u32>(
        &self,
        domain: &Arc<SecondStage<G, P>>,
    ) -> Result<StreamTarget, AttachError> {
        let tag = tag_of(&self.shared, domain)?;
        let SmmuTag::Vmid(vmid) = tag else {
            return Err(AttachError::Mismatch);
        };
        let table = domain.table();
        let mut entry = [0; ste::WORDS];
        ste::V.set(&mut entry, 1);
        ste::CONFIG.set(&mut entry, ste::config::STAGE2);
        keep_shareability(&mut entry, &self.shared.features);
        let (format, root) = (table.format(), table.root());
        domain::describe_second_stage(&mut entry, &self.shared.features, format, root, vmid);
        let to = AttachedStage { tag, nested: false };
        Ok(StreamTarget { entry, descriptor: None, attachment: Some(Attachment::new(to, domain)) })
    }

    /// Makes a guest's own first stage translate the stream's accesses to addresses that `domain`
    /// translates on. The guest's descriptors and tables are reached through `domain` as well. The
    /// guest's invalidations have to be passed on by [`Smmu::guest_commands`].
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Attach::attach`]; [`IommuError::Unsupported`] if the unit has not both stages, cannot put
    /// one over the other ([`Errata::NO_NESTING`]), or has not as many substreams.
    pub fn attach_nested<const G: u32>(
        &self,
        stream: StreamId,
        domain: &Arc<SecondStage<G, P>>,
        guest: &GuestContexts,
    ) -> Result<(), AttachError> {
        let features = &self.shared.features;
        let two_level = guest.format != GuestFormat::Linear;
        let missing = !features.stage1
            || features.errata.contains(Errata::NO_NESTING)
            || guest.lg2 > features.pasid_lg2
            || (two_level && !features.two_level_cd);
        if missing {
            return Err(IommuError::Unsupported.into());
        }
        if guest.table.get() & 0x3f != 0 || guest.table.get() >> 52 != 0 {
            return Err(AttachError::Mismatch);
        }
        let mut target = self.second(domain)?;
        if let Some(attachment) = &mut target.attachment {
            attachment.to.nested = true;
        }
        let entry = &mut target.entry;
        first_stage_entry(entry, features);
        ste::S1CONTEXTPTR.set(entry, guest.table.get() >> 6);
        ste::S1CDMAX.set(entry, guest.lg2.into());
        let format = match guest.format {
            GuestFormat::Linear => ste::s1fmt::LINEAR,
            GuestFormat::TwoLevel4K => ste::s1fmt::TWO_LEVEL_4K,
            GuestFormat::TwoLevel64K => ste::s1fmt::TWO_LEVEL_64K,
        };
        ste::S1FMT.set(entry, format);
        let without = match guest.without {
            WithoutSubstream::Terminate => ste::s1dss::TERMINATE,
            WithoutSubstream::Bypass => ste::s1dss::BYPASS,
            WithoutSubstream::First => ste::s1dss::SSID0,
        };
        ste::S1DSS.set(entry, without);
        if features.stalls == StallModel::Either {
            ste::S1STALLD.set(entry, 1);
        }
        self.switch(stream, target)
    }

    /// Carries out invalidations of a guest's own first stage, in its encoding, and waits. Stream
    /// and VMID are replaced by the real ones; bits without a meaning are dropped. Accepted are
    /// CFGI_CD, CFGI_CD_ALL, TLBI_NH_ALL, _ASID, _VA, _VAA and ATC_INV.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`AttachError::Mismatch`] if the stream is not nested; [`IommuError::Unsupported`] for any
    /// other command, with nothing done.
    pub fn guest_commands(&self, stream: StreamId, commands: &[Words]) -> Result<(), AttachError> {
        self.with_stream(stream, |state, _| {
            let Some(AttachedStage { tag: SmmuTag::Vmid(vmid), nested: true }) = state.main()
            else {
                return Err(AttachError::Mismatch);
            };
            let vmid = vmid.get();
            let range = self.shared.features.range;
            let checked: Option<Vec<Words>> =
                commands.iter().map(|words| guest_command(words, stream, vmid, range)).collect();
            let checked = checked.ok_or(IommuError::Unsupported)?;
            Ok(self.shared.queue.run(checked.into_iter())?)
        })
    }
}

/// A guest's command with the real identifiers; `None` if it may not give it.
fn guest_command(words: &Words, stream: StreamId, vmid: u16, range: bool) -> Option<Words> {
    const CONFIG: &[Field] = &[layout::SSID, layout::CFGI_LEAF];
    const TAGGED: &[Field] = &[layout::TLBI_ASID, layout::TLBI_LEAF, layout::TLBI_ADDRESS];
    const RANGE: &[Field] =
        &[layout::TLBI_NUM, layout::TLBI_SCALE, layout::TLBI_TTL, layout::TLBI_TG];
    const DEVICE: &[Field] =
        &[layout::SSV, layout::SSID, layout::ATC_GLOBAL, layout::ATC_SIZE, layout::ATC_ADDRESS];
    let code = layout::OP.get(words);
    let (fields, more, identifier, value): (_, &[Field], _, u64) = match code {
        op::CFGI_CD => (CONFIG, &[], layout::SID, stream.get().into()),
        op::CFGI_CD_ALL => (&[][..], &[], layout::SID, stream.get().into()),
        op::ATC_INV => (DEVICE, &[], layout::SID, stream.get().into()),
        op::TLBI_NH_ALL => (&[][..], &[], layout::TLBI_VMID, vmid.into()),
        op::TLBI_NH_ASID => (&TAGGED[..1], &[], layout::TLBI_VMID, vmid.into()),
        op::TLBI_NH_VA | op::TLBI_NH_VAA => {
            let more = if range { RANGE } else { &[] };
            // With any ASID: its field is reserved (4.4.1.2).
            let fields = if code == op::TLBI_NH_VA { TAGGED } else { &TAGGED[1..] };
            (fields, more, layout::TLBI_VMID, vmid.into())
        }
        _ => return None,
    };
    let mut clean = [0; layout::WORDS];
    layout::OP.set(&mut clean, code);
    for field in fields.iter().chain(more) {
        field.set(&mut clean, field.get(words));
    }
    identifier.set(&mut clean, value);
    Some(clean)
}

impl<P: UnitPlatform> Smmu<P> {
    /// Addresses reserved for streams, and the reservations of
    /// [`Config::reserved`](super::Config::reserved) that were ignored.
    ///
    /// *Context.* Interrupt.
    pub fn reservations(&self) -> &Reservations {
        &self.config.reserved
    }

    /// Writes the entries of streams that are at work. The unit must be disabled. A stream that the
    /// unit does not have is passed over, even if firmware names it.
    pub(super) fn start(&self) -> Result<(), IommuError> {
        let machine = &*self.shared.machine;
        for of in &self.config.at_work {
            let place = match self.table.place(machine, of.stream) {
                Ok(place) => place,
                Err(AttachError::Iommu(error)) => return Err(error),
                Err(_) => continue,
            };
            let entry = passed_through(&self.shared.features).entry;
            machine.fill(place, &entry);
        }
        Ok(())
    }
}

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
        if !self.shared.features.ats {
            return Err(IommuError::Unsupported.into());
        }
        self.with_stream(id, |stream, place| {
            let entry = self.shared.machine.read_entry(place);
            let passing =
                ste::V.get(&entry) != 0 && ste::CONFIG.get(&entry) & ste::config::BYPASS != 0;
            if !stream.is_free() || passing || stream.stalls {
                return Err(AttachError::Mismatch);
            }
            stream.ats = true;
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
            if !stream.ats {
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
            (stream.ats, stream.filled) = (false, false);
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
            if !stream.is_free() || stream.ats {
                return Err(AttachError::Mismatch);
            }
            stream.stalls = true;
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
            for (pasid, old) in gone.attachments.settled(..) {
                self.discharge(id, pasid, old);
            }
            gone.release(&self.shared.machine);
            Ok(())
        })
    }
}
