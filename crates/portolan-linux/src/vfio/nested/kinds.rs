//! Kinds of hardware whose first stage a guest may own, with their words for the kernel.
//!
//! linux/iommufd.h, as of Linux 7.3: `iommu_hwpt_vtd_s1`, `iommu_hwpt_vtd_s1_invalidate`, `iommu_hwpt_arm_smmuv3`,
//! `iommu_viommu_arm_smmuv3_invalidate`, `iommu_vevent_arm_smmuv3`, `iommu_hwpt_amd_guest`.
//!
//! Not supported: NVIDIA's command queues for virtual machines (`IOMMU_VIOMMU_TYPE_TEGRA241_CMDQV`).

use iommufd_bindings::iommufd as sys;
use portolan::addr::Iova;
use portolan::inval::Depth;

use crate::chain::{InfoError, long};

pub(in crate::vfio) mod sealed {
    use crate::chain::InfoError;

    /// Tables of a guest as words of the kernel's structure for them.
    pub trait Stage: Send + Sync + std::fmt::Debug {
        const KIND: u32;

        fn words(&self) -> Vec<u64>;
    }

    /// Invalidations of such tables.
    pub trait Requests {
        const KIND: u32;
    }

    /// A virtual IOMMU and its events.
    pub trait Virtual: Send + Sync + std::fmt::Debug {
        const KIND: u32;
        const INVALIDATION: u32;
        const EVENTS: u32;
        /// Bytes of an event behind its header.
        const EVENT: usize;
        type Event;

        fn event(bytes: &[u8]) -> Result<Self::Event, InfoError>;
    }
}

/// First stage of a guest: VT-d's, AMD's, or SMMUv3's.
pub trait FirstStage: sealed::Stage {}

/// First stage directly above the host's tables: VT-d's, AMD's.
///
/// An SMMUv3's needs a [`VirtualIommu`](super::VirtualIommu) between them.
pub trait AboveTables: FirstStage {}

/// Kind of virtual IOMMU: SMMUv3's.
pub trait VirtualKind: sealed::Virtual {
    /// First stage of its devices.
    type Stage: FirstStage;
}

/// First stage of a guest behind VT-d: what its PASID entry says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VtdFirstStage {
    /// Its root table, at an address of the guest's.
    pub root: Iova,
    /// Bits of its addresses: 48 with four levels, 57 with five.
    pub address_bits: u8,
    /// Supervisor requests (SRE).
    pub supervisor: bool,
    /// Extended accessed bits (EAFE).
    pub extended_accessed: bool,
    /// Write protection of supervisor requests (WPE).
    pub write_protect: bool,
}

/// First stage of a guest behind an SMMUv3: the first two words of its stream table entry.
///
/// Linux takes the fields V, Config, S1Fmt, S1ContextPtr, S1CDMax, S1DSS, S1CIR, S1COR, S1CSH, S1STALLD and EATS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmmuFirstStage {
    /// Words 0 and 1 of the entry.
    pub entry: [u64; 2],
}

/// First stage of a guest behind AMD-Vi: its device table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmdFirstStage {
    /// The four words of the entry.
    pub entry: [u64; 4],
}

impl sealed::Stage for VtdFirstStage {
    const KIND: u32 = sys::iommu_hwpt_data_type_IOMMU_HWPT_DATA_VTD_S1;

    fn words(&self) -> Vec<u64> {
        let flag = |set, flag: u32| if set { u64::from(flag) } else { 0 };
        let flags = flag(self.supervisor, sys::iommu_hwpt_vtd_s1_flags_IOMMU_VTD_S1_SRE)
            | flag(self.extended_accessed, sys::iommu_hwpt_vtd_s1_flags_IOMMU_VTD_S1_EAFE)
            | flag(self.write_protect, sys::iommu_hwpt_vtd_s1_flags_IOMMU_VTD_S1_WPE);
        vec![flags, self.root.get(), self.address_bits.into()]
    }
}

impl sealed::Stage for SmmuFirstStage {
    const KIND: u32 = sys::iommu_hwpt_data_type_IOMMU_HWPT_DATA_ARM_SMMUV3;

    fn words(&self) -> Vec<u64> {
        self.entry.to_vec()
    }
}

impl sealed::Stage for AmdFirstStage {
    const KIND: u32 = sys::iommu_hwpt_data_type_IOMMU_HWPT_DATA_AMD_GUEST;

    fn words(&self) -> Vec<u64> {
        self.entry.to_vec()
    }
}

impl FirstStage for VtdFirstStage {}
impl FirstStage for SmmuFirstStage {}
impl FirstStage for AmdFirstStage {}
impl AboveTables for VtdFirstStage {}
impl AboveTables for AmdFirstStage {}

impl sealed::Requests for VtdFirstStage {
    const KIND: u32 = sys::iommu_hwpt_invalidate_data_type_IOMMU_HWPT_INVALIDATE_DATA_VTD_S1;
}

/// Invalidation of a guest's first stage behind VT-d. The kernel invalidates the devices' own caches with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VtdInvalidation {
    /// All that comes from the tables.
    All,
    /// Some pages.
    Pages {
        /// The first page.
        start: Iova,
        /// Number of pages of 4 KiB.
        count: u64,
        /// Levels that it reaches.
        depth: Depth,
    },
}

impl VtdInvalidation {
    pub(super) fn words(self) -> [u64; 3] {
        match self {
            Self::All => [0, u64::MAX, 0],
            Self::Pages { start, count, depth } => {
                let leaf = sys::iommu_hwpt_vtd_s1_invalidate_flags_IOMMU_VTD_INV_FLAGS_LEAF;
                let flags = if depth == Depth::LeafOnly { leaf } else { 0 };
                [start.get(), count, flags.into()]
            }
        }
    }
}

/// A virtual SMMUv3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualSmmu;

impl VirtualKind for VirtualSmmu {
    type Stage = SmmuFirstStage;
}

impl sealed::Virtual for VirtualSmmu {
    const KIND: u32 = sys::iommu_viommu_type_IOMMU_VIOMMU_TYPE_ARM_SMMUV3;
    const INVALIDATION: u32 =
        sys::iommu_hwpt_invalidate_data_type_IOMMU_VIOMMU_INVALIDATE_DATA_ARM_SMMUV3;
    const EVENTS: u32 = sys::iommu_veventq_type_IOMMU_VEVENTQ_TYPE_ARM_SMMUV3;
    const EVENT: usize = size_of::<sys::iommu_vevent_arm_smmuv3>();
    /// A record of the event queue, with the guest's number of the stream.
    type Event = [u64; 4];

    fn event(bytes: &[u8]) -> Result<[u64; 4], InfoError> {
        Ok([long(bytes, 0)?, long(bytes, 8)?, long(bytes, 16)?, long(bytes, 24)?])
    }
}
