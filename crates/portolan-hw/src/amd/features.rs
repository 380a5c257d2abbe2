//! Features of a unit, from its capability block and its registers.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 3.2
//! (capability block in PCI configuration space) and 3.4.11. The embedder finds the block on the
//! IOMMU's PCI function by its capability ID (0x0f) and reads its first five words.
//!
//! Not read: the range of devices and the interrupt number.
//!
//! *Context.* Interrupt: everything here is a value.

use super::config::Config;
use crate::chassis::Present;
use bitflags::bitflags;
use portolan::addr::{PageSize, PhysAddr};
use portolan::inval::{Caching, Capabilities, LeafOnly, PageForm, RangeForm, Walker, WriteBuffer};
use portolan::iommu::{IommuError, Shadowing};
use portolan::platform::Mmio;
use portolan::table::format::{AmdLevels, AmdV1, DirtyTracking};
use portolan_spec::amd::reg::{features as fields, features2};
use portolan_spec::amd::{capability as layout, reg};
use portolan_tables::ivrs::HostTranslation;
use thiserror::Error;

/// Largest range of one command, as an exponent of pages: with one more, the address says all.
pub(super) const MAX_LG2_PAGES: u8 = 39;

bitflags! {
    /// Optional features of a unit, as its extended feature register says.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AmdFeature: u8 {
        /// INVALIDATE_IOMMU_ALL. Without it everything is invalidated entry by entry and domain by domain.
        const INVALIDATE_ALL = 1;
        /// Interrupt entries of two words (GASup) with destinations of 32 bits (XTSup), and registers for the
        /// targets of the unit's own interrupts.
        const X2APIC = 2;
        /// Accessed and dirty bits in leaves of host tables (HASup, HDSup).
        const MARKS = 4;
        /// Page requests of devices (PPRSup).
        const REQUESTS = 8;
        /// Entries that say whose page requests are served (EPHSup). Without them those of all devices are.
        const REQUESTS_BY_ENTRY = 16;
        /// Answers of the unit to page requests that it cannot log (PPRAutoRspSup).
        const AUTO_RESPONSE = 32;
        /// Performance counters (PCSup).
        const COUNTERS = 64;
        /// Interrupts that are posted to virtual interrupt controllers (GAMSup).
        const GUEST_APIC = 128;
    }
}

impl AmdFeature {
    /// By the value of the extended feature register.
    fn of(register: u64) -> Self {
        let all = [
            (Self::INVALIDATE_ALL, fields::INVALIDATE_ALL),
            (Self::MARKS, fields::MARKS),
            (Self::REQUESTS, fields::REQUESTS),
            (Self::REQUESTS_BY_ENTRY, fields::REQUESTS_BY_ENTRY),
            (Self::AUTO_RESPONSE, fields::AUTO_RESPONSE),
            (Self::COUNTERS, fields::COUNTERS),
            (Self::X2APIC, fields::WIDE_DESTINATIONS | fields::WIDE_ENTRIES),
        ];
        let there = all.into_iter().filter(|(_, bits)| register & bits == *bits);
        let mut has: Self = there.map(|(feature, _)| feature).collect();
        has.set(Self::GUEST_APIC, fields::GUEST_APIC.of(register) == 1);
        has
    }
}

/// Guest tables that a unit walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestFeatures {
    /// Most levels: 4 or 5.
    pub levels: u32,
    /// Most levels of GCR3 tables, by which PASIDs lead to them: 1 to 3.
    pub root_levels: u32,
    /// Width of PASIDs in bits, at most 20.
    pub pasid_bits: u32,
    /// GCR3 tables and guest tables may lie behind host tables (GCR3TRPMode).
    pub over_host: bool,
}

impl GuestFeatures {
    /// By the value of the first extended feature register. Without GIoSup accesses without a PASID cannot go through
    /// guest tables, and without INVALIDATE_IOMMU_ALL those of a previous owner are not forgotten: such units count as
    /// having none.
    fn of(value: u64) -> Result<Option<Self>, IommuError> {
        let needed = fields::GUESTS | fields::INVALIDATE_ALL;
        if value & needed != needed {
            return Ok(None);
        }
        let [levels, roots] = [fields::GUEST_LEVELS, fields::GUEST_ROOTS].map(|of| of.of(value));
        let bits = fields::PASID_BITS.of(value) + 1;
        if levels > 1 || roots > 2 || bits > 20 {
            return Err(IommuError::Nonsense { offset: reg::FEATURES, value });
        }
        let [levels, root_levels, pasid_bits] = [levels + 4, roots + 1, bits].map(|n| n as u32);
        Ok(Some(Self { levels, root_levels, pasid_bits, over_host: false }))
    }
}

/// Features of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The capability block.
    pub capability: Capability,
    /// Most levels of host tables that the unit walks; none where firmware has disabled them.
    pub levels: u32,
    /// Optional features that are present.
    pub has: AmdFeature,
    /// Guest tables that the unit walks, if it does.
    pub guests: Option<GuestFeatures>,
}

impl Features {
    /// Reads the registers of the unit with `capability`.
    ///
    /// # Errors
    /// [`IommuError::Gone`]; [`IommuError::Nonsense`] for a reserved number of levels, of host tables or of
    /// those for guests.
    pub(super) fn read(
        regs: &impl Mmio,
        capability: Capability,
        host: HostTranslation,
    ) -> Result<Self, IommuError> {
        regs.present64(reg::CONTROL)?;
        let value = if capability.offers.contains(Offers::EXTENDED) {
            regs.present64(reg::FEATURES)?
        } else {
            0
        };
        let more = fields::HOST_LEVELS.of(value);
        if more == 3 {
            let offset = reg::FEATURES;
            return Err(IommuError::Nonsense { offset, value });
        }
        let mut guests = GuestFeatures::of(value)?;
        if let Some(guests) = &mut guests {
            let more = regs.present64(reg::FEATURES2)?;
            guests.over_host = more & features2::ROOTS_OVER_HOST != 0;
        }
        let (levels, absent) = match host {
            HostTranslation::Present => (4 + more as u32, AmdFeature::empty()),
            HostTranslation::Disabled => (0, AmdFeature::MARKS),
        };
        Ok(Self { capability, levels, has: AmdFeature::of(value).difference(absent), guests })
    }

    /// Checks that the unit sets the marks that are asked for.
    pub(super) fn can_mark(&self, dirty: DirtyTracking) -> Result<(), IommuError> {
        match dirty {
            DirtyTracking::Hardware if !self.has.contains(AmdFeature::MARKS) => {
                Err(IommuError::Unsupported)
            }
            _ => Ok(()),
        }
    }

    /// Checks that the unit has page requests, if a log for them is asked for.
    pub(super) fn can_log_requests(&self, requests_lg2: Option<u32>) -> Result<(), IommuError> {
        match requests_lg2 {
            Some(_) if !self.has.contains(AmdFeature::REQUESTS) => Err(IommuError::Unsupported),
            _ => Ok(()),
        }
    }

    /// Width of physical addresses in bits.
    pub(super) fn output_lg2(&self, config: &Config) -> u32 {
        let told = self.capability.physical_lg2;
        told.unwrap_or(config.output_lg2).clamp(12, 52)
    }

    /// The format of host tables of `levels`.
    pub(super) fn format(&self, config: &Config, levels: AmdLevels) -> AmdV1 {
        let (output_lg2, dirty, sizes) = (self.output_lg2(config), config.dirty, config.sizes);
        AmdV1 { levels, output_lg2, dirty, sizes }
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
        if self.capability.offers.contains(Offers::CACHES_ABSENCE) {
            Shadowing::CachingMode
        } else {
            Shadowing::None
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
            caching: if absence { Caching::NotPresentToo } else { Caching::PresentOnly },
            write_buffer: WriteBuffer::Absent,
        }
    }
}

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
