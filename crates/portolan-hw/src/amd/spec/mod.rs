//! Layouts of AMD-Vi, and nothing else.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10. The capability
//! block in PCI configuration space in [`capability`] (3.2), registers in [`reg`] (3.4), device
//! table entries in [`entry`] (2.2.2.1), commands in [`command`] (2.4), events in [`event`] (2.5).
//! Not here: page tables, interrupt remapping, guest tables, page requests, performance counters,
//! multiple device tables, the virtualized interface.
//!
//! *Context.* Interrupt: everything here is a value.

pub mod capability;
pub mod command;
pub mod entry;
pub mod event;
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
