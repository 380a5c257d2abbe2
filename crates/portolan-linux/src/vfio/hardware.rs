//! The IOMMU between a device and memory, as the kernel describes it.
//!
//! linux/iommufd.h (`IOMMU_GET_HW_INFO`), as of Linux 7.3: registers that say what the hardware can, of which a monitor
//! gives its guest those that it can stand for.

use iommufd_bindings::iommufd as sys;

use crate::sys::iommufd::nested::Described;

/// An IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hardware {
    /// Registers of it.
    pub registers: HardwareRegisters,
    /// Marks of written pages in its tables.
    pub dirty_tracking: bool,
    /// Bits of the device's PASIDs; 0 if it has none.
    pub pasid_bits: u8,
    /// Requests to execute, with a PASID.
    pub pasid_execute: bool,
    /// Requests in privileged mode, with a PASID.
    pub pasid_privileged: bool,
    /// Device TLBs (ATS), which the device may use.
    pub ats: bool,
}

/// Registers by the kind of IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HardwareRegisters {
    /// None that the kernel names.
    None,
    /// VT-d.
    Vtd {
        /// Capability register (CAP_REG).
        cap: u64,
        /// Extended capability register (ECAP_REG).
        ecap: u64,
        /// Erratum of Sapphire Rapids: no mapping of a second stage may be read-only.
        no_read_only: bool,
    },
    /// SMMUv3.
    Smmuv3 {
        /// SMMU_IDR0 to SMMU_IDR5.
        idr: [u32; 6],
        /// SMMU_IIDR.
        iidr: u32,
        /// SMMU_AIDR.
        aidr: u32,
    },
    /// AMD-Vi.
    Amd {
        /// Extended feature register.
        efr: u64,
        /// Extended feature register 2.
        efr2: u64,
    },
    /// NVIDIA's command queues (CMDQV), as its register PARAM has them.
    Cmdqv {
        /// Version.
        version: u8,
        /// Logarithm of the number of queues.
        queues_lg2: u8,
        /// Logarithm of the number of streams that a guest may name.
        streams_lg2: u8,
    },
    /// A kind that this library does not know.
    Other {
        /// The kernel's number of it.
        kind: u32,
        /// First word of its description.
        first: u64,
    },
}

impl Hardware {
    pub(super) fn read(said: &Described) -> Self {
        let can = |flag: u32| said.capabilities & u64::from(flag) != 0;
        Self {
            registers: registers(said),
            dirty_tracking: can(sys::iommufd_hw_capabilities_IOMMU_HW_CAP_DIRTY_TRACKING),
            pasid_bits: said.pasid_bits,
            pasid_execute: can(sys::iommufd_hw_capabilities_IOMMU_HW_CAP_PCI_PASID_EXEC),
            pasid_privileged: can(sys::iommufd_hw_capabilities_IOMMU_HW_CAP_PCI_PASID_PRIV),
            ats: !can(sys::iommufd_hw_capabilities_IOMMU_HW_CAP_PCI_ATS_NOT_SUPPORTED),
        }
    }
}

fn registers(said: &Described) -> HardwareRegisters {
    let [flags, first, second, third, fourth, ..] = said.words;
    let both = |word: u64| [word as u32, (word >> 32) as u32];
    match said.kind {
        sys::iommu_hw_info_type_IOMMU_HW_INFO_TYPE_NONE => HardwareRegisters::None,
        sys::iommu_hw_info_type_IOMMU_HW_INFO_TYPE_INTEL_VTD => {
            let erratum = sys::iommu_hw_info_vtd_flags_IOMMU_HW_INFO_VTD_ERRATA_772415_SPR17;
            let no_read_only = flags & u64::from(erratum) != 0;
            HardwareRegisters::Vtd { cap: first, ecap: second, no_read_only }
        }
        sys::iommu_hw_info_type_IOMMU_HW_INFO_TYPE_ARM_SMMUV3 => {
            let ([a, b], [c, d], [e, f]) = (both(first), both(second), both(third));
            let [iidr, aidr] = both(fourth);
            HardwareRegisters::Smmuv3 { idr: [a, b, c, d, e, f], iidr, aidr }
        }
        sys::iommu_hw_info_type_IOMMU_HW_INFO_TYPE_AMD => {
            HardwareRegisters::Amd { efr: flags, efr2: first }
        }
        sys::iommu_hw_info_type_IOMMU_HW_INFO_TYPE_TEGRA241_CMDQV => {
            let [.., version, queues_lg2, streams_lg2, _] = flags.to_ne_bytes();
            HardwareRegisters::Cmdqv { version, queues_lg2, streams_lg2 }
        }
        kind => HardwareRegisters::Other { kind, first: flags },
    }
}

#[cfg(test)]
mod tests;
