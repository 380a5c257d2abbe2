//! Moving streams: blocked, passed through, or attached to a domain.
//!
//! *Context.* Task: moves wait for the hardware and for the move of another CPU.
//!
//! One write of a stream-to-context register moves all streams of its group at once. What the unit
//! remembers of the place that they left is then invalidated and awaited.

use super::domain::{FirstStage, SecondStage};
use super::features::Selection;
use super::shared::{SmmuV2Queue, Tag};
use super::streams::{Forget, Group, GroupError, Hold, Home, Kept, Streams};
use super::unit::SmmuV2;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use portolan::addr::StreamId;
use portolan::iommu::{
    Attach, AttachError, FaultEvent, Iommu, IommuError, PagedDomain, ReservedRegion, TagPool,
};
use portolan::platform::{Cpus, Mmio, TableMem};
use portolan::table::format::Format;

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> SmmuV2<R, M, C> {
    /// Lets the streams whose numbers equal `id` but for the bits of `mask` share one match
    /// register: from then on they move together, whichever of them is named. They are blocked.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`GroupError`]; nothing has changed then.
    pub fn group(&self, id: StreamId, mask: u16) -> Result<(), GroupError> {
        let _turn = self.turn()?;
        let (mapping, registers) = (&self.mapping, self.features().streams);
        let number = mapping.number(id, registers).ok_or(GroupError::Width)?;
        if mask & !mapping.mask_bits != 0 || mapping.selection == Selection::Indexing {
            return Err(GroupError::Width);
        }
        let streams = Streams { id: number, mask };
        let slot = {
            let known = self.known.lock();
            if let Some(other) = known.conflict(streams) {
                let Streams { id, mask } = other.streams;
                return Err(GroupError::Conflict { id, mask });
            }
            let slot = mapping.slot(&known, streams, registers);
            slot.ok_or(GroupError::NoRoom)?
        };
        let machine = &self.shared.machine;
        mapping.point(machine, slot, &Home::Nowhere)?;
        if let Err(error) = mapping.match_streams(machine, slot, Some(streams)) {
            let _ = mapping.match_streams(machine, slot, None);
            return Err(error.into());
        }
        let group = Group::new(streams, slot, Kept::Always);
        self.known.lock().groups.push(group);
        Ok(())
    }

    /// Blocks all streams.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// The first failure; the others are tried all the same.
    pub fn block_all(&self) -> Result<(), AttachError> {
        let mut result = Ok(());
        for slot in 0..self.features().streams as usize {
            let stream = {
                let mut known = self.known.lock();
                known.at(slot).map(|group| group.streams.id)
            };
            if let Some(stream) = stream {
                let moved = self.go(StreamId::new(stream.into()), Home::Nowhere);
                result = result.and(moved);
            }
        }
        result
    }

    fn turn(&self) -> Result<super::machine::Taken<'_>, IommuError> {
        let machine = &self.shared.machine;
        self.moves.take(&machine.clock, machine.limit)
    }

    fn carry_out(&self, forget: &Forget) -> Result<(), IommuError> {
        match *forget {
            Forget::Nothing => Ok(()),
            Forget::Everything => self.shared.forget_everything(),
            Forget::Domain(tag) => self.shared.forget(tag),
        }
    }

    /// The group of a stream, made if it has to be: its register, and where it is now. `None` if
    /// the stream has none and needs none.
    fn place(&self, stream: StreamId, new: &Home) -> Result<Option<(usize, Home)>, AttachError> {
        let registers = self.features().streams;
        let number = self.mapping.number(stream, registers);
        let number = number.ok_or(AttachError::NoSuchStream { stream })?;
        let mut known = self.known.lock();
        if let Some(group) = known.find(number) {
            let group = &known.groups[group];
            return Ok(Some((group.slot, group.home.clone())));
        }
        if matches!(new, Home::Nowhere) {
            return Ok(None);
        }
        let streams = Streams::one(number);
        let slot = self.mapping.slot(&known, streams, registers);
        let slot = slot.ok_or(IommuError::OutOfContexts)?;
        known
            .groups
            .push(Group::new(streams, slot, Kept::WhileUsed));
        Ok(Some((slot, Home::Nowhere)))
    }

    /// Moves the group of a stream.
    pub(super) fn go(&self, stream: StreamId, new: Home) -> Result<(), AttachError> {
        let turn = self.turn()?;
        if self.stopped.load(Ordering::Acquire) && !matches!(new, Home::Nowhere) {
            return Err(IommuError::Stopped.into());
        }
        let Some((slot, old)) = self.place(stream, &new)? else {
            return Ok(());
        };
        // Until what a failure left over is forgotten the group stays blocked, and goes nowhere.
        self.settle(slot)?;
        let moved = self.write(slot, &old, &new);
        let left = self.note(slot, new, moved)?;
        drop(turn);
        drop((left, old));
        Ok(())
    }

    /// Writes the registers of a group, and has what it leaves forgotten.
    fn write(&self, slot: usize, old: &Home, new: &Home) -> Result<(), IommuError> {
        let machine = &self.shared.machine;
        self.mapping.point(machine, slot, new)?;
        let streams = {
            let mut known = self.known.lock();
            let group = known.at(slot);
            group.map(|group| (group.streams, group.kept))
        };
        // A group that comes out of nowhere may not be matched yet.
        if let (Some((streams, Kept::WhileUsed)), Home::Nowhere) = (streams, old) {
            let matched = match new {
                Home::Nowhere => None,
                _ => Some(streams),
            };
            self.mapping.match_streams(machine, slot, matched)?;
        }
        if !old.same(new) {
            self.carry_out(&old.leaves())?;
        }
        match (streams, new) {
            (Some((_, Kept::WhileUsed)), Home::Nowhere) => {
                self.mapping.match_streams(machine, slot, None)
            }
            _ => Ok(()),
        }
    }

    /// Notes where a group is now, or what it may still reach; returns where it was.
    fn note(
        &self,
        slot: usize,
        new: Home,
        moved: Result<(), IommuError>,
    ) -> Result<Option<Home>, IommuError> {
        let gone = matches!(new, Home::Nowhere);
        if moved.is_err() {
            // As far as the hardware looks, it faults.
            let _ = self
                .mapping
                .point(&self.shared.machine, slot, &Home::Nowhere);
        }
        let mut known = self.known.lock();
        let Some(group) = known.at(slot) else {
            return moved.map(|()| None);
        };
        if let Err(error) = moved {
            let old = core::mem::replace(&mut group.home, Home::Nowhere);
            let reachable = |home: &Home| !matches!(home, Home::Nowhere);
            // Both are free: what was stuck was forgotten before the group was moved.
            group.stuck = [old, new].map(|home| Some(home).filter(reachable));
            return Err(error);
        }
        let old = core::mem::replace(&mut group.home, new);
        if gone && group.kept == Kept::WhileUsed {
            known.groups.retain(|group| group.slot != slot);
        }
        Ok(Some(old))
    }

    /// Once more invalidates what a failure left over of a group, which faults, before anything
    /// else happens to it.
    fn settle(&self, slot: usize) -> Result<(), IommuError> {
        for which in 0..2 {
            let found = {
                let mut known = self.known.lock();
                let stuck = known.at(slot).and_then(|group| group.stuck[which].as_ref());
                stuck.map(Home::leaves)
            };
            let Some(forget) = found else { continue };
            // The write that blocked it may not have arrived either.
            let machine = &self.shared.machine;
            self.mapping.point(machine, slot, &Home::Nowhere)?;
            self.carry_out(&forget)?;
            let settled = {
                let mut known = self.known.lock();
                known.at(slot).and_then(|group| group.stuck[which].take())
            };
            // A domain that nobody else holds says good-bye to the hardware here.
            drop(settled);
        }
        Ok(())
    }

    /// A domain of this unit, to live in.
    fn home<F>(
        &self,
        domain: &Arc<PagedDomain<F, M, SmmuV2Queue<R, M, C>>>,
    ) -> Result<Home, AttachError>
    where
        F: Format<Word = AtomicU64>,
        PagedDomain<F, M, SmmuV2Queue<R, M, C>>: Send + Sync + 'static,
        SmmuV2Queue<R, M, C>: TagPool,
    {
        let own = Arc::ptr_eq(&domain.queue().0, &self.shared);
        let tag = Tag::of(domain.context()).filter(|_| own);
        let tag = tag.ok_or(AttachError::Mismatch)?;
        let hold: Hold = domain.clone();
        Ok(Home::In { tag, _hold: hold })
    }
}

/// *Context.* Interrupt: `next_fault`. Task: the others.
impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Iommu for SmmuV2<R, M, C> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.go(stream, Home::Nowhere)
    }

    fn pass_through(&self, stream: StreamId) -> Result<(), AttachError> {
        self.go(stream, Home::Through)
    }

    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.reservations().of(stream, each);
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        self.next_record()
    }
}

macro_rules! attach {
    ($($domain:ident)*) => {$(
        impl<const G: u32, R, M, C: Cpus> Attach<$domain<G, R, M, C>> for SmmuV2<R, M, C>
        where
            R: Mmio + Send + Sync + 'static,
            M: TableMem<AtomicU64> + Send + Sync + 'static,
            C: Cpus,
        {
            fn attach(
                &self,
                stream: StreamId,
                domain: &Arc<$domain<G, R, M, C>>,
            ) -> Result<(), AttachError> {
                self.go(stream, self.home(domain)?)
            }
        }
    )*};
}

attach!(FirstStage SecondStage);
