//! Remarks of a survey: statements of firmware and configuration space that make no sense, or are
//! worth knowing.
//!
//! *Context.* Interrupt: a value.

use core::fmt;

use portolan::addr::{PciFunction, PciSegment, PhysAddr};
use portolan_spec::vtd::tylersburg::RECOMMENDED_ENTRIES;
use portolan_tables::claim::Claim;
use thiserror::Error;

use super::TopologyError;
use super::pci::{OddBridge, VirtualFunctions};
use crate::reservations::LeftOut;

/// Something that is odd, or worth knowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Remark {
    /// The table is damaged or contradicts itself.
    #[error("the table: {0}")]
    Table(TopologyError),
    /// Registers of a unit cannot be where the table says.
    #[error("unit {unit} is said to be at {at}, where no registers can be")]
    Nowhere {
        /// The unit.
        unit: usize,
        /// Address of the unit's registers by firmware.
        at: PhysAddr,
    },
    /// Two units have registers in common: one of them is not there.
    #[error("units {one} and {other} are said to have the same registers")]
    SameRegisters {
        /// One.
        one: usize,
        /// The other, of a higher number.
        other: usize,
    },
    /// A unit serves something that is not there.
    #[error("unit {unit} serves {claim}, which is not there")]
    NotThere {
        /// The unit.
        unit: usize,
        /// Devices that it serves.
        claim: Claim,
    },
    /// A claim belongs to no unit.
    #[error("{claim} is behind something that is no unit")]
    Astray {
        /// The claim.
        claim: Claim,
    },
    /// Something reserved makes no sense.
    #[error("unit {unit}: {} reserved ranges are ignored{}", left_out.count, First(left_out))]
    Reserved {
        /// The unit.
        unit: usize,
        /// Region that was ignored.
        left_out: LeftOut,
    },
    /// A bridge whose bus numbers make no sense.
    #[error(
        "bridge {} claims buses {:#04x} to {:#04x}, which makes no sense",
        bridge.bridge, bridge.buses.first, bridge.buses.last
    )]
    OddBridge {
        /// The bridge.
        bridge: OddBridge,
    },
    /// The virtual functions that a physical function says it has make no sense: none of them is opened.
    #[error(
        "{} says that it has {} of {} virtual functions, {:#x} behind it and {:#x} apart, which makes no sense",
        .0.physical, .0.count, .0.most, .0.offset, .0.stride
    )]
    OddVirtualFunctions(VirtualFunctions),
    /// A function has a requester identifier that its unit does not serve: its accesses by that are
    /// stopped.
    #[error("accesses of {function} may carry {alias}, which its unit does not serve")]
    Elsewhere {
        /// The function.
        function: PciFunction,
        /// The identifier that accesses of it may carry.
        alias: PciFunction,
    },
    /// A unit of a kind that is not enabled by a [`Topology`](super::Topology): its driver is.
    #[error("the SMMU of version 1 or 2 at {0} is not enabled with the others; its driver does it")]
    NotDriven(PhysAddr),
    /// No address of a claim's devices arrives at their unit: they are refused.
    #[error("no address of {claim} arrives at unit {unit}")]
    NoAddress {
        /// The unit.
        unit: usize,
        /// The claim.
        claim: Claim,
    },
    /// Memory is reserved for a device behind a bridge, and the bridge is not there or not known.
    #[error(
        "memory from {start} on is reserved for a device {steps} steps from bus {:04x}:{bus:02x}, which is not known",
        segment.get()
    )]
    ReservedElsewhere {
        /// Address of the memory.
        start: PhysAddr,
        /// The segment.
        segment: PciSegment,
        /// The bus on which the path begins.
        bus: u8,
        /// Number of its steps.
        steps: usize,
    },
    /// Something was reserved for a function that no unit serves.
    #[error("something is reserved for {function}, which no unit serves")]
    AddedNowhere {
        /// The function.
        function: PciFunction,
    },
    /// Something that is no port, or is not there, was said to lead out of the machine.
    #[error("{port} is said to lead out of the machine, and is no port")]
    NoPort {
        /// The function.
        port: PciFunction,
    },
    /// Firmware asks for protection from devices that are plugged in from outside, and nothing says which ports
    /// lead there.
    #[error(
        "firmware asks for protection from devices that are plugged in; which ports lead out of the machine \
         is not said, so the {ports} with hot-plug slots count as such"
    )]
    PortsByHotPlug {
        /// Number of such ports.
        ports: usize,
    },
    /// Firmware gave the unit of the chipset's sound controller another number of TLB entries than it
    /// should have. With none the controller would hang: it is not attached.
    #[error(
        "firmware gave the isochronous unit of {function} {entries} TLB entries instead of {right}{}",
        Untranslated(*entries), right = RECOMMENDED_ENTRIES
    )]
    IsochronousEntries {
        /// The sound controller.
        function: PciFunction,
        /// The number of entries.
        entries: u8,
    },
    /// The functions of some segments are not looked at.
    #[error("more than {most} segments: the others' functions are not looked at")]
    TooManySegments {
        /// Number of segments that are looked at.
        most: usize,
    },
}

/// The first thing left out, behind a colon.
struct First<'r>(&'r LeftOut);

impl fmt::Display for First<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.first {
            Some(first) => write!(f, ": {first}"),
            None => Ok(()),
        }
    }
}

/// Consequence of a number of entries of the isochronous unit, behind a colon.
struct Untranslated(u8);

impl fmt::Display for Untranslated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str(": it may be passed through or blocked, and is not translated"),
            _ => Ok(()),
        }
    }
}

impl Remark {
    /// Tells if firmware is wrong, or not believed. Other remarks are worth knowing.
    pub const fn is_wrong(&self) -> bool {
        !matches!(
            self,
            Self::NotDriven(_)
                | Self::NotThere { .. }
                | Self::PortsByHotPlug { .. }
                | Self::ReservedElsewhere { .. }
                | Self::TooManySegments { .. }
        )
    }
}
