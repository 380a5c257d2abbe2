//! Groups of streams, and the destinations of their accesses.
//!
//! IHI 0062, stream mapping: a stream match register names streams by number and mask, the
//! stream-to-context register of the same number says where their accesses go. No stream may match
//! two registers. With stream indexing the stream's number is that of its register.
//!
//! *Context.* Task, like every move; handlers of interrupts do not call this module.
//!
//! Streams of one match register move together. A stream that is not named shares no register.

use super::config::WriteKind;
use super::features::Selection;
use super::machine::{Bank, SmmuV2Hardware};
use super::queue::BankTag;
use alloc::vec::Vec;
use portolan::addr::StreamId;
use portolan::iommu::IommuError;
use portolan::platform::UnitPlatform;
use portolan_spec::smmuv2::global::{self, s2cr, smr};
use thiserror::Error;

/// Destination of accesses that do not fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupDestination {
    /// To memory, untranslated.
    Through,
    /// Through a domain.
    In(BankTag),
}

/// Lifetime of a group that is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// It was declared.
    Always,
    /// It is one stream that was moved.
    WhileUsed,
}

/// Streams that share a register.
#[derive(Debug)]
pub(super) struct Group {
    pub streams: StreamMatch,
    /// Number of their registers, by which the book knows the group.
    pub slot: usize,
    pub kept: Kept,
}

/// A number and the bits of it that do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamMatch {
    pub id: u16,
    pub mask: u16,
}

impl StreamMatch {
    pub const fn one(id: u16) -> Self {
        Self { id, mask: 0 }
    }

    /// Tells if some stream is in both.
    pub const fn overlap(self, other: Self) -> bool {
        (self.id ^ other.id) & !(self.mask | other.mask) == 0
    }

    const fn word(self) -> u32 {
        smr::VALID.mask() | smr::MASK.at(self.mask as u32) | smr::ID.at(self.id as u32)
    }
}

/// Error of putting streams together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Some of them are in another group, which would make them match twice.
    #[error("streams {id:#x} with mask {mask:#x} are taken already")]
    Conflict {
        /// The other group's number.
        id: u16,
        /// Its mask.
        mask: u16,
    },
    /// The unit does not match such numbers, or matches none at all.
    #[error("the unit cannot match these streams")]
    Width,
    /// No register is free.
    #[error("all stream match registers are in use")]
    NoRoom,
    /// The hardware failed.
    #[error(transparent)]
    Iommu(#[from] IommuError),
}

/// All groups; at most one for each register.
#[derive(Debug, Default)]
pub(super) struct StreamGroups(pub Vec<Group>);

impl StreamGroups {
    /// The group of a stream.
    pub fn find(&self, stream: u16) -> Option<&Group> {
        self.conflict(StreamMatch::one(stream))
    }

    /// The group that has some of `streams`.
    pub fn conflict(&self, streams: StreamMatch) -> Option<&Group> {
        self.0.iter().find(|g| g.streams.overlap(streams))
    }

    /// The lowest free register.
    pub fn free(&self, most: u32) -> Option<usize> {
        (0..most as usize).find(|slot| self.0.iter().all(|group| group.slot != *slot))
    }
}

/// Rules by which streams are matched and passed through.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamMatching {
    pub selection: Selection,
    /// Bits of a number that are matched.
    pub id_bits: u16,
    /// Bits of it that can be masked.
    pub mask_bits: u16,
    /// The bank that passes accesses through where firmware does not let the register say so.
    pub bypass_bank: Option<Bank>,
}

impl StreamMatching {
    /// A stream's number, if it is one of this unit.
    pub fn number(&self, stream: StreamId, registers: u32) -> Option<u16> {
        let id = u16::try_from(stream.get()).ok()?;
        let known = match self.selection {
            Selection::Indexing => u32::from(id) < registers,
            Selection::Matching => id & !self.id_bits == 0,
        };
        known.then_some(id)
    }

    /// Index of the register for a new group of `streams`.
    pub fn slot(
        &self,
        groups: &StreamGroups,
        streams: StreamMatch,
        registers: u32,
    ) -> Option<usize> {
        match self.selection {
            Selection::Indexing => Some(streams.id.into()),
            Selection::Matching => groups.free(registers),
        }
    }

    /// Value to write for an attachment, and the value that has to be read then.
    fn words(&self, attached: Option<GroupDestination>) -> (u32, u32) {
        let kind = |kind| s2cr::TYPE.at(kind);
        let to = |bank: Bank| {
            let privilege = s2cr::PRIVCFG.at(s2cr::UNPRIVILEGED);
            kind(s2cr::TRANSLATE) | privilege | s2cr::CBNDX.at(bank.0.into())
        };
        match (attached, self.bypass_bank) {
            (None, None) => (kind(s2cr::FAULT), kind(s2cr::FAULT)),
            // Such firmware ignores a fault, and takes a bypass for one.
            (None, Some(_)) => (kind(s2cr::BYPASS), kind(s2cr::FAULT)),
            (Some(GroupDestination::Through), None) => (kind(s2cr::BYPASS), kind(s2cr::BYPASS)),
            (Some(GroupDestination::Through), Some(bank)) => (to(bank), to(bank)),
            (Some(GroupDestination::In(tag)), _) => (to(tag.bank), to(tag.bank)),
        }
    }

    /// Points a register's accesses at a domain, through, or nowhere.
    pub fn point<P: UnitPlatform>(
        &self,
        machine: &SmmuV2Hardware<P>,
        slot: usize,
        attached: Option<GroupDestination>,
    ) -> Result<(), IommuError> {
        let (word, wanted) = self.words(attached);
        let offset = global::s2cr(slot);
        machine.write(WriteKind::StreamToContext, offset, word);
        let found = machine.read(offset)?;
        let told = match s2cr::TYPE.of(wanted) {
            s2cr::TRANSLATE => s2cr::TYPE.mask() | s2cr::CBNDX.mask(),
            _ => s2cr::TYPE.mask(),
        };
        if (found ^ wanted) & told != 0 {
            let value = found.into();
            return Err(IommuError::Nonsense { offset, value });
        }
        Ok(())
    }

    /// Has a match register match `streams`, or nothing.
    pub fn match_streams<P: UnitPlatform>(
        &self,
        machine: &SmmuV2Hardware<P>,
        slot: usize,
        streams: Option<StreamMatch>,
    ) -> Result<(), IommuError> {
        if self.selection == Selection::Indexing {
            return Ok(());
        }
        let word = streams.map_or(0, StreamMatch::word);
        let offset = global::smr(slot);
        machine.write(WriteKind::StreamMatch, offset, word);
        let found = machine.read(offset)?;
        let told = match streams {
            Some(_) => u32::MAX,
            None => smr::VALID.mask(),
        };
        if (found ^ word) & told != 0 {
            let value = found.into();
            return Err(IommuError::Nonsense { offset, value });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_by_hand() {
        let of = |id, mask| StreamMatch { id, mask };
        assert!(of(0x20, 0).overlap(of(0x20, 0)));
        assert!(!of(0x20, 0).overlap(of(0x21, 0)));
        assert!(of(0x20, 0x1f).overlap(of(0x3f, 0)));
        assert!(!of(0x20, 0x1f).overlap(of(0x40, 0)));
        // Neither contains the other, and yet 0x30 is in both.
        assert!(of(0x20, 0x10).overlap(of(0x30, 0x40)));
    }

    #[test]
    fn overlap_against_every_stream() {
        let mut random = fastrand::Rng::with_seed(0x0512);
        for _ in 0..2_000 {
            let mut of =
                || StreamMatch { id: random.u16(..64), mask: random.u16(..64) & random.u16(..64) };
            let (one, two) = (of(), of());
            let has = |g: StreamMatch, id: u16| id & !g.mask == g.id & !g.mask;
            let naive = (0..64).any(|id| has(one, id) && has(two, id));
            assert_eq!(one.overlap(two), naive, "{one:?} {two:?}");
        }
    }

    #[test]
    fn words_by_hand() {
        let plain = StreamMatching {
            selection: Selection::Matching,
            id_bits: 0x7fff,
            mask_bits: 0x7fff,
            bypass_bank: None,
        };
        let watched = StreamMatching { bypass_bank: Some(Bank(7)), ..plain };
        assert_eq!(plain.words(None), (0x2_0000, 0x2_0000));
        assert_eq!(plain.words(Some(GroupDestination::Through)), (0x1_0000, 0x1_0000));
        assert_eq!(watched.words(None), (0x1_0000, 0x2_0000));
        assert_eq!(watched.words(Some(GroupDestination::Through)).0, 0x0200_0007);
        let streams = StreamMatch { id: 0x880, mask: 2 };
        assert_eq!(streams.word(), 0x8002_0880);
        assert_eq!(plain.number(StreamId::new(0x8000), 48), None);
    }
}
