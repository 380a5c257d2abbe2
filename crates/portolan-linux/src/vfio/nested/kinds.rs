//! Kinds of hardware whose first stage a guest may own, with their words for the kernel.
//!
//! linux/iommufd.h, as of Linux 7.3: `iommu_hwpt_vtd_s1`, `iommu_hwpt_vtd_s1_invalidate`, `iommu_hwpt_arm_smmuv3`,
//! `iommu_viommu_arm_smmuv3_invalidate`, `iommu_vevent_arm_smmuv3`, `iommu_vevent_tegra241_cmdqv`.
//!
//! Not supported: AMD's `iommu_hwpt_amd_guest`, which no IOMMU takes under Linux 7.3: the driver's operations lead to
//! no code for it, and the virtual IOMMU that it belongs to has no type.

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

    /// Queues of a virtual IOMMU that the hardware reads.
    pub trait Queues: Virtual {
        const QUEUE: u32;
        /// Word of the kernel's answer that is the offset of the queues' registers; their length follows.
        const REGISTERS: usize;
        /// Kind of their description.
        const HARDWARE: u32;
    }

    /// A virtual IOMMU.
    pub trait Virtual: Events {
        const KIND: u32;
        const INVALIDATION: u32;
        /// Words that are handed over for it, in whose place the kernel puts its answer.
        const DATA: &'static [u64] = &[];
    }

    /// Events of one kind, which have a queue of their own.
    pub trait Events: Send + Sync + std::fmt::Debug {
        const EVENTS: u32;
        /// Bytes of an event behind its header.
        const EVENT: usize;
        type Event;

        fn event(bytes: &[u8]) -> Result<Self::Event, InfoError>;
    }
}

/// Type of a PASID entry's translation (PGTT): by a first stage.
const FIRST_STAGE: u64 = 1;
/// Config of a stream table entry: translation by a first stage, and by no second.
const SMMU_FIRST_STAGE: u64 = 0b101;
/// Fields of a stream table entry that Linux takes: V, Config, S1Fmt, S1ContextPtr and S1CDMax; S1DSS, S1CIR, S1COR,
/// S1CSH, S1STALLD and EATS.
const TAKEN: [u64; 2] = [0xf80f_ffff_ffff_ffff, 0x3800_00ff];

/// First stage of a guest: VT-d's, or SMMUv3's.
pub trait FirstStage: sealed::Stage {}

/// First stage directly above the host's tables: VT-d's.
///
/// An SMMUv3's needs a [`VirtualIommu`](super::VirtualIommu) between them.
pub trait AboveTables: FirstStage {}

/// Kind of virtual IOMMU whose hardware reads queues of the guest's itself: NVIDIA's.
pub trait QueueKind: VirtualKind + sealed::Queues {
    /// Errors of its queues.
    type Errors: EventKind;
}

/// Kind of events that a virtual IOMMU has a queue for.
pub trait EventKind: sealed::Events {}

/// Kind of virtual IOMMU: SMMUv3's, alone or with NVIDIA's queues.
pub trait VirtualKind: sealed::Virtual + EventKind {
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

impl SmmuFirstStage {
    /// The first stage of a guest's stream table entry (Arm IHI 0070 G.a, 5.2), as the guest wrote it, without the
    /// fields that Linux refuses; `None` if the entry is not valid, of something else than a first stage, of another
    /// exception level than EL1 (STRW), or not 8 words long.
    ///
    /// ```
    /// use portolan_linux::vfio::SmmuFirstStage;
    ///
    /// // Valid, a first stage by the descriptors at 0x10_0000, faults merged (MEV), which is the host's to decide.
    /// let stage = SmmuFirstStage::of_stream_entry(&[0x10_0000 | 5 << 1 | 1, 1 << 19, 0, 0, 0, 0, 0, 0]);
    /// assert_eq!(stage.map(|stage| stage.entry), Some([0x10_000b, 0]));
    /// ```
    pub fn of_stream_entry(entry: &[u64]) -> Option<Self> {
        let [first, second, ..] = *<&[u64; 8]>::try_from(entry).ok()?;
        let (valid, config, level) = (first & 1, first >> 1 & 7, second >> 30 & 3);
        match (valid, config, level) {
            (1, SMMU_FIRST_STAGE, 0) => Some(Self { entry: [first & TAKEN[0], second & TAKEN[1]] }),
            _ => None,
        }
    }

    /// Tells if the entry gives the device a TLB (EATS).
    pub(super) fn has_device_tlb(self) -> bool {
        self.entry[1] >> 28 & 3 == 1
    }

    /// Tells if the entry has substreams (S1CDMax).
    pub(super) fn has_substreams(self) -> bool {
        self.entry[0] >> 59 != 0
    }
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

impl FirstStage for VtdFirstStage {}
impl FirstStage for SmmuFirstStage {}
impl AboveTables for VtdFirstStage {}

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

/// A virtual SMMUv3 with NVIDIA's queues for commands (Tegra241, CMDQV). The guest's VINTF_CONFIG has HYP_OWN clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualCmdqv;

impl VirtualKind for VirtualCmdqv {
    type Stage = SmmuFirstStage;
}

impl EventKind for VirtualCmdqv {}

impl QueueKind for VirtualCmdqv {
    type Errors = CmdqvErrors;
}

impl sealed::Queues for VirtualCmdqv {
    const QUEUE: u32 = sys::iommu_hw_queue_type_IOMMU_HW_QUEUE_TYPE_TEGRA241_CMDQV;
    /// `iommu_viommu_tegra241_cmdqv` is both words.
    const REGISTERS: usize = 0;
    const HARDWARE: u32 = sys::iommu_hw_info_type_IOMMU_HW_INFO_TYPE_TEGRA241_CMDQV;
}

impl sealed::Virtual for VirtualCmdqv {
    const KIND: u32 = sys::iommu_viommu_type_IOMMU_VIOMMU_TYPE_TEGRA241_CMDQV;
    const INVALIDATION: u32 = <VirtualSmmu as sealed::Virtual>::INVALIDATION;
    const DATA: &'static [u64] = &[0; 2];
}

/// Its events are the SMMU's.
impl sealed::Events for VirtualCmdqv {
    const EVENTS: u32 = <VirtualSmmu as sealed::Events>::EVENTS;
    const EVENT: usize = <VirtualSmmu as sealed::Events>::EVENT;
    type Event = [u64; 4];

    fn event(bytes: &[u8]) -> Result<[u64; 4], InfoError> {
        VirtualSmmu::event(bytes)
    }
}

/// Errors of the queues of a [`VirtualCmdqv`]. A queue that has one stops until its guest starts it anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmdqvErrors;

impl EventKind for CmdqvErrors {}

impl sealed::Events for CmdqvErrors {
    const EVENTS: u32 = sys::iommu_veventq_type_IOMMU_VEVENTQ_TYPE_TEGRA241_CMDQV;
    const EVENT: usize = size_of::<sys::iommu_vevent_tegra241_cmdqv>();
    /// The guest's registers VINTF_LVCMDQ_ERR_MAP: a bit for each queue, by its number.
    type Event = [u64; 2];

    fn event(bytes: &[u8]) -> Result<[u64; 2], InfoError> {
        Ok([long(bytes, 0)?, long(bytes, 8)?])
    }
}

/// A virtual SMMUv3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualSmmu;

impl EventKind for VirtualSmmu {}

impl VirtualKind for VirtualSmmu {
    type Stage = SmmuFirstStage;
}

impl sealed::Virtual for VirtualSmmu {
    const KIND: u32 = sys::iommu_viommu_type_IOMMU_VIOMMU_TYPE_ARM_SMMUV3;
    const INVALIDATION: u32 =
        sys::iommu_hwpt_invalidate_data_type_IOMMU_VIOMMU_INVALIDATE_DATA_ARM_SMMUV3;
}

impl sealed::Events for VirtualSmmu {
    const EVENTS: u32 = sys::iommu_veventq_type_IOMMU_VEVENTQ_TYPE_ARM_SMMUV3;
    const EVENT: usize = size_of::<sys::iommu_vevent_arm_smmuv3>();
    /// A record of the event queue, with the guest's number of the stream.
    type Event = [u64; 4];

    fn event(bytes: &[u8]) -> Result<[u64; 4], InfoError> {
        Ok([long(bytes, 0)?, long(bytes, 8)?, long(bytes, 16)?, long(bytes, 24)?])
    }
}
