//! Streams, and PASIDs of them, that reach memory through a space, the trust in them, and their end
//! when the space breaks.
//!
//! All of them reach the mappings of each: so the trust is that in the least trusted one.
//!
//! *Context.* Interrupt, where a function does not say otherwise.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::DmaSpace;
use crate::dma::error::DeviceError;
use crate::dma::policy::{Constraints, Policy, Trust};
use crate::iommu::{AttachError, BoundDomain, Iommu, IommuError, Requester};
use crate::platform::{Cpus, Lock, SharedWord};

impl Requester {
    /// Attaches it.
    ///
    /// *Context.* Task.
    pub(in crate::dma) fn attach(self, bound: &BoundDomain) -> Result<(), AttachError> {
        match self.pasid {
            None => bound.attach(self.stream),
            Some(pasid) => bound.attach_pasid(self.stream, pasid),
        }
    }

    /// Blocks it.
    ///
    /// *Context.* Task.
    pub(in crate::dma) fn block(self, unit: &dyn Iommu) -> Result<(), AttachError> {
        match self.pasid {
            None => unit.block(self.stream),
            Some(pasid) => unit.block_pasid(self.stream, pasid),
        }
    }
}

/// The number of a requester among those that joined a space: never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::dma) struct Member(pub u64);

/// Error of a stream that did not join.
pub(in crate::dma) enum NotJoined {
    /// It is there.
    InUse,
    /// There is no room beside so many.
    NoRoom { members: usize },
}

/// Those that are in a space, in the order in which they joined.
///
/// *Context.* Interrupt: made with no heap memory.
pub(in crate::dma) struct SpaceStreams {
    pub members: Vec<(Member, Requester)>,
    next: Member,
    /// From which on streams are to be blocked, since their space has broken.
    to_block: Option<Member>,
}

impl SpaceStreams {
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

/// The trust of a space, which never changes once it is known.
pub(in crate::dma) struct MembersTrust<P: Cpus>(P::Word);

const UNKNOWN: u64 = 0;
const TRUSTED: u64 = 1;
const UNTRUSTED: u64 = 2;

const fn code(trust: Trust) -> u64 {
    match trust {
        Trust::Trusted => TRUSTED,
        Trust::Untrusted => UNTRUSTED,
    }
}

const fn of(code: u64) -> Option<Trust> {
    match code {
        TRUSTED => Some(Trust::Trusted),
        UNTRUSTED => Some(Trust::Untrusted),
        _ => None,
    }
}

impl<P: Cpus> MembersTrust<P> {
    pub fn new(said: Option<Trust>) -> Self {
        Self(P::Word::new(said.map_or(UNKNOWN, code)))
    }

    /// The trust, if it is known.
    #[inline]
    pub fn get(&self) -> Option<Trust> {
        // It orders nothing: the value stands for itself.
        of(self.0.load(Ordering::Relaxed))
    }

    /// The trust; `first` if it was not known before, and is from now on.
    pub fn fix(&self, first: Trust) -> Trust {
        loop {
            if let Some(known) = self.get() {
                return known;
            }
            let fixed = self.0.compare_exchange_weak(
                UNKNOWN,
                code(first),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if fixed.is_ok() {
                return first;
            }
        }
    }
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Trust in its devices, if it is known yet: see
    /// [`SpaceOptions::trust`](crate::dma::SpaceOptions::trust).
    ///
    /// *Context.* Interrupt.
    #[inline]
    pub fn trust(&self) -> Option<Trust> {
        self.members.get()
    }

    /// The limits by which memory is judged that a caller with `constraints` maps here.
    pub(in crate::dma) fn judged(&self, constraints: &Constraints) -> Constraints {
        let trust = match self.members.get() {
            Some(trust) => trust,
            None => self.members.fix(constraints.trust),
        };
        Constraints { trust: trust.least(constraints.trust), ..*constraints }
    }

    /// The limits of a device that joins. One that is trusted less than the others would reach
    /// their mappings.
    pub(in crate::dma) fn admit(
        &self,
        constraints: Constraints,
    ) -> Result<Constraints, DeviceError> {
        let untrusted = constraints.trust == Trust::Untrusted;
        if untrusted && self.policy() == Policy::Lazy {
            return Err(DeviceError::Untrusted);
        }
        match self.members.fix(constraints.trust) {
            Trust::Trusted if untrusted => Err(DeviceError::LessTrusted),
            trust => Ok(Constraints { trust, ..constraints }),
        }
    }

    /// Remembers that `one` of the unit reaches memory through this space.
    pub(in crate::dma) fn join(&self, one: Requester) -> Result<Member, DeviceError> {
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
    pub(in crate::dma) fn leave(&self, member: Member) {
        self.streams.with(|streams| streams.members.retain(|(its, _)| *its != member));
    }

    /// Marks the space as broken. Its streams are blocked by a caller that may wait for that
    /// ([`DmaSpace::tick`]): the call that fails here may be a handler's.
    #[cold]
    pub(in crate::dma) fn fail(&self, error: IommuError) {
        self.why.with(|why| *why = Some(error));
        if self.broken.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        self.streams.with(SpaceStreams::begin_blocking);
        self.cpus.flush_wanted();
    }

    /// Blocks the streams of a space that is broken, one after the other: all of them, or until the
    /// unit does not answer in time for one. Then the next call goes on with the next.
    pub(in crate::dma) fn block_streams(&self) {
        // Blocking waits for hardware: not under the lock, and without taking memory. Streams may
        // leave meanwhile; one that joins looks for itself.
        while let Some(one) = self.streams.with(SpaceStreams::next_to_block) {
            // A unit that cannot block for another reason says so at once, and of itself.
            if let Err(AttachError::Iommu(IommuError::TimedOut { .. })) =
                one.block(&**self.bound.unit())
            {
                return;
            }
        }
    }
}
