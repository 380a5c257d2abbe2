//! VIOT: virtio-iommu devices and the devices that they serve.
//!
//! ACPI specification 6.5, section 5.2.34. All node types.
//!
//! *Context.* Interrupt, all functions: nothing waits or allocates; a lookup walks the table.

use portolan::addr::{PhysAddr, StreamId};

use super::TableError;
use super::bytes::Bytes;
use super::sdt::Sdt;
use super::walk::{End, Walk};
use portolan::addr::{PciSegment, RequesterId};

/// Signature of the table.
pub const SIGNATURE: [u8; 4] = *b"VIOT";

/// Size of the fixed part of the table, in bytes.
const FIXED: usize = 48;
/// Bytes of a node's type and length.
const HEAD: usize = 4;

/// The table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Viot<'a> {
    bytes: Bytes<'a>,
    count: u16,
    first: usize,
}

/// A virtio-iommu device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Viommu {
    /// Behind the PCI transport.
    Pci {
        /// Its segment.
        segment: PciSegment,
        /// Its place there.
        requester: RequesterId,
    },
    /// Behind the MMIO transport.
    Mmio {
        /// Its registers.
        base: PhysAddr,
    },
}

/// PCI functions and the endpoint identifiers that they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciRange {
    /// Endpoint of the first function.
    pub endpoint: StreamId,
    /// First segment.
    pub first_segment: PciSegment,
    /// Last segment.
    pub last_segment: PciSegment,
    /// First function, in each segment.
    pub first: RequesterId,
    /// Last function, in each segment.
    pub last: RequesterId,
    /// Offset of the unit's node.
    pub unit: u16,
}

impl PciRange {
    /// The endpoint of a function, if it is in the range.
    pub fn endpoint_of(&self, segment: PciSegment, requester: RequesterId) -> Option<StreamId> {
        let inside = (self.first_segment..=self.last_segment).contains(&segment)
            && (self.first..=self.last).contains(&requester);
        if !inside {
            return None;
        }
        let segments = u32::from(segment.get().checked_sub(self.first_segment.get())?);
        let functions = u32::from(requester.get().checked_sub(self.first.get())?);
        let above = (segments << 16).checked_add(functions)?;
        self.endpoint.get().checked_add(above).map(StreamId::new)
    }
}

/// A device that is not of PCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmioEndpoint {
    /// Its endpoint.
    pub endpoint: StreamId,
    /// Its registers, which name it.
    pub base: PhysAddr,
    /// Offset of the unit's node.
    pub unit: u16,
}

/// One node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViotNode {
    /// PCI functions.
    PciRange(PciRange),
    /// Another device.
    MmioEndpoint(MmioEndpoint),
    /// A unit.
    Viommu(Viommu),
}

impl<'a> Viot<'a> {
    /// The table at the start of `data`.
    ///
    /// # Errors
    /// [`TableError`] of the header; nodes are checked as they are walked.
    pub fn parse(data: &'a [u8]) -> Result<Self, TableError> {
        let bytes = Sdt::parse_as(data, SIGNATURE)?.bytes();
        bytes.part(0, FIXED)?;
        let first = bytes.u16(38)?;
        if usize::from(first) < FIXED {
            return Err(TableError::Nonsense { offset: 38, value: first.into() });
        }
        Ok(Self { bytes, count: bytes.u16(36)?, first: first.into() })
    }

    /// The nodes with their offsets, in order.
    pub fn nodes(&self) -> ViotNodes<'a> {
        let end = End::Count(self.count.into());
        ViotNodes(Walk::new(self.bytes.from(self.first), end))
    }
}

/// The nodes of a table. One that says a length that cannot be, or is missing, ends the walk with an
/// error; one whose contents are wrong is an error, and the walk goes on behind it.
#[derive(Clone, Debug)]
pub struct ViotNodes<'a>(Walk<'a>);

impl ViotNodes<'_> {
    /// Number of nodes of unknown type that were passed over so far.
    pub fn unknown(&self) -> u32 {
        self.0.unknown()
    }
}

impl Iterator for ViotNodes<'_> {
    /// The node and its offset in the table.
    type Item = Result<(usize, ViotNode), TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        let parse = |node: Bytes<'_>| Ok(parse(node)?.map(|known| (node.offset(), known)));
        self.0.next(cut, parse)
    }
}

/// The node at the start of `rest`.
fn cut(rest: Bytes<'_>) -> Result<Bytes<'_>, TableError> {
    rest.structure(rest.u16(2)?.into(), HEAD)
}

/// The node; `None` if its type is unknown.
fn parse(node: Bytes<'_>) -> Result<Option<ViotNode>, TableError> {
    let kind = node.u8(0)?;
    let fixed = match kind {
        1 | 2 => 24,
        3 | 4 => 16,
        _ => return Ok(None),
    };
    node.structure(node.len(), fixed)?;
    Ok(Some(match kind {
        1 => ViotNode::PciRange(PciRange {
            endpoint: StreamId::new(node.u32(4)?),
            first_segment: PciSegment::new(node.u16(8)?),
            last_segment: PciSegment::new(node.u16(10)?),
            first: RequesterId::new(node.u16(12)?),
            last: RequesterId::new(node.u16(14)?),
            unit: node.u16(16)?,
        }),
        2 => ViotNode::MmioEndpoint(MmioEndpoint {
            endpoint: StreamId::new(node.u32(4)?),
            base: PhysAddr::new(node.u64(8)?),
            unit: node.u16(16)?,
        }),
        3 => ViotNode::Viommu(Viommu::Pci {
            segment: PciSegment::new(node.u16(4)?),
            requester: RequesterId::new(node.u16(6)?),
        }),
        _ => ViotNode::Viommu(Viommu::Mmio { base: PhysAddr::new(node.u64(8)?) }),
    }))
}
