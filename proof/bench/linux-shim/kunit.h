/*
 * KUnit and a maple tree, as far as Linux's tests of its generic page tables (drivers/iommu/generic_pt/kunit_*.h) use them.
 *
 * A failed assertion ends its case and is counted; a case that skips is counted as skipped. Not supported: expectations that let
 * a case go on, resources, filters, output of each case.
 */
#ifndef SHIM_KUNIT_H
#define SHIM_KUNIT_H

struct kunit {
	void *priv;
	const void *param_value;
	/* Where a case that has failed or is skipped goes on: GCC's own, without the C library. */
	void *way_out[5];
	struct device device;
};
struct kunit_case {
	void (*run_case)(struct kunit *test);
	const char *name;
	const void *(*generate_params)(struct kunit *test, const void *previous, char *description);
};
struct kunit_suite {
	const char *name;
	int (*init)(struct kunit *test);
	void (*exit)(struct kunit *test);
	struct kunit_case *test_cases;
};
#define KUNIT_PARAM_DESC_SIZE 128
#define KUNIT_SUBSUBTEST_INDENT ""
#define KUNIT_CASE(function) { .run_case = function, .name = #function }
#define KUNIT_CASE_PARAM(function, parameters) { .run_case = function, .name = #function, .generate_params = parameters }
/* All suites are in one section, as in the kernel. */
#define kunit_test_suite(suite) kunit_test_suites(&suite)
#define kunit_test_suites(suite)                                                                \
	static struct kunit_suite *__PASTE(shim_suite_, __COUNTER__)                                \
	__attribute__((used, retain, section("shim_suites"))) = suite

__attribute__((noreturn)) void shim_case_fails(struct kunit *test, const char *file, int line, const char *text, long long got,
					       long long wanted);
__attribute__((noreturn)) void shim_case_skips(struct kunit *test);
#define SHIM_ASSERT(test, holds, text, got, wanted)                                                      \
	do {                                                                                                 \
		if (unlikely(!(holds)))                                                                          \
			shim_case_fails(test, __FILE__, __LINE__, text, (long long)(got), (long long)(wanted));      \
	} while (0)
#define SHIM_COMPARE(test, a, relation, b)                                                               \
	({                                                                                                   \
		typeof(a) shim_got = (a);                                                                        \
		typeof(b) shim_wanted = (b);                                                                     \
		SHIM_ASSERT(test, shim_got relation shim_wanted, #a " " #relation " " #b, shim_got, shim_wanted); \
	})
#define KUNIT_ASSERT_EQ(test, a, b) SHIM_COMPARE(test, a, ==, b)
#define KUNIT_ASSERT_NE(test, a, b) SHIM_COMPARE(test, a, !=, b)
#define KUNIT_ASSERT_GT(test, a, b) SHIM_COMPARE(test, a, >, b)
#define KUNIT_ASSERT_GE(test, a, b) SHIM_COMPARE(test, a, >=, b)
#define KUNIT_ASSERT_LE(test, a, b) SHIM_COMPARE(test, a, <=, b)
#define KUNIT_ASSERT_TRUE(test, a) SHIM_ASSERT(test, a, #a, 0, 1)
#define KUNIT_ASSERT_FALSE(test, a) SHIM_ASSERT(test, !(a), "not " #a, 1, 0)
#define KUNIT_ASSERT_MEMEQ(test, a, b, bytes) SHIM_ASSERT(test, !memcmp(a, b, bytes), #a " has the bytes of " #b, 0, bytes)
#define KUNIT_ASSERT_EQ_MSG(test, a, b, ...) KUNIT_ASSERT_EQ(test, a, b)
#define KUNIT_EXPECT_EQ KUNIT_ASSERT_EQ
#define KUNIT_EXPECT_NOT_ERR_OR_NULL(test, a) KUNIT_ASSERT_FALSE(test, IS_ERR_OR_NULL(a))
#define KUNIT_FAIL(test, ...) SHIM_ASSERT(test, false, "fails", 0, 1)
#define kunit_err(test, ...) pr_err(__VA_ARGS__)
#define kunit_info(test, ...) pr_info(__VA_ARGS__)
#define kunit_skip(test, ...) shim_case_skips(test)
#define kunit_kzalloc(test, bytes, gfp) shim_zeroed(bytes)
#define kunit_kfree(test, at) shim_release(at)
#define kunit_device_register(test, name) (&(test)->device)
#define global_node_page_state(item) ((unsigned long)shim_accounted)

/* Numbers from the seed of the run. */
u64 get_random_u64(void);
u32 get_random_u32_below(u32 limit);
#define get_random_u32_inclusive(least, most) ((least) + get_random_u32_below((most) - (least) + 1))

/* A maple tree that is a list of ranges in order. */
struct shim_range { unsigned long first, last; struct shim_range *next; };
struct maple_tree { struct shim_range *first; };
struct ma_state { struct maple_tree *tree; unsigned long index, last; bool begun; };
#define MAPLE_RESERVED_RANGE 4096
#define MA_STATE(name, mt, start, end) struct ma_state name = { .tree = mt, .index = start, .last = end }
#define mt_init(mt) ((mt)->first = NULL)
#define mtree_lock(mt) ((void)0)
#define mtree_unlock(mt) ((void)0)
#define mas_pause(mas) ((void)0)
int mtree_insert_range(struct maple_tree *mt, unsigned long first, unsigned long last, void *entry, gfp_t gfp);
void mtree_destroy(struct maple_tree *mt);
void *mas_find(struct ma_state *mas, unsigned long most);
void *mas_erase(struct ma_state *mas);
#define mas_for_each(mas, entry, most) while (((entry) = mas_find(mas, most)) != NULL)

#endif
