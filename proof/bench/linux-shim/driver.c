/*
 * The driver: what stands between iommu.c and io-pgtable-arm.c, and builds commands.
 *
 * Arm IHI 0070 (SMMUv3) 4.4, commands of invalidation; 4.7.3, CMD_SYNC. Linux's own driver takes a place in the queue by atomic
 * operations, writes a register and polls; this one writes two words for each command into memory, as our side does in the same
 * benchmark, and all is complete at once. Ranges are encoded as one command each for up to 31 units of a power of two of pages.
 * Not supported: second stages, address translation services, large granules.
 */
#include "domain.h"

#define OF(x) container_of(x, struct shim_domain, domain)
#define TLBI_NH_ASID 0x11ull
#define TLBI_NH_VA 0x12ull
#define CMD_SYNC 0x46ull

static __always_inline void command(struct shim_domain *of, u64 first, u64 second)
{
	typeof(of->rings[0]) *ring = &of->rings[shim_cpu];
	u64 *at = ring->words[ring->written++ % COMMANDS];

	at[0] = first;
	at[1] = second;
}

static void by_context(struct shim_domain *of)
{
	command(of, TLBI_NH_ASID | of->tag << 48, 0);
	command(of, CMD_SYNC, 0);
}

/* `level` is that of the leaves in the architecture's own count, 0 if any. */
static void by_range(struct shim_domain *of, u64 iova, size_t bytes, u64 leaf_only, u64 level)
{
	u64 pages = bytes >> PAGE_SHIFT;

	while (pages) {
		u64 scale = __ffs(pages), num = pages >> scale & 31;

		command(of, TLBI_NH_VA | (num - 1) << 12 | scale << 20 | of->tag << 48,
			leaf_only | level << 8 | 1ull << 10 | iova);
		iova += num << (scale + PAGE_SHIFT);
		pages -= num << scale;
	}
	command(of, CMD_SYNC, 0);
}

static void flush_all(void *cookie)
{
	by_context(cookie);
}

static void flush_walk(unsigned long iova, size_t bytes, size_t granule, void *cookie)
{
	struct shim_domain *of = cookie;

	if (of->kind & LINUX_BY_CONTEXT)
		by_context(of);
	else
		by_range(of, iova, bytes, 0, 0);
}

static void add_page(struct iommu_iotlb_gather *gather, unsigned long iova, size_t granule, void *cookie)
{
	iommu_iotlb_gather_add_page(&((struct shim_domain *)cookie)->domain, gather, iova, granule);
}

static const struct iommu_flush_ops flushes = {
	.tlb_flush_all = flush_all,
	.tlb_flush_walk = flush_walk,
	.tlb_add_page = add_page,
};

static int map_pages(struct iommu_domain *domain, unsigned long iova, phys_addr_t pa, size_t size, size_t count, int prot,
		     gfp_t gfp, size_t *mapped)
{
	struct io_pgtable_ops *tables = OF(domain)->tables;

	return tables->map_pages(tables, iova, pa, size, count, prot, gfp, mapped);
}

static size_t unmap_pages(struct iommu_domain *domain, unsigned long iova, size_t size, size_t count,
			  struct iommu_iotlb_gather *gather)
{
	struct io_pgtable_ops *tables = OF(domain)->tables;

	return tables->unmap_pages(tables, iova, size, count, gather);
}

static phys_addr_t iova_to_phys(struct iommu_domain *domain, dma_addr_t iova)
{
	struct io_pgtable_ops *tables = OF(domain)->tables;

	return tables->iova_to_phys(tables, iova);
}

static void flush_domain(struct iommu_domain *domain)
{
	by_context(OF(domain));
}

static void flush_gathered(struct iommu_domain *domain, struct iommu_iotlb_gather *gather)
{
	u64 level = gather->pgsize == PAGE_SIZE ? 3 : gather->pgsize == SZ_2M ? 2 : 1;

	if (gather->pgsize)
		by_range(OF(domain), gather->start, gather->end - gather->start + 1, 1, level);
}

static const struct iommu_domain_ops operations = {
	.map_pages = map_pages,
	.unmap_pages = unmap_pages,
	.iova_to_phys = iova_to_phys,
	.flush_iotlb_all = flush_domain,
	.iotlb_sync = flush_gathered,
};

static bool capable(struct device *device, enum iommu_cap what)
{
	return what == IOMMU_CAP_DEFERRED_FLUSH || what == IOMMU_CAP_CACHE_COHERENCY;
}

static const struct iommu_ops unit_operations = { .capable = capable };

/* Three levels below a 39-bit address, pages of 4 KiB, as our side has them. */
SHIM_ENTRY struct shim_domain *linux_domain(u32 kind, u32 input_bits)
{
	struct shim_domain *of = kzalloc(sizeof(*of), GFP_KERNEL);
	struct io_pgtable_cfg config = {
		.pgsize_bitmap = SZ_4K | SZ_2M | SZ_1G,
		.ias = input_bits,
		.oas = 48,
		.coherent_walk = kind & LINUX_SNOOPS,
		.tlb = &flushes,
	};

	if (!of)
		return NULL;
	config.iommu_dev = &of->table_walker;
	of->kind = kind;
	of->tag = 1;
	of->tables = alloc_io_pgtable_ops(ARM_64_LPAE_S1, &config, of);
	if (!of->tables)
		return NULL;
	of->domain.ops = &operations;
	of->domain.type = kind & LINUX_LAZY ? IOMMU_DOMAIN_DMA_FQ : kind & LINUX_DMA ? IOMMU_DOMAIN_DMA : IOMMU_DOMAIN_UNMANAGED;
	of->domain.pgsize_bitmap = config.pgsize_bitmap;
	of->domain.geometry.aperture_end = (1ull << input_bits) - 1;
	of->domain.geometry.force_aperture = true;
	of->mask = DMA_BIT_MASK(64);
	of->device.dma_mask = &of->mask;
	of->device.dma_parms = &of->limits;
	of->device.dma_coherent = true;
	of->device.dma_skip_sync = true;
	of->device.iommu = &of->link;
	of->link.iommu_dev = &of->unit;
	of->unit.ops = &unit_operations;
	of->limits.max_segment_size = ~0u;
	if (kind & (LINUX_DMA | LINUX_LAZY) && shim_join(of))
		return NULL;
	return of;
}

/* Commands written so far by the calling CPU. */
SHIM_ENTRY unsigned long linux_commands(const struct shim_domain *of)
{
	return of->rings[shim_cpu].written;
}

SHIM_ENTRY void linux_domain_end(struct shim_domain *of)
{
	if (of->domain.iova_cookie)
		iommu_put_dma_cookie(&of->domain);
	free_io_pgtable_ops(of->tables);
	kfree(of->device.iommu_group);
	kfree(of);
}
