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
        let named = FUNCTIONS.iter().filter(|row| row.0 == self);
        let names = named.flat_map(|row| row.3.split(' ')).take(NAMED);
        names.collect::<Vec<_>>().join(", ")
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

/// A family, what is in a call, the argument that counts the units, and names, all as Linux calls them.
type Functions = (Family, Inside, &'static str, &'static str);

/// Functions of a family that are named to people.
const NAMED: usize = 2;

const FUNCTIONS: [Functions; 13] = {
    use Family::{Copy, Give, Map, Submit, Take, Unmap};
    use Inside::{Alone, Others};
    [
        (
            Map,
            Alone,
            "size",
            "iommu_map iommu_map_nosync __iommu_map iommu_map_atomic",
        ),
        (Map, Alone, "", "iommu_map_sg iommu_map_sg_atomic"),
        (
            Map,
            Alone,
            "",
            "intel_iommu_map_pages amd_iommu_map_pages arm_smmu_map_pages arm_lpae_map_pages",
        ),
        (Unmap, Others, "size", "iommu_unmap"),
        (Unmap, Alone, "size", "iommu_unmap_fast __iommu_unmap"),
        (
            Unmap,
            Alone,
            "",
            "intel_iommu_unmap_pages amd_iommu_unmap_pages arm_smmu_unmap_pages arm_lpae_unmap_pages",
        ),
        (Submit, Alone, "count", "qi_submit_sync"),
        (Submit, Alone, "n", "arm_smmu_cmdq_issue_cmdlist"),
        (
            Submit,
            Alone,
            "",
            "amd_iommu_domain_flush_pages domain_flush_complete viommu_sync_req",
        ),
        (Take, Others, "mapping_size", "swiotlb_tbl_map_single"),
        (
            Give,
            Others,
            "mapping_size",
            "swiotlb_tbl_unmap_single __swiotlb_tbl_unmap_single",
        ),
        (Give, Alone, "", "swiotlb_release_slots"),
        (Copy, Alone, "size", "swiotlb_bounce"),
    ]
};

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
    let has = |names: &str| names.split(' ').any(|of| of.as_bytes() == name);
    let found = FUNCTIONS.iter().find(|row| has(row.3));
    found.map(|&(family, inside, argument, _)| Known {
        family,
        inside,
        argument,
    })
}
