//! Counters of a unit that are in use: section 3.4 of the AMD IOMMU Specification (48882), the numbers of banks and
//! counters. Not here: their registers.
//!
//! *Context.* Interrupt: values.

/// Most banks that a unit can have.
const MOST_BANKS: usize = 64;

/// Numbers of a unit's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterBanks {
    /// Banks.
    pub banks: u8,
    /// Counters of each bank.
    pub counters: u8,
}

/// Counters in use, a bit for each, by bank.
#[derive(Debug)]
pub(super) struct CountersInUse([u16; MOST_BANKS]);

impl Default for CountersInUse {
    fn default() -> Self {
        Self([0; MOST_BANKS])
    }
}

impl CountersInUse {
    /// Takes the first counter of `all` that is free: its bank and number.
    pub(super) fn take(&mut self, all: CounterBanks) -> Option<(u8, u8)> {
        let each = (1u16 << all.counters.min(15)) - 1;
        for (used, bank) in self.0.iter_mut().zip(0..all.banks) {
            let free = !*used & each;
            if free != 0 {
                let number = free.trailing_zeros();
                *used |= 1 << number;
                return Some((bank, number as u8));
            }
        }
        None
    }

    pub(super) fn give_back(&mut self, bank: u8, number: u8) {
        if let Some(used) = self.0.get_mut(usize::from(bank)) {
            *used &= !(1 << number);
        }
    }
}
