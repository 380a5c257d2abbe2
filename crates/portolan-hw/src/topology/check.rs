//! Remarks on errors in the units and bridges of a survey.
//!
//! *Context.* Task: it takes heap memory.

use alloc::vec::Vec;

use portolan::addr::{PhysAddr, PhysRange};

use portolan_tables::claim::Claim;

use super::pci::PciTree;
use super::remark::Remark;
use super::survey::{Place, Survey};
use super::{EnableError, TopologyError};
use crate::order::in_order;

/// Tells if the devices that a claim names are there. Ranges name any functions in them; without a tree all
/// are taken to be there.
fn is_there(claim: &Claim, tree: &PciTree) -> bool {
    match claim {
        Claim::NoSuchPath { .. } => tree.nodes().is_empty(),
        Claim::Function(at) => tree.nodes().is_empty() || tree.node(*at).is_some(),
        Claim::Behind(at) => {
            tree.nodes().is_empty() || tree.node(*at).is_some_and(|node| node.is_bridge())
        }
        _ => true,
    }
}

impl Survey {
    /// Remarks on errors in units and bridges.
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
                if !is_there(claim, self.tree()) {
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

    /// The reason for which a unit cannot be enabled that the tables tell already.
    pub fn refused(&self, unit: usize) -> Option<EnableError> {
        let of = self.units().get(unit)?;
        let refused = match of.place {
            Place::Nowhere(at) => Some(super::enable::no_registers(at)),
            Place::Damaged => self.damage().map(Into::into),
            _ => of.refused,
        };
        refused.or_else(|| self.in_place_of(unit))
    }

    /// The first error of the table, if there is one.
    pub(super) fn damage(&self) -> Option<TopologyError> {
        self.remarks().iter().find_map(|remark| match *remark {
            Remark::Table(error) => Some(error),
            _ => None,
        })
    }

    /// Returns the error if another unit is said to have registers of the unit with that number.
    pub(super) fn in_place_of(&self, unit: usize) -> Option<EnableError> {
        self.remarks().iter().find_map(|remark| match *remark {
            Remark::SameRegisters { one, other } if one == unit || other == unit => {
                Some(EnableError::SameRegisters { one, other })
            }
            _ => None,
        })
    }

    /// Units that have registers in common with one before them, by address.
    fn shared(&self) -> Vec<Remark> {
        let units = self.units().iter().enumerate();
        let starts = units.filter_map(|(number, unit)| match unit.place {
            Place::Registers(window) => Some((window.start(), number)),
            _ => None,
        });
        let starts: Vec<(PhysAddr, usize)> = in_order(starts.collect());
        let mut found = Vec::new();
        // That of those before which ends last.
        let mut before: Option<(PhysRange, usize)> = None;
        for (_, number) in starts {
            let Some(Place::Registers(window)) = self.units().get(number).map(|unit| unit.place)
            else {
                continue;
            };
            let last = before.filter(|(before, _)| before.last() >= window.last());
            if let Some((_, other)) = before.filter(|(before, _)| before.last() >= window.start()) {
                let (one, other) = (other.min(number), other.max(number));
                found.push(Remark::SameRegisters { one, other });
            }
            before = last.or(Some((window, number)));
        }
        found
    }
}
