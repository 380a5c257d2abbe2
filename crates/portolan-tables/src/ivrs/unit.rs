//! Hardware blocks (IVHD): a unit, its settings, and firmware's settings of its devices.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 5.2.
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use portolan::addr::PhysAddr;

use super::entry::{Entries, EntryKind, Settings};
use super::{Info, Level};
use crate::TableError;
use crate::bytes::Bytes;
use portolan::addr::{PciSegment, RequesterId};

/// Bytes of a block of type 10h before its device entries.
const BASIC: usize = 24;
/// Bytes of a block of type 11h or 40h before its device entries.
const FULL: usize = 40;
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

/// Settings of one device by firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Accesses and messages that its entry in the device table lets through besides translated
    /// accesses. A device with an alias has the entry of the alias; the alias' settings count.
    pub settings: Settings,
    /// The requester that its accesses carry, if that is not its own.
    pub alias: Option<RequesterId>,
    /// Set if an entry names it, alone or in a range; if not it is one of all.
    pub(super) named: bool,
}

impl<'a> Ivhd<'a> {
    /// The device entries, in order, with ranges put together.
    pub fn entries(&self) -> Entries<'a> {
        Entries::new(self.entries, self.level)
    }

    /// Settings of a requester of the segment. `None` if the unit does not serve it.
    ///
    /// Of several entries for one device the last one counts that lets anything through: firmware
    /// lists an I/O APIC and a timer at one requester, with settings for the I/O APIC only.
    ///
    /// # Errors
    /// Errors of an entry on the way.
    pub fn device(&self, requester: RequesterId) -> Result<Option<Device>, TableError> {
        let mut found: Option<Device> = None;
        for entry in self.entries() {
            let entry = entry?;
            let itself = entry.devices.contains(requester);
            let alias = match entry.kind {
                EntryKind::Alias(source) => Some(source),
                _ => None,
            };
            if !itself && alias != Some(requester) {
                continue;
            }
            let device = found.get_or_insert(Device {
                settings: Settings::default(),
                alias: None,
                named: false,
            });
            if entry.settings != Settings::default() {
                device.settings = entry.settings;
            }
            if itself {
                // A source that is the device itself renames nothing.
                device.alias = alias.filter(|&source| source != requester).or(device.alias);
            }
            device.named |= entry.kind != EntryKind::All;
        }
        Ok(found)
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
