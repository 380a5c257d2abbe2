//! virtio-iommu.
