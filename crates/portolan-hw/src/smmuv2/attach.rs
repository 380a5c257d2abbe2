//! Moving streams: blocked, passed through, or attached to a domain.
//!
//! *Context.* Task: moves wait for the hardware and for the move of another CPU.
//!
//! One write of a stream-to-context register moves all streams of its group at once. The unit's
//! copies of the place that they left are then invalidated, and the invalidation is awaited.

use super::domain::{FirstStage, SecondStage};
use super::features::Selection;
use super::queue::{BankTag, SmmuV2Queue};
use super::streams::{Group, GroupDestination, GroupError, Kept, StreamGroups, StreamMatch};
use super::unit::SmmuV2;
use crate::chassis::book::{self, Left};
use crate::turn::TurnWait;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use portolan::addr::StreamId;
use portolan::iommu::{
    Attach, AttachError, FaultEvent, Iommu, IommuError, PagedDomain, ReservedRegion, TagPool,
};
use portolan::platform::{AllMemory, UnitPlatform};
use portolan::table::format::Format;

type Attachment = book::Attachment<GroupDestination>;

impl<P: UnitPlatform> SmmuV2<P> {
    /// Lets the streams whose numbers equal `id` but for the bits of `mask` share one match
    /// register: from then on they move together, whichever of them is named. They are blocked.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`GroupError`]; nothing has changed then.
    pub fn group(&self, id: StreamId, mask: u16) -> Result<(), GroupError> {
        self.book.with(self.turn(), |all| self.declare(&mut all.state, id, mask))?
    }

    fn declare(
        &self,
        groups: &mut StreamGroups,
        id: StreamId,
        mask: u16,
    ) -> Result<(), GroupError> {
        let (mapping, registers) = (&self.mapping, self.features().streams);
        let number = mapping.number(id, registers).ok_or(GroupError::Width)?;
        if mask & !mapping.mask_bits != 0 || mapping.selection == Selection::Indexing {
            return Err(GroupError::Width);
        }
        let streams = StreamMatch { id: number, mask };
        if let Some(other) = groups.conflict(streams) {
            let StreamMatch { id, mask } = other.streams;
            return Err(GroupError::Conflict { id, mask });
        }
        let slot = mapping.slot(groups, streams, registers);
        let slot = slot.ok_or(GroupError::NoRoom)?;
        let machine = &self.shared.machine;
        mapping.point(machine, slot, None)?;
        if let Err(error) = mapping.match_streams(machine, slot, Some(streams)) {
            let _ = mapping.match_streams(machine, slot, None);
            return Err(error.into());
        }
        let kept = Kept::Always;
        groups.0.push(Group { streams, slot, kept });
        Ok(())
    }

    /// Blocks all streams.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// The first failure; the others are tried all the same.
    pub fn block_all(&self) -> Result<(), AttachError> {
        self.book.block_all(self.turn(), |slot| {
            let block = |all: &mut _| self.go_group(all, slot, None);
            Ok(self.book.with(self.turn(), block)?.map(drop)?)
        })
    }

    pub(super) fn turn(&self) -> TurnWait<'_, P> {
        let machine = &self.shared.machine;
        let wait = TurnWait::new(&machine.clock, machine.limit);
        wait.while_running(&self.shared.operation)
    }

    /// Makes the unit forget translations that were cached by way of an attachment.
    fn forget(&self, attached: Option<GroupDestination>) -> Result<(), IommuError> {
        match attached {
            None => Ok(()),
            // Accesses that pass through have entries that only this drops.
            Some(GroupDestination::Through) => self.shared.forget_everything(),
            Some(GroupDestination::In(tag)) => self.shared.forget(tag),
        }
    }

    /// The register of a stream's group, which is made if it has to be. `None` if the stream has none
    /// and needs none.
    fn slot(
        &self,
        groups: &mut StreamGroups,
        stream: StreamId,
        new: Option<GroupDestination>,
    ) -> Result<Option<usize>, AttachError> {
        let registers = self.features().streams;
        let number = self.mapping.number(stream, registers);
        let number = number.ok_or(AttachError::NoSuchStream { stream })?;
        if let Some(group) = groups.find(number) {
            return Ok(Some(group.slot));
        }
        if new.is_none() {
            return Ok(None);
        }
        let (streams, kept) = (StreamMatch::one(number), Kept::WhileUsed);
        let slot = self.mapping.slot(groups, streams, registers);
        let slot = slot.ok_or(IommuError::OutOfContexts)?;
        groups.0.push(Group { streams, slot, kept });
        Ok(Some(slot))
    }

    /// Moves the group of a stream.
    pub(super) fn go(&self, stream: StreamId, new: Option<Attachment>) -> Result<(), AttachError> {
        let left = self.book.with(self.turn(), |all| {
            let to = new.as_ref().map(|new| new.to);
            if self.stopped.load(Ordering::Relaxed) && to.is_some() {
                return Err(IommuError::Stopped.into());
            }
            match self.slot(&mut all.state, stream, to)? {
                Some(slot) => Ok(self.go_group(all, slot, new)?),
                None => Ok(Left::new_const()),
            }
        })?;
        left.map(drop)
    }

    /// Moves a group.
    fn go_group(
        &self,
        all: &mut book::Streams<usize, GroupDestination, StreamGroups>,
        slot: usize,
        new: Option<Attachment>,
    ) -> Result<Left<GroupDestination>, IommuError> {
        let block = || self.mapping.point(&self.shared.machine, slot, None);
        let settle = |_: &mut StreamGroups, unsettled: &[Attachment]| {
            // The write that blocked it may not have arrived either.
            block()?;
            let mut all = unsettled.iter();
            all.try_for_each(|left| self.forget(Some(left.to)))
        };
        let change =
            |groups: &mut StreamGroups, old: Option<&Attachment>, new: Option<&Attachment>| {
                let moved = self.write(groups, slot, old.map(|old| old.to), new.map(|new| new.to));
                moved.inspect_err(|_| {
                    // As far as the hardware looks, it faults.
                    let _ = block();
                })
            };
        all.go(slot, new, settle, change)
    }

    /// Writes the registers of a group, and makes the unit forget the attachment that it leaves.
    fn write(
        &self,
        groups: &mut StreamGroups,
        slot: usize,
        old: Option<GroupDestination>,
        new: Option<GroupDestination>,
    ) -> Result<(), IommuError> {
        let (mapping, machine) = (&self.mapping, &self.shared.machine);
        mapping.point(machine, slot, new)?;
        let passing = |group: &&Group| group.slot == slot && group.kept == Kept::WhileUsed;
        let streams = groups.0.iter().find(passing).map(|group| group.streams);
        // A group that was blocked may not be matched yet.
        if let (Some(streams), None) = (streams, old) {
            mapping.match_streams(machine, slot, new.map(|_| streams))?;
        }
        if old != new {
            self.forget(old)?;
        }
        if let (Some(_), None) = (streams, new) {
            mapping.match_streams(machine, slot, None)?;
            groups.0.retain(|group| group.slot != slot);
        }
        machine.is_on()
    }

    /// An attachment to a domain of this unit.
    fn attachment<F>(
        &self,
        domain: &Arc<PagedDomain<F, P::Memory, SmmuV2Queue<P>>>,
    ) -> Result<Attachment, AttachError>
    where
        F: Format<Word = AtomicU64>,
        PagedDomain<F, P::Memory, SmmuV2Queue<P>>: Send + Sync + 'static,
        SmmuV2Queue<P>: TagPool,
    {
        let own = Arc::ptr_eq(&domain.queue().0, &self.shared);
        let tag = BankTag::of(domain.context()).filter(|_| own);
        let tag = tag.ok_or(AttachError::Mismatch)?;
        Ok(Attachment::new(GroupDestination::In(tag), domain))
    }
}

/// *Context.* Interrupt: `next_fault`. Task: the others.
impl<P: UnitPlatform> Iommu for SmmuV2<P> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.go(stream, None)
    }

    fn pass_through(&self, stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        self.go(stream, Some(Attachment::without_domain(GroupDestination::Through)))
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
        self.next_record()
    }
}

macro_rules! attach {
    ($($domain:ident)*) => {$(
        impl<const G: u32, P: UnitPlatform> Attach<$domain<G, P>> for SmmuV2<P>
        {
            fn attach(
                &self,
                stream: StreamId,
                domain: &Arc<$domain<G, P>>,
            ) -> Result<(), AttachError> {
                self.go(stream, Some(self.attachment(domain)?))
            }
        }
    )*};
}

attach!(FirstStage SecondStage);
