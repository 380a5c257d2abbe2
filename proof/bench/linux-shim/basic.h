/*
 * Words that Linux's sources are written in: types, annotations, bits, warnings, lists of a build's options.
 *
 * Part of the shim under which portolan-bench compiles Linux's sources, which it takes from Debian's package and does not change.
 * Written for this project; costs nothing beside the kernel's own, but that warnings are a call and not a trapping instruction.
 */
#ifndef SHIM_BASIC_H
#define SHIM_BASIC_H

typedef signed char s8, __s8;
typedef unsigned char u8, __u8;
typedef short s16, __s16;
typedef unsigned short u16, __u16, __le16, __be16;
typedef int s32, __s32;
typedef unsigned int u32, __u32, __le32, __be32, gfp_t, umode_t, fmode_t, slab_flags_t;
typedef long long s64, __s64, loff_t;
typedef long off_t;
typedef unsigned long long u64, __u64, __le64, __be64, phys_addr_t, dma_addr_t, pci_bus_addr_t, resource_size_t, sector_t;
typedef _Bool bool;
typedef __SIZE_TYPE__ size_t;
typedef __INTPTR_TYPE__ ssize_t, ptrdiff_t, intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef unsigned int uint;
typedef unsigned long ulong, pteval_t, pgoff_t;
typedef int pid_t;
typedef u32 ioasid_t;
typedef __builtin_va_list va_list;

enum { false, true };
#define NULL ((void *)0)

/* Options of the build: what a machine with an Arm IOMMU has, on a 64-bit kernel for many CPUs. */
#define CONFIG_64BIT 1
#define CONFIG_SMP 1
#define CONFIG_HAS_DMA 1
#define CONFIG_IOMMU_API 1
#define CONFIG_IOMMU_DMA 1
#define CONFIG_IOMMU_IOVA 1
#define CONFIG_IOMMU_PT 1
#define CONFIG_IOMMU_IO_PGTABLE 1
#define CONFIG_IOMMU_IO_PGTABLE_LPAE 1
#define CONFIG_IOMMU_IO_PGTABLE_LPAE_SELFTEST 1
#define CONFIG_SWIOTLB 1
#define CONFIG_SWIOTLB_DEFAULT_SIZE_MB 64
#define CONFIG_DEBUG_FS 1
#define CONFIG_NEED_SG_DMA_LENGTH 1
#define CONFIG_NEED_SG_DMA_FLAGS 1
#define CONFIG_DMA_NEED_SYNC 1
#define CONFIG_ARCH_HAS_SYNC_DMA_FOR_DEVICE 1
#define CONFIG_ARCH_HAS_SYNC_DMA_FOR_CPU 1
#define CONFIG_ARCH_DMA_ADDR_T_64BIT 1
#define CONFIG_PHYS_ADDR_T_64BIT 1
#define CONFIG_MMU 1
#define SHIM_SECOND(ignored, value, ...) value
#define SHIM_SELECT(marker) SHIM_SECOND(marker 1, 0, 0)
#define SHIM_MARK_1 0,
#define SHIM_IS(value) SHIM_IS_(value)
#define SHIM_IS_(value) SHIM_SELECT(SHIM_MARK_##value)
#define IS_ENABLED(option) SHIM_IS(option)
#define IS_REACHABLE(option) SHIM_IS(option)
#define IS_BUILTIN(option) SHIM_IS(option)
#define IS_MODULE(option) 0

#define BITS_PER_LONG 64
#define BITS_PER_LONG_LONG 64
#define BITS_PER_BYTE 8
#define PAGE_SHIFT 12
#define PAGE_SIZE (1UL << PAGE_SHIFT)
#define PAGE_MASK (~(PAGE_SIZE - 1))
#define L1_CACHE_BYTES 64
#define SMP_CACHE_BYTES 64
#define MAX_PAGE_ORDER 10
#define KERN_ERR
#define NUMA_NO_NODE (-1)
#define THIS_MODULE NULL

/* Annotations for tools, and for places in a kernel's image. */
#define __init
#define __exit
#define __initdata
#define __initconst
#define __read_mostly
#define __ro_after_init
#define __percpu
#define __rcu
#define __iomem
#define __user
#define __force
#define __bitwise
#define __must_check
#define __private
#define __acquires(x)
#define __releases(x)
#define __must_hold(x)
#define __counted_by(x)
#define __refdata
#define __maybe_unused __attribute__((unused))
#define __always_unused __attribute__((unused))
#define __unused __attribute__((unused))
#define __used __attribute__((used))
#define __packed __attribute__((packed))
#define __pure __attribute__((pure))
#define __cold __attribute__((cold))
#define __printf(a, b)
#define __weak __attribute__((weak))
#define __alloc_size(...)
#define __malloc
#define __attribute_const__ __attribute__((const))
#define __always_inline inline __attribute__((always_inline))
#define noinline __attribute__((noinline))
#define __aligned(n) __attribute__((aligned(n)))
#define ____cacheline_aligned_in_smp __aligned(64)
#define ____cacheline_aligned __aligned(64)
#define __cacheline_aligned_in_smp __aligned(64)
#define __no_kmsan_checks
#define __context_unsafe(...)
#define __guarded_by(...)
#define __nonstring
#define fallthrough __attribute__((fallthrough))
#define asmlinkage
#define EXPORT_SYMBOL(name)
#define EXPORT_SYMBOL_GPL(name)
#define EXPORT_SYMBOL_NS_GPL(name, space)
#define EXPORT_TRACEPOINT_SYMBOL_GPL(name)
#define MODULE_AUTHOR(text)
#define MODULE_DESCRIPTION(text)
#define MODULE_LICENSE(text)
#define MODULE_IMPORT_NS(space)
#define early_param(name, function) int (*const shim_param_##function)(char *) __used_param = function
#define __used_param __attribute__((unused))
/* What the kernel calls while it starts can be called by the shim. */
#define SHIM_INITCALL(function)              \
	int shim_call_##function(void);          \
	int shim_call_##function(void)           \
	{                                        \
		return function();                   \
	}
#define subsys_initcall SHIM_INITCALL
#define core_initcall SHIM_INITCALL
#define arch_initcall SHIM_INITCALL
#define late_initcall SHIM_INITCALL
#define device_initcall SHIM_INITCALL

/* The type of what follows, as in C23. */
#define auto __auto_type
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define barrier() __asm__ volatile("" ::: "memory")
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
#define data_race(x) (x)
#define offsetof(type, member) __builtin_offsetof(type, member)
#define offsetofend(type, member) (offsetof(type, member) + sizeof(((type *)0)->member))
#define sizeof_field(type, member) sizeof(((type *)0)->member)
#define typecheck(type, x) 1
#define typeof_member(type, member) typeof(((type *)0)->member)
#define __same_type(x, y) __builtin_types_compatible_p(__typeof__(x), __typeof__(y))
#define __is_constexpr(x) (sizeof(int) == sizeof(*(8 ? ((void *)((long)(x) * 0l)) : (int *)8)))
#define __must_be_array(a) 0
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define __stringify_(x) #x
#define __stringify(x) __stringify_(x)
#define __PASTE_(a, b) a##b
#define __PASTE(a, b) __PASTE_(a, b)
#define __UNIQUE_ID(prefix) __PASTE(__PASTE(shim_id_, prefix), __COUNTER__)
#define static_assert(condition, ...) _Static_assert(condition, "")
#define compiletime_assert(condition, text) ((void)0)
#define __compiletime_object_size(x) 0
#define __is_signed(type) (((type)(-1)) < (type)1)
#define is_signed_type(type) __is_signed(type)
#define is_unsigned_type(type) (((type)(-1)) > (type)0)
#define swap(a, b)                   \
	do {                             \
		typeof(a) shim_swapped = (a); \
		(a) = (b);                   \
		(b) = shim_swapped;          \
	} while (0)
#define memset_after(object, byte, member)                                          \
	memset((char *)(object) + offsetofend(typeof(*(object)), member), byte,         \
	       sizeof(*(object)) - offsetofend(typeof(*(object)), member))
#define struct_size(pointer, member, count) (sizeof(*(pointer)) + (count) * sizeof((pointer)->member[0]))
#define DECLARE_FLEX_ARRAY(type, name) struct { struct { } empty_##name; type name[]; }
#define struct_group(name, ...) union { struct { __VA_ARGS__ }; struct { __VA_ARGS__ } name; }

/* Bits. The kernel's are the same instructions. */
#define BIT(n) (1UL << (n))
#define BIT_ULL(n) (1ULL << (n))
#define BIT_MASK(n) (1UL << ((n) % BITS_PER_LONG))
#define BIT_WORD(n) ((n) / BITS_PER_LONG)
#define BITS_TO_LONGS(n) (((n) + BITS_PER_LONG - 1) / BITS_PER_LONG)
#define GENMASK(high, low) ((~0UL << (low)) & (~0UL >> (BITS_PER_LONG - 1 - (high))))
#define GENMASK_ULL(high, low) ((~0ULL << (low)) & (~0ULL >> (63 - (high))))
#define FIELD_PREP(mask, value) (((typeof(mask))(value) << __builtin_ctzll(mask)) & (mask))
#define FIELD_GET(mask, value) ((typeof(mask))(((value) & (mask)) >> __builtin_ctzll(mask)))
static __always_inline unsigned long __ffs(unsigned long x) { return __builtin_ctzl(x); }
#define __bf_shf(mask) __builtin_ctzll(mask)
#define __ffs64(x) __ffs(x)
static __always_inline unsigned long __fls(unsigned long x) { return 63 - __builtin_clzl(x); }
static __always_inline unsigned long ffz(unsigned long x) { return __ffs(~x); }
static __always_inline int ffs(int x) { return __builtin_ffs(x); }
static __always_inline int fls(unsigned int x) { return x ? 32 - __builtin_clz(x) : 0; }
static __always_inline int fls64(u64 x) { return x ? 64 - __builtin_clzll(x) : 0; }
static __always_inline unsigned int fls_long(unsigned long x) { return fls64(x); }
static __always_inline unsigned int hweight_long(unsigned long x) { return __builtin_popcountl(x); }
#define hweight64 hweight_long
static __always_inline bool test_bit(long n, const volatile unsigned long *at)
{
	return at[BIT_WORD(n)] >> (n % BITS_PER_LONG) & 1;
}
static __always_inline void __set_bit(long n, volatile unsigned long *at) { at[BIT_WORD(n)] |= BIT_MASK(n); }
static __always_inline void __clear_bit(long n, volatile unsigned long *at) { at[BIT_WORD(n)] &= ~BIT_MASK(n); }
#define set_bit(n, at) ((void)__atomic_fetch_or(&(at)[BIT_WORD(n)], BIT_MASK(n), __ATOMIC_RELAXED))
#define clear_bit(n, at) ((void)__atomic_fetch_and(&(at)[BIT_WORD(n)], ~BIT_MASK(n), __ATOMIC_RELAXED))
unsigned long find_next_bit(const unsigned long *at, unsigned long bits, unsigned long from);
#define for_each_set_bit(n, at, bits) \
	for ((n) = find_next_bit(at, bits, 0); (n) < (bits); (n) = find_next_bit(at, bits, (n) + 1))

#define DIV_ROUND_UP(n, by) (((n) + (by) - 1) / (by))
#define DIV_ROUND_UP_ULL DIV_ROUND_UP
#define round_down(x, to) ((x) & ~((typeof(x))(to) - 1))
#define round_up(x, to) ((((x) - 1) | ((typeof(x))(to) - 1)) + 1)
#define roundup(x, to) (DIV_ROUND_UP(x, to) * (to))
#define rounddown(x, to) ((x) - (x) % (to))
#define upper_32_bits(x) ((u32)((u64)(x) >> 32))
#define lower_32_bits(x) ((u32)(x))
#define cpu_to_le64(x) (x)
#define cpu_to_le32(x) (x)
#define le16_to_cpu(x) (x)
#define le32_to_cpu(x) (x)
#define le64_to_cpu(x) (x)
#define abs(x) ((x) < 0 ? -(x) : (x))
#define get_order(size) ((size) <= PAGE_SIZE ? 0 : fls64(((size) - 1) >> PAGE_SHIFT))

/* Messages, of which notes are kept and not printed, and warnings. */
void shim_print(const char *format, ...);
void shim_note(const char *format, ...);
__cold void shim_warned(const char *file, int line);
__cold __attribute__((noreturn)) void shim_died(const char *file, int line);
#ifndef pr_fmt
#define pr_fmt(format) format
#endif
#define no_printk(format, ...) 0
#define printk(format, ...) shim_print(format, ##__VA_ARGS__)
#define pr_err(format, ...) shim_print(pr_fmt(format), ##__VA_ARGS__)
#define pr_warn pr_err
#define pr_warn_once pr_err
#define pr_warn_ratelimited pr_err
#define pr_err_ratelimited pr_err
#define pr_info(format, ...) shim_note(pr_fmt(format), ##__VA_ARGS__)
#define pr_notice pr_info
#define pr_debug(format, ...) ((void)0)
#define dev_err(device, format, ...) shim_print(format, ##__VA_ARGS__)
#define dev_warn dev_err
#define dev_warn_once dev_err
#define dev_warn_ratelimited dev_err
/* What devices did. */
#define dev_err_ratelimited dev_info
#define dev_info(device, format, ...) shim_note(format, ##__VA_ARGS__)
#define dev_notice dev_info
#define dev_dbg(device, format, ...) ((void)0)
#define dump_stack() ((void)0)
#define WARN_ON(condition)                      \
	({                                          \
		int shim_bad = !!(condition);           \
		if (unlikely(shim_bad))                 \
			shim_warned(__FILE__, __LINE__);    \
		unlikely(shim_bad);                     \
	})
#define WARN_ON_ONCE WARN_ON
#define WARN(condition, ...) WARN_ON(condition)
#define WARN_ONCE WARN
#define dev_WARN(device, ...) WARN_ON(1)
#define dev_WARN_ONCE(device, condition, ...) WARN_ON(condition)
#define BUG() shim_died(__FILE__, __LINE__)
#define BUG_ON(condition)     \
	do {                      \
		if (unlikely(condition)) \
			BUG();            \
	} while (0)
#define VM_BUG_ON(condition) ((void)0)
#define VM_WARN_ON(condition) ((void)0)
#define VM_WARN_ON_ONCE(condition) ((void)0)

void *memset(void *to, int byte, size_t bytes);
void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
static inline void *memset64(u64 *to, u64 value, size_t count)
{
	for (size_t i = 0; i < count; i++)
		to[i] = value;
	return to;
}
int memcmp(const void *a, const void *b, size_t bytes);
size_t strlen(const char *text);
int strcmp(const char *a, const char *b);
int strncmp(const char *a, const char *b, size_t most);
int sscanf(const char *text, const char *format, ...);
int sprintf(char *to, const char *format, ...);
int snprintf(char *to, size_t most, const char *format, ...);
int kstrtobool(const char *text, bool *value);
unsigned long simple_strtoul(const char *text, char **end, unsigned int base);
static __always_inline bool sysfs_streq(const char *a, const char *b) { return !strcmp(a, b); }

#endif
