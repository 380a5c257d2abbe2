//! Moving streams and PASIDs of them (blocked, passed through, attached to a domain with tables of
//! either stage), and the words of their entries.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 3.4, 6.5.3
//! (invalidations after each change, and their order) and 9.3 to 9.6.

use super::command::{Contexts, Drain, Extent, Iotlb, Remote, Request};
use super::features::{Mode, VtdFeature, width_code};
use super::queue::VtdQueue;
use super::tables::{ABSENT, AttachedContext, Attachment, EntryRequests, Key, Streams, change};
use super::tags::{NamingEntry, split_id};
use super::unit::{DeviceTlbUse, History, PASS, Vtd};
use crate::chassis::book::{Hold, Left};
use crate::chassis::entry::{At, Words};
use crate::turn::TurnWait;
use alloc::sync::Arc;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::sync::atomic::AtomicU64;
use portolan::addr::{InvalTag, Pasid, PhysAddr, StreamId};
use portolan::iommu::{
    Attach, AttachError, DeviceTlb, FaultEvent, FaultReason, Iommu, IommuError, PagedDomain,
    ReservedRegion,
};
use portolan::platform::{AllMemory, TableMem, UnitPlatform};
use portolan::table::format::{VtdFirstLevels, VtdFirstStage, VtdLevels, VtdSecondStage};
use portolan_spec::vtd::ADDRESS;
use portolan_spec::vtd::entry::{P, context, pasid as pasid_entry, scalable};

/// PASID of requests without one.
pub(super) const RID_PASID: u32 = 0;

/// The device TLB of a stream, as far as it concerns one PASID.
pub(super) fn remote((stream, pasid): Key, device: DeviceTlb) -> Remote {
    Remote { stream, pasid: (pasid != RID_PASID).then_some(pasid), device }
}

impl<P: UnitPlatform> Vtd<P> {
    /// The device TLB of a stream, if it may be used once the attachment at the key is left: not
    /// while another PASID is attached whose domain does not know of it.
    fn usable_device(&self, streams: &Streams, (stream, pasid): Key) -> Option<DeviceTlbUse> {
        let device = self.known.lock().devices.get(stream).copied()?;
        let mut others = streams.attached((stream, 0)..=(stream, u32::MAX));
        let told = others.all(|((_, other), at)| other == pasid || at.to.remote.is_some());
        told.then_some(device)
    }

    pub(super) fn turn(&self) -> TurnWait<'_, P> {
        let wait = TurnWait::new(&self.core.control.clock, self.config.limit);
        wait.while_running(&self.core.operation)
    }

    /// Blocks all streams.
    ///
    /// # Errors
    /// The first failure; the others are tried all the same.
    pub fn block_all(&self) -> Result<(), AttachError> {
        self.book.block_all(self.turn(), |(stream, pasid)| {
            self.go(StreamId::new(stream.into()), pasid, AttachTarget::Blocked)
        })
    }

    /// A PASID that the tables have room for, other than that of requests without one.
    pub(super) fn checked(&self, pasid: Pasid) -> Result<u32, AttachError> {
        let bits = self.config.pasid_bits.min(self.features().pasid_bits);
        let fits = self.config.mode == Mode::Scalable && pasid.get() >> bits == 0;
        if fits && pasid.get() != RID_PASID { Ok(pasid.get()) } else { Err(AttachError::Mismatch) }
    }

    pub(super) fn go(
        &self,
        stream: StreamId,
        pasid: u32,
        target: AttachTarget,
    ) -> Result<(), AttachError> {
        let sid = u16::try_from(stream.get()).map_err(|_| AttachError::NoSuchStream { stream })?;
        match (&target, self.features().translates()) {
            (_, true) => {}
            (AttachTarget::Pass, false) => return Ok(()),
            _ => return Err(IommuError::Unsupported.into()),
        }
        let blocked = matches!(target, AttachTarget::Blocked);
        let passes = matches!(target, AttachTarget::Pass).then_some(PASS);
        if self.root.is_due() && !blocked && !self.former.lock().leave_out(passes) {
            return Err(IommuError::Unsupported.into());
        }
        let move_to = |streams: &mut Streams| self.move_to(streams, (sid, pasid), &target);
        let left = self.book.with(self.turn(), move_to)?;
        // Other callers that wait to move a stream need not wait for the end of a domain.
        left.map(drop)
    }

    /// Moves a stream; returns the attachments that it leaves.
    fn move_to(
        &self,
        streams: &mut Streams,
        key: Key,
        target: &AttachTarget,
    ) -> Result<Left<AttachedContext>, AttachError> {
        let mut left = self.settle(streams, key)?;
        let old = streams.attachment(key).map(|old| old.to);
        // With a legacy entry that passes through, device TLBs get nothing.
        let legacy = self.config.mode == Mode::Legacy;
        let device = self.usable_device(streams, key);
        let device = device.filter(|_| !(legacy && matches!(target, AttachTarget::Pass)));
        let new = target.attachment(device.map(|device| remote(key, device.tlb)));
        let to = new.as_ref().map(|new| new.to);
        if old.is_none() && to.is_none() {
            return Ok(left);
        }
        let words = self.words(target, to)?;
        if let (Some(to), Some(device)) = (to, device) {
            self.forget_history(to, device)?;
        }
        let at = self.entry(streams, key)?;
        streams.name(key);
        if let Some(to) = to {
            self.note(to, key, at);
        }
        let forget_old = self.forget(key, old);
        let forget_absence = self.forget_absence(key, to);
        let forget = EntryRequests {
            old: &forget_old.each_ref().map(Vec::as_slice),
            drain: self.drain(old),
            absence: &forget_absence.each_ref().map(Vec::as_slice),
        };
        let changed = change(&self.core, at, &words, forget).map_err(AttachError::from);
        // A caller that has switched marks meanwhile may not have found the entry yet.
        let changed = changed.and_then(|()| match to.and_then(|to| to.context) {
            Some(context) if self.words(target, to)? != words => {
                Ok(self.core.mark_entries(context, self.marks_of(target))?)
            }
            _ => Ok(()),
        });
        if changed.is_err() {
            // Absent, so that no more of it is looked up for any access.
            let _ = change(&self.core, at, &ABSENT, EntryRequests::NOTHING);
        }
        left.extend(streams.note(key, new, changed)?);
        if let Some(old) = old {
            self.forget_note(old, key);
        }
        Ok(left)
    }

    /// Additional wait when an attachment is left: for page requests that the device sent from it,
    /// so that none is taken for one of the PASID's next owner (7.10).
    fn drain(&self, old: Option<AttachedContext>) -> Drain {
        let sends = old.is_some_and(|old| old.remote.is_some());
        let drains = self.features().has.contains(VtdFeature::PAGE_REQUEST_DRAIN);
        if sends && drains && self.requests.is_read() {
            Drain::PageRequests
        } else {
            Drain::Nothing
        }
    }

    /// Makes a device forget translations from before it was this unit's, or was gone.
    fn forget_history(&self, to: AttachedContext, device: DeviceTlbUse) -> Result<(), IommuError> {
        match (device.history, to.remote) {
            (History::Unknown, Some(remote)) => {
                let requests: ArrayVec<_, 2> = remote.forget(Extent::All).collect();
                self.core.run(&[&requests])
            }
            _ => Ok(()),
        }
    }

    /// Once more invalidates the remains of a failure at `key`, before anything else happens to it.
    fn settle(&self, streams: &mut Streams, key: Key) -> Result<Left<AttachedContext>, IommuError> {
        let settled = streams.settle(key, |_, unsettled| {
            unsettled.iter().try_for_each(|left| {
                let stages = self.forget(key, Some(left.to));
                let drain = self.drain(Some(left.to));
                self.core.run_to(&stages.each_ref().map(Vec::as_slice), drain)
            })
        })?;
        for left in &settled {
            self.forget_note(left.to, key);
        }
        Ok(settled.into_iter().collect())
    }

    /// From now on invalidations of the domain reach this stream.
    pub(super) fn note(&self, to: AttachedContext, (stream, pasid): Key, entry: At) {
        if let Some(context) = to.context {
            self.core.tag(context, |tag| {
                // Legacy mode knows no PASIDs, and refuses their invalidations.
                if self.config.mode == Mode::Scalable {
                    tag.entries.push(NamingEntry { key: (stream, pasid), at: entry });
                    let at = tag.pasids.partition_point(|of| *of < pasid);
                    tag.pasids.insert(at, pasid);
                }
                tag.remotes.extend(to.remote);
            });
        }
    }

    pub(super) fn forget_note(&self, to: AttachedContext, (stream, pasid): Key) {
        let Some(context) = to.context else { return };
        self.core.untag(context, |tag| {
            if let Some(at) = tag.entries.iter().position(|of| of.key == (stream, pasid)) {
                tag.entries.swap_remove(at);
            }
            if let Some(at) = tag.pasids.iter().position(|of| *of == pasid) {
                tag.pasids.remove(at);
            }
            let remote = to.remote;
            if let Some(at) = tag.remotes.iter().position(|of| Some(*of) == remote) {
                tag.remotes.remove(at);
            }
        });
    }

    /// Invalidations that hardware needs when `old` is left: configuration, translations, device
    /// TLB.
    fn forget(&self, (stream, pasid): Key, old: Option<AttachedContext>) -> [Vec<Request>; 3] {
        let Some(old) = old else {
            return Default::default();
        };
        let domain = old.id;
        let mut stages: [Vec<Request>; 3] = Default::default();
        // Whether or not it was used for `old`: it may be from now on, while `old` is left.
        let device = self.known.lock().devices.get(stream).copied();
        let device = device.map(|device| remote((stream, pasid), device.tlb));
        match self.config.mode {
            Mode::Legacy => {
                let context = Contexts::Device { domain, stream };
                stages[0].push(Request::Contexts(context));
            }
            Mode::Scalable => {
                if old.context.is_none() {
                    // QEMU notices the end of pass-through with the context cache only.
                    let context = Contexts::Device { domain, stream };
                    stages[0].push(Request::Contexts(context));
                }
                stages[0].push(Request::PasidCache { domain, pasid });
                let extent = Extent::All;
                stages[1].push(Request::PasidIotlb { domain, pasid, extent });
            }
        }
        stages[1].push(Request::Iotlb(Iotlb::Domain { domain }));
        let remote = old.remote.or(device);
        stages[2].extend(remote.into_iter().flat_map(|remote| remote.forget(Extent::All)));
        stages
    }

    /// Invalidations of entries that caching mode has kept as absent: tagged with domain 0 where
    /// the entry would have named one (6.1).
    fn forget_absence(&self, key: Key, new: Option<AttachedContext>) -> [Vec<Request>; 3] {
        let mut stages = self.forget(key, new);
        stages[2].clear();
        if new.is_some() {
            let (domain, stream) = (0, key.0);
            let context = Contexts::Device { domain, stream };
            stages[0].insert(0, Request::Contexts(context));
            if self.config.mode == Mode::Scalable {
                let pasid = key.1;
                stages[0].push(Request::PasidCache { domain, pasid });
            }
        }
        stages
    }

    /// The words of the scalable context entry of a stream, whose device may have a TLB that is used.
    fn scalable_words(&self, directory: PhysAddr, code: u64, device: bool) -> Words {
        let has = self.features().has;
        let flag = |condition: bool, bit: u64| if condition { bit } else { 0 };
        let requests = device && self.requests.is_read();
        let mut words = ABSENT;
        words[0] = directory.get() & ADDRESS
            | scalable::PDTS.at(code)
            | flag(device, scalable::DTE)
            | flag(has.contains(VtdFeature::PASID), scalable::PASIDE)
            | flag(requests, scalable::PRE)
            | P;
        words[1] = scalable::RID_PASID.at(RID_PASID.into());
        words
    }

    /// The scalable context entry of a stream, if it has one, and the words that its attachments make.
    pub(super) fn context_of(&self, streams: &Streams, stream: u16) -> (Option<At>, Words) {
        let tables = &streams.state;
        let device = self.usable_device(streams, (stream, u32::MAX)).is_some();
        let directory = tables.known_directory(stream).unwrap_or(PhysAddr::new(0));
        let words = self.scalable_words(directory, tables.directory_code(), device);
        (tables.known_context(stream), words)
    }

    /// The entry that decides about a stream and a PASID, made if there is none.
    fn entry(&self, streams: &mut Streams, key: Key) -> Result<At, IommuError> {
        let (stream, pasid) = key;
        let device = self.usable_device(streams, key).is_some();
        let structures = &mut streams.state;
        let context = structures.context(&self.core, stream)?;
        if structures.mode == Mode::Legacy {
            return Ok(context);
        }
        let directory = structures.directory(&self.core, stream)?;
        let at = structures.pasid(&self.core, stream, pasid)?;
        let words = self.scalable_words(directory, structures.directory_code(), device);
        let (domain, all) = (0, Request::Iotlb(Iotlb::All));
        let context_cache = [Request::Contexts(Contexts::Device { domain, stream })];
        let forget = EntryRequests {
            old: &[&context_cache, &[Request::PasidCacheAll], &[all]],
            drain: Drain::Nothing,
            absence: &[&context_cache],
        };
        if structures.stale.contains(&stream) {
            self.core.run(forget.old)?;
            structures.stale.remove(&stream);
        }
        if let Err(error) = change(&self.core, context, &words, forget) {
            structures.stale.insert(stream);
            return Err(error);
        }
        Ok(at)
    }
}

impl<P: UnitPlatform> Iommu for Vtd<P> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.go(stream, RID_PASID, AttachTarget::Blocked)?;
        Ok(self.revoke_interrupts(Some(stream))?)
    }

    /// Page requests that the device sent before are in the queue by then, if the unit can drain them
    /// (7.10).
    fn block_pasid(&self, stream: StreamId, pasid: Pasid) -> Result<(), AttachError> {
        self.go(stream, self.checked(pasid)?, AttachTarget::Blocked)
    }

    fn pass_through(&self, stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        if !self.features().has.contains(VtdFeature::PASS_THROUGH) {
            return Err(IommuError::Unsupported.into());
        }
        self.go(stream, RID_PASID, AttachTarget::Pass)
    }

    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.config.reserved.of(stream, each);
    }

    fn suspend(&self) -> Result<(), IommuError> {
        self.power_down()
    }

    fn resume(&self) -> Result<(), IommuError> {
        self.power_up()
    }

    /// *Context.* Interrupt.
    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        let mut event = self.faults.next(&self.core.control)?;
        if let Some(FaultEvent::Fault(record)) = &mut event {
            // One code stands for both: what the tables say now tells which.
            if let (FaultReason::Permission, Some(iova)) = (record.reason, record.iova) {
                let pasid = record.pasid.map_or(RID_PASID, Pasid::get);
                let key = (record.stream.get() as u16, pasid);
                // While another caller moves streams, the record is less exact: this function does
                // not wait.
                let mapped = self.book.try_with(|streams| {
                    let domain = streams.attachment(key)?.domain.as_ref()?;
                    Some(domain.0.translate(iova).is_some())
                });
                if mapped == Some(Some(false)) {
                    record.reason = FaultReason::NotMapped;
                }
            }
        }
        Ok(event)
    }
}

macro_rules! attach {
    ($format:ident, $stage:ident) => {
        impl<T, P: UnitPlatform> Attach<PagedDomain<$format, T, VtdQueue<P>>> for Vtd<P>
        where
            T: TableMem<AtomicU64> + 'static,
        {
            fn attach(
                &self,
                stream: StreamId,
                domain: &Arc<PagedDomain<$format, T, VtdQueue<P>>>,
            ) -> Result<(), AttachError> {
                self.attach_as(stream, RID_PASID, domain)
            }

            fn attach_pasid(
                &self,
                stream: StreamId,
                pasid: Pasid,
                domain: &Arc<PagedDomain<$format, T, VtdQueue<P>>>,
            ) -> Result<(), AttachError> {
                self.attach_as(stream, self.checked(pasid)?, domain)
            }
        }

        impl<T, P: UnitPlatform> AttachAs<PagedDomain<$format, T, VtdQueue<P>>> for Vtd<P>
        where
            T: TableMem<AtomicU64> + 'static,
        {
            fn attach_as(
                &self,
                stream: StreamId,
                pasid: u32,
                domain: &Arc<PagedDomain<$format, T, VtdQueue<P>>>,
            ) -> Result<(), AttachError> {
                let ours = Arc::ptr_eq(&domain.queue().0, &self.core);
                if !ours || self.is_untranslated(stream) {
                    return Err(AttachError::Mismatch);
                }
                self.hold_reserved(stream, &**domain)?;
                let target = AttachTarget::$stage {
                    context: domain.context(),
                    root: domain.table().root().get(),
                    levels: domain.table().format().levels,
                    domain: Hold(domain.clone()),
                };
                self.go(stream, pasid, target)
            }
        }
    };
}

/// Attachment to a domain of either stage.
trait AttachAs<D> {
    fn attach_as(&self, stream: StreamId, pasid: u32, domain: &Arc<D>) -> Result<(), AttachError>;
}

attach!(VtdSecondStage, Second);
attach!(VtdFirstStage, First);

/// Destination of a stream.
#[derive(Clone, Debug)]
pub(super) enum AttachTarget {
    Blocked,
    Pass,
    Second { context: InvalTag, root: u64, levels: VtdLevels, domain: Hold },
    First { context: InvalTag, root: u64, levels: VtdFirstLevels, domain: Hold },
}

impl AttachTarget {
    pub(super) fn attachment(&self, remote: Option<Remote>) -> Option<Attachment> {
        let (context, domain) = match self {
            Self::Blocked => return None,
            Self::Pass => (None, None),
            Self::Second { context, domain, .. } | Self::First { context, domain, .. } => {
                (Some(*context), Some(domain.clone()))
            }
        };
        let id = context.map_or(PASS, |context| split_id(context).0);
        let to = AttachedContext { id, context, remote };
        Some(Attachment { to, domain })
    }
}

impl<P: UnitPlatform> Vtd<P> {
    /// The words of the entry for `target`; those of the longest kind, zeros behind.
    pub(super) fn words(
        &self,
        target: &AttachTarget,
        to: Option<AttachedContext>,
    ) -> Result<Words, AttachError> {
        let mut words = ABSENT;
        let Some(to) = to else { return Ok(words) };
        let device = to.remote.is_some();
        match self.config.mode {
            Mode::Legacy => self.context_words(&mut words, target, to.id, device)?,
            Mode::Scalable => self.pasid_words(&mut words, target, to.id)?,
        }
        words[0] |= P;
        Ok(words)
    }

    /// Width code of entries that pass through: the widest that there is.
    fn widest(&self) -> u64 {
        self.features().second_levels().last().map_or(0, width_code)
    }

    fn context_words(
        &self,
        words: &mut [u64],
        target: &AttachTarget,
        id: u16,
        device: bool,
    ) -> Result<(), AttachError> {
        use context::translation as t;
        let (kind, root, width) = match target {
            AttachTarget::Second { root, levels, .. } => {
                let kind = if device { t::DEVICE_TLB } else { t::UNTRANSLATED };
                (kind, *root, width_code(*levels))
            }
            AttachTarget::Pass => match self.widest() {
                0 => return Err(IommuError::Unsupported.into()),
                width => (t::PASS, 0, width),
            },
            AttachTarget::Blocked | AttachTarget::First { .. } => {
                return Err(AttachError::Mismatch);
            }
        };
        words[0] = root & ADDRESS | context::TT.at(kind);
        words[1] = context::AW.at(width) | context::DID.at(id.into());
        Ok(())
    }

    /// Bit of the entry for `target` that has the second stage marked.
    fn marks_of(&self, target: &AttachTarget) -> u64 {
        let second = match target {
            AttachTarget::Second { context, .. } => Some(*context),
            AttachTarget::First { context, .. } => {
                let known = self.known.lock();
                known.parents.get(split_id(*context).0).map(|parent| parent.context)
            }
            AttachTarget::Blocked | AttachTarget::Pass => None,
        };
        second.map_or(0, |second| self.core.marks(second))
    }

    fn pasid_words(
        &self,
        words: &mut [u64],
        target: &AttachTarget,
        id: u16,
    ) -> Result<(), AttachError> {
        use pasid_entry::{AW, DID, FSPM, PGTT, PWSNP, translation as t};
        let snoops = self.features().has.contains(VtdFeature::SCALABLE_SNOOPS);
        let snoop = if snoops { PWSNP } else { 0 };
        words[1] = DID.at(id.into()) | snoop;
        let second = |root: u64, levels| root & ADDRESS | AW.at(width_code(levels));
        match target {
            AttachTarget::Blocked => return Err(AttachError::Mismatch),
            AttachTarget::Pass => {
                words[0] = AW.at(self.widest()) | PGTT.at(t::PASS);
                words[1] = DID.at(id.into());
            }
            AttachTarget::Second { root, levels, .. } => {
                words[0] = second(*root, *levels) | PGTT.at(t::SECOND) | self.marks_of(target);
            }
            AttachTarget::First { root, levels, .. } => {
                let (mode, width) = match levels {
                    VtdFirstLevels::Four => (0, width_code(VtdLevels::Four)),
                    VtdFirstLevels::Five => (1, width_code(VtdLevels::Five)),
                };
                words[2] = root & ADDRESS | FSPM.at(mode);
                let marks = self.marks_of(target);
                let known = self.known.lock();
                words[0] = match known.parents.get(id) {
                    Some(parent) => second(parent.root, parent.levels) | PGTT.at(t::NESTED) | marks,
                    // The width is the second stage's, but QEMU limits a first stage by it as well.
                    None => PGTT.at(t::FIRST) | AW.at(width),
                };
            }
        }
        Ok(())
    }
}
