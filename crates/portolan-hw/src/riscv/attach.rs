//! Moving streams and address spaces of them: blocked, passed through, or attached to a domain.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Changing device directory table
//! entry" and "Changing process directory table entry" (invalidations after each change), "Caching
//! invalid entries" (entries that need none), "Process-Directory-Table" and "Process-context fields".
//! Requests without a PASID are those of address space 0 (`tc.DPE`), so that none of a stream with
//! PASIDs goes untranslated by accident.
//!
//! Not supported: a second stage beneath a process directory, requests with supervisor privilege
//! (`ta.ENS`).

use super::command::{self, Attachment, Counted, NOWHERE, PASSING, RiscvTag, translated};
use super::faults;
use super::features::RiscvFeature;
use super::messages::message_window;
use super::queue::RiscvQueue;
use super::tables::{CONTEXT, Directory, DirectoryShape, Key, Place, Streams, Tables};
use super::unit::RiscvIommu;
use crate::chassis::Block;
use crate::chassis::book::Left;
use crate::chassis::entry::{After, At, Words};
use crate::chassis::handed::handover_methods;
use crate::chassis::{common_methods, plain};
use crate::promise;
use crate::turn::TurnWait;
use alloc::sync::Arc;
use arrayvec::ArrayVec;
use core::sync::atomic::Ordering;
use portolan::addr::{Pasid, StreamId};
use portolan::inval::Walker;
use portolan::iommu::{
    Attach, AttachError, BoundDomain, Conditions, DeviceTlb, FaultAccess, FaultEvent, FaultReason,
    FaultRecord, InterruptRefusal, Iommu, IommuDomains, IommuError, PagedDomain, RecoverableFaults,
    RemapInterrupts, ReservedRegion, Stage,
};
use portolan::platform::{AllMemory, UnitPlatform};
use portolan::table::format::{Riscv, RiscvFirstStage, RiscvSecondStage};
use portolan_spec::riscv::context::{
    BY_DEFAULT, CONTROL, DIRECTORY, FIRST, MODE, PROCESS_WORDS, ROOT, V,
};

/// Commands that make hardware forget `context` when its user leaves the domain of `tag`: the
/// context, and then the translations, so that nothing is kept again by a stale context. A unit
/// may keep translations of both stages by other tags than those of the second alone.
pub(super) fn forget(context: Counted, tag: Option<RiscvTag>) -> ArrayVec<Counted, 4> {
    let mut commands = ArrayVec::new();
    commands.push(context);
    if let Some(tag) = tag {
        commands.push(command::fence());
        commands.extend(command::through_both(tag));
        commands.push(command::context(tag));
    }
    commands
}

impl<P: UnitPlatform> RiscvIommu<P> {
    /// Clock and limit for a turn: a caller that has the turn moves streams, and waits no longer
    /// than the limit.
    pub(super) fn turn(&self) -> TurnWait<'_, P> {
        let control = &self.shared.control;
        let wait = TurnWait::new(&control.clock, control.limit);
        wait.while_running(&self.shared.operation)
    }

    /// Blocks all streams.
    ///
    /// *Context.* Task: domains without another holder are dropped.
    ///
    /// # Errors
    /// The first failure; the others are tried all the same.
    pub fn block_all(&self) -> Result<(), AttachError> {
        self.book.block_all(self.turn(), |(stream, pasid)| {
            let stream = StreamId::new(stream);
            self.go(stream, Pasid::new(pasid), NOWHERE, None)
        })
    }

    fn go(
        &self,
        stream: StreamId,
        pasid: Pasid,
        words: Words,
        new: Option<Attachment>,
    ) -> Result<(), AttachError> {
        let no_such = AttachError::NoSuchStream { stream };
        let stream = Directory::has(self.streams_lg2(), stream).ok_or(no_such)?;
        let key = (stream, pasid.get());
        let move_to = |streams: &mut Streams| self.move_to(streams, key, &words, new);
        let left = self.book.with(self.turn(), move_to)??;
        // Domains wait for the hardware when they are dropped: without the turn.
        drop(left);
        Ok(())
    }

    /// Words of a context, with the stream's MSI page table where the new one has a second stage.
    /// Entries that are in use keep a stream where there is one; nothing is reached by them once it
    /// is blocked.
    fn with_messages(
        &self,
        streams: &mut Streams,
        stream: u32,
        words: &Words,
        new: Option<&Attachment>,
    ) -> Result<Words, AttachError> {
        let mem = &self.shared.control.mem;
        let Some(messages) = &mut streams.state.messages else {
            return Ok(*words);
        };
        if let Some(Some(RiscvTag::Second(_))) = new.map(|new| new.to) {
            return Ok(messages.with_table(mem, stream, words)?);
        }
        if let Some(table) = messages.known(stream) {
            match new {
                None => {
                    table.close(mem);
                }
                Some(_) if table.slots().are_used() => return Err(AttachError::Mismatch),
                Some(_) => {}
            }
        }
        Ok(*words)
    }

    /// Moves an address space. The result is to be dropped without the turn.
    pub(super) fn move_to(
        &self,
        streams: &mut Streams,
        key: Key,
        words: &Words,
        new: Option<Attachment>,
    ) -> Result<Left<Option<RiscvTag>>, AttachError> {
        streams.state.has(key)?;
        if streams.state.processes.contains_key(&key.0) {
            return self.change_to(streams, key, words, new);
        }
        let (stream, _) = key;
        let words = self.with_messages(streams, stream, words, new.as_ref())?;
        let blocks = new.is_none();
        let left = self.change_to(streams, key, &words, new)?;
        let messages = streams.state.messages.as_mut().filter(|_| blocks);
        if let Some(table) = messages.and_then(|messages| messages.known(stream)) {
            // With the tag that they were kept by.
            table.slots().settle_all();
        }
        Ok(left)
    }

    fn change_to(
        &self,
        streams: &mut Streams,
        key: Key,
        words: &Words,
        new: Option<Attachment>,
    ) -> Result<Left<Option<RiscvTag>>, AttachError> {
        let context = streams.state.forget(key);
        let settle = |tables: &mut Tables, unsettled: &[Attachment]| {
            let mut all = unsettled.iter();
            all.try_for_each(|left| self.shared.run(forget(context, left.to).into_iter()))?;
            self.settle_remote(tables, key, unsettled)
        };
        if new.is_none() && streams.attachment(key).is_none() {
            return Ok(streams.settle(key, settle)?.into_iter().collect());
        }
        // Without memory for it, the stream is where it was.
        let mem = &self.shared.control.mem;
        let Place { at, mut words } = streams.state.place(mem, key, words)?;
        if !streams.state.processes.contains_key(&key.0) {
            // A stream that passes through gives its device nothing.
            let leads = new.as_ref().and_then(|new| new.to);
            words[CONTROL] |= leads.map_or(0, |_| self.lets(&streams.state, key.0));
        }
        let change = |tables: &mut Tables, old: Option<&Attachment>, new: Option<&Attachment>| {
            let old = old.and_then(|old| old.to);
            let old = self.before_change(tables, key, at, old, &words)?;
            let new = new.map(|new| new.to);
            self.enter(tables, key, new);
            let changed = self.change(at, &words, &forget(context, old));
            // Nothing led there yet.
            changed.inspect_err(|_| self.leave(tables, key, new.flatten()))
        };
        let asks = self.lets_ask(&streams.state, key, at);
        let gone = streams.go(key, new, settle, change);
        if asks {
            self.shared.requests_cut.store(true, Ordering::Relaxed);
        }
        Ok(gone?)
    }

    /// Changes a context step by step. On an error it does not count any more, and hardware may
    /// still use its copy of it.
    pub(super) fn change(&self, at: At, words: &Words, old: &[Counted]) -> Result<(), IommuError> {
        let mem = &self.shared.control.mem;
        let changed = at.change(mem, Walker::Coherent, &CONTEXT, words, |after| match after {
            After::Closed => self.shared.run(old.iter().copied()),
            // A context that does not count is not kept.
            After::Unread | After::Changed => Ok(()),
        });
        changed.inspect_err(|_| {
            at.write(mem, 0, 0);
            at.publish(mem, Walker::Coherent);
        })
    }

    /// A write where messages go that is none of a table: of a stream that is blocked, or to a part of the
    /// window that is another's.
    fn is_message(&self, record: &FaultRecord) -> bool {
        let Some(config) = self.interrupts_config() else {
            return false;
        };
        let window = message_window(config).range;
        let write = record.access == Some(FaultAccess::Write);
        let stopped = matches!(record.reason, FaultReason::NotMapped | FaultReason::Blocked);
        write && stopped && record.iova.is_some_and(|iova| window.contains(iova))
    }

    /// Tells if the address of a page fault is mapped, by the domain's tables as they are
    /// now: the record does not tell.
    fn is_mapped(&self, record: &FaultRecord) -> bool {
        let pasid = record.pasid.map_or(0, Pasid::get);
        let key = (record.stream.get(), pasid);
        let mapped = self.book.try_with(|streams| {
            let domain = streams.attachment(key)?.domain.as_ref()?;
            domain.0.translate(record.iova?)
        });
        mapped.flatten().is_some()
    }
}

/// *Context.* [`Iommu::next_fault`]: interrupt. The others: task: they make pages of the directory, and may
/// let go of the last handle of a domain.
impl<P: UnitPlatform> Iommu for RiscvIommu<P> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.go(stream, WITHOUT, NOWHERE, None)
    }

    fn block_pasid(&self, stream: StreamId, pasid: Pasid) -> Result<(), AttachError> {
        self.go(stream, named(pasid)?, NOWHERE, None)
    }

    fn pass_through(&self, stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        let new = Attachment::without_domain(None);
        self.go(stream, WITHOUT, PASSING, Some(new))
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

    /// A fault is [`FaultReason::Permission`] where the domain maps the address at the time of this call,
    /// and [`FaultReason::NotMapped`] where it does not, or where a stream is just being moved: the unit
    /// has one cause for both.
    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        let mut event = faults::next(&self.shared.faults, &self.shared.control)?;
        if let Some(FaultEvent::Fault(record)) = &mut event {
            if record.reason == FaultReason::NotMapped && self.is_mapped(record) {
                record.reason = FaultReason::Permission;
            }
            if self.is_message(record) {
                let (index, refusal) = (None, InterruptRefusal::Absent);
                record.reason = FaultReason::Interrupt { index, refusal };
            }
        }
        Ok(event)
    }
}

/// Of requests without a PASID.
const WITHOUT: Pasid = Pasid::new(0);

/// A PASID that requests can name.
fn named(pasid: Pasid) -> Result<Pasid, AttachError> {
    Some(pasid).filter(|pasid| *pasid != WITHOUT).ok_or(AttachError::Mismatch)
}

impl<P: UnitPlatform> RiscvIommu<P> {
    fn attach_to<const ROOT: u32>(
        &self,
        stream: StreamId,
        pasid: Pasid,
        domain: &Arc<PagedDomain<Riscv<ROOT>, P::Memory, RiscvQueue<P>>>,
    ) -> Result<(), AttachError> {
        if !Arc::ptr_eq(&domain.queue().0, &self.shared) {
            return Err(AttachError::Mismatch);
        }
        let tag = RiscvTag::of(domain.context());
        let table = domain.table();
        let words = translated(tag, table.root(), table.format().levels.count());
        self.go(stream, pasid, words, Some(Attachment::new(Some(tag), domain)))
    }
}

macro_rules! attach {
    ($format:ident) => {
        /// *Context.* Task.
        impl<P: UnitPlatform> Attach<PagedDomain<$format, P::Memory, RiscvQueue<P>>>
            for RiscvIommu<P>
        {
            fn attach(
                &self,
                stream: StreamId,
                domain: &Arc<PagedDomain<$format, P::Memory, RiscvQueue<P>>>,
            ) -> Result<(), AttachError> {
                self.attach_to(stream, WITHOUT, domain)
            }

            fn attach_pasid(
                &self,
                stream: StreamId,
                pasid: Pasid,
                domain: &Arc<PagedDomain<$format, P::Memory, RiscvQueue<P>>>,
            ) -> Result<(), AttachError> {
                self.attach_to(stream, named(pasid)?, domain)
            }
        }
    };
}

attach!(RiscvFirstStage);
attach!(RiscvSecondStage);

/// Modes of a process directory, the shallowest first: which unit has it, its value, and the width of
/// the numbers of address spaces.
const MODES: [(RiscvFeature, u64, u32); 3] = [
    (RiscvFeature::PASIDS_8, 1, 8),
    (RiscvFeature::PASIDS_17, 2, 17),
    (RiscvFeature::PASIDS_20, 3, 20),
];

impl<P: UnitPlatform> RiscvIommu<P> {
    /// Gives a stream room for PASIDs of `lg2` bits at least, 0 of which are its requests without one.
    /// The stream must not be attached; from then on it can have first-stage domains, and pass
    /// through. Where it has room already, nothing changes.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit has not as many, [`AttachError::Mismatch`] if the stream is
    /// attached, has interrupts, or has less room; [`IommuError::Memory`].
    pub fn enable_pasids(&self, stream: StreamId, lg2: u32) -> Result<(), AttachError> {
        let no_such = AttachError::NoSuchStream { stream };
        let stream = Directory::has(self.streams_lg2(), stream).ok_or(no_such)?;
        let has = self.features().has;
        let mut modes = (1..).zip(MODES);
        let mode = modes.find(|(_, (bit, _, width))| has.contains(*bit) && lg2 <= *width);
        let (levels, (_, mode, lg2)) = mode.ok_or(IommuError::Unsupported)?;
        let shape = DirectoryShape { levels, words: PROCESS_WORDS, lg2 };
        let mem = &self.shared.control.mem;
        self.book.with(self.turn(), |streams| {
            if let Some(known) = streams.state.processes.get(&stream) {
                return if known.lg2() >= lg2 { Ok(()) } else { Err(AttachError::Mismatch) };
            }
            if streams.not_blocked((stream, 0)..=(stream, u32::MAX)).next().is_some() {
                return Err(AttachError::Mismatch);
            }
            let at = streams.state.directory.place(mem, stream)?;
            let root = Block::new(mem, 12)?;
            let mut words = NOWHERE;
            words[CONTROL] = V | DIRECTORY | BY_DEFAULT | self.lets(&streams.state, stream);
            words[FIRST] = MODE.at(mode) | ROOT.at(root.at.get() >> 12);
            let directory = Directory::new(root, shape);
            streams.state.processes.insert(stream, directory);
            // It did not count before: there is nothing to forget.
            Ok(self.change(at, &words, &[])?)
        })?
    }

    /// Takes a stream's room for PASIDs back. Nothing of it may be attached; a stream without room stays as
    /// it is.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`AttachError::Mismatch`] if anything of the stream is attached. If the hardware did not complete, the
    /// stream is blocked, and has the room until another call completes.
    pub fn disable_pasids(&self, stream: StreamId) -> Result<(), AttachError> {
        let no_such = AttachError::NoSuchStream { stream };
        let stream = Directory::has(self.streams_lg2(), stream).ok_or(no_such)?;
        let mem = &self.shared.control.mem;
        self.book.with(self.turn(), |streams| {
            if !streams.state.processes.contains_key(&stream) {
                return Ok(());
            }
            if streams.not_blocked((stream, 0)..=(stream, u32::MAX)).next().is_some() {
                return Err(AttachError::Mismatch);
            }
            let at = streams.state.directory.place(mem, stream)?;
            at.write(mem, 0, 0);
            at.publish(mem, Walker::Coherent);
            // With all that leads to its process contexts.
            self.shared.run([command::context_of(stream)].into_iter())?;
            if let Some(mut directory) = streams.state.processes.remove(&stream) {
                directory.free(mem);
            }
            Ok(())
        })?
    }
}

impl<P: UnitPlatform> IommuDomains for RiscvIommu<P> {
    /// First-stage tables; second-stage tables where there is no first stage, or where interrupts go
    /// through MSI page tables.
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        if let Some(levels) = self.best_first().filter(|_| self.interrupts().is_none()) {
            let domain = Arc::new(self.first_stage(levels)?);
            return Ok(BoundDomain::new(self, domain, promise::drivers()));
        }
        let levels = self.best_second().ok_or(IommuError::Unsupported)?;
        let domain = Arc::new(self.second_stage(levels)?);
        Ok(BoundDomain::new(self, domain, promise::drivers()))
    }

    fn conditions(&self) -> Conditions {
        plain(match (self.best_first(), self.interrupts()) {
            (Some(_), None) => Stage::First,
            _ => Stage::Second,
        })
    }

    fn interrupts(&self) -> Option<&dyn RemapInterrupts> {
        self.interrupts_config().map(|_| self as _)
    }

    fn recoverable_faults(&self) -> RecoverableFaults {
        if self.reads_requests() { RecoverableFaults::Present } else { RecoverableFaults::Absent }
    }

    fn use_device_tlb(
        &self,
        stream: StreamId,
        tlb: DeviceTlb,
        all: AllMemory,
    ) -> Result<(), IommuError> {
        RiscvIommu::use_device_tlb(self, stream, tlb, all)
    }

    common_methods!();
    handover_methods!();
}
