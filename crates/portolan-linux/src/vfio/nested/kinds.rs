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

/// Type of a PASID entry's translation (PGTT): by a first stage.
const FIRST_STAGE: u64 = 1;

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
///
/// ```no_run
/// use portolan::addr::{IovaRange, PageSize, StreamId};
/// use portolan::inval::Depth;
/// use portolan::iommu::{Attach, Iommu};
/// use portolan_linux::UserDomain;
/// use portolan_linux::vfio::{NestedOptions, NestedTables, UserUnit, VtdFirstStage, VtdInvalidation};
/// use portolan_vmm::emulated::{GuestEntry, Hardware};
/// use std::io;
/// use std::sync::{Arc, Mutex};
///
/// /// A device that a monitor passes through, behind its emulated VT-d.
/// #[derive(Debug)]
/// struct Passed {
///     unit: Arc<UserUnit>,
///     stream: StreamId,
///     /// The guest's memory, with [`DomainOptions::second_stage`](crate::vfio::DomainOptions).
///     memory: Arc<UserDomain>,
///     tables: Mutex<Option<NestedTables<VtdFirstStage>>>,
/// }
///
/// impl Hardware for Passed {
///     fn attach(&self, entry: GuestEntry<'_>) -> io::Result<()> {
///         let (unit, stream) = (&self.unit, self.stream);
///         let tables = match entry {
///             GuestEntry::Tables(words) => {
///                 let stage = VtdFirstStage::of_pasid_entry(words).ok_or(io::ErrorKind::InvalidData)?;
///                 let tables = unit.nested(stream, &self.memory, &stage, NestedOptions::default());
///                 let tables = tables.map_err(io::Error::other)?;
///                 unit.attach_nested(stream, None, &tables).map_err(io::Error::other)?;
///                 Some(tables)
///             }
///             GuestEntry::PassThrough => {
///                 unit.attach(stream, &self.memory).map_err(io::Error::other)?;
///                 None
///             }
///             _ => {
///                 unit.block(stream).map_err(io::Error::other)?;
///                 None
///             }
///         };
///         *self.tables.lock().expect("no thread has panicked") = tables;
///         Ok(())
///     }
///
///     fn invalidate(&self, range: Option<IovaRange>) -> io::Result<()> {
///         let request = range.map_or(VtdInvalidation::All, |range| VtdInvalidation::Pages {
///             start: range.start(),
///             count: range.pages(PageSize::SIZE_4K),
///             depth: Depth::AllLevels,
///         });
///         let tables = self.tables.lock().expect("no thread has panicked");
///         let tables = tables.as_ref().ok_or(io::ErrorKind::NotFound)?;
///         tables.invalidate(&[request]).map_err(io::Error::other)
///     }
/// }
/// ```
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

impl VtdFirstStage {
    /// The first stage of a guest's PASID entry (scalable mode, VT-d 9.6), as the guest wrote it; `None` if the entry
    /// is not present, of something else than a first stage, of reserved levels, or not 8 words long.
    ///
    /// ```
    /// use portolan_linux::vfio::VtdFirstStage;
    ///
    /// // Present, a first stage of four levels at 0x10_0000, supervisor requests.
    /// let stage = VtdFirstStage::of_pasid_entry(&[1 << 6 | 1, 7, 0x10_0001, 0, 0, 0, 0, 0]);
    /// let stage = stage.expect("a first stage");
    /// assert_eq!((stage.root.get(), stage.address_bits, stage.supervisor), (0x10_0000, 48, true));
    /// ```
    pub fn of_pasid_entry(entry: &[u64]) -> Option<Self> {
        let [first, _, third, ..] = *<&[u64; 8]>::try_from(entry).ok()?;
        let (present, kind, levels) = (first & 1, first >> 6 & 7, third >> 2 & 3);
        let address_bits = match (present, kind, levels) {
            (1, FIRST_STAGE, 0) => 48,
            (1, FIRST_STAGE, 1) => 57,
            _ => return None,
        };
        let bit = |number: u32| third >> number & 1 != 0;
        Some(Self {
            root: Iova::new(third & !0xfff),
            address_bits,
            supervisor: bit(0),
            write_protect: bit(4),
            extended_accessed: bit(7),
        })
    }
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
