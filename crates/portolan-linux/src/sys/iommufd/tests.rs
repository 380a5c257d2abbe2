//! Numbers and lengths of the calls, as linux/iommufd.h and linux/vfio.h of Linux 7.3 have them.

use super::*;

#[test]
fn calls_have_the_kernels_numbers_and_lengths() {
    let number = |command: u32| opcode::none(sys::IOMMUFD_TYPE, command as u8);
    let calls = [
        (number(sys::IOMMUFD_CMD_DESTROY), size::<sys::iommu_destroy>()),
        (number(sys::IOMMUFD_CMD_IOAS_ALLOC), size::<sys::iommu_ioas_alloc>()),
        (number(sys::IOMMUFD_CMD_IOAS_IOVA_RANGES), size::<sys::iommu_ioas_iova_ranges>()),
        (number(sys::IOMMUFD_CMD_IOAS_COPY), size::<sys::iommu_ioas_copy>()),
        (number(sys::IOMMUFD_CMD_IOAS_MAP), size::<sys::iommu_ioas_map>()),
        (number(sys::IOMMUFD_CMD_IOAS_UNMAP), size::<sys::iommu_ioas_unmap>()),
        (number(sys::IOMMUFD_CMD_HWPT_ALLOC), size::<sys::iommu_hwpt_alloc>()),
        (number(sys::IOMMUFD_CMD_GET_HW_INFO), size::<sys::iommu_hw_info>()),
        (
            number(sys::IOMMUFD_CMD_HWPT_SET_DIRTY_TRACKING),
            size::<sys::iommu_hwpt_set_dirty_tracking>(),
        ),
        (
            number(sys::IOMMUFD_CMD_HWPT_GET_DIRTY_BITMAP),
            size::<sys::iommu_hwpt_get_dirty_bitmap>(),
        ),
        (number(sys::IOMMUFD_CMD_HWPT_INVALIDATE), size::<sys::iommu_hwpt_invalidate>()),
        (number(sys::IOMMUFD_CMD_FAULT_QUEUE_ALLOC), size::<sys::iommu_fault_alloc>()),
        (number(sys::IOMMUFD_CMD_IOAS_MAP_FILE), size::<sys::iommu_ioas_map_file>()),
        (number(sys::IOMMUFD_CMD_VIOMMU_ALLOC), size::<sys::iommu_viommu_alloc>()),
        (number(sys::IOMMUFD_CMD_VDEVICE_ALLOC), size::<sys::iommu_vdevice_alloc>()),
        (number(sys::IOMMUFD_CMD_IOAS_CHANGE_PROCESS), size::<sys::iommu_ioas_change_process>()),
        (number(sys::IOMMUFD_CMD_VEVENTQ_ALLOC), size::<sys::iommu_veventq_alloc>()),
        (number(sys::IOMMUFD_CMD_HW_QUEUE_ALLOC), size::<sys::iommu_hw_queue_alloc>()),
    ];
    let wanted = [
        (0x3b80, 8),
        (0x3b81, 12),
        (0x3b84, 32),
        (0x3b83, 40),
        (0x3b85, 40),
        (0x3b86, 24),
        (0x3b89, 48),
        (0x3b8a, 40),
        (0x3b8b, 16),
        (0x3b8c, 48),
        (0x3b8d, 32),
        (0x3b8e, 16),
        (0x3b8f, 40),
        (0x3b90, 40),
        (0x3b91, 24),
        (0x3b92, 8),
        (0x3b93, 32),
        (0x3b94, 40),
    ];
    assert_eq!(calls, wanted);
    assert_eq!(size::<vfio::vfio_device_attach_iommufd_pt>(), 16);
    assert_eq!(size::<vfio::vfio_device_detach_iommufd_pt>(), 12);
    assert_eq!((vfio::VFIO_DEVICE_ATTACH_PASID, vfio::VFIO_DEVICE_DETACH_PASID), (1, 1));
}
