//! The nodes of the table, one type each.
//!
//! Arm I/O Remapping Table (DEN0049), revision E.f, sections 3.1.1 to 3.1.1.7.
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use portolan::addr::{PhysAddr, PhysRange};

use super::mapping::{IdCount, IortMappings};
use crate::TableError;
use crate::bytes::{Bytes, number};
use crate::overrides::CoherencyOverride;
use portolan::addr::PciSegment;

/// One node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IortNode<'a> {
    /// Offset of the node in the table, which references name.
    pub offset: usize,
    /// Revision of the node.
    pub revision: u8,
    /// Identifiers that leave the node, and their destinations.
    pub mappings: IortMappings<'a>,
    /// Kind and contents of the node.
    pub body: IortBody<'a>,
}

/// Kind and contents of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IortBody<'a> {
    /// Interrupt translation services: the end of a path without, or behind, an SMMU.
    ItsGroup(ItsGroup<'a>),
    /// A device that is not of PCI.
    NamedComponent(NamedComponent<'a>),
    /// A PCI root complex.
    RootComplex(RootComplex),
    /// An SMMU of version 1 or 2.
    Smmu(Smmu),
    /// An SMMU of version 3.
    SmmuV3(SmmuV3),
    /// Performance counters.
    CounterGroup(CounterGroup),
    /// Memory that devices go on using.
    ReservedMemory(ReservedMemory<'a>),
}

/// A group of interrupt translation services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItsGroup<'a> {
    ids: &'a [u8],
}

/// The identifiers of a group.
pub type ItsIds<'a> = core::iter::Map<core::slice::ChunksExact<'a, u8>, fn(&[u8]) -> u32>;

impl<'a> ItsGroup<'a> {
    /// The identifiers of the services, as in MADT.
    pub fn ids(&self) -> ItsIds<'a> {
        self.ids.chunks_exact(4).map(|id| number(id) as u32)
    }
}

/// A device of the ACPI name space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedComponent<'a> {
    /// Bit 0: may stall; bits 5:1: bits of a PASID.
    pub flags: u32,
    /// Memory access properties.
    pub memory: u64,
    /// Width of its addresses in bits.
    pub address_lg2: u8,
    /// Its path in the name space.
    pub name: &'a [u8],
}

/// A PCI root complex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootComplex {
    /// Memory access properties.
    pub memory: u64,
    /// Bit 0: translation services; bit 1: page requests.
    pub ats: u32,
    /// The segment.
    pub segment: PciSegment,
    /// Width of the addresses that it passes on, in bits; `None` in revision 0, which has no such field.
    pub address_lg2: Option<u8>,
}

/// An SMMU of version 1 or 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smmu {
    /// Its registers.
    pub registers: PhysRange,
    /// Implementation of the unit (field "Model").
    pub model: u32,
    /// Bit 0: distributed; bit 1: coherent table walks.
    pub flags: u32,
    /// Number of context interrupts.
    pub context_interrupts: u32,
}

impl Smmu {
    /// Coherency of table walks (bit 1 of the flags), in place of that in ID0.CTTW.
    pub const fn coherency(&self) -> CoherencyOverride {
        coherency(self.flags & 1 << 1)
    }
}

/// The interrupts of an SMMU of version 3; 0 where there is none by wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupts {
    /// Event queue.
    pub event: u32,
    /// Page-request queue.
    pub pri: u32,
    /// Global errors.
    pub gerror: u32,
    /// Completion of a sync.
    pub sync: u32,
}

/// An SMMU of version 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmmuV3 {
    /// Its registers.
    pub base: PhysAddr,
    /// Bit 0: coherent, which overrides the registers; bits 2:1: dirty state; bit 3: proximity is
    /// valid; bit 4: the device mapping is valid.
    pub flags: u32,
    /// The VATOS page, 0 if there is none.
    pub vatos: PhysAddr,
    /// Implementation of the unit (field "Model").
    pub model: u32,
    /// Interrupts.
    pub interrupts: Interrupts,
    /// Proximity domain, if there is one.
    pub proximity: Option<u32>,
    /// Index of its mapping for the messages that it sends itself, if one is.
    pub device_mapping: Option<u32>,
}

impl SmmuV3 {
    /// Coherency of the unit's accesses (bit 0 of the flags), in place of that in IDR0.COHACC.
    pub const fn coherency(&self) -> CoherencyOverride {
        coherency(self.flags & 1)
    }
}

/// A flag of firmware that is clear denies coherency: where the flag is right it is needed, and
/// where it was forgotten the unit still sees memory that was cleaned for it.
const fn coherency(flag: u32) -> CoherencyOverride {
    match flag {
        0 => CoherencyOverride::NotCoherent,
        _ => CoherencyOverride::Coherent,
    }
}

/// Performance counters of another component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterGroup {
    /// First page of registers.
    pub page0: PhysAddr,
    /// Second page; the first again in revision 0, which has no such field.
    pub page1: PhysAddr,
    /// Interrupt on overflow, 0 for none by wire.
    pub overflow: u32,
    /// Offset of the node whose counters these are.
    pub counted: u32,
}

/// Memory that devices go on using.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedMemory<'a> {
    /// Bit 0: may be mapped elsewhere; bit 1: privileged; bits 9:2: memory attributes.
    pub flags: u32,
    ranges: Bytes<'a>,
}

impl<'a> ReservedMemory<'a> {
    /// The memory.
    pub fn ranges(&self) -> MemoryRanges<'a> {
        MemoryRanges { rest: self.ranges }
    }
}

/// A piece of reserved memory, with the offset of its descriptor.
pub type MemoryRange = (usize, PhysRange);

/// The pieces of reserved memory of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRanges<'a> {
    rest: Bytes<'a>,
}

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 20;

impl Iterator for MemoryRanges<'_> {
    type Item = Result<MemoryRange, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        let one = self.rest.part(0, DESCRIPTOR).ok()?;
        self.rest = self.rest.from(DESCRIPTOR);
        Some(range(one, 0).map(|range| (one.offset(), range)))
    }
}

/// The range whose start and length are at `at`.
fn range(bytes: Bytes<'_>, at: usize) -> Result<PhysRange, TableError> {
    let length = bytes.u64(at + 8)?;
    PhysRange::from_len(PhysAddr::new(bytes.u64(at)?), length).ok_or(TableError::Nonsense {
        offset: bytes.offset().saturating_add(at + 8),
        value: length,
    })
}

/// `count` records of `each` bytes from `start` of a node.
fn array(node: Bytes<'_>, start: u32, count: u32, each: usize) -> Result<Bytes<'_>, TableError> {
    if count == 0 {
        return node.part(0, 0);
    }
    let start = usize::try_from(start).unwrap_or(usize::MAX);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    node.part(start, count.saturating_mul(each))
}

/// The node; `None` if its type is unknown.
pub(super) fn parse(
    bytes: Bytes<'_>,
    id_count: IdCount,
) -> Result<Option<IortNode<'_>>, TableError> {
    let (kind, revision) = (bytes.u8(0)?, bytes.u8(3)?);
    let fixed = match (kind, revision) {
        (0, _) => 20,
        (1, _) => 29,
        (2, 0) => 32,
        (2, _) => 33,
        (3, _) => 60,
        (4, 0) => 60,
        (4, _) => 68,
        (5, 0) => 32,
        (5, _) => 40,
        (6, _) => 28,
        _ => return Ok(None),
    };
    bytes.structure(bytes.len(), fixed)?;
    let body = match kind {
        0 => IortBody::ItsGroup(ItsGroup { ids: array(bytes, 20, bytes.u32(16)?, 4)?.as_slice() }),
        1 => IortBody::NamedComponent(NamedComponent {
            flags: bytes.u32(16)?,
            memory: bytes.u64(20)?,
            address_lg2: bytes.u8(28)?,
            name: bytes.name(29),
        }),
        2 => IortBody::RootComplex(root_complex(bytes, revision)?),
        3 => IortBody::Smmu(Smmu {
            registers: range(bytes, 16)?,
            model: bytes.u32(32)?,
            flags: bytes.u32(36)?,
            context_interrupts: bytes.u32(44)?,
        }),
        4 => IortBody::SmmuV3(smmu_v3(bytes, revision)?),
        5 => IortBody::CounterGroup(CounterGroup {
            page0: PhysAddr::new(bytes.u64(16)?),
            page1: PhysAddr::new(bytes.u64(if revision == 0 { 16 } else { 32 })?),
            overflow: bytes.u32(24)?,
            counted: bytes.u32(28)?,
        }),
        _ => IortBody::ReservedMemory(ReservedMemory {
            flags: bytes.u32(16)?,
            ranges: array(bytes, bytes.u32(24)?, bytes.u32(20)?, DESCRIPTOR)?,
        }),
    };
    Ok(Some(IortNode {
        offset: bytes.offset(),
        revision,
        mappings: IortMappings::new(
            array(bytes, bytes.u32(12)?, bytes.u32(8)?, super::mapping::BYTES)?,
            id_count,
        ),
        body,
    }))
}

fn root_complex(bytes: Bytes<'_>, revision: u8) -> Result<RootComplex, TableError> {
    let segment = bytes.u32(28)?;
    Ok(RootComplex {
        memory: bytes.u64(16)?,
        ats: bytes.u32(24)?,
        segment: u16::try_from(segment).map(PciSegment::new).map_err(|_| TableError::Nonsense {
            offset: bytes.offset().saturating_add(28),
            value: segment.into(),
        })?,
        address_lg2: match revision {
            0 => None,
            _ => Some(bytes.u8(32)?),
        },
    })
}

fn smmu_v3(bytes: Bytes<'_>, revision: u8) -> Result<SmmuV3, TableError> {
    let flags = bytes.u32(24)?;
    let wired = [48, 52, 56].map(|at| bytes.u32(at));
    let [pri, gerror, sync] = wired;
    let interrupts = Interrupts { event: bytes.u32(44)?, pri: pri?, gerror: gerror?, sync: sync? };
    let later = revision > 0;
    // Before revision 5 the device mapping counts if an interrupt is missing.
    let all_wired = interrupts.event != 0
        && interrupts.pri != 0
        && interrupts.gerror != 0
        && interrupts.sync != 0;
    let mapped = if revision >= 5 { flags & 1 << 4 != 0 } else { !all_wired };
    let read = |valid: bool, at| -> Result<Option<u32>, TableError> {
        if later && valid { bytes.u32(at).map(Some) } else { Ok(None) }
    };
    Ok(SmmuV3 {
        base: PhysAddr::new(bytes.u64(16)?),
        flags,
        vatos: PhysAddr::new(bytes.u64(32)?),
        model: bytes.u32(40)?,
        interrupts,
        proximity: read(flags & 1 << 3 != 0, 60)?,
        device_mapping: read(mapped, 64)?,
    })
}
