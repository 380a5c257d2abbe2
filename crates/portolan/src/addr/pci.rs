//! Names of PCI functions: segment, bus, device and function.
//!
//! *Context.* Interrupt: everything here is a value.

use core::fmt;

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
pub struct Segment(u16);

impl Segment {
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
    pub segment: Segment,
    /// Bus, device and function.
    pub requester: RequesterId,
}

impl PciFunction {
    /// Function `function` of device `device` on bus `bus` of segment 0.
    pub const fn of(bus: u8, device: u8, function: u8) -> Self {
        Self {
            segment: Segment::new(0),
            requester: RequesterId::of(bus, device, function),
        }
    }
}

impl fmt::Display for PciFunction {
    /// As `lspci` writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (segment, requester) = (self.segment.get(), self.requester);
        let (bus, device) = (requester.bus(), requester.device());
        write!(
            f,
            "{segment:04x}:{bus:02x}:{device:02x}.{}",
            requester.function()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    #[test]
    fn a_requester_is_bus_device_and_function() {
        let requester = RequesterId::of(0xab, 0x15, 6);
        assert_eq!(requester.get(), 0xabae);
        let parts = (requester.bus(), requester.device(), requester.function());
        assert_eq!(parts, (0xab, 0x15, 6));
        // Bits beyond those that the identifier has are dropped.
        assert_eq!(RequesterId::of(0xab, 0xf5, 0xfe), requester);
        assert_eq!(PciFunction::of(0xab, 0x15, 6).to_string(), "0000:ab:15.6");
        let far = PciFunction {
            segment: Segment::new(5),
            requester,
        };
        assert_eq!(
            (far.segment.get(), far.to_string()),
            (5, "0005:ab:15.6".into())
        );
    }
}
