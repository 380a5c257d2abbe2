//! Order in which addresses are given out: low ones first, by default.
//!
//! Devices that claim 64 bits of address do not always have them: upper bits that no system ever set were
//! never tried. Linux keeps PCI devices below 4 GiB for this reason as long as there is room
//! (`iommu.forcedac` turns that off).
//!
//! *Context.* Interrupt.

// Not the model checker's: a CPU that sees an old ceiling only searches once more.
use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::{Iova, IovaRange};

/// Order in which a space gives out addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum AddressOrder {
    /// Those below 4 GiB; once they are used up those below 8 GiB, then 16 GiB and so on.
    #[default]
    LowFirst,
    /// The highest that the device can put on the bus.
    HighFirst,
}

/// The highest address that is given out while lower ones last. It only rises.
#[derive(Debug)]
pub(super) struct Ceiling(AtomicU64);

impl Ceiling {
    /// That of a space with `window` of which nothing is given out.
    pub fn new(order: AddressOrder, window: IovaRange) -> Self {
        let first = u64::from(u32::MAX);
        let ceiling = match order {
            // Not below the window.
            AddressOrder::LowFirst => Iova::new(first | filled(window.start().get())),
            AddressOrder::HighFirst => NONE,
        };
        Self(AtomicU64::new(within(ceiling, window).get()))
    }

    #[inline]
    pub fn get(&self) -> Iova {
        Iova::new(self.0.load(Ordering::Relaxed))
    }

    /// Raises it to `ceiling`, unless it is higher by now.
    #[cold]
    pub fn raise(&self, ceiling: Iova) {
        self.0.fetch_max(ceiling.get(), Ordering::Relaxed);
    }
}

/// No ceiling.
const NONE: Iova = Iova::new(u64::MAX);

/// The next ceiling above `ceiling` in a space with `window`.
pub(super) fn above(ceiling: Iova, window: IovaRange) -> Iova {
    within(Iova::new(ceiling.get() << 1 | 1), window)
}

/// `ceiling`, unless all of `window` is below.
fn within(ceiling: Iova, window: IovaRange) -> Iova {
    match ceiling < window.last() {
        true => ceiling,
        false => NONE,
    }
}

/// All bits from the highest one of `address` down.
const fn filled(address: u64) -> u64 {
    match address.leading_zeros() {
        64 => 0,
        zeros => u64::MAX >> zeros,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ceiling_is_not_below_the_window() {
        for (start, ceiling) in [
            (0, 0xffff_ffff),
            (0x1_0000, 0xffff_ffff),
            (0xffff_f000, 0xffff_ffff),
            (1 << 32, 0x1_ffff_ffff),
            (0x5_0000_0000, 0x7_ffff_ffff),
            (1 << 63, u64::MAX),
        ] {
            let window = IovaRange::new(Iova::new(start), Iova::new(u64::MAX)).unwrap();
            let found = Ceiling::new(AddressOrder::LowFirst, window);
            assert_eq!(found.get(), Iova::new(ceiling), "{start:#x}");
            let found = Ceiling::new(AddressOrder::HighFirst, window);
            assert_eq!(found.get(), NONE);
        }
    }

    #[test]
    fn there_is_no_ceiling_above_the_window() {
        let window = |last| IovaRange::new(Iova::new(0), Iova::new(last)).unwrap();
        let low = Ceiling::new(AddressOrder::LowFirst, window(0xffff_ffff));
        assert_eq!(low.get(), NONE);
        let (four, eight) = (Iova::new(0xffff_ffff), Iova::new(0x1_ffff_ffff));
        assert_eq!(above(four, window(0x3_ffff_ffff)), eight);
        assert_eq!(above(eight, window(0x3_ffff_ffff)), NONE);
    }
}
