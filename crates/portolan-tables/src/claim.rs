//! Devices that a unit serves, in one form for all of firmware's tables.
//!
//! *Context.* Interrupt: values.

use core::fmt;

use portolan::addr::{PciFunction, PciSegment, PhysAddr, RequesterId, StreamId};

use crate::ivrs::Uid;

/// Unique identifier of a device of the ACPI name space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimUid {
    /// It has none.
    None,
    /// A number.
    Number(u64),
    /// Characters, as many as fit, filled up with zeros.
    Text([u8; UID]),
}

/// Characters of an identifier that are kept.
const UID: usize = 24;

impl ClaimUid {
    /// The identifier, copied as far as it fits.
    pub fn of(uid: Uid<'_>) -> Self {
        match uid {
            Uid::None => Self::None,
            Uid::Integer(number) => Self::Number(number),
            Uid::Text(text) => Self::Text(name(text)),
        }
    }
}

impl fmt::Display for ClaimUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Number(number) => write!(f, " {number}"),
            Self::Text(text) => {
                f.write_str(" ")?;
                characters(f, text)
            }
        }
    }
}

/// Writes the characters before the first zero.
fn characters(f: &mut fmt::Formatter<'_>, text: &[u8]) -> fmt::Result {
    let mut text = text.iter().take_while(|byte| **byte != 0);
    text.try_for_each(|byte| match byte {
        b' '..=b'~' => write!(f, "{}", char::from(*byte)),
        _ => write!(f, "{}", byte.escape_ascii()),
    })
}

/// Something that a unit serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claim {
    /// All functions of a segment that no other unit of it names.
    Remaining(PciSegment),
    /// A function.
    Function(PciFunction),
    /// A bridge, and all functions behind it.
    Behind(PciFunction),
    /// A path that leads nowhere: it passes a function that is no bridge, or has no end.
    NoSuchPath {
        /// The segment.
        segment: PciSegment,
        /// The bus on which it begins.
        bus: u8,
        /// Number of its steps.
        steps: usize,
    },
    /// Requesters from one to another, in each of some segments.
    Range {
        /// The first and the last segment.
        segments: (PciSegment, PciSegment),
        /// The first requester.
        first: RequesterId,
        /// The last.
        last: RequesterId,
        /// The stream of the first. Those of the others follow.
        stream: StreamId,
    },
    /// All functions of a segment, whose accesses have one stream.
    OneStream {
        /// The segment.
        segment: PciSegment,
        /// The stream.
        stream: StreamId,
    },
    /// Requesters from one to another, whose accesses carry another's identifier.
    Alias {
        /// The segment.
        segment: PciSegment,
        /// The first requester.
        first: RequesterId,
        /// The last.
        last: RequesterId,
        /// The identifier that they carry.
        alias: RequesterId,
    },
    /// An interrupt controller, by its number, and the requester identifier of its messages.
    IoApic(u8, Option<RequesterId>),
    /// A timer, by its number, and the requester identifier of its messages.
    Timer(u8, Option<RequesterId>),
    /// A device of the ACPI name space, by a number of the table's.
    Named(u64),
    /// A device of the ACPI name space, by its hardware identifier and number.
    Acpi {
        /// Hardware identifier (`_HID`), filled up with zeros.
        hid: [u8; 8],
        /// Unique identifier (`_UID`).
        uid: ClaimUid,
        /// Its stream.
        stream: StreamId,
    },
    /// A device with these registers.
    Device {
        /// The first of its registers.
        base: PhysAddr,
        /// Its stream.
        stream: StreamId,
    },
}

/// An identifier, cut off where there is no more room.
pub fn name<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut name = [0; N];
    name.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    name
}

impl Claim {
    /// The segment, of a claim to functions.
    pub fn segment(&self) -> Option<PciSegment> {
        match *self {
            Self::Remaining(segment)
            | Self::NoSuchPath { segment, .. }
            | Self::OneStream { segment, .. }
            | Self::Alias { segment, .. } => Some(segment),
            Self::Function(at) | Self::Behind(at) => Some(at.segment),
            Self::Range { segments, .. } => Some(segments.0),
            _ => None,
        }
    }
}

/// A requester as `lspci` writes it, without its segment.
struct Short(RequesterId);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bus, device, function) = (self.0.bus(), self.0.device(), self.0.function());
        write!(f, "{bus:02x}:{device:02x}.{function}")
    }
}

/// Requesters of a segment, from one to another.
struct Span(PciSegment, RequesterId, RequesterId);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (Short(self.1), Short(self.2));
        write!(f, "{:04x}:{first} to {last}", self.0.get())
    }
}

/// Source of the messages of an interrupt controller or of a timer.
struct From(Option<RequesterId>);

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(requester) => write!(f, ", whose messages carry {}", Short(requester)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Remaining(segment) => {
                let segment = segment.get();
                write!(f, "all functions of segment {segment:04x} that no other unit names")
            }
            Self::Function(at) => write!(f, "{at}"),
            Self::Behind(at) => write!(f, "{at} and what is behind it"),
            Self::NoSuchPath { segment, bus, steps } => {
                let segment = segment.get();
                write!(f, "a path of {steps} steps from bus {segment:04x}:{bus:02x}")
            }
            Self::Range { segments: (segment, end), first, last, stream } => {
                write!(f, "{}", Span(segment, first, last))?;
                if segment != end {
                    write!(f, ", and so in each segment up to {:04x}", end.get())?;
                }
                write!(f, ", streams from {:#x} on", stream.get())
            }
            Self::OneStream { segment, stream } => {
                let (segment, stream) = (segment.get(), stream.get());
                write!(f, "all functions of segment {segment:04x}, stream {stream:#x}")
            }
            Self::Alias { segment, first, last, alias } => {
                let span = Span(segment, first, last);
                write!(f, "{span}, which carry {}", Short(alias))
            }
            Self::IoApic(number, requester) => {
                write!(f, "I/O APIC {number}{}", From(requester))
            }
            Self::Timer(number, requester) => write!(f, "timer {number}{}", From(requester)),
            Self::Named(number) => write!(f, "device {number} of the ACPI name space"),
            Self::Acpi { hid, uid, stream } => {
                f.write_str("ACPI device ")?;
                characters(f, &hid)?;
                write!(f, "{uid}, stream {:#x}", stream.get())
            }
            Self::Device { base, stream } => {
                write!(f, "the device at {base}, stream {:#x}", stream.get())
            }
        }
    }
}
