//! DMAR: Intel's remapping units, reserved memory, and the devices under each.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, chapter 8. All structure
//! types up to SIDP (8.1 to 8.9). Not supported: hot-plug additions through ACPI methods (8.10).
//!
//! *Context.* Interrupt, all functions: nothing waits or allocates; a lookup walks the table.

use portolan::addr::{PhysAddr, PhysRange};

use super::TableError;
use super::bytes::Bytes;
use super::sdt::Sdt;
use super::walk::{End, Walk};
use portolan::addr::PciSegment;

mod reserved;
mod scope;

pub use reserved::MemoryBlock;
pub use scope::{PathScope, PathStep, Scope, ScopeKind, Scopes};

/// Signature of the table.
pub const SIGNATURE: [u8; 4] = *b"DMAR";

/// Offset of the first structure, in bytes.
const STRUCTURES: usize = 48;
/// Bytes of type and length.
const HEAD: usize = 4;

/// The table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dmar<'a> {
    bytes: Bytes<'a>,
    address_lg2: u32,
    flags: u8,
}

impl<'a> Dmar<'a> {
    /// The table at the start of `data`.
    ///
    /// # Errors
    /// [`TableError`] of the header; structures are checked as they are walked.
    pub fn parse(data: &'a [u8]) -> Result<Self, TableError> {
        let bytes = Sdt::parse_as(data, SIGNATURE)?.bytes();
        bytes.part(0, STRUCTURES)?;
        Ok(Self {
            bytes,
            // The field holds the width less one.
            address_lg2: u32::from(bytes.u8(36)?) + 1,
            flags: bytes.u8(37)?,
        })
    }

    /// Width of the addresses that devices can reach, in bits.
    pub fn address_lg2(&self) -> u32 {
        self.address_lg2
    }

    /// The flags: bit 0 interrupt remapping, 1 no x2APIC, 2 DMA protection wanted by firmware.
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// The structures, in order.
    pub fn structures(&self) -> Structures<'a> {
        let most = u32::MAX;
        Structures(Walk::new(self.bytes.from(STRUCTURES), End::Bytes { most }))
    }
}

/// Devices of the segment that a unit serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// All that no other unit of the segment names.
    Remaining,
    /// Those in its scopes.
    Named,
}

/// Root ports of a segment that report translation services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Every root port of the segment.
    All,
    /// Those in the scopes.
    Named,
}

/// A remapping unit (8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drhd<'a> {
    /// Devices that it serves.
    pub serves: Serves,
    /// The segment.
    pub segment: PciSegment,
    /// Its registers.
    pub registers: PhysRange,
    /// The devices; with [`Serves::Remaining`], interrupt controllers and timers only.
    pub scopes: Scopes<'a>,
}

/// Reserved Memory Region Reporting structure: memory that devices go on using (8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rmrr<'a> {
    /// Offset of the structure in the table.
    pub offset: usize,
    /// The segment.
    pub segment: PciSegment,
    /// The memory.
    pub range: PhysRange,
    /// The devices that use it.
    pub scopes: Scopes<'a>,
}

/// Root ports that pass translation requests on (8.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootPorts<'a> {
    /// Root ports of the segment that pass them on: every one, or those in the scopes.
    pub ports: Ports,
    /// The segment.
    pub segment: PciSegment,
    /// The ports.
    pub scopes: Scopes<'a>,
}

/// Memory that is near a unit (8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// The unit, by its register base.
    pub unit: PhysAddr,
    /// The proximity domain, as in SRAT.
    pub proximity: u32,
}

/// A device of the ACPI name space (8.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedDevice<'a> {
    /// The number that scopes refer to it by.
    pub number: u8,
    /// Its path in the name space.
    pub name: &'a [u8],
}

/// Devices of a segment for which something holds (8.8 SATC, 8.9 SIDP).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentDevices<'a> {
    /// The flags; bit 0 of SATC says that translation services have to be on.
    pub flags: u8,
    /// The segment.
    pub segment: PciSegment,
    /// The devices.
    pub scopes: Scopes<'a>,
}

/// One structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure<'a> {
    /// DRHD.
    Drhd(Drhd<'a>),
    /// RMRR.
    Reserved(Rmrr<'a>),
    /// ATSR.
    RootPorts(RootPorts<'a>),
    /// RHSA.
    Affinity(Affinity),
    /// ANDD.
    NamedDevice(NamedDevice<'a>),
    /// SATC: integrated devices with an address translation cache.
    TranslationCaches(SegmentDevices<'a>),
    /// SIDP: integrated devices with properties of their own.
    Properties(SegmentDevices<'a>),
}

/// The structures of a table. One that says a length that cannot be ends the walk with an error; one
/// whose contents are wrong is an error, and the walk goes on behind it.
#[derive(Clone, Debug)]
pub struct Structures<'a>(Walk<'a>);

impl Structures<'_> {
    /// Number of structures of unknown type that were passed over so far.
    pub fn unknown(&self) -> u32 {
        self.0.unknown()
    }
}

impl<'a> Iterator for Structures<'a> {
    type Item = Result<Structure<'a>, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next(cut, parse)
    }
}

/// The structure at the start of `rest`.
fn cut(rest: Bytes<'_>) -> Result<Bytes<'_>, TableError> {
    rest.structure(rest.u16(2)?.into(), HEAD)
}

/// The structure; `None` if its type is unknown.
fn parse(bytes: Bytes<'_>) -> Result<Option<Structure<'_>>, TableError> {
    let kind = bytes.u16(0)?;
    let fixed = match kind {
        0 => 16,
        1 => 24,
        2 | 4..=6 => 8,
        3 => 20,
        _ => return Ok(None),
    };
    bytes.structure(bytes.len(), fixed)?;
    let segment = PciSegment::new(bytes.u16(6)?);
    let scopes = Scopes::new(bytes.from(fixed));
    let flags = bytes.u8(4)?;
    Ok(Some(match kind {
        0 => Structure::Drhd(unit(bytes, scopes)?),
        1 => Structure::Reserved(Rmrr {
            offset: bytes.offset(),
            segment,
            range: range(bytes, bytes.u64(8)?, bytes.u64(16)?)?,
            scopes,
        }),
        2 => Structure::RootPorts(RootPorts {
            ports: if flags & 1 != 0 { Ports::All } else { Ports::Named },
            segment,
            scopes,
        }),
        3 => Structure::Affinity(Affinity {
            unit: PhysAddr::new(bytes.u64(8)?),
            proximity: bytes.u32(16)?,
        }),
        4 => Structure::NamedDevice(NamedDevice { number: bytes.u8(7)?, name: bytes.name(8) }),
        5 => Structure::TranslationCaches(SegmentDevices { flags, segment, scopes }),
        _ => Structure::Properties(SegmentDevices { flags: 0, segment, scopes }),
    }))
}

fn unit<'a>(bytes: Bytes<'a>, scopes: Scopes<'a>) -> Result<Drhd<'a>, TableError> {
    let base = bytes.u64(8)?;
    // The size is 2^n pages of 4 KiB; tables of before revision 4 have 0 there.
    let pages = 1u64 << (bytes.u8(5)? & 0xf);
    let last = base.saturating_add((pages << 12) - 1);
    Ok(Drhd {
        serves: if bytes.u8(4)? & 1 != 0 { Serves::Remaining } else { Serves::Named },
        segment: PciSegment::new(bytes.u16(6)?),
        registers: range(bytes, base, last)?,
        scopes,
    })
}

/// The range at offset 8 of a structure.
fn range(bytes: Bytes<'_>, start: u64, last: u64) -> Result<PhysRange, TableError> {
    PhysRange::new(PhysAddr::new(start), PhysAddr::new(last))
        .ok_or(TableError::Nonsense { offset: bytes.offset().saturating_add(8), value: start })
}
