//! Functions of Linux that have a price here, and the units that a call of each counts.
//!
//! Names are those of Linux 5.15 to 7.3: drivers/iommu (iommu.c, dma-iommu.c, intel, arm, amd) and
//! kernel/dma/swiotlb.c. Other functions that take time have no event in the model, so no price.

/// Kind of work of a call, for which prices are fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    /// Maps pages in a table.
    Map,
    /// Takes pages out of a table.
    Unmap,
    /// Makes commands of a range, or of all, and submits them: the driver's work around [`Family::Submit`].
    Flush,
    /// Gives commands to the unit and waits for them.
    Submit,
    /// Takes device addresses.
    TakeAddresses,
    /// Gives device addresses back at once.
    GiveAddresses,
    /// Puts an unmap into a flush queue: gives addresses back later.
    Queue,
    /// Takes bounce slots.
    Take,
    /// Gives bounce slots back.
    Give,
    /// Copies to or from bounce slots.
    Copy,
}

impl Family {
    pub(super) const ALL: [Self; 10] = [
        Self::Map,
        Self::Unmap,
        Self::Flush,
        Self::Submit,
        Self::TakeAddresses,
        Self::GiveAddresses,
        Self::Queue,
        Self::Take,
        Self::Give,
        Self::Copy,
    ];

    /// Words for reports: the work of a call, its unit, and the functions that are recorded for it first of all.
    const fn words(self) -> [&'static str; 3] {
        match self {
            Self::Map => ["map", "pages", "iommu_map, iommu_map_nosync"],
            Self::Unmap => ["unmap", "pages", "iommu_unmap, iommu_unmap_fast"],
            Self::Flush => {
                let functions = "intel_iommu_tlb_sync, intel_flush_iotlb_all";
                ["flush", "commands", functions]
            }
            Self::Submit => {
                let functions = "qi_submit_sync, arm_smmu_cmdq_issue_cmdlist";
                ["submit", "commands", functions]
            }
            Self::TakeAddresses => ["take addresses", "pages", "alloc_iova_fast"],
            Self::GiveAddresses => ["give addresses back", "pages", "free_iova_fast"],
            Self::Queue => ["queue", "pages", "iommu_dma_free_iova"],
            Self::Take => ["take slots", "bytes", "swiotlb_tbl_map_single"],
            Self::Give => {
                let functions = "swiotlb_tbl_unmap_single, __swiotlb_tbl_unmap_single";
                ["give slots back", "bytes", functions]
            }
            Self::Copy => ["copy", "bytes", "swiotlb_bounce"],
        }
    }

    pub(super) const fn name(self) -> &'static str {
        self.words()[0]
    }

    pub(super) const fn units(self) -> &'static str {
        self.words()[1]
    }

    pub(super) const fn functions(self) -> &'static str {
        self.words()[2]
    }
}

/// Calls of other families in a call, which only nesting can take out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inside {
    /// No nested calls.
    Alone,
    /// Some.
    Others,
}

/// A function that has a price.
#[derive(Clone, Copy, Debug)]
pub(super) struct PricedFunction {
    pub(super) family: Family,
    pub(super) inside: Inside,
    /// The argument that counts units, as Linux calls it.
    pub(super) argument: &'static str,
}

/// The function called `name`, if it has a price.
pub(super) fn known(name: &[u8]) -> Option<PricedFunction> {
    use Family::{
        Copy, Flush, Give, GiveAddresses, Map, Queue, Submit, Take, TakeAddresses, Unmap,
    };
    use Inside::{Alone, Others};
    let (family, inside, argument) = match str::from_utf8(name).ok()? {
        "iommu_map" | "iommu_map_nosync" | "__iommu_map" | "iommu_map_atomic" => {
            (Map, Alone, "size")
        }
        "iommu_map_sg" | "iommu_map_sg_atomic" => (Map, Alone, ""),
        "intel_iommu_map_pages" | "amd_iommu_map_pages" => (Map, Alone, ""),
        "arm_smmu_map_pages" | "arm_lpae_map_pages" => (Map, Alone, ""),
        "iommu_unmap" => (Unmap, Others, "size"),
        "iommu_unmap_fast" | "__iommu_unmap" => (Unmap, Alone, "size"),
        "intel_iommu_unmap_pages" | "amd_iommu_unmap_pages" => (Unmap, Alone, ""),
        "arm_smmu_unmap_pages" | "arm_lpae_unmap_pages" => (Unmap, Alone, ""),
        "intel_iommu_tlb_sync" | "intel_flush_iotlb_all" => (Flush, Alone, ""),
        "qi_submit_sync" => (Submit, Alone, "count"),
        "arm_smmu_cmdq_issue_cmdlist" => (Submit, Alone, "n"),
        "amd_iommu_domain_flush_pages" | "domain_flush_complete" => (Submit, Alone, ""),
        "viommu_sync_req" => (Submit, Alone, ""),
        "alloc_iova_fast" => (TakeAddresses, Alone, "size"),
        "free_iova_fast" => (GiveAddresses, Alone, "size"),
        "iommu_dma_free_iova" => (Queue, Others, ""),
        "swiotlb_tbl_map_single" => (Take, Others, "mapping_size"),
        "swiotlb_tbl_unmap_single" | "__swiotlb_tbl_unmap_single" => (Give, Others, "mapping_size"),
        "swiotlb_release_slots" => (Give, Alone, ""),
        "swiotlb_bounce" => (Copy, Alone, "size"),
        _ => return None,
    };
    Some(PricedFunction { family, inside, argument })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_people_are_told_of_is_known_for_what_it_is_told_for() {
        for family in Family::ALL {
            for name in family.functions().split(", ") {
                let found = known(name.as_bytes()).map(|known| known.family);
                assert_eq!(found, Some(family), "{name}");
            }
        }
    }
}
