//! Moving streams: blocked, passed through, or attached to a domain.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2
//! and 2.4 (invalidations after each change).

use crate::turn::TurnWait;
use alloc::sync::Arc;
use arrayvec::ArrayVec;
use core::sync::atomic::Ordering;
use portolan::addr::{Pasid, StreamId};
use portolan::iommu::{
    Attach, AttachError, BoundDomain, Conditions, DeviceTlb, FaultEvent, FaultReason,
    InterruptTarget, Iommu, IommuDomains, IommuError, RemapInterrupts, ReservedRegion, Shadowing,
    Stage, TagPool as _,
};
use portolan::platform::{AllMemory, UnitPlatform};

use super::command::{self, Counted};
use super::pasids::LeftPlaces;
use super::queue::{AmdShared, PASS};
use super::tables::{
    AmdPlace, Attachment, BLOCKED, EntryCommands, Memory, MoverState, Streams, entry_of,
};
use super::unit::{AmdDomain, AmdVi};
use crate::chassis::book::Left;
use crate::chassis::handed::handover_methods;
use crate::chassis::{common_methods, plain, played};
use crate::promise;
use portolan_spec::amd::entry::{DOMAIN, IR, IW};

/// Commands that make hardware forget `stream`, which leaves the domain `id`: the entry, and then
/// the translations, so that nothing is cached again from a stale entry.
fn forget(stream: u16, id: u16) -> [Counted; 3] {
    [command::device_entry(stream), command::fence(), command::domain(id)]
}

/// Words about memory of an entry that passes through.
pub(super) fn passing() -> Memory {
    [BLOCKED | IR | IW, DOMAIN.at(PASS.into())]
}

impl<P: UnitPlatform> AmdVi<P> {
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
        let pasids = self.book.with(self.turn(), |streams| streams.state.guests.named())?;
        let (mut result, id) = (Ok(()), |stream: u16| StreamId::new(stream.into()));
        for (stream, pasid) in pasids {
            result = result.and(self.block_pasid_of(id(stream), pasid));
        }
        result.and(self.book.block_all(self.turn(), |stream: u16| self.block(id(stream))))
    }

    /// Makes the entries of `streams` block, and everything forgotten.
    pub(super) fn block_table(&self, streams: impl Iterator<Item = u16>) -> Result<(), IommuError> {
        for stream in streams {
            self.table.change(&self.shared, stream, None, &EntryCommands::NONE)?;
        }
        self.shared.forget_everything()
    }

    fn go(
        &self,
        stream: StreamId,
        memory: Option<Memory>,
        new: Option<Attachment>,
    ) -> Result<(), AttachError> {
        let no_such = AttachError::NoSuchStream { stream };
        let stream = self.table.has(stream).ok_or(no_such)?;
        let mut left = LeftPlaces::default();
        let moved = self.book.with(self.turn(), |streams| {
            if !self.leave_guests(streams, stream, new.as_ref(), &mut left)? {
                left.streams.extend(self.move_stream(streams, stream, memory, new)?);
            }
            Ok(())
        });
        self.let_go(left);
        moved?
    }

    /// Moves a stream; returns the attachments that it leaves.
    pub(super) fn move_stream(
        &self,
        streams: &mut Streams,
        stream: u16,
        memory: Option<Memory>,
        new: Option<Attachment>,
    ) -> Result<Left<AmdPlace>, IommuError> {
        let settle = |_: &mut MoverState, unsettled: &[Attachment]| {
            for left in unsettled {
                self.shared.run(&mut forget(stream, left.to.domain).into_iter())?;
            }
            let asked = unsettled.iter().find_map(|left| left.to.kept());
            asked.map_or(Ok(()), |(_, kept)| self.settle_device(kept))
        };
        let atc = streams.state.remotes.get(&stream).copied();
        let told = atc.filter(|_| new.as_ref().is_some_and(|new| new.to.lets_keep()));
        let memory = memory.map(|memory| self.memory_for(memory, told));
        let new = new.map(|new| Attachment { to: AmdPlace { told, ..new.to }, ..new });
        streams.go(stream, new, settle, |_, old, new| self.change(stream, memory, old, new))
    }

    /// Changes the entry of `stream` from one attachment to another.
    fn change(
        &self,
        stream: u16,
        memory: Option<Memory>,
        old: Option<&Attachment>,
        new: Option<&Attachment>,
    ) -> Result<(), IommuError> {
        let [leaves, enters] = [old, new].map(|of| of.and_then(|of| of.to.kept()));
        if let Some((context, kept)) = enters {
            // Before the device can learn anything: the domain tells it from now on.
            self.shared.atcs.add(context, kept);
        }
        if let Some((new, below)) = new.and_then(|new| Some((new, new.to.below?))) {
            // Before the unit can learn anything, for the same reason.
            self.shared.nested.add(below.context, new.to.domain);
        }
        if leaves.is_some() {
            self.shared.requests_cut.store(true, Ordering::Relaxed);
        }
        let old = old.map(|old| forget(stream, old.to.domain));
        let arrive: ArrayVec<Counted, 3> = match (new, self.caches_absence()) {
            (Some(new), true) => forget(stream, new.to.domain).into(),
            _ => core::iter::once(command::device_entry(stream)).collect(),
        };
        let forget = EntryCommands {
            old: old.as_ref().map_or(&[], |all| all.as_slice()),
            blocked: &arrive,
            leaves: leaves.map(|(_, kept)| kept),
            enters: enters.map(|(_, kept)| kept),
        };
        self.table.change(&self.shared, stream, memory, &forget)
    }

    fn caches_absence(&self) -> bool {
        use super::features::Offers;
        let offers = self.features().capability.offers;
        offers.contains(Offers::CACHES_ABSENCE)
    }
}

/// *Context.* [`Iommu::next_fault`]: interrupt. [`Iommu::reserved`]: task. The others: atomic; they are
/// tasks where they let go of the last handle of a domain.
impl<P: UnitPlatform> Iommu for AmdVi<P> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.go(stream, None, None)?;
        Ok(self.revoke_interrupts(Some(stream))?)
    }

    fn block_pasid(&self, stream: StreamId, pasid: Pasid) -> Result<(), AttachError> {
        self.block_pasid_of(stream, self.checked(pasid)?)
    }

    fn pass_through(&self, stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        let new = Attachment::without_domain(AmdPlace::of(PASS));
        self.go(stream, Some(passing()), Some(new))
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
        let AmdShared { control, logs, .. } = &*self.shared;
        let mut event = logs.events.next(control)?;
        if let Some(FaultEvent::Fault(record)) = &mut event {
            let is_fault =
                matches!(record.reason, FaultReason::Permission | FaultReason::NotMapped);
            let stream = record.stream.get() as u16;
            // An entry that blocks has no tables in which anything could be missing.
            let leads = || self.leads_somewhere(stream, record.pasid);
            if is_fault && (self.table.blocks(&control.mem, stream) || !leads()) {
                record.reason = FaultReason::Blocked;
            }
        }
        Ok(event)
    }
}

/// *Context.* Atomic, or task where the last handle of a domain is let go of.
impl<P: UnitPlatform> Attach<AmdDomain<P>> for AmdVi<P> {
    fn attach(&self, stream: StreamId, domain: &Arc<AmdDomain<P>>) -> Result<(), AttachError> {
        if !Arc::ptr_eq(&domain.queue().0, &self.shared) {
            return Err(AttachError::Mismatch);
        }
        let context = domain.context();
        let new = Attachment::new(AmdPlace::of(command::domain_of(context)), domain);
        let marks = domain.dirty_tracking();
        self.go(stream, Some(entry_of(&domain.table(), context, marks)), Some(new))?;
        // A caller that has switched marks meanwhile may not have found the entry yet.
        match domain.dirty_tracking() {
            now if now == marks => Ok(()),
            now => Ok(domain.queue().track_dirty(context, now)?),
        }
    }
}

impl<P: UnitPlatform> IommuDomains for AmdVi<P> {
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        let domain = Arc::new(self.domain()?);
        Ok(BoundDomain::new(self, domain, promise::drivers()))
    }

    /// Units that cache absence (`NpCache`) are virtual ones, which follow tables by invalidations.
    fn conditions(&self) -> Conditions {
        match self.features().shadowing() {
            Shadowing::None => plain(Stage::Second),
            shadowing => played(Stage::Second, shadowing),
        }
    }

    fn interrupts(&self) -> Option<&dyn RemapInterrupts> {
        self.config.interrupts.map(|_| self as _)
    }

    fn use_device_tlb(
        &self,
        stream: StreamId,
        tlb: DeviceTlb,
        all: AllMemory,
    ) -> Result<(), IommuError> {
        AmdVi::use_device_tlb(self, stream, tlb, all)
    }

    fn signal_faults(&self, target: Option<InterruptTarget>) -> Result<(), IommuError> {
        self.signal_events(target)
    }

    common_methods!();
    handover_methods!();
}
