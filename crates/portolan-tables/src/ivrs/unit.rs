//! Hardware blocks (IVHD): a unit, its settings, and firmware's settings of its devices.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 5.2.
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use portolan::addr::PhysAddr;

use super::entry::Entries;
use super::{Info, Level};
use crate::TableError;
use crate::bytes::Bytes;
use portolan::addr::{PciSegment, RequesterId};

/// Bytes of a block of type 10h before its device entries.
const BASIC: usize = 24;
/// Bytes of a block of type 11h or 40h before its device entries.
const FULL: usize = 40;
/// Bit of the attributes of a block of type 11h or 40h: HATDis.
const HOST_TABLES_DISABLED: u32 = 1;
/// Register windows begin at multiples of 16 KiB (section 3.2, the capability's base address).
const WINDOW: u64 = 0x4000;

bitflags::bitflags! {
    /// Settings of the unit's control register that firmware asks for, and features of the unit.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct UnitFlags: u8 {
        /// Translate HyperTransport tunnel traffic (control bit HtTunEn).
        const HT_TUNNEL = 1;
        /// Set the pass-posted-writes bit of posted writes (control bit PassPW).
        const PASS_POSTED_WRITES = 1 << 1;
        /// Set the pass-posted-writes bit of responses (control bit ResPassPW).
        const RESPONSES_PASS_POSTED_WRITES = 1 << 2;
        /// Put the unit's own reads into the isochronous channel (control bit Isoc).
        const ISOCHRONOUS = 1 << 3;
        /// Devices may have TLBs of their own (IotlbSup).
        const DEVICE_TLB = 1 << 4;
        /// The unit's own accesses snoop the caches (control bit Coherent).
        const COHERENT = 1 << 5;
        /// Prefetch commands (PreFSup). In type 10h only; else in the feature register.
        const PREFETCH = 1 << 6;
        /// Page requests (PPRSup). In type 10h only; else in the feature register.
        const PAGE_REQUESTS = 1 << 7;
    }
}

/// Presence of host tables in a unit (HATDis of the IOMMU attributes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub enum HostTranslation {
    /// The unit walks host tables.
    #[default]
    Present,
    /// It walks guest tables alone.
    Disabled,
}

/// A unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ivhd<'a> {
    /// Offset of the block in the table.
    pub offset: usize,
    /// Level of detail of the block.
    pub level: Level,
    /// The segment of the unit and of all devices that it serves.
    pub segment: PciSegment,
    /// The unit's own PCI function.
    pub requester: RequesterId,
    /// Offset of the capability block in that function's configuration space.
    pub capability: u16,
    /// Its registers. The length of the window is not said.
    pub base: PhysAddr,
    /// Settings for the unit.
    pub flags: UnitFlags,
    /// Number of the message that it signals events by (MSInum).
    pub message: u8,
    /// Its HyperTransport unit number (UnitID).
    pub unit_id: u8,
    /// The field as it stands: in type 10h the features (IOMMU Feature Reporting), in others numbers
    /// of counters and messages (IOMMU Attributes).
    pub attributes: u32,
    /// Value of the extended feature register, where the table has it.
    pub features: Option<u64>,
    /// Value of the second extended feature register, where the table has it.
    pub features2: Option<u64>,
    entries: Bytes<'a>,
}

impl<'a> Ivhd<'a> {
    /// The device entries, in order, with ranges put together.
    pub fn entries(&self) -> Entries<'a> {
        Entries::new(self.entries, self.level)
    }

    /// Presence of host tables, by the attributes of a block of type 11h or 40h.
    pub fn host_translation(&self) -> HostTranslation {
        match self.level > Level::Basic && self.attributes & HOST_TABLES_DISABLED != 0 {
            true => HostTranslation::Disabled,
            false => HostTranslation::Present,
        }
    }
}

/// The unit of a block of `level`.
pub(super) fn parse(bytes: Bytes<'_>, level: Level, info: Info) -> Result<Ivhd<'_>, TableError> {
    let full = level > Level::Basic;
    let fixed = if full { FULL } else { BASIC };
    bytes.structure(bytes.len(), fixed)?;
    let base = bytes.u64(8)?;
    if base == 0 || base % WINDOW != 0 {
        return Err(TableError::Nonsense { offset: bytes.offset().saturating_add(8), value: base });
    }
    let mut flags = UnitFlags::from_bits_retain(bytes.u8(1)?);
    if full {
        flags = flags - UnitFlags::PREFETCH - UnitFlags::PAGE_REQUESTS;
    }
    let image = |at| match full && info.contains(Info::FEATURE_IMAGES) {
        true => bytes.u64(at).map(Some),
        false => Ok(None),
    };
    let unit_info = bytes.u16(18)?;
    Ok(Ivhd {
        offset: bytes.offset(),
        level,
        segment: PciSegment::new(bytes.u16(16)?),
        requester: RequesterId::new(bytes.u16(4)?),
        capability: bytes.u16(6)?,
        base: PhysAddr::new(base),
        flags,
        message: (unit_info & 0x1f) as u8,
        unit_id: (unit_info >> 8 & 0x1f) as u8,
        attributes: bytes.u32(20)?,
        features: image(24)?,
        features2: image(32)?,
        entries: bytes.from(fixed),
    })
}
