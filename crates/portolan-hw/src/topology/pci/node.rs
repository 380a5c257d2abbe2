//! One PCI function, as its configuration space describes it.
//!
//! PCI Express Base Specification 6.0, sections 7.5.1 (header), 7.5.1.3 (bus numbers), 7.5.3.2 (kind of
//! function, slot), 7.5.3.9 (slot capabilities), 7.7.11 (access control services) and 9.3.3 (virtual functions). Not
//! supported: hidden and dual-mode capabilities.
//!
//! *Context.* Interrupt, if configuration space may be read there: nothing here waits or allocates.

use core::fmt;

use bitflags::bitflags;
use portolan::addr::PciFunction;
use portolan_spec::pci::{Capability, capabilities, extended_capabilities, extended_id, id};

pub(super) const IDENTITY: u16 = 0x00;
/// Of the revision, in the lowest byte, and the class.
pub(super) const REVISION: u16 = 0x08;
const CLASS: u16 = REVISION;
const HEADER: u16 = 0x0c;
const BUSES: u16 = 0x18;

/// Bit of the first word of PCI Express's capability that says that the port has a slot.
const HAS_SLOT: u32 = 1 << 24;
/// Offset of the slot's capabilities from there, and the bit that says that devices come and go.
const SLOT: u16 = 0x14;
const HOT_PLUG: u32 = 1 << 6;
/// Bytes of configuration space.
const SPACE: u16 = 0x1000;

/// Kind of a function, which decides the identifier of accesses that pass it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PciKind {
    /// A device of PCI Express, or one on the processor's own bus that says it is.
    Endpoint,
    /// A port of the root complex.
    RootPort,
    /// The port of a switch that leads to the root.
    UpstreamPort,
    /// A port of a switch that leads to devices.
    DownstreamPort,
    /// A bridge from PCI Express to conventional PCI: functions behind it have the bridge's
    /// identifier, bus and device 0 of its secondary bus.
    ExpressToPci,
    /// A bridge from conventional PCI to PCI Express.
    PciToExpress,
    /// A root complex event collector.
    EventCollector,
    /// A conventional device.
    Conventional,
    /// A conventional bridge: functions behind it have the bridge's own identifier.
    ConventionalBridge,
    /// Of PCI Express and of a kind that this library does not know.
    Unknown,
}

impl PciKind {
    /// In a few words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "PCI Express device",
            Self::RootPort => "root port",
            Self::UpstreamPort => "upstream port",
            Self::DownstreamPort => "downstream port",
            Self::ExpressToPci => "bridge from PCI Express to PCI",
            Self::PciToExpress => "bridge from PCI to PCI Express",
            Self::EventCollector => "event collector",
            Self::Conventional => "conventional PCI device",
            Self::ConventionalBridge => "conventional PCI bridge",
            Self::Unknown => "PCI Express function of unknown kind",
        }
    }
}

bitflags! {
    /// Access control services (ACS), by the bits of the capability and of the control register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Acs: u16 {
        /// Requests whose identifier cannot be are stopped.
        const SOURCE_VALIDATION = 1;
        /// Requests that say that they are translated are stopped.
        const TRANSLATION_BLOCKING = 1 << 1;
        /// Requests between devices go up, through the IOMMU.
        const REQUEST_REDIRECT = 1 << 2;
        /// Completions between devices go up.
        const COMPLETION_REDIRECT = 1 << 3;
        /// Accesses that would come back down to their own device go up all the same.
        const UPSTREAM_FORWARDING = 1 << 4;
        /// Requests between devices are stopped, port by port.
        const EGRESS_CONTROL = 1 << 5;
        /// Translated requests between devices pass.
        const DIRECT_TRANSLATED = 1 << 6;

        /// Services for isolation: with them every access of a device meets the IOMMU under the
        /// device's own identifier.
        const ISOLATION = Self::SOURCE_VALIDATION.bits()
            | Self::REQUEST_REDIRECT.bits()
            | Self::COMPLETION_REDIRECT.bits()
            | Self::UPSTREAM_FORWARDING.bits();
    }
}

/// The capability, where a function has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AcsState {
    /// Offset of the control register in configuration space.
    pub control: u16,
    /// Services that can be switched.
    pub can: Acs,
    /// Services that are switched on.
    pub on: Acs,
}

impl AcsState {
    /// Services that are missing for isolation. Those that cannot be switched are as the standard
    /// wants them for the function: not needed, or always on.
    pub fn missing(self) -> Acs {
        (Acs::ISOLATION & self.can) - self.on
    }
}

/// Reason for which a function does not keep those behind it, or beside it, apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotIsolated {
    /// It is no function of PCI Express, or a bridge to a bus that is none: there is one bus for
    /// all, and accesses that pass the bridge lose their identifier.
    Conventional,
    /// It has no ACS.
    NoAcs,
    /// Services of ACS that it has are switched off.
    Off(Acs),
}

impl fmt::Display for NotIsolated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conventional => f.write_str("conventional PCI has no ACS"),
            Self::NoAcs => f.write_str("it has no ACS"),
            Self::Off(off) => {
                f.write_str("its ACS has these switched off:")?;
                off.iter_names().try_for_each(|(name, _)| write!(f, " {name}"))
            }
        }
    }
}

/// Buses from one to another, both included: those behind a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buses {
    /// The bus behind the bridge (secondary).
    pub first: u8,
    /// The last of those behind it, and behind bridges there (subordinate).
    pub last: u8,
}

/// Vendor and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciId {
    /// Vendor.
    pub vendor: u16,
    /// Device, by the vendor's numbers.
    pub device: u16,
}

/// Number of functions of a device: one or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Functions {
    /// One.
    One,
    /// Several.
    Several,
}

/// A function that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PciNode {
    /// Address of the function.
    pub at: PciFunction,
    /// Vendor and device identifiers.
    pub id: PciId,
    /// Base class (upper byte) and class.
    pub class: u16,
    /// Kind of the function.
    pub kind: PciKind,
    /// Number of functions of its device.
    pub functions: Functions,
    /// The buses behind it, of a bridge that firmware or a kernel has numbered.
    pub behind: Option<Buses>,
    /// Set for a port with a slot in which devices may be changed while the machine runs.
    pub hot_plug: bool,
    /// Its ACS.
    pub acs: Option<AcsState>,
    /// Offset of the capability by which it has virtual functions (SR-IOV).
    pub virtual_functions: Option<u16>,
}

impl PciNode {
    /// The function at `at`, if there is one; `read` gives the 32 bits at an offset.
    pub fn read(at: PciFunction, read: impl Fn(u16) -> Option<u32>) -> Option<Self> {
        let identity = read(IDENTITY).filter(|word| *word as u16 != u16::MAX)?;
        let header = read(HEADER).unwrap_or(0) >> 16;
        let capability = capabilities(&read).first(id::EXPRESS);
        let express = capability.map(|found| found.head >> 20 & 0xf);
        let bridge = header & 0x7f == 1;
        Some(Self {
            at,
            id: PciId { vendor: identity as u16, device: (identity >> 16) as u16 },
            class: (read(CLASS).unwrap_or(0) >> 16) as u16,
            kind: kind(express, bridge),
            functions: match header & 0x80 != 0 || at.requester.function() != 0 {
                true => Functions::Several,
                false => Functions::One,
            },
            behind: bridge.then(|| buses(&read)).flatten(),
            hot_plug: capability.is_some_and(|found| hot_plug(found, &read)),
            acs: express.and_then(|_| access_control(&read)),
            virtual_functions: express.and_then(|_| extended(&read, extended_id::SRIOV, 0x40)),
        })
    }

    /// Tells if it is a bridge, a port included.
    pub const fn is_bridge(&self) -> bool {
        use PciKind::{ConventionalBridge, DownstreamPort, ExpressToPci};
        use PciKind::{PciToExpress, RootPort, UpstreamPort};
        matches!(
            self.kind,
            RootPort
                | UpstreamPort
                | DownstreamPort
                | ExpressToPci
                | PciToExpress
                | ConventionalBridge
        )
    }

    /// Checks that every access that passes the function, or that it makes to those beside it,
    /// meets the IOMMU as its originator's.
    ///
    /// # Errors
    /// The reason for which that is not certain.
    pub fn isolates(&self) -> Result<(), NotIsolated> {
        let by_acs = || match self.acs.map(AcsState::missing) {
            None => Err(NotIsolated::NoAcs),
            Some(missing) if missing.is_empty() => Ok(()),
            Some(missing) => Err(NotIsolated::Off(missing)),
        };
        match self.kind {
            PciKind::RootPort | PciKind::DownstreamPort => by_acs(),
            // Accesses of a device go up, since there is nothing else; other functions of it are beside.
            PciKind::Endpoint | PciKind::UpstreamPort | PciKind::Unknown => match self.functions {
                Functions::One => Ok(()),
                Functions::Several => by_acs(),
            },
            PciKind::ExpressToPci
            | PciKind::PciToExpress
            | PciKind::EventCollector
            | PciKind::Conventional
            | PciKind::ConventionalBridge => Err(NotIsolated::Conventional),
        }
    }
}

/// Tells if devices may be plugged in below a function with this capability of PCI Express.
fn hot_plug(express: Capability, read: &impl Fn(u16) -> Option<u32>) -> bool {
    let Capability { at, head: word, .. } = express;
    let port =
        matches!(kind(Some(word >> 20 & 0xf), true), PciKind::RootPort | PciKind::DownstreamPort);
    let slot = || read(at + SLOT).is_some_and(|slot| slot != u32::MAX && slot & HOT_PLUG != 0);
    port && word & HAS_SLOT != 0 && slot()
}

fn kind(express: Option<u32>, bridge: bool) -> PciKind {
    match (express, bridge) {
        (None, false) => PciKind::Conventional,
        (None, true) => PciKind::ConventionalBridge,
        (Some(0 | 1 | 9), _) => PciKind::Endpoint,
        (Some(4), _) => PciKind::RootPort,
        (Some(5), _) => PciKind::UpstreamPort,
        (Some(6), _) => PciKind::DownstreamPort,
        (Some(7), _) => PciKind::ExpressToPci,
        (Some(8), _) => PciKind::PciToExpress,
        (Some(10), _) => PciKind::EventCollector,
        (Some(_), _) => PciKind::Unknown,
    }
}

/// The buses behind a bridge; `None` as long as they are not numbered.
fn buses(read: &impl Fn(u16) -> Option<u32>) -> Option<Buses> {
    let word = read(BUSES)?;
    let (first, last) = ((word >> 8) as u8, (word >> 16) as u8);
    (first != 0).then_some(Buses { first, last })
}

fn access_control(read: &impl Fn(u16) -> Option<u32>) -> Option<AcsState> {
    let at = extended(read, extended_id::ACS, 8)?;
    let word = read(at + 4)?;
    Some(AcsState {
        control: at + 6,
        can: Acs::from_bits_retain(word as u16),
        on: Acs::from_bits_retain((word >> 16) as u16),
    })
}

/// Offset of an extended capability of so many bytes, all of which are within configuration space.
pub(super) fn extended(read: &impl Fn(u16) -> Option<u32>, id: u16, bytes: u16) -> Option<u16> {
    let found = extended_capabilities(read).first(id)?;
    (found.at <= SPACE - bytes).then_some(found.at)
}
