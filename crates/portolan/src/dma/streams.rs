//! The streams, and PASIDs of them, that reach memory through a space, and what becomes of them when it breaks.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::error::DeviceError;
use super::space::DmaSpace;
use crate::addr::{Pasid, StreamId};
use crate::iommu::{AttachError, BoundDomain, Iommu, IommuError};
use crate::platform::{Cpus, Lock, SharedWord};

/// A stream, or its requests with one PASID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Requester {
    pub stream: StreamId,
    pub pasid: Option<Pasid>,
}

impl Requester {
    /// Attaches it.
    ///
    /// *Context.* Task.
    pub fn attach(self, bound: &BoundDomain) -> Result<(), AttachError> {
        match self.pasid {
            None => bound.attach(self.stream),
            Some(pasid) => bound.attach_pasid(self.stream, pasid),
        }
    }

    /// Blocks it.
    ///
    /// *Context.* Task.
    pub fn block(self, unit: &dyn Iommu) -> Result<(), AttachError> {
        match self.pasid {
            None => unit.block(self.stream),
            Some(pasid) => unit.block_pasid(self.stream, pasid),
        }
    }
}

/// The number of a requester among those that joined a space: never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member(u64);

/// Why a stream did not join.
enum NotJoined {
    /// It is there.
    InUse,
    /// There is no room beside so many.
    NoRoom { members: usize },
}

/// Those that are in a space, in the order in which they joined.
///
/// *Context.* Interrupt: made with no heap memory.
pub(super) struct Streams {
    members: Vec<(Member, Requester)>,
    next: Member,
}

impl Streams {
    pub const fn new() -> Self {
        Self {
            members: Vec::new(),
            next: Member(0),
        }
    }

    fn holds(&self, one: Requester) -> bool {
        self.members.iter().any(|(_, its)| *its == one)
    }

    /// Adds a stream; if there is no room, in `spare`, which is larger than what there was.
    fn join(
        &mut self,
        one: Requester,
        spare: &mut Vec<(Member, Requester)>,
    ) -> Result<Member, NotJoined> {
        if self.holds(one) {
            return Err(NotJoined::InUse);
        }
        let members = self.members.len();
        if members == self.members.capacity() {
            if spare.capacity() <= members {
                return Err(NotJoined::NoRoom { members });
            }
            spare.append(&mut self.members);
            core::mem::swap(spare, &mut self.members);
        }
        let member = self.next;
        self.next = Member(member.0 + 1);
        self.members.push((member, one));
        Ok(member)
    }

    /// The first one whose number is at least `from`.
    fn first_from(&self, from: Member) -> Option<(Member, Requester)> {
        let at = self.members.partition_point(|(member, ..)| *member < from);
        self.members.get(at).copied()
    }
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Remembers that `one` of the unit reaches memory through this space.
    pub(super) fn join(&self, one: Requester) -> Result<Member, DeviceError> {
        // Memory is taken and given back outside of the lock.
        let mut spare = Vec::new();
        loop {
            let joined = self.streams.with(|streams| streams.join(one, &mut spare));
            let members = match joined {
                Ok(member) => return Ok(member),
                Err(NotJoined::InUse) => return Err(DeviceError::InUse),
                Err(NotJoined::NoRoom { members }) => members,
            };
            let reserved = spare.try_reserve_exact((members + 1).next_power_of_two());
            reserved.map_err(|_| DeviceError::Memory)?;
        }
    }

    /// Forgets a stream.
    pub(super) fn leave(&self, member: Member) {
        self.streams
            .with(|streams| streams.members.retain(|(its, _)| *its != member));
    }

    /// Marks the space as broken and blocks its streams. Only the first failure waits for that.
    #[cold]
    pub(super) fn fail(&self, error: IommuError) {
        self.why.with(|why| *why = Some(error));
        if self.broken.swap(1, Ordering::AcqRel) != 0 {
            return;
        }
        // Blocking waits for hardware: not under the lock, and without taking memory. Streams may
        // leave meanwhile; one that joins looks for itself.
        let mut from = Member(0);
        loop {
            let next = self.streams.with(|streams| streams.first_from(from));
            let Some((member, one)) = next else {
                return;
            };
            // A unit that cannot even block has stopped, or says so itself.
            let _ = one.block(&**self.bound.unit());
            from = Member(member.0 + 1);
        }
    }
}
