//! Device entries of a hardware block: devices that the unit serves, and the accesses and messages
//! that it lets through for them.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 5.2:
//! entries of 4 and 8 bytes, and the entry of variable length for devices of the ACPI name space.
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use super::Level;
use crate::TableError;
use crate::bytes::{Bytes, number};
use crate::reserved::Streams;
use portolan::addr::RequesterId;

mod kind {
    pub const PAD4: u8 = 0;
    pub const ALL: u8 = 1;
    pub const SELECT: u8 = 2;
    pub const RANGE_START: u8 = 3;
    pub const RANGE_END: u8 = 4;
    pub const PAD8: u8 = 64;
    pub const ALIAS: u8 = 66;
    pub const ALIAS_START: u8 = 67;
    pub const EXTENDED: u8 = 70;
    pub const EXTENDED_START: u8 = 71;
    pub const SPECIAL: u8 = 72;
    pub const ACPI: u8 = 240;
}

/// Bytes of an entry for a device of the ACPI name space, without its unique identifier.
const ACPI_FIXED: usize = 22;

/// Requesters from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Devices {
    first: RequesterId,
    last: RequesterId,
}

impl Devices {
    /// All of a segment.
    pub const ALL: Self = Self { first: RequesterId::new(0), last: RequesterId::new(u16::MAX) };

    /// From `first` to `last`; `None` if `last` is below `first`.
    pub const fn new(first: RequesterId, last: RequesterId) -> Option<Self> {
        if last.get() < first.get() { None } else { Some(Self { first, last }) }
    }

    /// One.
    pub const fn one(device: RequesterId) -> Self {
        Self { first: device, last: device }
    }

    /// The first.
    pub const fn first(&self) -> RequesterId {
        self.first
    }

    /// The last.
    pub const fn last(&self) -> RequesterId {
        self.last
    }

    /// Tells if `device` is one of them.
    pub const fn contains(&self, device: RequesterId) -> bool {
        self.first.get() <= device.get() && device.get() <= self.last.get()
    }

    /// Their streams.
    pub const fn streams(&self) -> Streams {
        match Streams::new(self.first.stream(), self.last.stream()) {
            Some(streams) => streams,
            // Never: the last is not below the first.
            None => Streams::one(self.first.stream()),
        }
    }
}

bitflags::bitflags! {
    /// Interrupt messages of a device that pass unmapped.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Passes: u8 {
        /// INIT.
        const INIT = 1;
        /// External interrupts (ExtInt).
        const EXTERNAL = 1 << 1;
        /// Non-maskable interrupts (NMI).
        const NMI = 1 << 2;
        /// Legacy interrupt 0 (LINT0).
        const LINT0 = 1 << 6;
        /// Legacy interrupt 1 (LINT1).
        const LINT1 = 1 << 7;
    }
}

/// Treatment of accesses to the system management range (field SysMgt of a device table entry,
/// section 2.2.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum SystemManagement {
    /// 00b: they are aborted.
    #[default]
    Aborted,
    /// 01b: posted writes pass, others are aborted. Some units look at the entry's write permission
    /// all the same (erratum 63), so the driver sets it.
    Posted,
    /// 10b: interrupt messages by wire (INTx) pass, others are aborted.
    Wired,
    /// 11b: they are translated.
    Translated,
}

/// Permission for a device to ask for translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Ats {
    /// It may.
    #[default]
    Allowed,
    /// Firmware says that it must not.
    Disabled,
}

/// Accesses and messages that a device's entry in the device table lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Settings {
    /// Interrupts.
    pub passes: Passes,
    /// System management.
    pub system_management: SystemManagement,
    /// Translation requests.
    pub ats: Ats,
}

impl Settings {
    /// From the data byte and, where there is one, the extended data.
    fn of(data: u8, extended: u32) -> Self {
        Self {
            passes: Passes::from_bits_truncate(data),
            system_management: match data >> 4 & 3 {
                0 => SystemManagement::Aborted,
                1 => SystemManagement::Posted,
                2 => SystemManagement::Wired,
                _ => SystemManagement::Translated,
            },
            ats: match extended >> 31 {
                0 => Ats::Allowed,
                _ => Ats::Disabled,
            },
        }
    }
}

/// Kind of a special device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpecialKind {
    /// An I/O APIC.
    IoApic,
    /// A high-precision timer.
    Timer,
}

/// A device that is not of PCI and has a requester of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Special {
    /// Kind of the device.
    pub kind: SpecialKind,
    /// Its number in the MADT or HPET table.
    pub handle: u8,
    /// The requester that its messages carry.
    pub source: RequesterId,
}

/// Identifier that tells a device of the ACPI name space from others with its hardware identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Uid<'a> {
    /// No identifier.
    None,
    /// A number.
    Integer(u64),
    /// Characters.
    Text(&'a [u8]),
}

/// A device of the ACPI name space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AcpiDevice<'a> {
    /// Hardware identifier (`_HID`).
    pub hid: &'a [u8],
    /// Compatible identifier (`_CID`), empty if there is none.
    pub cid: &'a [u8],
    /// Unique identifier (`_UID`).
    pub uid: Uid<'a>,
}

/// Purpose of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind<'a> {
    /// All devices.
    All,
    /// These devices.
    Named,
    /// These devices, whose accesses carry another's requester. The settings are for both.
    Alias(RequesterId),
    /// A special device.
    Special(Special),
    /// A device of the ACPI name space.
    Acpi(AcpiDevice<'a>),
}

/// A device entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The devices.
    pub devices: Devices,
    /// Accesses and messages that may pass.
    pub settings: Settings,
    /// Purpose of the entry.
    pub kind: EntryKind<'a>,
}

/// The entries of a unit. One whose length cannot be known ends the walk with an error; one whose
/// contents are wrong, the start of a range without its end, and an end without its start are errors,
/// and the walk goes on behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries<'a> {
    rest: Bytes<'a>,
    level: Level,
    unknown: u32,
}

impl<'a> Entries<'a> {
    pub(super) fn new(rest: Bytes<'a>, level: Level) -> Self {
        Self { rest, level, unknown: 0 }
    }

    /// Number of entries of unknown type that were passed over so far. Entries for devices of the
    /// name space are unknown to blocks below [`Level::Named`].
    pub fn unknown(&self) -> u32 {
        self.unknown
    }

    /// The next entry's bytes, padding left out; `None` at the end.
    fn cut(&mut self) -> Result<Option<Bytes<'a>>, TableError> {
        while self.rest.len() > 0 {
            let entry = self.rest.part(0, length(self.rest)?)?;
            self.rest = self.rest.from(entry.len());
            if !matches!(entry.u8(0)?, kind::PAD4 | kind::PAD8) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// The entry in `bytes`; `None` if its type is unknown.
    fn parse(&mut self, bytes: Bytes<'a>) -> Result<Option<Entry<'a>>, TableError> {
        let (device, data) = (RequesterId::new(bytes.u16(1)?), bytes.u8(3)?);
        let word = || bytes.u32(4);
        let source = || Ok(RequesterId::new(bytes.u16(5)?));
        let (devices, extended, kind) = match bytes.u8(0)? {
            kind::ALL => (Devices::ALL, 0, EntryKind::All),
            kind::SELECT => (Devices::one(device), 0, EntryKind::Named),
            kind::EXTENDED => (Devices::one(device), word()?, EntryKind::Named),
            kind::ALIAS => (Devices::one(device), 0, EntryKind::Alias(source()?)),
            kind::RANGE_START => (self.range(bytes, device)?, 0, EntryKind::Named),
            kind::EXTENDED_START => (self.range(bytes, device)?, word()?, EntryKind::Named),
            kind::ALIAS_START => {
                let devices = self.range(bytes, device)?;
                (devices, 0, EntryKind::Alias(source()?))
            }
            kind::SPECIAL => match special(bytes, source()?)? {
                Some(special) => (Devices::one(special.source), 0, EntryKind::Special(special)),
                None => return Ok(None),
            },
            kind::ACPI if self.level == Level::Named => {
                (Devices::one(device), 0, EntryKind::Acpi(acpi(bytes)?))
            }
            kind::RANGE_END => return Err(nonsense(bytes, 1, device.get().into())),
            _ => return Ok(None),
        };
        Ok(Some(Entry { devices, settings: Settings::of(data, extended), kind }))
    }

    /// The devices from `first`, which `start` begins with, to where the entry behind it says.
    fn range(&mut self, start: Bytes<'a>, first: RequesterId) -> Result<Devices, TableError> {
        let mut ahead = *self;
        let end = ahead.cut()?;
        let Some(end) = end.filter(|end| end.u8(0) == Ok(kind::RANGE_END)) else {
            return Err(nonsense(start, 1, first.get().into()));
        };
        *self = ahead;
        let last = end.u16(1)?;
        Devices::new(first, RequesterId::new(last)).ok_or(nonsense(end, 1, last.into()))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let bytes = match self.cut() {
                Ok(bytes) => bytes?,
                Err(error) => {
                    self.rest = self.rest.from(self.rest.len());
                    return Some(Err(error));
                }
            };
            match self.parse(bytes) {
                Ok(Some(entry)) => return Some(Ok(entry)),
                Ok(None) => self.unknown = self.unknown.saturating_add(1),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn nonsense(bytes: Bytes<'_>, at: usize, value: u64) -> TableError {
    TableError::Nonsense { offset: bytes.offset().saturating_add(at), value }
}

/// Bytes of the entry at the start of `rest`: by the upper two bits of its type, but for the types
/// from 240 on, which have a length of their own.
fn length(rest: Bytes<'_>) -> Result<usize, TableError> {
    let kind = rest.u8(0)?;
    match kind {
        kind::ACPI => Ok(ACPI_FIXED + usize::from(rest.u8(ACPI_FIXED - 1)?)),
        241.. => Err(nonsense(rest, 0, kind.into())),
        _ => Ok(4 << (kind >> 6)),
    }
}

/// The special device; `None` if it is of unknown kind.
fn special(bytes: Bytes<'_>, source: RequesterId) -> Result<Option<Special>, TableError> {
    let kind = match bytes.u8(7)? {
        1 => SpecialKind::IoApic,
        2 => SpecialKind::Timer,
        _ => return Ok(None),
    };
    Ok(Some(Special { kind, handle: bytes.u8(4)?, source }))
}

fn acpi(bytes: Bytes<'_>) -> Result<AcpiDevice<'_>, TableError> {
    let hid = bytes.part(4, 8)?.name(0);
    if hid.is_empty() {
        return Err(nonsense(bytes, 4, 0));
    }
    let (format, uid) = (bytes.u8(20)?, bytes.from(ACPI_FIXED).as_slice());
    let uid = match format {
        0 => Uid::None,
        1 if (1..=8).contains(&uid.len()) => Uid::Integer(number(uid)),
        2 => Uid::Text(bytes.name(ACPI_FIXED)),
        _ => return Err(nonsense(bytes, 20, format.into())),
    };
    Ok(AcpiDevice { hid, cid: bytes.part(12, 8)?.name(0), uid })
}
