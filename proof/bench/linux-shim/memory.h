/*
 * Memory: pages, objects, and addresses as hardware sees them, which here are those of the process.
 *
 * What each costs beside the kernel's:
 * - an address translated between CPU and hardware: nothing, where the kernel subtracts and adds an offset;
 * - a page or an object taken or given back: a push or pop of a list of the CPU, without the kernel's lock or double compare-exchange;
 *   a page that has to be empty is zeroed, as in the kernel;
 * - a cache line written back for hardware that does not snoop: the instruction that our side uses, by the same function.
 */
#ifndef SHIM_MEMORY_H
#define SHIM_MEMORY_H

#include <linux/list.h>

#define __GFP_DMA 0x01u
#define __GFP_HIGHMEM 0x02u
#define __GFP_DMA32 0x04u
#define __GFP_ZERO 0x100u
#define __GFP_NOWARN 0x200u
#define __GFP_NORETRY 0x400u
#define __GFP_COMP 0x800u
#define __GFP_RECLAIM 0x1000u
#define __GFP_ACCOUNT 0x2000u
#define GFP_KERNEL __GFP_RECLAIM
#define GFP_KERNEL_ACCOUNT GFP_KERNEL
#define GFP_ATOMIC 0x20u
#define GFP_NOWAIT 0u
#define GFP_DMA __GFP_DMA
#define GFP_DMA32 __GFP_DMA32
#define gfpflags_allow_blocking(gfp) (!!((gfp) & __GFP_RECLAIM))

/* A page's descriptor, in an array for the arena of `services.c`. Those of other pages have addresses and are not looked into. */
struct page {
	unsigned long flags;
	struct list_head lru;
	void *mapping;
	unsigned long index;
	void *private;
	unsigned int page_type;
	atomic_t _refcount;
	unsigned long order;
};
struct folio { struct page page; };
/* The array, less the number of the arena's first page: sums wrap around. */
extern unsigned long shim_descriptors;
struct mm_struct { u32 pasid; void *iommu_mm; };
typedef struct { unsigned long value; } pgprot_t;
struct vm_area_struct { unsigned long vm_start, vm_end, vm_pgoff; pgprot_t vm_page_prot; };
#define PAGE_KERNEL ((pgprot_t){ 0 })
#define PAGE_OFFSET 0UL
#define ARCH_DMA_MINALIGN 1
#define min_low_pfn 1UL

#define virt_to_phys(at) ((phys_addr_t)(unsigned long)(at))
#define phys_to_virt(pa) ((void *)(unsigned long)(pa))
#define __pa(at) ((unsigned long)(at))
#define __va(pa) ((void *)(unsigned long)(pa))
#define pfn_to_page(pfn) ((struct page *)((unsigned long)(pfn) * sizeof(struct page) + shim_descriptors))
#define page_to_pfn(at) (((unsigned long)(at) - shim_descriptors) / sizeof(struct page))
#define page_to_phys(at) ((phys_addr_t)page_to_pfn(at) << PAGE_SHIFT)
#define phys_to_page(pa) pfn_to_page((unsigned long)(pa) >> PAGE_SHIFT)
#define virt_to_page(at) pfn_to_page((unsigned long)(at) >> PAGE_SHIFT)
#define page_address(at) ((void *)(page_to_pfn(at) << PAGE_SHIFT))
#define virt_to_pfn(at) ((unsigned long)(at) >> PAGE_SHIFT)
#define PFN_UP(at) (((at) + PAGE_SIZE - 1) >> PAGE_SHIFT)
#define PFN_DOWN(at) ((at) >> PAGE_SHIFT)
#define PFN_PHYS(pfn) ((phys_addr_t)(pfn) << PAGE_SHIFT)
#define PHYS_PFN(pa) ((unsigned long)((pa) >> PAGE_SHIFT))
#define pfn_valid(pfn) true
#define INVALID_PHYS_ADDR (~(phys_addr_t)0)
#define offset_in_page(at) ((unsigned long)(at) & ~PAGE_MASK)
#define PAGE_ALIGN(x) (((x) + PAGE_SIZE - 1) & PAGE_MASK)
#define PAGE_ALIGNED(x) (!((unsigned long)(x) & ~PAGE_MASK))
#define PageHighMem(page) false
#define PhysHighMem(pa) false
#define memcpy_from_page(to, page, offset, bytes) memcpy(to, page_address(page) + (offset), bytes)
#define memcpy_to_page(page, offset, from, bytes) memcpy(page_address(page) + (offset), from, bytes)
#define page_range_contiguous(page, pages) true
#define is_zone_device_page(page) false
#define is_vmalloc_addr(at) false
#define is_kmalloc_cache_aligned(x) true
#define page_pgdat(page) NULL
#define put_page(page) ((void)(page))
#define get_page(page) ((void)(page))
#define split_page(page, order) ((void)(page))
#define set_memory_decrypted(at, pages) 0
#define set_memory_encrypted(at, pages) 0
#define __sme_set(x) (x)
#define __sme_clr(x) (x)
#define dma_addr_encrypted(x) (x)
#define dma_addr_unencrypted(x) (x)
#define mem_encrypt_active() false
#define CC_ATTR_MEM_ENCRYPT 0
#define CC_ATTR_GUEST_MEM_ENCRYPT 1
#define cc_platform_has(attribute) false

struct page *shim_pages(gfp_t gfp, unsigned int order);
void __free_pages(struct page *page, unsigned int order);
#define alloc_pages(gfp, order) shim_pages(gfp, order)
#define alloc_pages_node(node, gfp, order) shim_pages(gfp, order)
#define alloc_page(gfp) shim_pages(gfp, 0)
#define __free_page(page) __free_pages(page, 0)
static __always_inline unsigned long __get_free_pages(gfp_t gfp, unsigned int order)
{
	struct page *page = shim_pages(gfp, order);

	return page ? (unsigned long)page_address(page) : 0;
}
#define free_pages(at, order) __free_pages(virt_to_page(at), order)
#define free_page(at) free_pages(at, 0)

#define virt_to_folio(at) ((struct folio *)virt_to_page(at))
#define folio_address(folio) page_address(&(folio)->page)
#define folio_order(folio) ((folio)->page.order)
#define folio_nr_pages(folio) (1UL << folio_order(folio))
#define folio_pgdat(folio) NULL
#define folio_put(folio) __free_pages(&(folio)->page, folio_order(folio))
#define numa_mem_id() 0
static __always_inline struct folio *__folio_alloc_node(gfp_t gfp, unsigned int order, int node)
{
	struct page *page = shim_pages(gfp, order);

	if (page)
		page->order = order;
	return (struct folio *)page;
}

/* Counts of pages, a number of each CPU. */
extern __thread long shim_accounted;
#define mod_node_page_state(node, item, pages) ((void)(shim_accounted += (pages)))
#define mod_lruvec_page_state(page, item, pages) ((void)(shim_accounted += (pages)))
#define lruvec_stat_mod_folio(folio, item, pages) ((void)(shim_accounted += (pages)))

struct kmem_cache {
	size_t bytes;
	struct { void *first; } __aligned(64) free[NR_CPUS];
};
#define SLAB_HWCACHE_ALIGN 1
struct kmem_cache *kmem_cache_create(const char *name, size_t bytes, size_t align, slab_flags_t flags, void (*make)(void *));
void kmem_cache_destroy(struct kmem_cache *cache);
void *shim_cache_more(struct kmem_cache *cache);
static __always_inline void *kmem_cache_alloc(struct kmem_cache *cache, gfp_t gfp)
{
	void **found = cache->free[shim_cpu].first;

	if (unlikely(!found))
		return shim_cache_more(cache);
	cache->free[shim_cpu].first = *found;
	return found;
}
static __always_inline void *kmem_cache_zalloc(struct kmem_cache *cache, gfp_t gfp)
{
	void *found = kmem_cache_alloc(cache, gfp);

	return found ? memset(found, 0, cache->bytes) : NULL;
}
static __always_inline void kmem_cache_free(struct kmem_cache *cache, void *object)
{
	if (!object)
		return;
	*(void **)object = cache->free[shim_cpu].first;
	cache->free[shim_cpu].first = object;
}

/* Only while something is set up. */
void *shim_zeroed(size_t bytes);
void shim_release(const void *at);
#define kmalloc(bytes, gfp) shim_zeroed(bytes)
#define kzalloc(bytes, gfp) shim_zeroed(bytes)
#define kcalloc(count, bytes, gfp) shim_zeroed((size_t)(count) * (bytes))
#define kmalloc_array kcalloc
#define kmalloc_obj(object, ...) ((typeof(object) *)shim_zeroed(sizeof(object)))
#define kzalloc_obj kmalloc_obj
#define kzalloc_objs(object, count, ...) ((typeof(object) *)shim_zeroed((count) * sizeof(object)))
#define kzalloc_flex(object, member, count, ...) ((typeof(object) *)shim_zeroed(struct_size(&(object), member, count)))
#define kvcalloc kcalloc
#define kvmalloc kmalloc
#define kvfree shim_release
#define kfree shim_release
#define kfree_rcu(object, member) shim_release(object)
#define vmalloc(bytes) shim_zeroed(bytes)
#define vzalloc(bytes) shim_zeroed(bytes)
#define vfree shim_release
#define kstrdup(text, gfp) ((char *)NULL)
#define kstrdup_const(text, gfp) (text)
#define kfree_const(text) ((void)(text))
#define memblock_alloc(bytes, align) shim_zeroed(bytes)
#define memblock_alloc_low(bytes, align) shim_zeroed(bytes)
#define memblock_free(at, bytes) shim_release(at)
#define memblock_free_late(pa, bytes) ((void)(pa))
#define devm_kzalloc(device, bytes, gfp) shim_zeroed(bytes)
#define devm_kmalloc_array(device, count, bytes, gfp) kcalloc(count, bytes, gfp)
#define kasprintf(gfp, ...) ((char *)shim_zeroed(1))
#define krealloc(at, bytes, gfp) ((void *)0)
static inline void *kmemdup(const void *from, size_t bytes, gfp_t gfp)
{
	void *at = shim_zeroed(bytes);

	return at ? memcpy(at, from, bytes) : NULL;
}
#define mmdrop(mm) ((void)(mm))
#define kmemleak_ignore(at) ((void)(at))
#define kmemleak_transient_leak(at) ((void)(at))
#define kmsan_unpoison_memory(at, bytes) ((void)(at))

struct seq_file;
struct file;
struct cpumask;
struct dentry;
struct kmsan_dummy;

#endif
