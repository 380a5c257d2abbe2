//! Layout of a record, version 2: little-endian, a header, a directory of units, sections of 64-bit words.
//!
//! *Context.* Interrupt: values.

use portolan_spec::Bits;
use portolan_tables::describe::UnitKind;

/// First bytes of a record.
pub(crate) const MAGIC: [u8; 8] = *b"PTLNHAND";
/// Version of the layout.
pub(crate) const VERSION: u32 = 2;
/// Bytes of the header: magic, version, number of units, length of the record.
pub(crate) const HEADER: usize = 24;
/// Bytes of an entry of the directory: register base, kind, offset, length and checksum of the section.
pub(crate) const ENTRY: usize = 24;
/// Bytes of the checksum of header and directory, zeros behind it.
pub(crate) const SEAL: usize = 8;
/// Most units.
pub(crate) const MOST_UNITS: u32 = 1024;

/// Flag of a stream's first word: the attachment is that of a PASID.
pub(crate) const HAS_PASID: u64 = 1 << 32;
/// Flags of a stream's second word, above the PASID: accesses pass through; the device has a TLB; interrupts alone
/// go through.
pub(crate) const PASSES: u64 = 1 << 32;
pub(crate) const HAS_TLB: u64 = 1 << 33;
pub(crate) const INTERRUPTS: u64 = 1 << 34;

/// Fields of an interrupt's first word: index of its entry; identifier of the source, or its first and last bus;
/// kind of the source, of which there are three.
pub(crate) const INDEX: Bits = Bits::new(0, 16);
pub(crate) const SOURCE: Bits = Bits::new(16, 16);
pub(crate) const SOURCE_KIND: Bits = Bits::new(32, 32);
/// Fields of its second word.
pub(crate) const DESTINATION: Bits = Bits::new(0, 32);
pub(crate) const VECTOR: Bits = Bits::new(32, 8);
pub(crate) const LOGICAL: Bits = Bits::new(40, 1);
pub(crate) const LOWEST_PRIORITY: Bits = Bits::new(41, 1);
pub(crate) const LEVEL: Bits = Bits::new(42, 1);

/// Kind of a unit in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedKind {
    /// Intel VT-d.
    Vtd,
    /// AMD-Vi.
    AmdVi,
    /// Arm SMMU, version 3.
    SmmuV3,
    /// RISC-V IOMMU.
    Riscv,
}

impl RecordedKind {
    /// The kind of a unit of a description, if a record can have it.
    pub const fn of(kind: UnitKind) -> Option<Self> {
        match kind {
            UnitKind::Vtd => Some(Self::Vtd),
            UnitKind::AmdVi => Some(Self::AmdVi),
            UnitKind::SmmuV3 => Some(Self::SmmuV3),
            UnitKind::Riscv => Some(Self::Riscv),
            _ => None,
        }
    }

    /// Its number in a record.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Vtd => 1,
            Self::AmdVi => 2,
            Self::SmmuV3 => 3,
            Self::Riscv => 4,
        }
    }
}

/// CRC-32 (IEEE 802.3, reflected) of `bytes`.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let byte = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    };
    !bytes.iter().fold(u32::MAX, byte)
}
