//! The capability block in PCI configuration space (3.2): five words of 32 bits.

use super::Bits;

/// Words of the block that are read.
pub const WORDS: usize = 5;

/// Word 0: capability ID.
pub const ID: Bits = Bits::new(0, 8);
/// Value of [`ID`]: secure device.
pub const SECURE_DEVICE: u64 = 0x0f;
/// Word 0: what the block describes.
pub const TYPE: Bits = Bits::new(16, 3);
/// Value of [`TYPE`]: an IOMMU.
pub const IOMMU: u64 = 3;
/// Word 0: ATS is supported.
pub const IOTLB: Bits = Bits::new(24, 1);
/// Word 0: entries that are not present are cached.
pub const NOT_PRESENT: Bits = Bits::new(26, 1);
/// Word 0: there is an extended feature register.
pub const EXTENDED: Bits = Bits::new(27, 1);

/// Word 1: the register window is enabled.
pub const ENABLE: Bits = Bits::new(0, 1);
/// Word 1: bits 31:14 of the window's address; word 2 has bits 63:32.
pub const BASE_LOW: Bits = Bits::new(14, 18);

/// Word 4: width of physical addresses.
pub const PHYSICAL: Bits = Bits::new(8, 7);
/// Word 4: width of a device's addresses.
pub const VIRTUAL: Bits = Bits::new(15, 7);
