/*
 * The driver of Linux's generic page tables: VT-d's second stage, AMD-Vi's host tables, x86-64's and RISC-V's.
 *
 * Linux's drivers of these units name the smallest power of two of pages that covers what was gathered (Intel VT-d 6.5.2.3, AMD-Vi
 * 2.4.3, RISC-V IOMMU 3.1.1 with ranges), and wait. This one does so too, with the two words for each command that our side writes
 * whatever the unit, in a ring for each CPU. Not supported: units that do not snoop, device TLBs, several units behind a domain.
 */
#include <linux/generic_pt/iommu.h>
#include <linux/iommu.h>
#include "drivers/iommu/iommu-pages.h"

/* The benchmark has the same. */
enum { LINUX_VTD_SECOND, LINUX_AMD, LINUX_X86, LINUX_RISCV };

#define COMMANDS 256
#define ALLOWED (IOMMU_READ | IOMMU_WRITE | IOMMU_CACHE)
#define INVALIDATE 0x12ull
#define WAIT 0x46ull

struct shim_tables {
	union {
		struct iommu_domain domain;
		struct pt_iommu common;
		struct pt_iommu_vtdss vtdss;
		struct pt_iommu_amdv1 amdv1;
		struct pt_iommu_x86_64 x86_64;
		struct pt_iommu_riscv_64 riscv_64;
	};
	spinlock_t top_lock;
	u64 tag;
	struct { unsigned long written; u64 words[COMMANDS][2]; } __aligned(64) rings[NR_CPUS];
};

static __always_inline void command(struct shim_tables *of, u64 first, u64 second)
{
	typeof(of->rings[0]) *ring = &of->rings[shim_cpu];
	u64 *at = ring->words[ring->written++ % COMMANDS];

	at[0] = first;
	at[1] = second;
}

static void sync_gathered(struct iommu_domain *domain, struct iommu_iotlb_gather *gather)
{
	struct shim_tables *of = container_of(domain, struct shim_tables, domain);
	u64 lg2 = fls64(gather->start ^ gather->end);
	u64 scale = lg2 <= PAGE_SHIFT ? 0 : lg2 - PAGE_SHIFT;
	u64 leaf_only = list_empty(&gather->freelist.pages);
	u64 first = gather->start & (~0ull << (scale + PAGE_SHIFT));

	command(of, INVALIDATE | scale << 20 | of->tag << 48, leaf_only | 1ull << 10 | first);
	command(of, WAIT, 0);
	iommu_put_pages_list(&gather->freelist);
}

#define SHIM_OPERATIONS(format) \
	static const struct iommu_domain_ops format##_operations = { IOMMU_PT_DOMAIN_OPS(format), .iotlb_sync = sync_gathered }
static const struct iommu_dirty_ops amdv1_dirty = { IOMMU_PT_DIRTY_OPS(amdv1) }, vtdss_dirty = { IOMMU_PT_DIRTY_OPS(vtdss) };
SHIM_OPERATIONS(vtdss);
SHIM_OPERATIONS(amdv1);
SHIM_OPERATIONS(x86_64);
SHIM_OPERATIONS(riscv_64);

/* Nothing walks the tables. */
static void change_top(struct pt_iommu *tables, phys_addr_t top, unsigned int level)
{
}

static spinlock_t *top_lock(struct pt_iommu *tables)
{
	return &container_of(tables, struct shim_tables, common)->top_lock;
}

static const struct pt_iommu_driver_ops driver_operations = { .change_top = change_top, .get_top_lock = top_lock };

/* As Linux's drivers ask for them, but with tables of `levels` levels. */
static int make(struct shim_tables *of, u32 format, u32 levels)
{
	u8 bits = 12 + 9 * levels;
	struct pt_iommu_cfg common = { .features = BIT(PT_FEAT_FLUSH_RANGE), .hw_max_vasz_lg2 = bits, .hw_max_oasz_lg2 = 52 };

	switch (format) {
	case LINUX_VTD_SECOND: {
		struct pt_iommu_vtdss_cfg config = { .common = common, .top_level = levels - 1 };

		of->domain.ops = &vtdss_operations;
		of->domain.dirty_ops = &vtdss_dirty;
		return pt_iommu_vtdss_init(&of->vtdss, &config, GFP_KERNEL);
	}
	case LINUX_AMD: {
		struct pt_iommu_amdv1_cfg config = { .common = common, .starting_level = levels - 1 };

		config.common.features |= BIT(PT_FEAT_DYNAMIC_TOP) | BIT(PT_FEAT_AMDV1_ENCRYPT_TABLES) | BIT(PT_FEAT_AMDV1_FORCE_COHERENCE);
		of->domain.ops = &amdv1_operations;
		of->domain.dirty_ops = &amdv1_dirty;
		return pt_iommu_amdv1_init(&of->amdv1, &config, GFP_KERNEL);
	}
	case LINUX_X86: {
		struct pt_iommu_x86_64_cfg config = { .common = common, .top_level = levels - 1 };

		config.common.features |= BIT(PT_FEAT_SIGN_EXTEND);
		of->domain.ops = &x86_64_operations;
		return pt_iommu_x86_64_init(&of->x86_64, &config, GFP_KERNEL);
	}
	case LINUX_RISCV: {
		struct pt_iommu_riscv_64_cfg config = { .common = common };

		config.common.features |= BIT(PT_FEAT_SIGN_EXTEND) | BIT(PT_FEAT_DETAILED_GATHER);
		config.common.hw_max_oasz_lg2 = 56;
		of->domain.ops = &riscv_64_operations;
		return pt_iommu_riscv_64_init(&of->riscv_64, &config, GFP_KERNEL);
	}
	default:
		return -EINVAL;
	}
}

SHIM_ENTRY struct shim_tables *linux_domain(u32 format, u32 levels)
{
	struct shim_tables *of = kzalloc(sizeof(*of), GFP_KERNEL);

	if (!of)
		return NULL;
	of->tag = 1;
	of->common.nid = NUMA_NO_NODE;
	of->common.driver_ops = &driver_operations;
	if (!make(of, format, levels))
		return of;
	kfree(of);
	return NULL;
}

SHIM_ENTRY void linux_domain_end(struct shim_tables *of)
{
	pt_iommu_deinit(&of->common);
	kfree(of);
}

SHIM_ENTRY unsigned long linux_commands(const struct shim_tables *of)
{
	return of->rings[shim_cpu].written;
}

SHIM_ENTRY int linux_map(struct shim_tables *of, u64 iova, u64 pa, u64 bytes)
{
	return iommu_map(&of->domain, iova, pa, bytes, ALLOWED, GFP_ATOMIC);
}

SHIM_ENTRY u64 linux_unmap(struct shim_tables *of, u64 iova, u64 bytes)
{
	return iommu_unmap(&of->domain, iova, bytes);
}

SHIM_ENTRY u64 linux_translate(struct shim_tables *of, u64 iova)
{
	return iommu_iova_to_phys(&of->domain, iova);
}

/* As hardware marks a page that a device writes. */
SHIM_ENTRY int linux_mark(struct shim_tables *of, u64 iova)
{
	return of->common.ops->set_dirty(&of->common, iova);
}

/* A bitmap with a bit for each page, in plain memory. */
struct iova_bitmap {
	u64 first;
	u64 *words;
};

void iova_bitmap_set(struct iova_bitmap *bitmap, unsigned long iova, size_t length)
{
	u64 page = (iova - bitmap->first) >> PAGE_SHIFT, end = page + (length >> PAGE_SHIFT);

	for (; page < end; page++)
		bitmap->words[page / 64] |= 1ull << page % 64;
}

SHIM_ENTRY int linux_read_marks(struct shim_tables *of, u64 iova, u64 pages, u64 *words)
{
	struct iova_bitmap bitmap = { .first = iova, .words = words };
	struct iommu_iotlb_gather gather;
	struct iommu_dirty_bitmap dirty;
	int error;

	iommu_dirty_bitmap_init(&dirty, &bitmap, &gather);
	error = of->domain.dirty_ops->read_and_clear_dirty(&of->domain, iova, pages << PAGE_SHIFT, 0, &dirty);
	if (!error)
		iommu_iotlb_sync(&of->domain, &gather);
	return error;
}
