//! Tests of the IOMMU.
