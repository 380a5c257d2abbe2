/*
 * iommu.c, with what only it can do: it alone knows what a group is.
 */
#include "drivers/iommu/iommu.c"
#include "domain.h"

int shim_join(struct shim_domain *of)
{
	struct iommu_group *group = kzalloc(sizeof(*group), GFP_KERNEL);

	if (!group)
		return -ENOMEM;
	group->default_domain = &of->domain;
	group->domain = &of->domain;
	of->device.iommu_group = group;
	if (iommu_get_dma_cookie(&of->domain))
		return -ENOMEM;
#if SHIM_LINUX < 703
	iommu_setup_dma_ops(&of->device);
#else
	iommu_setup_dma_ops(&of->device, &of->domain);
#endif
	return of->device.dma_iommu ? 0 : -ENODEV;
}

void shim_leave(struct device *device)
{
	iommu_release_device(device);
}
