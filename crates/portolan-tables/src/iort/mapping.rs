//! Mappings of identifiers from node to node.
//!
//! Arm I/O Remapping Table (DEN0049), revision E.f, section 3.1.1 (table 4). That HiSilicon's HIP07
//! and HIP08 count otherwise is known from Linux (`drivers/acpi/arm64/iort.c`, 2020).
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use crate::bytes::Bytes;
use crate::sdt::Maker;

/// Bytes of a mapping.
pub(super) const BYTES: usize = 20;

/// Meaning of the field "number of IDs" of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdCount {
    /// The number less one, as specified.
    LessOne,
    /// The number itself: firmware of some machines misread the specification, so that each range
    /// reaches into the one behind it.
    Whole,
}

/// Firmware that writes [`IdCount::Whole`].
const WHOLE_COUNTS: [Maker; 2] = [maker(*b"HIP07   "), maker(*b"HIP08   ")];

const fn maker(table: [u8; 8]) -> Maker {
    Maker { oem: *b"HISI  ", table, revision: 0 }
}

impl IdCount {
    /// Returns the way in which the maker of a table counts.
    pub(super) fn of(maker: Maker) -> Self {
        if WHOLE_COUNTS.contains(&maker) { Self::Whole } else { Self::LessOne }
    }

    /// The number less one. A count of none is taken for one, as every reading of the field gives
    /// that for a single device.
    const fn less_one(self, field: u32) -> u32 {
        match self {
            Self::LessOne => field,
            Self::Whole => field.saturating_sub(1),
        }
    }
}

/// Kind of a mapping: for a range, or for one device that has no identifier of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Single {
    /// A range of identifiers.
    Range,
    /// The output base comes out for any input.
    Single,
}

/// Identifiers that leave a node, and their values at the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IortMapping {
    /// First identifier.
    pub input: u32,
    /// Number of identifiers less one, with either [`IdCount`] of the table.
    pub count_minus_one: u32,
    /// Output of the first identifier.
    pub output: u32,
    /// Offset of the next node.
    pub target: u32,
    /// Kind of the mapping.
    pub single: Single,
}

impl IortMapping {
    /// Output for `id`; `None` if the mapping is not for it.
    pub fn apply(&self, id: u32) -> Option<u32> {
        if self.single == Single::Single {
            return Some(self.output);
        }
        let above = id.checked_sub(self.input)?;
        if above > self.count_minus_one {
            return None;
        }
        self.output.checked_add(above)
    }

    /// Output of the last identifier.
    pub fn last_output(&self) -> u32 {
        match self.single {
            Single::Single => self.output,
            Single::Range => self.output.saturating_add(self.count_minus_one),
        }
    }
}

/// The mappings of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IortMappings<'a> {
    rest: Bytes<'a>,
    id_count: IdCount,
}

impl<'a> IortMappings<'a> {
    pub(super) fn new(rest: Bytes<'a>, id_count: IdCount) -> Self {
        Self { rest, id_count }
    }
}

impl Iterator for IortMappings<'_> {
    type Item = IortMapping;

    fn next(&mut self) -> Option<IortMapping> {
        let one = self.rest.part(0, BYTES).ok()?;
        self.rest = self.rest.from(BYTES);
        let word = |at| one.u32(at).ok();
        Some(IortMapping {
            input: word(0)?,
            count_minus_one: self.id_count.less_one(word(4)?),
            output: word(8)?,
            target: word(12)?,
            single: if word(16)? & 1 != 0 { Single::Single } else { Single::Range },
        })
    }
}
