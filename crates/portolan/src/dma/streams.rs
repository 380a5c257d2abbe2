//! The streams, and PASIDs of them, that reach memory through a space, and addresses that were set
//! aside for them.

use alloc::vec::Vec;

use super::waiting::Held;
use crate::addr::{Iova, IovaRange, Pasid, PhysRange, StreamId};
use crate::iommu::{AttachError, BoundDomain, Iommu};
use crate::table::Access;

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
pub(super) struct Member(pub u64);

/// Error of a stream that did not join.
pub(super) enum NotJoined {
    /// It is there.
    InUse,
    /// There is no room beside so many.
    NoRoom { members: usize },
}

/// Those that are in a space, in the order in which they joined.
///
/// *Context.* Interrupt: made with no heap memory.
pub(super) struct Streams {
    pub members: Vec<(Member, Requester)>,
    next: Member,
    /// From which on streams are to be blocked, since their space has broken.
    to_block: Option<Member>,
}

impl Streams {
    pub const fn new() -> Self {
        Self { members: Vec::new(), next: Member(0), to_block: None }
    }

    /// Has all of them blocked.
    pub fn begin_blocking(&mut self) {
        self.to_block = Some(Member(0));
    }

    /// Has no more of them blocked.
    pub fn end_blocking(&mut self) {
        self.to_block = None;
    }

    /// Tells if there are some to block.
    pub fn is_blocking(&self) -> bool {
        self.to_block.is_some()
    }

    /// The next one to block; each is named once.
    pub fn next_to_block(&mut self) -> Option<Requester> {
        let from = self.to_block?;
        let at = self.members.partition_point(|(member, ..)| *member < from);
        let next = self.members.get(at).copied();
        self.to_block = next.map(|(member, _)| Member(member.0 + 1));
        next.map(|(_, one)| one)
    }

    fn holds(&self, one: Requester) -> bool {
        self.members.iter().any(|(_, its)| *its == one)
    }

    /// Adds a stream; if there is no room, in `spare`, which is larger than the list so far.
    pub fn join(
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
}

/// Addresses that were set aside in a space, those of them that are mapped one to one, those of
/// doorbells, and those that are held until they are quiet.
///
/// *Context.* Interrupt: made with no heap memory.
pub(super) struct Regions {
    pub aside: Vec<IovaRange>,
    pub direct: Vec<(IovaRange, Access)>,
    /// Pages of registers, and where they are mapped.
    pub doorbells: Vec<(PhysRange, IovaRange)>,
    /// Unmapped, and given back once they are quiet.
    pub held: Vec<Held>,
}

impl Regions {
    pub const fn new() -> Self {
        Self { aside: Vec::new(), direct: Vec::new(), doorbells: Vec::new(), held: Vec::new() }
    }

    /// The range with `iova` that is held.
    pub fn held_with(&self, iova: Iova) -> Option<IovaRange> {
        let mut ranges = self.held.iter().map(|held| held.range);
        ranges.find(|range| range.contains(iova))
    }

    /// Range that was set aside with `iova`.
    pub fn set_aside(&self, iova: Iova) -> Option<IovaRange> {
        self.aside.iter().find(|range| range.contains(iova)).copied()
    }
}
