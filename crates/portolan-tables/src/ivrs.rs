//! IVRS: AMD's IOMMUs, the devices of each with their settings, and memory that devices go on
//! using.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 5.2. Hardware
//! blocks (IVHD) of types 10h, 11h and 40h, memory blocks (IVMD) of types 20h to 22h.
//!
//! Firmware lists a unit once for each type that it knows, for older and newer software;
//! [`Ivrs::units`] gives each once, by its most complete block. [`Ivrs::reserved`] is the memory that a device has
//! to go on reaching.
//!
//! *Context.* Interrupt, all functions: nothing waits or allocates; a lookup walks the table.

mod entry;
mod memory;
mod orders;
mod unit;

pub use entry::{
    AcpiDevice, Ats, Devices, Entries, Entry, EntryKind, Passes, Settings, Special, SpecialKind,
    SystemManagement, Uid,
};
pub use memory::{IvrsReservedRegions, Memory, MemoryKind};
pub use orders::UnitOrders;
pub use unit::{HostTranslation, Ivhd, UnitFlags};

use super::TableError;
use super::bytes::Bytes;
use super::sdt::Sdt;
use super::walk::{End, Walk};
use crate::reserved::{Reserved, Streams};
use portolan::addr::PciSegment;

/// Signature of the table.
pub const SIGNATURE: [u8; 4] = *b"IVRS";

/// Offset of the first block, in bytes.
const BLOCKS: usize = 48;
/// Bytes of a block's type, flags and length.
const HEAD: usize = 4;
/// Most blocks that a walk gives. Units are compared with each other, so their number is bounded;
/// real tables have about twenty blocks.
const MOST_BLOCKS: u32 = 1024;

/// Level of detail of a block, by its type. Higher levels replace lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Type 10h.
    Basic,
    /// Type 11h: the contents of the feature registers too.
    Features,
    /// Type 40h: devices of the ACPI name space too.
    Named,
}

bitflags::bitflags! {
    /// Properties of the whole machine (IVinfo).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Info: u32 {
        /// Blocks of types 11h and 40h have the extended feature register's contents (EFRSup).
        const FEATURE_IMAGES = 1;
        /// Firmware wants DMA to be remapped from the start (DmaRemapSup).
        const REMAP_FROM_START = 1 << 1;
        /// The range of HyperTransport that answers to ATS requests is reserved (HtAtsResv).
        const ATS_RANGE_RESERVED = 1 << 22;
    }
}

/// The table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ivrs<'a> {
    bytes: Bytes<'a>,
    info: u32,
}

impl<'a> Ivrs<'a> {
    /// The table at the start of `data`.
    ///
    /// # Errors
    /// [`TableError`] of the header; blocks are checked as they are walked.
    pub fn parse(data: &'a [u8]) -> Result<Self, TableError> {
        let sdt = Sdt::parse_as(data, SIGNATURE)?;
        // Linux's driver for it believes no other.
        sdt.summed()?;
        let bytes = sdt.bytes();
        bytes.part(0, BLOCKS)?;
        Ok(Self { bytes, info: bytes.u32(36)? })
    }

    /// Properties of the whole machine.
    pub fn info(&self) -> Info {
        Info::from_bits_truncate(self.info)
    }

    /// Width of physical addresses in bits, if the table says (PASize).
    pub fn physical_lg2(&self) -> Option<u32> {
        width(self.info >> 8 & 0x7f)
    }

    /// Width of devices' addresses in bits, if the table says (VASize).
    pub fn virtual_lg2(&self) -> Option<u32> {
        width(self.info >> 15 & 0x7f)
    }

    /// The blocks, in order.
    pub fn blocks(&self) -> Blocks<'a> {
        let most = MOST_BLOCKS;
        Blocks { walk: Walk::new(self.bytes.from(BLOCKS), End::Bytes { most }), info: self.info() }
    }

    /// The units, each once: by the block of the highest type that lists it, and the first of those.
    pub fn units(&self) -> Units<'a> {
        Units { table: *self, blocks: self.blocks() }
    }

    /// Source of the messages of an interrupt controller or timer: its unit, and its entry there.
    /// `handle` is the number that the MADT or HPET table has for it.
    ///
    /// # Errors
    /// Errors of a block or a device entry on the way.
    pub fn special(
        &self,
        kind: SpecialKind,
        handle: u8,
    ) -> Result<Option<(Ivhd<'a>, Special)>, TableError> {
        for unit in self.units() {
            let unit = unit?;
            for entry in unit.entries() {
                match entry?.kind {
                    EntryKind::Special(special)
                        if (special.kind, special.handle) == (kind, handle) =>
                    {
                        return Ok(Some((unit, special)));
                    }
                    _ => {}
                }
            }
        }
        Ok(None)
    }

    /// The memory that requesters among `streams` have to go on reaching, block by block. A device
    /// with an alias has that of both. Regions may overlap.
    ///
    /// Items are errors where a block of the table is wrong, or its memory is wider than
    /// [`Ivrs::physical_lg2`]; the walk goes on behind it as [`Blocks`] does.
    pub fn reserved(
        &self,
        segment: PciSegment,
        streams: Streams,
    ) -> IvrsReservedRegions<Blocks<'a>> {
        IvrsReservedRegions::new(self.blocks(), segment, streams, self.physical_lg2())
    }

    /// As [`Ivrs::reserved`], by `blocks` of the table that have been read, for all streams.
    pub(crate) fn memory_of(
        &self,
        blocks: impl Iterator<Item = Result<Block<'a>, TableError>>,
        segment: PciSegment,
    ) -> impl Iterator<Item = Result<Reserved, TableError>> {
        IvrsReservedRegions::new(blocks, segment, Streams::ALL, self.physical_lg2())
    }
}

/// A width in bits; 0 says nothing.
fn width(field: u32) -> Option<u32> {
    Some(field).filter(|&lg2| lg2 != 0)
}

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block<'a> {
    /// IVHD.
    Ivhd(Ivhd<'a>),
    /// IVMD.
    Memory(Memory),
}

/// The blocks of a table. One that says a length that cannot be ends the walk with an error, as does
/// one too many; one whose contents are wrong is an error, and the walk goes on behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks<'a> {
    walk: Walk<'a>,
    info: Info,
}

impl Blocks<'_> {
    /// Number of blocks of unknown type that were passed over so far.
    pub fn unknown(&self) -> u32 {
        self.walk.unknown()
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Result<Block<'a>, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        let info = self.info;
        self.walk.next(cut, |block| parse(block, info))
    }
}

/// The block at the start of `rest`.
fn cut(rest: Bytes<'_>) -> Result<Bytes<'_>, TableError> {
    rest.structure(rest.u16(2)?.into(), HEAD)
}

/// The block; `None` if its type is unknown.
fn parse(bytes: Bytes<'_>, info: Info) -> Result<Option<Block<'_>>, TableError> {
    let level = match bytes.u8(0)? {
        0x10 => Level::Basic,
        0x11 => Level::Features,
        0x40 => Level::Named,
        0x20..=0x22 => return memory::parse(bytes).map(|block| Some(Block::Memory(block))),
        _ => return Ok(None),
    };
    unit::parse(bytes, level, info).map(|block| Some(Block::Ivhd(block)))
}

/// The units of a table, each once. Errors are those of all blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units<'a> {
    table: Ivrs<'a>,
    blocks: Blocks<'a>,
}

impl<'a> Iterator for Units<'a> {
    type Item = Result<Ivhd<'a>, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.blocks.next()? {
                Ok(Block::Ivhd(unit)) if self.best(&unit) => return Some(Ok(unit)),
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Units<'_> {
    /// Tells if no other block says more of the unit, or as much before this one.
    fn best(&self, unit: &Ivhd<'_>) -> bool {
        let others = self.table.blocks().filter_map(|block| match block {
            Ok(Block::Ivhd(other)) => Some(other),
            _ => None,
        });
        !others.into_iter().any(|other| is_better(&other, unit))
    }
}

/// Tells if `other` is a block of the same unit that says more of it, or as much before `unit`.
pub(crate) fn is_better(other: &Ivhd<'_>, unit: &Ivhd<'_>) -> bool {
    let same = (other.segment, other.requester) == (unit.segment, unit.requester);
    let earlier = other.level == unit.level && other.offset < unit.offset;
    same && (other.level > unit.level || earlier)
}
