//! Names of PCI functions: segment, bus, device and function.
//!
//! *Context.* Interrupt: everything here is a value.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

use super::StreamId;

/// Bus, device and function as a requester puts them on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequesterId(u16);

impl RequesterId {
    /// The identifier from its sixteen bits.
    pub const fn new(raw: u16) -> Self {
        Self(raw)
    }

    /// The identifier of `function` (0 to 7) of `device` (0 to 31) on `bus`; higher bits of the two
    /// are dropped.
    pub const fn of(bus: u8, device: u8, function: u8) -> Self {
        Self((bus as u16) << 8 | ((device & 0x1f) as u16) << 3 | (function & 7) as u16)
    }

    /// The sixteen bits.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Bus.
    pub const fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Device.
    pub const fn device(self) -> u8 {
        (self.0 >> 3 & 0x1f) as u8
    }

    /// Function.
    pub const fn function(self) -> u8 {
        (self.0 & 7) as u8
    }

    /// The stream of a unit that names streams by requester identifier.
    pub const fn stream(self) -> StreamId {
        StreamId::new(self.0 as u32)
    }
}

/// A group of up to 256 buses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PciSegment(u16);

impl PciSegment {
    /// The segment of this number.
    pub const fn new(raw: u16) -> Self {
        Self(raw)
    }

    /// Its number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// A PCI function of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciFunction {
    /// The segment.
    pub segment: PciSegment,
    /// Bus, device and function.
    pub requester: RequesterId,
}

impl PciFunction {
    /// Function `function` of device `device` on bus `bus` of segment 0.
    pub const fn of(bus: u8, device: u8, function: u8) -> Self {
        Self { segment: PciSegment::new(0), requester: RequesterId::of(bus, device, function) }
    }
}

impl fmt::Display for PciFunction {
    /// As `lspci` writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (segment, requester) = (self.segment.get(), self.requester);
        let (bus, device) = (requester.bus(), requester.device());
        write!(f, "{segment:04x}:{bus:02x}:{device:02x}.{}", requester.function())
    }
}

/// Not the name of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a PCI function as `lspci -D` writes it, such as 0000:03:00.0")]
pub struct NotAFunction;

impl FromStr for PciFunction {
    type Err = NotAFunction;

    /// As `lspci` writes it, with or without the segment.
    fn from_str(text: &str) -> Result<Self, NotAFunction> {
        let number = |text: &str, most: u16| {
            // A number by itself: `from_str_radix` takes a sign as well.
            let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = u16::from_str_radix(text, 16).ok().filter(|_| digits);
            number.filter(|number| *number <= most).ok_or(NotAFunction)
        };
        let (place, function) = text.rsplit_once('.').ok_or(NotAFunction)?;
        let (place, device) = place.rsplit_once(':').ok_or(NotAFunction)?;
        let (segment, bus) = place.rsplit_once(':').unwrap_or(("0", place));
        let (bus, device) = (number(bus, 0xff)?, number(device, 0x1f)?);
        let function = number(function, 7)?;
        Ok(Self {
            segment: PciSegment::new(number(segment, u16::MAX)?),
            requester: RequesterId::of(bus as u8, device as u8, function as u8),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    #[test]
    fn functions_read_back_and_other_text_does_not() {
        let far = PciFunction {
            segment: PciSegment::new(0xabcd),
            requester: RequesterId::of(0xff, 0x1f, 7),
        };
        assert_eq!(far.to_string().parse(), Ok(far));
        assert_eq!("3a:02.1".parse(), Ok(PciFunction::of(0x3a, 2, 1)));
        let bad = [
            "",
            "1.0",
            "00:20.0",
            "00:1f.8",
            "100:00.0",
            "0:0:0:0.0",
            "00:+1.0",
            "00:00",
            "00:00.",
        ];
        for text in bad {
            assert_eq!(text.parse::<PciFunction>(), Err(NotAFunction), "{text:?}");
        }
    }

    #[test]
    fn a_requester_is_bus_device_and_function() {
        let requester = RequesterId::of(0xab, 0x15, 6);
        assert_eq!(requester.get(), 0xabae);
        let parts = (requester.bus(), requester.device(), requester.function());
        assert_eq!(parts, (0xab, 0x15, 6));
        // Bits beyond those that the identifier has are dropped.
        assert_eq!(RequesterId::of(0xab, 0xf5, 0xfe), requester);
        assert_eq!(PciFunction::of(0xab, 0x15, 6).to_string(), "0000:ab:15.6");
        let far = PciFunction { segment: PciSegment::new(5), requester };
        assert_eq!((far.segment.get(), far.to_string()), (5, "0005:ab:15.6".into()));
    }
}
