//! The capability block in PCI configuration space (3.2): five words of 32 bits.

use super::Bits;

crate::bits::constants! {
    WORDS: usize = 5 => "Words of the block that are read.";

    ID: Bits = Bits::new(0, 8) => "Word 0: capability ID.";
    SECURE_DEVICE: u64 = 0x0f => "Value of [`ID`]: secure device.";
    TYPE: Bits = Bits::new(16, 3) => "Word 0: what the block describes.";
    IOMMU: u64 = 3 => "Value of [`TYPE`]: an IOMMU.";
    IOTLB: Bits = Bits::new(24, 1) => "Word 0: ATS is supported.";
    NOT_PRESENT: Bits = Bits::new(26, 1) => "Word 0: entries that are not present are cached.";
    EXTENDED: Bits = Bits::new(27, 1) => "Word 0: there is an extended feature register.";

    ENABLE: Bits = Bits::new(0, 1) => "Word 1: the register window is enabled.";
    /// Word 1: bits 31:14 of the window's address; word 2 has bits 63:32.
    BASE_LOW: Bits = Bits::new(14, 18);

    PHYSICAL: Bits = Bits::new(8, 7) => "Word 4: width of physical addresses.";
    VIRTUAL: Bits = Bits::new(15, 7) => "Word 4: width of a device's addresses.";
}
