//! Features of a unit, from its registers.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, section "IOMMU capabilities", and the
//! extensions for ranges and for entries above the leaves.
//!
//! *Context.* Interrupt: everything here is a value.

use bitflags::bitflags;
use portolan::addr::PageSize;
use portolan::inval::{
    Caching, Capabilities, LeafOnly, PageForm, Quirks, RangeForm, WalkFlush, Walker, WriteBuffer,
};
use portolan::iommu::IommuError;
use portolan::platform::Mmio;

use super::config::Signal;
use crate::chassis::Present;
use portolan_spec::riscv::Bits;
use portolan_spec::riscv::context::{BASE_WORDS, EXTENDED_WORDS};
use portolan_spec::riscv::reg::{self, capability};

/// Largest range of one command, as an exponent of pages: with one more, all addresses are meant.
pub(super) const MAX_LG2_PAGES: u8 = 51;
/// With more commands than this, each of a page, the whole context is forgotten instead, where the
/// unit has no ranges: a quarter of the smallest command queue, so that a flush of many addresses
/// neither fills the queue nor makes others wait for as many commands. The IOTLB bounds the walks
/// that are repeated.
pub(super) const MOST_PAGES: u64 = 64;
/// Major version of the specification that the driver follows.
const MAJOR: u64 = 1;
/// Bits that the address of a message never has: it is a multiple of 4.
const ALIGNED: u64 = 3;
/// Widths of physical addresses that are believed: with fewer bits there were no 4 GiB.
const OUTPUT_LG2: core::ops::RangeInclusive<u32> = 32..=56;

bitflags! {
    /// Features that a unit has or has not.
    ///
    /// *Context.* Interrupt: a value.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RiscvFeature: u32 {
        /// First-stage tables of three levels (Sv39).
        const FIRST_3 = 1;
        /// First-stage tables of four levels (Sv48).
        const FIRST_4 = 1 << 1;
        /// First-stage tables of five levels (Sv57).
        const FIRST_5 = 1 << 2;
        /// Second-stage tables of three levels (Sv39x4).
        const SECOND_3 = 1 << 3;
        /// Second-stage tables of four levels (Sv48x4).
        const SECOND_4 = 1 << 4;
        /// Second-stage tables of five levels (Sv57x4).
        const SECOND_5 = 1 << 5;
        /// MSI page tables (`MSI_FLAT`).
        const MESSAGE_TABLES = 1 << 6;
        /// ATS and page requests, and registers of a queue for them.
        const ATS = 1 << 7;
        /// Structures of either endianness (`END`).
        const EITHER_ENDIAN = 1 << 8;
        /// Interrupts by messages (`IGS`).
        const MESSAGES = 1 << 9;
        /// Interrupts by wires (`IGS`).
        const WIRES = 1 << 10;
        /// Invalidation by address of entries above the leaves (`NL`).
        const NON_LEAF = 1 << 11;
        /// Invalidation of ranges (`S`).
        const RANGES = 1 << 12;
        /// Memory types in tables (`Svpbmt`).
        const MEMORY_TYPES = 1 << 13;
        /// PASIDs of 8 bits (`PD8`).
        const PASIDS_8 = 1 << 14;
        /// PASIDs of 17 bits (`PD17`).
        const PASIDS_17 = 1 << 15;
        /// PASIDs of 20 bits (`PD20`).
        const PASIDS_20 = 1 << 16;
        /// Hardware counters (`HPM`).
        const COUNTERS = 1 << 17;
        /// Accessed and dirty bits that the unit sets (`AMO_HWAD`).
        const UPDATES = 1 << 18;
    }
}

/// The fields of one bit.
const FLAGS: [(Bits, RiscvFeature); 17] = [
    (capability::SV39, RiscvFeature::FIRST_3),
    (capability::SV48, RiscvFeature::FIRST_4),
    (capability::SV57, RiscvFeature::FIRST_5),
    (capability::SV39X4, RiscvFeature::SECOND_3),
    (capability::SV48X4, RiscvFeature::SECOND_4),
    (capability::SV57X4, RiscvFeature::SECOND_5),
    (capability::MSI_FLAT, RiscvFeature::MESSAGE_TABLES),
    (capability::ATS, RiscvFeature::ATS),
    (capability::END, RiscvFeature::EITHER_ENDIAN),
    (capability::NL, RiscvFeature::NON_LEAF),
    (capability::S, RiscvFeature::RANGES),
    (capability::SVPBMT, RiscvFeature::MEMORY_TYPES),
    (capability::PD8, RiscvFeature::PASIDS_8),
    (capability::PD17, RiscvFeature::PASIDS_17),
    (capability::PD20, RiscvFeature::PASIDS_20),
    (capability::HPM, RiscvFeature::COUNTERS),
    (capability::AMO_HWAD, RiscvFeature::UPDATES),
];

/// Features of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Features that it has.
    pub has: RiscvFeature,
    /// Version of the specification that it follows: the major one in bits 7:4, the minor one in bits
    /// 3:0.
    pub version: u8,
    /// Width of physical addresses in bits.
    pub output_lg2: u32,
}

impl Features {
    /// Reads the registers.
    ///
    /// # Errors
    /// [`IommuError::Gone`]; [`IommuError::Unsupported`] for another version of the specification;
    /// [`IommuError::Nonsense`] for a width or for interrupts that cannot be.
    pub(crate) fn read(regs: &impl Mmio) -> Result<Self, IommuError> {
        let offset = reg::CAPABILITIES;
        let value = regs.present64(offset)?;
        let version = capability::VERSION.of(value);
        if version >> 4 != MAJOR {
            return Err(IommuError::Unsupported);
        }
        let interrupts = match capability::IGS.of(value) {
            capability::MESSAGES => RiscvFeature::MESSAGES,
            capability::WIRES => RiscvFeature::WIRES,
            capability::BOTH => RiscvFeature::MESSAGES | RiscvFeature::WIRES,
            _ => return Err(IommuError::Nonsense { offset, value }),
        };
        let output_lg2 = capability::PAS.of(value) as u32;
        if !OUTPUT_LG2.contains(&output_lg2) {
            return Err(IommuError::Nonsense { offset, value });
        }
        let set = FLAGS.iter().filter(|(field, _)| field.of(value) == 1);
        Ok(Self {
            has: set.fold(interrupts, |all, (_, has)| all | *has),
            version: version as u8,
            output_lg2,
        })
    }

    /// Tells if the unit can raise interrupts in this way.
    pub(super) fn can_signal(&self, signal: Signal) -> bool {
        match signal {
            Signal::None => true,
            Signal::Wired => self.has.contains(RiscvFeature::WIRES),
            Signal::Message { address, .. } => {
                let address = address.at();
                let fits = reg::MESSAGE_ADDRESS.at(address.get()) == address.get();
                self.has.contains(RiscvFeature::MESSAGES) && fits && address.get() & ALIGNED == 0
            }
        }
    }

    /// Words of a device context.
    pub(super) fn context_words(&self) -> usize {
        if self.has.contains(RiscvFeature::MESSAGE_TABLES) { EXTENDED_WORDS } else { BASE_WORDS }
    }

    /// Capabilities of the hardware for invalidation plans.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            granule: PageSize::SIZE_4K,
            page: PageForm::Granule,
            range: if self.has.contains(RiscvFeature::RANGES) {
                RangeForm::PowerOfTwo { max_lg2_pages: MAX_LG2_PAGES }
            } else {
                RangeForm::Absent
            },
            leaf_only: LeafOnly::Present,
            walker: Walker::Coherent,
            caching: Caching::PresentOnly,
            write_buffer: WriteBuffer::Absent,
        }
    }

    /// `quirks` for this unit: without the extension for entries above the leaves, an address names
    /// leaves alone, and copies of freed tables go with the whole context; without ranges, so do
    /// more than [`MOST_PAGES`] pages.
    pub(super) fn quirks(&self, mut quirks: Quirks) -> Quirks {
        if !self.has.contains(RiscvFeature::NON_LEAF) {
            quirks.walk_flush = WalkFlush::ByContext;
        }
        if !self.has.contains(RiscvFeature::RANGES) {
            quirks.context_above = quirks.context_above.min(MOST_PAGES);
        }
        quirks
    }
}
