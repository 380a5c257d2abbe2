//! What makes no sense in what firmware and configuration space say, or is worth knowing: the remarks
//! of a [`Survey`], and those on units and bridges.
//!
//! *Context.* Task: it takes heap memory.

use alloc::vec::Vec;
use core::fmt;

use portolan::addr::{PciFunction, PhysAddr, PhysRange};
use thiserror::Error;

use super::TopologyError;
use super::claim::Claim;
use super::pci::{OddBridge, VirtualFunctions};
use super::survey::{Place, Survey};
use crate::firmware::reservations::LeftOut;

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
        /// Where it is said to be.
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
        /// What it serves.
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
        /// What was ignored.
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
    /// A function has a requester identifier that its unit does not serve: what it sends by that is
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
    /// The functions of some segments are not looked at.
    #[error("more than {most} segments: the others' functions are not looked at")]
    TooManySegments {
        /// How many are looked at.
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

impl Remark {
    /// Whether firmware is wrong, or not believed. What is not wrong is worth knowing.
    pub const fn is_wrong(&self) -> bool {
        !matches!(
            self,
            Self::NotDriven(_) | Self::NotThere { .. } | Self::TooManySegments { .. }
        )
    }
}

impl Survey {
    /// Remarks on what is wrong with units and bridges.
    pub(super) fn check(&mut self) {
        let mut remarks = Vec::new();
        for (number, unit) in self.units().iter().enumerate() {
            if let Place::Nowhere(at) = unit.place {
                remarks.push(Remark::Nowhere { unit: number, at });
            }
            let left_out = unit.reserved.left_out();
            if left_out.count > 0 {
                let unit = number;
                remarks.push(Remark::Reserved { unit, left_out });
            }
            for claim in &unit.claims {
                if !claim.is_there(self.tree()) {
                    let (unit, claim) = (number, *claim);
                    remarks.push(Remark::NotThere { unit, claim });
                }
            }
        }
        remarks.extend(self.shared());
        let odd = self.tree().odd().iter();
        remarks.extend(odd.map(|&bridge| Remark::OddBridge { bridge }));
        remarks.into_iter().for_each(|remark| self.remark(remark));
    }

    /// Units that have registers in common, neighbours by address.
    fn shared(&self) -> Vec<Remark> {
        let units = self.units().iter().enumerate();
        let mut windows: Vec<(PhysRange, usize)> = units
            .filter_map(|(number, unit)| match unit.place {
                Place::Registers(window) => Some((window, number)),
                _ => None,
            })
            .collect();
        windows.sort_unstable_by_key(|(window, number)| (window.start(), *number));
        let pairs = windows.windows(2).filter_map(|pair| match pair {
            [(one, first), (other, second)] if one.last() >= other.start() => {
                let (one, other) = (*first.min(second), *first.max(second));
                Some(Remark::SameRegisters { one, other })
            }
            _ => None,
        });
        pairs.collect()
    }
}
