//! Chipsets whose units do not do what they say.
//!
//! *Context.* Interrupt: everything here is a value.
//!
//! A unit has no identification of its own beyond its capabilities: what is known of a chipset
//! hangs on its PCI devices, which firmware's layer or the embedder has to look up. The lists are
//! those of Linux 6.12 (`drivers/iommu/intel/iommu.c`), facts that no document of Intel's gathers.

/// Intel's vendor identifier in PCI configuration space.
pub const INTEL: u16 = 0x8086;

/// Base class of display controllers in PCI configuration space.
const DISPLAY: u8 = 0x03;

bitflags::bitflags! {
    /// What is wrong with the units of a chipset.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Quirks: u32 {
        /// The write buffer has to be flushed, although `CAP.RWBF` is 0.
        const WRITE_BUFFER = 1;
        /// Graphics of the processor or the chipset do not work translated: they may be passed
        /// through or blocked, and not be attached.
        const GRAPHICS_UNTRANSLATED = 1 << 1;
        /// Graphics have to be idle while their translations are invalidated: every unmap has to
        /// be followed by its invalidation at once.
        const STRICT = 1 << 2;
        /// A unit of graphics alone hangs when translation is turned off while they are at work:
        /// it is left on when the unit is released.
        const KEEP_TRANSLATION = 1 << 3;
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
    /// The word at 0x52 of a host bridge: graphics control.
    pub graphics_control: u16,
}

/// 4 Series chipsets, desktop and mobile, by host bridge.
const SERIES_4: [u16; 7] = [0x2a40, 0x2e00, 0x2e10, 0x2e20, 0x2e30, 0x2e40, 0x2e90];

/// Mobile chipsets of the first Core generation, by host bridge, where firmware decides.
const IRONLAKE: [u16; 3] = [0x0040, 0x0062, 0x006a];
/// One of them where it does not.
const IRONLAKE_MOBILE: u16 = 0x0044;
/// Bit of graphics control: memory for tables of translated graphics is set aside.
const SHADOW_TABLE: u16 = 0x8 << 8;

/// Graphics of Broadwell: 0x16, a variant of 0 to 3, and one of these.
const BROADWELL: [u16; 6] = [0x2, 0x6, 0xa, 0xb, 0xd, 0xe];

/// High bytes of graphics whose unit may not be turned off.
const KEPT_ON: [u16; 9] = [0x45, 0x46, 0x4c, 0x4e, 0x7d, 0x8a, 0x98, 0x9a, 0xa7];

impl Quirks {
    /// What the presence of a device says. Only of devices that are part of the machine: one that
    /// was plugged in can claim any identity.
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
        if device == IRONLAKE_MOBILE || broadwell {
            quirks |= Self::GRAPHICS_UNTRANSLATED;
        }
        if IRONLAKE.contains(&device) {
            quirks |= match pci.graphics_control & SHADOW_TABLE {
                0 => Self::GRAPHICS_UNTRANSLATED,
                _ => Self::STRICT,
            };
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

    fn of(device: u16, base_class: u8, graphics_control: u16) -> Quirks {
        let vendor = INTEL;
        Quirks::of(PciIdentity {
            vendor,
            device,
            base_class,
            graphics_control,
        })
    }

    #[test]
    fn each_chipset_has_its_quirks_and_no_other() {
        let graphics = Quirks::GRAPHICS_UNTRANSLATED;
        assert_eq!(of(0x2a40, 6, 0), Quirks::WRITE_BUFFER | graphics);
        assert_eq!(of(0x2e90, 6, 0), Quirks::WRITE_BUFFER | graphics);
        assert_eq!(of(0x0044, 6, 0), graphics);
        for broadwell in [0x1602, 0x160b, 0x161e, 0x162a, 0x163d] {
            assert_eq!(of(broadwell, 3, 0), graphics);
        }
        assert_eq!(of(0x1604, 6, 0), Quirks::empty());
        assert_eq!(of(0x0062, 6, 0x0100), graphics);
        assert_eq!(of(0x0062, 6, 0x0900), Quirks::STRICT);
        assert_eq!(of(0x9a49, 3, 0), Quirks::KEEP_TRANSLATION);
        assert_eq!(of(0x9a49, 2, 0), Quirks::empty());
        let other = PciIdentity {
            vendor: 0x1022,
            device: 0x2a40,
            base_class: 3,
            graphics_control: 0,
        };
        assert_eq!(Quirks::of(other), Quirks::empty());
    }
}
