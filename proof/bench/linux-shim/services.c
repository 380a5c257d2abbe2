/*
 * The functions of the kernel that Linux's sources call and the shim has: pages, objects, data of CPUs, bits.
 */
#include <linux/dma-mapping.h>

const char *shim_host_last(void);
void *shim_host_zeroed(size_t bytes);
void shim_host_release(void *at);
void *shim_host_map(size_t bytes, size_t align);
void *shim_host_reserve(size_t bytes, size_t align);

__thread unsigned int shim_cpu;
__thread unsigned long shim_cpu_offset;
__thread long shim_accounted;

/* Warnings since the last look. */
static atomic_t warnings;

SHIM_ENTRY void linux_on_cpu(unsigned int cpu)
{
	shim_cpu = cpu % NR_CPUS;
	shim_cpu_offset = shim_cpu * SHIM_CPU_DISTANCE;
}

SHIM_ENTRY int linux_warnings(void)
{
	return atomic_xchg(&warnings, 0);
}

/* The last message. */
SHIM_ENTRY const char *linux_said(void)
{
	return shim_host_last();
}

void shim_warned(const char *file, int line)
{
	atomic_inc(&warnings);
	shim_print("warning in %s, line %d", file, line);
}

void shim_died(const char *file, int line)
{
	shim_print("bug in %s, line %d", file, line);
	__builtin_trap();
}

/* Objects of all CPUs are in one region, so that their distance is the same; none is given back. */
void *__alloc_percpu(size_t bytes, size_t align)
{
	static spinlock_t lock;
	static char *region;
	static size_t used;
	char *at = NULL;

	spin_lock(&lock);
	if (!region)
		region = shim_host_map(NR_CPUS * SHIM_CPU_DISTANCE, PAGE_SIZE);
	used = round_up(used, max_t(size_t, align, 64));
	if (region && used + bytes <= SHIM_CPU_DISTANCE) {
		at = region + used;
		used += bytes;
	}
	spin_unlock(&lock);
	return at;
}

void free_percpu(void *object)
{
}

/* Free pages of each CPU by order. What one CPU frees it takes again. */
struct stock { void *first[MAX_PAGE_ORDER + 16]; } __aligned(64);
static struct stock stocks[NR_CPUS];

/* All pages are in one region, so that their descriptors are in one array. */
#define ARENA (2UL << 30)
unsigned long shim_descriptors;

static char *from_arena(size_t bytes, size_t align)
{
	static spinlock_t lock;
	static char *arena;
	static size_t used;
	char *at = NULL;

	spin_lock(&lock);
	if (!arena) {
		struct page *descriptors = shim_host_reserve((ARENA >> PAGE_SHIFT) * sizeof(*descriptors), PAGE_SIZE);

		arena = shim_host_reserve(ARENA, PAGE_SIZE << MAX_PAGE_ORDER);
		shim_descriptors = (unsigned long)descriptors - ((unsigned long)arena >> PAGE_SHIFT) * sizeof(*descriptors);
		if (!descriptors)
			arena = NULL;
	}
	used = round_up(used, align);
	if (arena && used + bytes <= ARENA) {
		at = arena + used;
		used += bytes;
		/* Populated now, and not while the clock runs. */
		for (size_t done = 0; done < bytes; done += PAGE_SIZE)
			*(volatile char *)(at + done) = 0;
		for (size_t done = 0; done < bytes; done += PAGE_SIZE)
			virt_to_page(at + done)->flags = 0;
	}
	spin_unlock(&lock);
	return at;
}

/* Memory for many pages at once, so that none is mapped while the clock runs. */
static noinline void *more_pages(unsigned int order)
{
	size_t bytes = PAGE_SIZE << order;
	size_t count = bytes >= (1 << 20) ? 1 : (1 << 20) / bytes;
	char *at = from_arena(count * bytes, bytes);

	if (!at)
		return NULL;
	for (size_t i = 1; i < count; i++) {
		*(void **)(at + i * bytes) = stocks[shim_cpu].first[order];
		stocks[shim_cpu].first[order] = at + i * bytes;
	}
	return at;
}

struct page *shim_pages(gfp_t gfp, unsigned int order)
{
	void **found;

	if (order >= ARRAY_SIZE(stocks[0].first))
		return NULL;
	found = stocks[shim_cpu].first[order];
	if (likely(found))
		stocks[shim_cpu].first[order] = *found;
	else
		found = more_pages(order);
	if (!found)
		return NULL;
	if (gfp & __GFP_ZERO)
		memset(found, 0, PAGE_SIZE << order);
	return virt_to_page(found);
}

void __free_pages(struct page *page, unsigned int order)
{
	void **at = page_address(page);

	*at = stocks[shim_cpu].first[order];
	stocks[shim_cpu].first[order] = at;
}

struct kmem_cache *kmem_cache_create(const char *name, size_t bytes, size_t align, slab_flags_t flags, void (*make)(void *))
{
	struct kmem_cache *cache = shim_host_map(sizeof(*cache), 64);

	if (cache)
		cache->bytes = round_up(bytes, align ? align : (flags & SLAB_HWCACHE_ALIGN) ? 64 : 8);
	return cache;
}

void kmem_cache_destroy(struct kmem_cache *cache)
{
}

void *shim_cache_more(struct kmem_cache *cache)
{
	size_t count = (256 << 10) / cache->bytes + 1;
	char *at = shim_host_map(count * cache->bytes, PAGE_SIZE);

	for (size_t i = 1; at && i < count; i++)
		kmem_cache_free(cache, at + i * cache->bytes);
	return at;
}

void *shim_zeroed(size_t bytes)
{
	return shim_host_zeroed(bytes);
}

void shim_release(const void *at)
{
	shim_host_release((void *)at);
}

unsigned long find_next_bit(const unsigned long *at, unsigned long bits, unsigned long from)
{
	while (from < bits && !test_bit(from, at))
		from++;
	return from;
}

/* Hardware that does not snoop. */
static void (*write_back)(const void *at, size_t bytes);

SHIM_ENTRY void linux_write_back_by(void (*function)(const void *at, size_t bytes))
{
	write_back = function;
}

void arch_sync_dma_for_device(phys_addr_t pa, size_t bytes, enum dma_data_direction direction)
{
	write_back(phys_to_virt(pa), bytes);
}

void arch_sync_dma_for_cpu(phys_addr_t pa, size_t bytes, enum dma_data_direction direction)
{
	write_back(phys_to_virt(pa), bytes);
}

/* Of page tables alone: their address for hardware is that of memory. */
void __dma_sync_single_for_device(struct device *device, dma_addr_t at, size_t bytes, enum dma_data_direction direction)
{
	write_back(phys_to_virt(at), bytes);
}

dma_addr_t dma_map_page_attrs(struct device *device, struct page *page, size_t offset, size_t bytes,
			      enum dma_data_direction direction, unsigned long attributes)
{
	write_back(page_address(page) + offset, bytes);
	return page_to_phys(page) + offset;
}

void dma_unmap_page_attrs(struct device *device, dma_addr_t at, size_t bytes, enum dma_data_direction direction,
			  unsigned long attributes)
{
}

void sg_init_one(struct scatterlist *piece, const void *at, unsigned int bytes)
{
	memset(piece, 0, sizeof(*piece));
	sg_set_buf(piece, at, bytes);
	sg_mark_end(piece);
}
