//! What is wrong with the units and bridges of a survey.
//!
//! *Context.* Task: it takes heap memory.

use alloc::vec::Vec;

use portolan::addr::PhysRange;

use super::remark::Remark;
use super::survey::{Place, Survey};

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
