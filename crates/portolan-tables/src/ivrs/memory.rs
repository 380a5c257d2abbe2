//! Memory blocks (IVMD): memory that devices go on using.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 5.2. The
//! segment, which later revisions have in the first reserved bytes, is read; before it was 0.
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use portolan::addr::{PhysAddr, PhysRange};
use portolan::iommu::ReservedKind;
use portolan::table::Access;

use super::Block;
use super::entry::Devices;
use crate::TableError;
use crate::bytes::Bytes;
use crate::reserved::{Reserved, Streams};
use crate::reserved::{region, within};
use portolan::addr::{PciSegment, RequesterId};

/// Bytes of a block.
const FIXED: usize = 32;

const UNITY: u8 = 1;
const READ: u8 = 1 << 1;
const WRITE: u8 = 1 << 2;
const EXCLUSION: u8 = 1 << 3;

/// Treatment of devices' accesses to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// A mapping one to one, with this access.
    Unity(Access),
    /// No translation.
    Exclusion,
}

/// A memory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Offset of the block in the table.
    pub offset: usize,
    /// The segment of the devices.
    pub segment: PciSegment,
    /// The devices.
    pub devices: Devices,
    /// The memory.
    pub memory: PhysRange,
    /// Treatment of accesses there.
    pub kind: MemoryKind,
}

impl Memory {
    /// The block as a region of its devices. Accesses that have to pass untranslated may as well
    /// have a mapping one to one.
    pub fn reserved(&self) -> Reserved {
        let access = match self.kind {
            MemoryKind::Unity(access) => access,
            MemoryKind::Exclusion => Access::READ_WRITE,
        };
        Reserved {
            streams: self.devices.streams(),
            region: region(self.memory, ReservedKind::Direct(access)),
        }
    }
}

/// The memory of a block. It is nonsense if it is empty, runs past the top, or if nothing is to be
/// met there.
pub(super) fn parse(bytes: Bytes<'_>) -> Result<Memory, TableError> {
    bytes.structure(bytes.len(), FIXED)?;
    let nonsense = |at: usize, value: u64| TableError::Nonsense {
        offset: bytes.offset().saturating_add(at),
        value,
    };
    let (first, last) = (bytes.u16(4)?, bytes.u16(6)?);
    let devices = match bytes.u8(0)? {
        0x20 => Some(Devices::ALL),
        0x21 => Some(Devices::one(RequesterId::new(first))),
        _ => Devices::new(RequesterId::new(first), RequesterId::new(last)),
    };
    let flags = bytes.u8(1)?;
    let mut access = Access::empty();
    access.set(Access::READ, flags & READ != 0);
    access.set(Access::WRITE, flags & WRITE != 0);
    let kind = match (flags & EXCLUSION, flags & UNITY) {
        (0, 0) => None,
        (0, _) if access.is_empty() => None,
        (0, _) => Some(MemoryKind::Unity(access)),
        _ => Some(MemoryKind::Exclusion),
    };
    let length = bytes.u64(24)?;
    let memory = PhysRange::from_len(PhysAddr::new(bytes.u64(16)?), length);
    Ok(Memory {
        offset: bytes.offset(),
        segment: PciSegment::new(bytes.u16(8)?),
        devices: devices.ok_or(nonsense(6, last.into()))?,
        memory: memory.ok_or(nonsense(24, length))?,
        kind: kind.ok_or(nonsense(1, flags.into()))?,
    })
}

/// The regions of devices. Errors are those of all blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IvrsReservedRegions<B> {
    blocks: B,
    segment: PciSegment,
    streams: Streams,
    physical_lg2: Option<u32>,
}

impl<B> IvrsReservedRegions<B> {
    pub(super) fn new(
        blocks: B,
        segment: PciSegment,
        streams: Streams,
        physical_lg2: Option<u32>,
    ) -> Self {
        Self { blocks, segment, streams, physical_lg2 }
    }
}

impl<'a, B: Iterator<Item = Result<Block<'a>, TableError>>> Iterator for IvrsReservedRegions<B> {
    type Item = Result<Reserved, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let block = match self.blocks.next()? {
                Ok(Block::Memory(block)) => block,
                Ok(Block::Ivhd(_)) => continue,
                Err(error) => return Some(Err(error)),
            };
            let reserved = block.reserved();
            if block.segment == self.segment && reserved.streams.overlaps(self.streams) {
                let at = block.offset.saturating_add(16);
                let checked = within(block.memory, self.physical_lg2, at);
                return Some(checked.map(|_| reserved));
            }
        }
    }
}
