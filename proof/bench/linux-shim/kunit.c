/*
 * Runs Linux's own tests of its generic page tables, and has what they ask of KUnit and of the maple tree.
 */
#include <linux/dma-mapping.h>

extern struct kunit_suite *__start_shim_suites[], *__stop_shim_suites[];

static struct { u32 passed, failed, skipped; u64 seed; } counts;

u64 get_random_u64(void)
{
	/* SplitMix64. */
	u64 mixed = counts.seed += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return mixed ^ mixed >> 31;
}

u32 get_random_u32_below(u32 limit)
{
	return get_random_u64() % limit;
}

static struct kunit_suite *now_suite;
static const char *now_case;

void shim_case_fails(struct kunit *test, const char *file, int line, const char *text, long long got, long long wanted)
{
	counts.failed++;
	shim_print("%s %s: %s, line %d: %s: got %lld, wanted %lld", now_suite->name, now_case, file, line, text, got, wanted);
	__builtin_longjmp(test->way_out, 1);
}

void shim_case_skips(struct kunit *test)
{
	counts.skipped++;
	__builtin_longjmp(test->way_out, 1);
}

/* A function of its own, because what comes back from a case finds no variables. */
static noinline void run_case(struct kunit_case *one, struct kunit *test)
{
	if (__builtin_setjmp(test->way_out))
		return;
	one->run_case(test);
	counts.passed++;
}

static void run_once(struct kunit_suite *suite, struct kunit_case *one, const void *parameter)
{
	struct kunit *test = shim_zeroed(sizeof(*test));

	test->param_value = parameter;
	now_suite = suite;
	now_case = one->name;
	if (suite->init && suite->init(test)) {
		counts.failed++;
		shim_print("%s %s: cannot begin", suite->name, one->name);
	} else {
		u32 failed = counts.failed;

		run_case(one, test);
		/* A case that failed leaves its tables as they are; what follows would ask for them to be whole. */
		if (suite->exit && counts.failed == failed && !__builtin_setjmp(test->way_out))
			suite->exit(test);
	}
	shim_release(test);
}

/* Returns how many cases failed; the others are counted by whether they passed. */
SHIM_ENTRY u32 linux_test_formats(u64 seed, u32 *passed, u32 *skipped)
{
	static char description[KUNIT_PARAM_DESC_SIZE];

	counts = (typeof(counts)){ .seed = seed };
	for (struct kunit_suite **suite = __start_shim_suites; suite < __stop_shim_suites; suite++) {
		for (struct kunit_case *one = (*suite)->test_cases; one->run_case; one++) {
			const void *parameter = NULL;

			if (!one->generate_params) {
				run_once(*suite, one, NULL);
				continue;
			}
			while ((parameter = one->generate_params(NULL, parameter, description)))
				run_once(*suite, one, parameter);
		}
	}
	*passed = counts.passed;
	*skipped = counts.skipped;
	return counts.failed;
}

int mtree_insert_range(struct maple_tree *mt, unsigned long first, unsigned long last, void *entry, gfp_t gfp)
{
	struct shim_range *range, **at = &mt->first;

	while (*at && (*at)->last < first)
		at = &(*at)->next;
	if (*at && (*at)->first <= last)
		return -EEXIST;
	range = shim_zeroed(sizeof(*range));
	if (!range)
		return -ENOMEM;
	*range = (struct shim_range){ first, last, *at };
	*at = range;
	return 0;
}

void mtree_destroy(struct maple_tree *mt)
{
	while (mt->first) {
		struct shim_range *first = mt->first;

		mt->first = first->next;
		shim_release(first);
	}
}

void *mas_find(struct ma_state *mas, unsigned long most)
{
	unsigned long from = mas->begun ? mas->last + 1 : mas->index;

	if (mas->begun && !from)
		return NULL;
	mas->begun = true;
	for (struct shim_range *range = mas->tree->first; range && range->first <= most; range = range->next) {
		if (range->last >= from) {
			mas->index = range->first;
			mas->last = range->last;
			return range;
		}
	}
	return NULL;
}

void *mas_erase(struct ma_state *mas)
{
	for (struct shim_range **at = &mas->tree->first; *at; at = &(*at)->next) {
		struct shim_range *range = *at;

		if (range->first == mas->index) {
			*at = range->next;
			shim_release(range);
			return XA_ZERO_ENTRY;
		}
	}
	return NULL;
}
