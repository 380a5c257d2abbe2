//! Chipsets whose units have errors.
//!
//! *Context.* Interrupt: everything here is a value.
//!
//! A unit has no identification of its own beyond its capabilities: a chipset is known by its PCI
//! devices, which firmware's layer or the embedder has to look up. The lists are those of Linux
//! 6.12 (`drivers/iommu/intel/iommu.c`), facts that no document of Intel's gathers.

pub use portolan_spec::vtd::{INTEL, tylersburg};

/// Base class of display controllers in PCI configuration space.
const DISPLAY: u8 = 0x03;

bitflags::bitflags! {
    /// Errors of the units of a chipset.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Quirks: u32 {
        /// The write buffer has to be flushed, although `CAP.RWBF` is 0.
        const WRITE_BUFFER = 1;
        /// Graphics of the processor or the chipset do not work translated: they may be passed
        /// through or blocked, and not be attached.
        const GRAPHICS_UNTRANSLATED = 1 << 1;
        /// A unit of graphics alone hangs when translation is turned off while they are at work:
        /// it is left on when the unit is released.
        const KEEP_TRANSLATION = 1 << 2;
        /// The sound controller of the chipset (Azalia) hangs when it is translated: it may be passed
        /// through or blocked, and not be attached. See
        /// [`isochronous_entries`](tylersburg::isochronous_entries).
        const AZALIA_UNTRANSLATED = 1 << 3;
    }
}

/// An identity of a PCI device, as its configuration space has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciIdentity {
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier.
    pub device: u16,
    /// Base class.
    pub base_class: u8,
}

/// 4 Series chipsets, desktop and mobile, by host bridge.
const SERIES_4: [u16; 7] = [0x2a40, 0x2e00, 0x2e10, 0x2e20, 0x2e30, 0x2e40, 0x2e90];

/// Chipsets of the first Core generation, by host bridge. Linux translates the graphics of some
/// where firmware sets memory aside for it, with an invalidation at each unmap while they are idle;
/// nothing here knows when they are, so none is translated.
const IRONLAKE: [u16; 4] = [0x0040, 0x0044, 0x0062, 0x006a];

/// Graphics of Broadwell: 0x16, a variant of 0 to 3, and one of these.
const BROADWELL: [u16; 6] = [0x2, 0x6, 0xa, 0xb, 0xd, 0xe];

/// High bytes of graphics whose unit may not be turned off.
const KEPT_ON: [u16; 9] = [0x45, 0x46, 0x4c, 0x4e, 0x7d, 0x8a, 0x98, 0x9a, 0xa7];

impl Quirks {
    /// Quirks of a chipset by the presence of a device. Only of devices that are part of the
    /// machine: one that was plugged in can claim any identity.
    pub fn of(pci: PciIdentity) -> Self {
        let mut quirks = Self::empty();
        let device = pci.device;
        if pci.vendor != INTEL {
            return quirks;
        }
        if SERIES_4.contains(&device) {
            quirks |= Self::WRITE_BUFFER | Self::GRAPHICS_UNTRANSLATED;
        }
        let broadwell = device & 0xffc0 == 0x1600 && BROADWELL.contains(&(device & 0xf));
        if IRONLAKE.contains(&device) || broadwell {
            quirks |= Self::GRAPHICS_UNTRANSLATED;
        }
        if pci.base_class == DISPLAY && KEPT_ON.contains(&(device >> 8)) {
            quirks |= Self::KEEP_TRANSLATION;
        }
        quirks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(device: u16, base_class: u8) -> Quirks {
        let vendor = INTEL;
        Quirks::of(PciIdentity { vendor, device, base_class })
    }

    #[test]
    fn each_chipset_has_its_quirks_and_no_other() {
        let graphics = Quirks::GRAPHICS_UNTRANSLATED;
        assert_eq!(of(0x2a40, 6), Quirks::WRITE_BUFFER | graphics);
        assert_eq!(of(0x2e90, 6), Quirks::WRITE_BUFFER | graphics);
        assert_eq!(of(0x0044, 6), graphics);
        for broadwell in [0x1602, 0x160b, 0x161e, 0x162a, 0x163d] {
            assert_eq!(of(broadwell, 3), graphics);
        }
        assert_eq!(of(0x1604, 6), Quirks::empty());
        assert_eq!(of(0x0062, 6), graphics);
        assert_eq!(of(0x9a49, 3), Quirks::KEEP_TRANSLATION);
        assert_eq!(of(0x9a49, 2), Quirks::empty());
        let other = PciIdentity { vendor: 0x1022, device: 0x2a40, base_class: 3 };
        assert_eq!(Quirks::of(other), Quirks::empty());
    }
}
