//! Functions of Linux that have a price here, and what a call of each counts.
//!
//! Names are those of Linux 5.15 to 6.16: drivers/iommu (iommu.c, dma-iommu.c, intel, arm, amd) and
//! kernel/dma/swiotlb.c. What takes time beside those (allocating addresses, the queue of lazy invalidations) has no
//! event in the model, so no price.

/// What a call does, of which the prices are sought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    /// Maps pages in a table.
    Map,
    /// Takes pages out of a table.
    Unmap,
    /// Gives commands to the unit and waits for them.
    Submit,
    /// Takes bounce slots.
    Take,
    /// Gives bounce slots back.
    Give,
    /// Copies to or from bounce slots.
    Copy,
}

impl Family {
    pub(super) const ALL: [Self; 6] = [
        Self::Map,
        Self::Unmap,
        Self::Submit,
        Self::Take,
        Self::Give,
        Self::Copy,
    ];

    /// In reports.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::Submit => "submit",
            Self::Take => "take slots",
            Self::Give => "give slots back",
            Self::Copy => "copy",
        }
    }

    /// What a call has a number of.
    pub(super) const fn units(self) -> &'static str {
        match self {
            Self::Map | Self::Unmap => "pages",
            Self::Submit => "commands",
            Self::Take | Self::Give | Self::Copy => "bytes",
        }
    }

    /// The functions that are recorded for it first of all, for people.
    pub(super) fn functions(self) -> String {
        let named = FUNCTIONS.iter().filter(|function| function.1 == self);
        let names: Vec<&str> = named.map(|function| function.0).take(NAMED).collect();
        names.join(", ")
    }
}

/// Whether a call has others of other families in it, which only nesting can take out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inside {
    /// None.
    Alone,
    /// Some.
    Others,
}

/// A name, its family, what is in a call, and the number of its argument that counts the units, as Linux calls it.
type Function = (&'static str, Family, Inside, &'static str);

/// Functions of a family that are named to people.
const NAMED: usize = 2;

const FUNCTIONS: [Function; 27] = [
    ("iommu_map", Family::Map, Inside::Alone, "size"),
    ("iommu_map_nosync", Family::Map, Inside::Alone, "size"),
    ("__iommu_map", Family::Map, Inside::Alone, "size"),
    ("iommu_map_sg", Family::Map, Inside::Alone, ""),
    ("iommu_map_atomic", Family::Map, Inside::Alone, "size"),
    ("iommu_map_sg_atomic", Family::Map, Inside::Alone, ""),
    ("intel_iommu_map_pages", Family::Map, Inside::Alone, ""),
    ("amd_iommu_map_pages", Family::Map, Inside::Alone, ""),
    ("arm_smmu_map_pages", Family::Map, Inside::Alone, ""),
    ("arm_lpae_map_pages", Family::Map, Inside::Alone, ""),
    ("iommu_unmap", Family::Unmap, Inside::Others, "size"),
    ("iommu_unmap_fast", Family::Unmap, Inside::Alone, "size"),
    ("__iommu_unmap", Family::Unmap, Inside::Alone, "size"),
    ("intel_iommu_unmap_pages", Family::Unmap, Inside::Alone, ""),
    ("amd_iommu_unmap_pages", Family::Unmap, Inside::Alone, ""),
    ("arm_smmu_unmap_pages", Family::Unmap, Inside::Alone, ""),
    ("arm_lpae_unmap_pages", Family::Unmap, Inside::Alone, ""),
    ("qi_submit_sync", Family::Submit, Inside::Alone, "count"),
    (
        "arm_smmu_cmdq_issue_cmdlist",
        Family::Submit,
        Inside::Alone,
        "n",
    ),
    (
        "amd_iommu_domain_flush_pages",
        Family::Submit,
        Inside::Alone,
        "",
    ),
    ("domain_flush_complete", Family::Submit, Inside::Alone, ""),
    ("viommu_sync_req", Family::Submit, Inside::Alone, ""),
    (
        "swiotlb_tbl_map_single",
        Family::Take,
        Inside::Others,
        "mapping_size",
    ),
    (
        "swiotlb_tbl_unmap_single",
        Family::Give,
        Inside::Others,
        "mapping_size",
    ),
    (
        "__swiotlb_tbl_unmap_single",
        Family::Give,
        Inside::Others,
        "mapping_size",
    ),
    ("swiotlb_release_slots", Family::Give, Inside::Alone, ""),
    ("swiotlb_bounce", Family::Copy, Inside::Alone, "size"),
];

/// A function that has a price.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) family: Family,
    pub(super) inside: Inside,
    /// The argument that counts units.
    pub(super) argument: &'static str,
}

/// The function called `name`, if it has a price.
pub(super) fn known(name: &[u8]) -> Option<Known> {
    let found = FUNCTIONS.iter().find(|(of, ..)| of.as_bytes() == name);
    found.map(|&(_, family, inside, argument)| Known {
        family,
        inside,
        argument,
    })
}
