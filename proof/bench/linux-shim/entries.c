/*
 * What the benchmark calls. Each is one call of Linux's, on objects that were made beforehand.
 */
#include "domain.h"
#include <linux/iova.h>
#include <linux/swiotlb.h>

const char *shim_host_last(void);
#if SHIM_LINUX < 703
int shim_call_arm_lpae_do_selftests(void);
#define shim_test_tables shim_call_arm_lpae_do_selftests
#else
u32 linux_test_formats(u64 seed, u32 *passed, u32 *skipped);

/* It is a suite of KUnit, which needs no random numbers. */
static int shim_test_tables(void)
{
	u32 passed, skipped, failed = linux_test_formats(0, &passed, &skipped);

	return failed || !passed ? -EFAULT : 0;
}
#endif
int shim_call_iommu_dma_init(void);

#define ALLOWED (IOMMU_READ | IOMMU_WRITE | IOMMU_CACHE)

/* What Linux does while it starts, and its own test of its page tables: 0 if that passes; `said` has its last words. */
SHIM_ENTRY int linux_start(const char **said)
{
	int failed = shim_call_iommu_dma_init();

	if (failed)
		return failed;
	linux_warnings();
	failed = shim_test_tables();
	*said = shim_host_last();
	return failed ? failed : linux_warnings();
}

/* Tables. */
SHIM_ENTRY int linux_map(struct shim_domain *of, u64 iova, u64 pa, u64 bytes)
{
	return iommu_map(&of->domain, iova, pa, bytes, ALLOWED, GFP_ATOMIC);
}

SHIM_ENTRY u64 linux_unmap(struct shim_domain *of, u64 iova, u64 bytes)
{
	return iommu_unmap(&of->domain, iova, bytes);
}

/* The tables alone, without what chooses the sizes of pages. */
SHIM_ENTRY int linux_tables_map(struct shim_domain *of, u64 iova, u64 pa, u64 page, u64 pages)
{
	size_t mapped = 0;

	return of->tables->map_pages(of->tables, iova, pa, page, pages, ALLOWED, GFP_ATOMIC, &mapped);
}

SHIM_ENTRY u64 linux_tables_unmap(struct shim_domain *of, u64 iova, u64 page, u64 pages)
{
	struct iommu_iotlb_gather gather;
	size_t unmapped;

	iommu_iotlb_gather_init(&gather);
	unmapped = of->tables->unmap_pages(of->tables, iova, page, pages, &gather);
	iommu_iotlb_sync(&of->domain, &gather);
	return unmapped;
}

SHIM_ENTRY u64 linux_translate(struct shim_domain *of, u64 iova)
{
	return iommu_iova_to_phys(&of->domain, iova);
}

#if SHIM_LINUX < 703
/* Lists here are one array, where the kernel also follows chains of arrays. Later versions have it in a header. */
struct scatterlist *sg_next(struct scatterlist *piece)
{
	return sg_is_last(piece) ? NULL : piece + 1;
}
#endif

SHIM_ENTRY struct scatterlist *linux_list(const u64 *starts, const u32 *bytes, u32 count)
{
	struct scatterlist *list = kcalloc(count, sizeof(*list), GFP_KERNEL);

	for (u32 i = 0; list && i < count; i++)
		sg_set_page(&list[i], phys_to_page(starts[i]), bytes[i], offset_in_page(starts[i]));
	if (list)
		sg_mark_end(&list[count - 1]);
	return list;
}

SHIM_ENTRY void linux_list_end(struct scatterlist *list)
{
	kfree(list);
}

SHIM_ENTRY s64 linux_map_sg(struct shim_domain *of, u64 iova, struct scatterlist *list, u32 count)
{
	return iommu_map_sg(&of->domain, iova, list, count, ALLOWED, GFP_ATOMIC);
}

/* Addresses. */
SHIM_ENTRY struct iova_domain *linux_space(void)
{
	struct iova_domain *space = kzalloc(sizeof(*space), GFP_KERNEL);

	if (!space || iova_cache_get())
		return NULL;
	init_iova_domain(space, PAGE_SIZE, 1);
	return iova_domain_init_rcaches(space) ? NULL : space;
}

SHIM_ENTRY void linux_space_end(struct iova_domain *space)
{
	put_iova_domain(space);
	iova_cache_put();
	kfree(space);
}

/* As dma-iommu.c asks: a number of pages below a limit, caches flushed if need be. */
SHIM_ENTRY u64 linux_take(struct iova_domain *space, u64 pages, u64 last)
{
	return alloc_iova_fast(space, pages, last, true);
}

SHIM_ENTRY void linux_give(struct iova_domain *space, u64 first, u64 pages)
{
	free_iova_fast(space, first, pages);
}

/* The bounce pool, of which Linux has one. */
static struct device pool_user;

SHIM_ENTRY int linux_pool(u64 bytes)
{
	int failed = swiotlb_init_late(bytes, GFP_KERNEL, NULL);

	swiotlb_dev_init(&pool_user);
	return failed;
}

/* Copies `bytes` at `pa`, unless that is no address, in which case slots are taken and nothing is copied. */
SHIM_ENTRY u64 linux_bounce(u64 pa, u64 bytes)
{
	unsigned long attributes = DMA_ATTR_NO_WARN;

#if SHIM_LINUX < 703
	return swiotlb_tbl_map_single(&pool_user, pa, bytes, 0, DMA_TO_DEVICE, attributes);
#else
	return swiotlb_tbl_map_single(&pool_user, pa, bytes, 0, DMA_TO_DEVICE, &attributes);
#endif
}

SHIM_ENTRY void linux_unbounce(u64 at, u64 bytes)
{
	swiotlb_tbl_unmap_single(&pool_user, at, bytes, DMA_TO_DEVICE, 0);
}

/* Buffers. */
SHIM_ENTRY u64 linux_dma_map(struct shim_domain *of, u64 pa, u64 bytes)
{
	return shim_dma_map(&of->device, pa, bytes, DMA_BIDIRECTIONAL);
}

SHIM_ENTRY void linux_dma_unmap(struct shim_domain *of, u64 iova, u64 bytes)
{
	shim_dma_unmap(&of->device, iova, bytes, DMA_BIDIRECTIONAL);
}

SHIM_ENTRY int linux_dma_map_sg(struct shim_domain *of, struct scatterlist *list, u32 count)
{
	return iommu_dma_map_sg(&of->device, list, count, DMA_BIDIRECTIONAL, 0);
}

SHIM_ENTRY void linux_dma_unmap_sg(struct shim_domain *of, struct scatterlist *list, u32 count)
{
	iommu_dma_unmap_sg(&of->device, list, count, DMA_BIDIRECTIONAL, 0);
}
