//! Commands that Linux's drivers submit for an operation.
//!
//! Read from Linux 6.12 and 7.3:
//!
//! * `drivers/iommu/intel/cache.c`, `cache_tag_flush_range`: one page-selective invalidation of the smallest aligned
//!   power of two that covers the operation, or the whole domain where the unit cannot express that.
//! * `drivers/iommu/amd/iommu.c`, `amd_iommu_domain_flush_pages`: one INVALIDATE_IOMMU_PAGES of the smallest aligned
//!   power of two (`build_inv_address`; everything if bit 51 differs). With `NpCache`, which units that a hypervisor
//!   plays report, one for each aligned power of two that the operation is made of. One COMPLETION_WAIT either way.
//!
//! Not modelled: several units behind one domain, device TLBs.

use portolan::dma::{
    Buffers, Decision, DeviceTlbPresence, PolicyInputs, PolicyPreference, Shadowing, Stage,
    TrapCost, Trust, default_policy,
};
use portolan::inval::Caching;

/// The IOMMU and the tables that Linux uses with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinuxUnit {
    /// Intel's.
    Vtd {
        /// Caching mode, if it reports it.
        caching: Caching,
        /// Tables that the kernel uses.
        stage: Stage,
        /// Largest address mask of a page-selective invalidation, an exponent of pages.
        max_mask: u8,
    },
    /// AMD's, with tables of version 1.
    Amd {
        /// `NpCache`, if it reports it.
        caching: Caching,
    },
}

/// Largest size that INVALIDATE_IOMMU_PAGES takes, as an exponent of pages.
const AMD_MAX_MASK: u8 = 40;

impl LinuxUnit {
    /// Tells if the unit caches entries that are not present, in tables that a hypervisor follows.
    pub(super) fn is_shadowed(&self) -> bool {
        match *self {
            Self::Vtd { caching, stage, .. } => {
                (caching, stage) == (Caching::NotPresentToo, Stage::Second)
            }
            Self::Amd { caching } => caching == Caching::NotPresentToo,
        }
    }

    /// Caching of entries that are not present, as the unit reports it.
    pub(super) fn caching(&self) -> Caching {
        match *self {
            Self::Vtd { caching, .. } | Self::Amd { caching } => caching,
        }
    }

    /// Names of the unit and of the tables' stage.
    pub(super) fn names(&self) -> [&'static str; 2] {
        match self {
            Self::Vtd { stage: Stage::First, .. } => ["VT-d", "first"],
            Self::Vtd { .. } => ["VT-d", "second"],
            Self::Amd { .. } => ["AMD-Vi", "second"],
        }
    }

    /// Decision for strict or lazy, and the reason. AMD's driver calls `iommu_set_dma_strict` if the unit reports
    /// `NpCache`; Intel's does if it reports caching mode.
    pub(super) fn decision(&self, asked: PolicyPreference) -> Decision {
        default_policy(&PolicyInputs {
            trust: Trust::Trusted,
            stage: match *self {
                Self::Vtd { stage, .. } => stage,
                Self::Amd { .. } => Stage::Second,
            },
            shadowing: match self.caching() {
                Caching::NotPresentToo => Shadowing::CachingMode,
                Caching::PresentOnly => Shadowing::None,
            },
            device_tlb: DeviceTlbPresence::Absent,
            exits: TrapCost::None,
            buffers: Buffers::Kept,
            wish: asked,
        })
    }

    /// Hands each command to `submit` that an operation of `pages` pages takes: its exponent of pages, or nothing for
    /// the whole domain. Linux aligns an operation's addresses to its size rounded up to a power of two.
    pub(super) fn commands(&self, pages: u64, mut submit: impl FnMut(Option<u8>)) {
        let pages = pages.max(1);
        let whole = pages.next_power_of_two().trailing_zeros() as u8;
        match *self {
            Self::Vtd { max_mask, .. } => submit(Some(whole).filter(|mask| *mask <= max_mask)),
            Self::Amd { caching: Caching::PresentOnly } => {
                submit(Some(whole).filter(|mask| *mask <= AMD_MAX_MASK))
            }
            Self::Amd { caching: Caching::NotPresentToo } => (0..u64::BITS)
                .filter(|bit| pages >> bit & 1 == 1)
                .for_each(|bit| submit(Some(bit as u8).filter(|mask| *mask <= AMD_MAX_MASK))),
        }
    }
}
