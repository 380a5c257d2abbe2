//! Errors of implementations that a driver has to work around, by the identification register.
//!
//! IHI 0070, section 6.3.17 (IIDR). The numbers are those of Arm's errata notices. Features that
//! the driver never uses need no entry: wake-up events (1076982 of MMU-600) and broadcast
//! invalidation by processors (2812531 of MMU-700), which it leaves off on all units.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan_spec::smmuv3::reg::iidr;

/// Maker, product and revision of a unit: register IIDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Implementation {
    /// The maker's JEP106 code.
    pub implementer: u16,
    /// The maker's number of the product.
    pub product: u16,
    /// Major revision: 1 for r1p0.
    pub variant: u8,
    /// Minor revision: 1 for r0p1.
    pub revision: u8,
}

impl Implementation {
    /// Decodes a value of the register.
    pub fn of(value: u32) -> Self {
        let value = u64::from(value);
        Self {
            implementer: iidr::IMPLEMENTER.of(value) as u16,
            product: iidr::PRODUCT.of(value) as u16,
            variant: iidr::VARIANT.of(value) as u8,
            revision: iidr::REVISION.of(value) as u8,
        }
    }

    /// Errata that the driver works around.
    pub fn errata(self) -> Errata {
        let release = (self.variant, self.revision);
        let mut errata = Errata::empty();
        match (self.implementer, self.product) {
            // 1209401: combined translations survive until r2p0.
            (ARM, MMU_600) => errata.set(Errata::NO_NESTING, release < (2, 0)),
            (ARM, MMU_700) => {
                // 2812531.
                errata |= Errata::SYNC_OFTEN;
                // 2268618 and 2812531, until r1p1.
                errata.set(Errata::NO_NESTING, release < (1, 1));
            }
            _ => {}
        }
        errata
    }
}

const ARM: u16 = 0x43b;
const MMU_600: u16 = 0x483;
const MMU_700: u16 = 0x487;

bitflags::bitflags! {
    /// Errata of a unit that the driver works around.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Errata: u32 {
        /// The command queue can lock up when many commands stand between two syncs: fewer than
        /// 64 may.
        const SYNC_OFTEN = 1;
        /// A first stage over a second stage does not translate reliably: it is refused.
        const NO_NESTING = 1 << 1;
    }
}

/// Most commands between two syncs on a unit with [`Errata::SYNC_OFTEN`].
pub(super) const SYNC_OFTEN_LIMIT: u64 = 62;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errata_by_maker_product_and_revision() {
        let both = Errata::SYNC_OFTEN | Errata::NO_NESTING;
        for (value, errata) in [
            (0x4830_043b, Errata::NO_NESTING),
            (0x4831_f43b, Errata::NO_NESTING),
            (0x4832_043b, Errata::empty()),
            (0x4870_043b, both),
            (0x4871_043b, both),
            (0x4871_143b, Errata::SYNC_OFTEN),
            (0x4872_043b, Errata::SYNC_OFTEN),
            (0x4870_0000, Errata::empty()),
            (0, Errata::empty()),
        ] {
            assert_eq!(Implementation::of(value).errata(), errata, "{value:#x}");
        }
        let parts = Implementation { implementer: 0x43b, product: 0x487, variant: 1, revision: 2 };
        assert_eq!(Implementation::of(0x4871_243b), parts);
    }
}
