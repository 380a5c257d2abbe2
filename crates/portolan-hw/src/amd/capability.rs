//! Capability block in PCI configuration space.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 3.2. The
//! embedder finds the block on the IOMMU's PCI function by its capability ID (0x0f) and reads its
//! first five words. Not read: the range of devices and the interrupt number.
//!
//! *Context.* Interrupt: everything here is a value.

use bitflags::bitflags;
use portolan::addr::PhysAddr;
use thiserror::Error;

use portolan_spec::amd::capability as layout;

bitflags! {
    /// Optional features of a unit, as its capability block says.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Offers: u8 {
        /// Devices may have TLBs of their own.
        const DEVICE_TLB = 1;
        /// Entries that are not present are cached: a map owes an invalidation.
        const CACHES_ABSENCE = 2;
        /// There is an extended feature register.
        const EXTENDED = 4;
        /// The register window is enabled.
        const WINDOW = 8;
    }
}

/// A capability block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Physical address of the registers.
    pub base: PhysAddr,
    /// Optional features that are present.
    pub offers: Offers,
    /// Width of physical addresses in bits, if the block says.
    pub physical_lg2: Option<u32>,
    /// Width of devices' addresses in bits, if the block says.
    pub virtual_lg2: Option<u32>,
}

/// Not the capability block of an IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{header:#x} is not the header of an IOMMU's capability block")]
pub struct NotAnIommu {
    /// The block's first word.
    pub header: u32,
}

impl Capability {
    /// Reads the block's first five words.
    ///
    /// # Errors
    /// [`NotAnIommu`] if the header is another one's.
    pub fn parse(words: [u32; layout::WORDS]) -> Result<Self, NotAnIommu> {
        let [header, low, high, _, widths] = words.map(u64::from);
        let is_secure = layout::ID.of(header) == layout::SECURE_DEVICE;
        if !is_secure || layout::TYPE.of(header) != layout::IOMMU {
            return Err(NotAnIommu { header: words[0] });
        }
        let mut offers = Offers::empty();
        offers.set(Offers::DEVICE_TLB, layout::IOTLB.of(header) == 1);
        offers.set(Offers::CACHES_ABSENCE, layout::NOT_PRESENT.of(header) == 1);
        offers.set(Offers::EXTENDED, layout::EXTENDED.of(header) == 1);
        offers.set(Offers::WINDOW, layout::ENABLE.of(low) == 1);
        let width = |bits: u64| (12..=64).contains(&bits).then_some(bits as u32);
        Ok(Self {
            base: PhysAddr::new(high << 32 | low & layout::BASE_LOW.mask()),
            offers,
            physical_lg2: width(layout::PHYSICAL.of(widths)),
            virtual_lg2: width(layout::VIRTUAL.of(widths)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_by_hand() {
        let words = [0x1f03_400f, 0xfed8_0001, 0x12, 0xff00_0000, 0x0018_2800];
        let found = Capability::parse(words).unwrap();
        assert_eq!(found.base, PhysAddr::new(0x12_fed8_0000));
        assert_eq!(found.offers, Offers::all());
        let widths = (found.physical_lg2, found.virtual_lg2);
        assert_eq!(widths, (Some(40), Some(48)));
        let bare = Capability::parse([0x0003_000f, 0, 0, 0, 0]).unwrap();
        assert_eq!((bare.offers, bare.physical_lg2), (Offers::empty(), None));
    }

    #[test]
    fn other_blocks_are_refused() {
        for header in [0, u32::MAX, 0x0002_000f, 0x0003_0010] {
            let answer = Capability::parse([header, 0, 0, 0, 0]);
            assert_eq!(answer, Err(NotAnIommu { header }));
        }
    }
}
