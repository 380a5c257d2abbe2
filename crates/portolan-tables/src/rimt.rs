//! RIMT: RISC-V IOMMUs, the devices behind them, and the identifiers of those.
//!
//! RISC-V IO Mapping Table (RIMT) specification, version 1.0, chapter "RISC-V IO Mapping Table".
//! All node types. Not read: proximity domains, hardware identifiers, flags of root complexes for
//! ATS and page requests.
//!
//! *Context.* Interrupt, all functions: nothing waits or allocates; a lookup walks the table.

use portolan::addr::{PciFunction, PciSegment, PhysAddr, RequesterId, StreamId};
use portolan::iommu::{Polarity, Trigger};

use super::TableError;
use super::bytes::Bytes;
use super::sdt::Sdt;
use super::walk::{End, Walk};

/// Signature of the table.
pub const SIGNATURE: [u8; 4] = *b"RIMT";

/// Size of the fixed part of the table, in bytes.
const FIXED: usize = 48;
/// Bytes of the part that all nodes have.
const NODE_HEAD: usize = 8;
/// Bytes of the fixed parts of a unit, a root complex and a device.
const UNIT: usize = 40;
const COMPLEX: usize = 20;
const DEVICE: usize = 12;
/// Bytes of a mapping and of a wire.
const MAPPING: usize = 20;
const WIRE: usize = 8;

/// The table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rimt<'a> {
    bytes: Bytes<'a>,
    count: u32,
    first: usize,
}

/// One node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RimtNode<'a> {
    /// Offset in the table, in bytes.
    pub offset: usize,
    /// Kind and contents of the node.
    pub body: RimtBody<'a>,
}

/// Kind and contents of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RimtBody<'a> {
    /// A unit.
    Unit(Unit),
    /// A PCI Express root complex, or a part of one.
    RootComplex {
        /// The segment of its functions.
        segment: PciSegment,
        /// From requester identifiers to streams.
        mappings: RimtMappings<'a>,
    },
    /// A device of the ACPI name space.
    Device {
        /// Its full path there.
        name: &'a [u8],
        /// From identifiers of its own to streams.
        mappings: RimtMappings<'a>,
    },
}

/// A unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Registers or PCI function of the unit.
    pub place: UnitPlace,
    /// The first of its wires, if it has any.
    pub wire: Option<GlobalWire>,
}

/// UnitPlace of a unit in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitPlace {
    /// Its registers.
    Registers(PhysAddr),
    /// It is a PCI function, which says itself where its registers are.
    Function(PciFunction),
}

/// A wire of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalWire {
    /// Its global system interrupt.
    pub interrupt: u32,
    /// Edge or level.
    pub trigger: Trigger,
    /// The active level, or the edge to it.
    pub polarity: Polarity,
}

/// From identifiers of devices to streams of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RimtMapping {
    /// The first identifier.
    pub first: u32,
    /// Number of identifiers.
    pub count: u32,
    /// The stream of the first; those of the others follow.
    pub stream: StreamId,
    /// Offset of the unit's node in the table.
    pub unit: u32,
}

impl RimtMapping {
    /// The stream of `id`, if it is one of them and has one.
    pub fn stream_of(&self, id: u32) -> Option<StreamId> {
        let above = id.checked_sub(self.first)?;
        (above < self.count).then_some(())?;
        self.stream.get().checked_add(above).map(StreamId::new)
    }
}

impl<'a> Rimt<'a> {
    /// The table at the start of `data`.
    ///
    /// # Errors
    /// [`TableError`] of the header; nodes are checked as they are walked.
    pub fn parse(data: &'a [u8]) -> Result<Self, TableError> {
        let bytes = Sdt::parse_as(data, SIGNATURE)?.bytes();
        bytes.part(0, FIXED)?;
        let first = bytes.u32(40)?;
        let (offset, value) = (40, first.into());
        match usize::try_from(first) {
            Ok(first) if first >= FIXED => Ok(Self { bytes, count: bytes.u32(36)?, first }),
            _ => Err(TableError::Nonsense { offset, value }),
        }
    }

    /// The nodes, in order.
    pub fn nodes(&self) -> RimtNodes<'a> {
        RimtNodes(Walk::new(self.bytes.from(self.first), End::Count(self.count)))
    }
}

/// The nodes of a table. One that says a length that cannot be, or is missing, ends the walk with an
/// error; one whose contents are wrong is an error, and the walk goes on behind it.
#[derive(Clone, Debug)]
pub struct RimtNodes<'a>(Walk<'a>);

impl RimtNodes<'_> {
    /// Number of nodes of unknown type that were passed over so far.
    pub fn unknown(&self) -> u32 {
        self.0.unknown()
    }
}

impl<'a> Iterator for RimtNodes<'a> {
    type Item = Result<RimtNode<'a>, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next(cut, parse)
    }
}

/// The node at the start of `rest`.
fn cut(rest: Bytes<'_>) -> Result<Bytes<'_>, TableError> {
    rest.structure(rest.u16(2)?.into(), NODE_HEAD)
}

fn parse(bytes: Bytes<'_>) -> Result<Option<RimtNode<'_>>, TableError> {
    let body = match bytes.u8(0)? {
        0 => RimtBody::Unit(unit(bytes)?),
        1 => {
            let bytes = bytes.structure(bytes.len(), COMPLEX)?;
            RimtBody::RootComplex {
                segment: PciSegment::new(bytes.u16(14)?),
                mappings: RimtMappings::of(bytes, bytes.u16(16)?, bytes.u16(18)?)?,
            }
        }
        2 => {
            let bytes = bytes.structure(bytes.len(), DEVICE)?;
            RimtBody::Device {
                name: bytes.name(DEVICE),
                mappings: RimtMappings::of(bytes, bytes.u16(8)?, bytes.u16(10)?)?,
            }
        }
        _ => return Ok(None),
    };
    let offset = bytes.offset();
    Ok(Some(RimtNode { offset, body }))
}

fn unit(bytes: Bytes<'_>) -> Result<Unit, TableError> {
    let bytes = bytes.structure(bytes.len(), UNIT)?;
    let place = match bytes.u32(24)? & 1 {
        0 => UnitPlace::Registers(PhysAddr::new(bytes.u64(16)?)),
        _ => UnitPlace::Function(PciFunction {
            segment: PciSegment::new(bytes.u16(32)?),
            requester: RequesterId::new(bytes.u16(34)?),
        }),
    };
    let wire = match bytes.u16(36)? {
        0 => None,
        count => {
            let wires = bytes.part(bytes.u16(38)?.into(), usize::from(count) * WIRE)?;
            let flags = wires.u32(4)?;
            Some(GlobalWire {
                interrupt: wires.u32(0)?,
                trigger: match flags & 1 {
                    0 => Trigger::Edge,
                    _ => Trigger::Level,
                },
                polarity: match flags & 2 {
                    0 => Polarity::Low,
                    _ => Polarity::High,
                },
            })
        }
    };
    Ok(Unit { place, wire })
}

/// The mappings of a node, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RimtMappings<'a>(Bytes<'a>);

impl<'a> RimtMappings<'a> {
    fn of(node: Bytes<'a>, offset: u16, count: u16) -> Result<Self, TableError> {
        let bytes = usize::from(count) * MAPPING;
        match count {
            0 => Ok(Self(node.part(0, 0)?)),
            _ => node.part(offset.into(), bytes).map(Self),
        }
    }
}

impl Iterator for RimtMappings<'_> {
    type Item = RimtMapping;

    fn next(&mut self) -> Option<RimtMapping> {
        let one = self.0.part(0, MAPPING).ok()?;
        self.0 = self.0.from(MAPPING);
        Some(RimtMapping {
            first: one.u32(0).ok()?,
            count: one.u32(4).ok()?,
            stream: StreamId::new(one.u32(8).ok()?),
            unit: one.u32(12).ok()?,
        })
    }
}
