//! Layouts of Intel VT-d, and nothing else.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1. Registers in [`reg`]
//! (chapter 11), root, context and PASID entries in [`entry`] (9.1 to 9.6), invalidation
//! descriptors in [`descriptor`] (6.5.2 and 7.6.1), fault records and page requests in [`record`]
//! (7.2, 7.5 and 11.4.14). Not here: page tables, interrupt remapping, performance monitoring,
//! enhanced commands, trusted-domain structures.
//!
//! *Context.* Interrupt: everything here is a value.

pub mod descriptor;
pub mod entry;
pub mod record;
pub mod reg;

/// Bits `lsb` to `lsb + width - 1` of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    lsb: u32,
    width: u32,
}

impl Bits {
    /// `width` bits from `lsb`; the two are constants known to fit a word.
    pub const fn new(lsb: u32, width: u32) -> Self {
        assert!(width >= 1 && width <= 64 && lsb + width <= 64);
        Self { lsb, width }
    }

    /// The bits in their place.
    pub const fn mask(self) -> u64 {
        (u64::MAX >> (64 - self.width)) << self.lsb
    }

    /// Their value in `word`.
    pub const fn of(self, word: u64) -> u64 {
        (word & self.mask()) >> self.lsb
    }

    /// `value` in their place; what does not fit is cut off.
    pub const fn at(self, value: u64) -> u64 {
        (value << self.lsb) & self.mask()
    }
}

/// Bits 51:12 of a word: an address in place.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

#[cfg(test)]
mod tests {
    use super::Bits;

    #[test]
    fn bits_stay_in_their_place() {
        let bits = Bits::new(60, 4);
        assert_eq!(bits.at(0x15), 5 << 60);
        assert_eq!(bits.of(u64::MAX), 15);
        assert_eq!(Bits::new(0, 64).mask(), u64::MAX);
    }
}
