//! Features of a unit, from its capability block and its registers.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 3.2 and
//! 3.4.11.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::addr::PageSize;
use portolan::inval::{Caching, Capabilities, LeafOnly, PageForm, RangeForm, Walker, WriteBuffer};
use portolan::iommu::{IommuError, Shadowing};
use portolan::platform::Mmio;
use portolan::table::format::AmdLevels;

use super::capability::{Capability, Offers};
use super::config::Config;
use crate::chassis::Present;
use portolan_spec::amd::reg::{self, features as fields};

/// Largest range of one command, as an exponent of pages: with one more, the address says all.
pub(super) const MAX_LG2_PAGES: u8 = 39;

/// Presence of INVALIDATE_IOMMU_ALL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidateAll {
    /// The unit lacks it: everything is invalidated entry by entry and domain by domain.
    Absent,
    /// The unit has it.
    Present,
}

/// Features of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The capability block.
    pub capability: Capability,
    /// Most levels of host tables that the unit walks.
    pub levels: u32,
    /// Presence of a command that invalidates everything at once.
    pub invalidate_all: InvalidateAll,
}

impl Features {
    /// Reads the registers of the unit with `capability`.
    ///
    /// # Errors
    /// [`IommuError::Gone`]; [`IommuError::Nonsense`] for a reserved number of levels.
    pub(super) fn read(regs: &impl Mmio, capability: Capability) -> Result<Self, IommuError> {
        regs.present64(reg::CONTROL)?;
        let value = match capability.offers.contains(Offers::EXTENDED) {
            true => regs.present64(reg::FEATURES)?,
            false => 0,
        };
        let more = fields::HOST_LEVELS.of(value);
        if more == 3 {
            let offset = reg::FEATURES;
            return Err(IommuError::Nonsense { offset, value });
        }
        Ok(Self {
            capability,
            levels: 4 + more as u32,
            invalidate_all: match fields::INVALIDATE_ALL.of(value) {
                0 => InvalidateAll::Absent,
                _ => InvalidateAll::Present,
            },
        })
    }

    /// Width of physical addresses in bits.
    pub(super) fn output_lg2(&self, config: &Config) -> u32 {
        let told = self.capability.physical_lg2;
        told.unwrap_or(config.output_lg2).clamp(12, 52)
    }

    /// Width of devices' addresses in bits; tables may have room for more or less.
    pub(super) fn input_lg2(&self) -> u32 {
        self.capability.virtual_lg2.unwrap_or(u64::BITS)
    }

    /// Tells if the unit walks tables of `levels` levels.
    pub fn walks(&self, levels: AmdLevels) -> bool {
        levels.count() <= self.levels
    }

    /// Way in which a hypervisor follows tables: units that cache absence (`NpCache`) are virtual
    /// ones.
    pub fn shadowing(&self) -> Shadowing {
        match self.capability.offers.contains(Offers::CACHES_ABSENCE) {
            true => Shadowing::CachingMode,
            false => Shadowing::None,
        }
    }

    /// Capabilities of the hardware for invalidation plans.
    pub fn capabilities(&self) -> Capabilities {
        let absence = self.shadowing() != Shadowing::None;
        Capabilities {
            granule: PageSize::SIZE_4K,
            page: PageForm::Granule,
            range: RangeForm::PowerOfTwo { max_lg2_pages: MAX_LG2_PAGES },
            leaf_only: LeafOnly::Present,
            walker: Walker::Coherent,
            caching: match absence {
                true => Caching::NotPresentToo,
                false => Caching::PresentOnly,
            },
            write_buffer: WriteBuffer::Absent,
        }
    }
}
