/*
 * A domain of an SMMUv3 whose hardware costs nothing, as the shim's files share it.
 */
#ifndef SHIM_DOMAIN_H
#define SHIM_DOMAIN_H

#include <linux/dma-mapping.h>
#include <linux/io-pgtable.h>
#include <linux/iommu.h>
#include <linux/iommu-dma.h>
#include "drivers/iommu/dma-iommu.h"

/* What a domain is to be, by bits; the benchmark has the same. */
enum { LINUX_SNOOPS = 1, LINUX_BY_CONTEXT = 2, LINUX_DMA = 4, LINUX_LAZY = 8 };

/* Commands that a ring has room for, a power of two. */
#define COMMANDS 256

struct shim_domain {
	struct iommu_domain domain;
	struct io_pgtable_ops *tables;
	u32 kind;
	u64 tag;
	/* Of each CPU, so that no two write to one line: commands written so far, and the ring. */
	struct { unsigned long written; u64 words[COMMANDS][2]; } __aligned(64) rings[NR_CPUS];
	struct device device;
	struct device table_walker;
	struct dev_iommu link;
	struct iommu_device unit;
	struct device_dma_parameters limits;
	u64 mask;
};

/* A buffer, which Linux 7.3 takes by its address and earlier versions by its page. */
static __always_inline u64 shim_dma_map(struct device *device, u64 pa, u64 bytes, enum dma_data_direction direction)
{
#if SHIM_LINUX < 703
	return iommu_dma_map_page(device, phys_to_page(pa), offset_in_page(pa), bytes, direction, 0);
#else
	return iommu_dma_map_phys(device, pa, bytes, direction, 0);
#endif
}

static __always_inline void shim_dma_unmap(struct device *device, u64 iova, u64 bytes, enum dma_data_direction direction)
{
#if SHIM_LINUX < 703
	iommu_dma_unmap_page(device, iova, bytes, direction, 0);
#else
	iommu_dma_unmap_phys(device, iova, bytes, direction, 0);
#endif
}

/* Makes the domain the one that the device's DMA goes through. */
int shim_join(struct shim_domain *of);

#endif
