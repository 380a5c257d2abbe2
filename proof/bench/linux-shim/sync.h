/*
 * Atomics, barriers, locks and data of each CPU. A CPU is a thread that has said which one it is.
 *
 * What each costs beside the kernel's on x86-64:
 * - atomics and barriers: the same instructions;
 * - an uncontended spinlock: the same atomic exchange and the same plain store, but inlined, without counting preemption;
 * - a contended spinlock: spins on the word, where the kernel queues;
 * - keeping interrupts out: nothing, where the kernel saves, clears and restores a flag;
 * - data of a CPU: one thread-local load, as in the kernel;
 * - RCU's read side: nothing, as in a kernel without preemption.
 * All differences make Linux's code faster here than in a kernel, or as fast.
 */
#ifndef SHIM_SYNC_H
#define SHIM_SYNC_H

#define smp_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#ifdef __x86_64__
#define smp_wmb() barrier()
#define smp_rmb() barrier()
#define dma_wmb() barrier()
#define dma_rmb() barrier()
#define wmb() __asm__ volatile("sfence" ::: "memory")
#define cpu_relax() __builtin_ia32_pause()
#else
#define smp_wmb() __asm__ volatile("dmb ishst" ::: "memory")
#define smp_rmb() __asm__ volatile("dmb ishld" ::: "memory")
#define dma_wmb() __asm__ volatile("dmb oshst" ::: "memory")
#define dma_rmb() __asm__ volatile("dmb oshld" ::: "memory")
#define wmb() __asm__ volatile("dsb st" ::: "memory")
#define cpu_relax() __asm__ volatile("yield" ::: "memory")
#endif
#define smp_store_release(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
#define smp_load_acquire(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define smp_mb__before_atomic() barrier()
#define smp_mb__after_atomic() barrier()

typedef struct { int counter; } atomic_t;
typedef struct { s64 counter; } atomic64_t;
typedef struct { long counter; } atomic_long_t;
typedef struct { atomic_t refs; } refcount_t;
#define ATOMIC_INIT(value) { (value) }
#define ATOMIC_LONG_INIT(value) { (value) }
#define SHIM_ATOMICS(prefix, type)                                                        \
	static __always_inline typeof(((type *)0)->counter) prefix##_read(const type *a)      \
	{ return __atomic_load_n(&a->counter, __ATOMIC_RELAXED); }                            \
	static __always_inline void prefix##_set(type *a, typeof(a->counter) value)           \
	{ __atomic_store_n(&a->counter, value, __ATOMIC_RELAXED); }                           \
	static __always_inline void prefix##_add(typeof(((type *)0)->counter) value, type *a) \
	{ __atomic_fetch_add(&a->counter, value, __ATOMIC_RELAXED); }                         \
	static __always_inline void prefix##_sub(typeof(((type *)0)->counter) value, type *a) \
	{ __atomic_fetch_sub(&a->counter, value, __ATOMIC_RELAXED); }                         \
	static __always_inline void prefix##_inc(type *a) { prefix##_add(1, a); }             \
	static __always_inline void prefix##_dec(type *a) { prefix##_sub(1, a); }             \
	static __always_inline typeof(((type *)0)->counter)                                   \
	prefix##_add_return(typeof(((type *)0)->counter) value, type *a)                      \
	{ return __atomic_add_fetch(&a->counter, value, __ATOMIC_SEQ_CST); }                  \
	static __always_inline typeof(((type *)0)->counter) prefix##_inc_return(type *a)      \
	{ return prefix##_add_return(1, a); }                                                 \
	static __always_inline bool prefix##_dec_and_test(type *a)                            \
	{ return !prefix##_add_return(-1, a); }                                               \
	static __always_inline typeof(((type *)0)->counter)                                   \
	prefix##_xchg(type *a, typeof(((type *)0)->counter) value)                            \
	{ return __atomic_exchange_n(&a->counter, value, __ATOMIC_SEQ_CST); }                 \
	static __always_inline bool                                                           \
	prefix##_try_cmpxchg(type *a, typeof(((type *)0)->counter) *old, typeof(a->counter) value) \
	{                                                                                     \
		return __atomic_compare_exchange_n(&a->counter, old, value, false,                \
						   __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);                           \
	}
SHIM_ATOMICS(atomic, atomic_t)
SHIM_ATOMICS(atomic64, atomic64_t)
SHIM_ATOMICS(atomic_long, atomic_long_t)
#define SHIM_CMPXCHG(at, before, after, order)                                                        \
	({                                                                                                \
		typeof(*(at)) shim_before = (before);                                                         \
		__atomic_compare_exchange_n(at, &shim_before, after, false, order, __ATOMIC_RELAXED);         \
		shim_before;                                                                                  \
	})
#define cmpxchg(at, before, after) SHIM_CMPXCHG(at, before, after, __ATOMIC_SEQ_CST)
#define cmpxchg64(at, before, after) SHIM_CMPXCHG(at, before, after, __ATOMIC_SEQ_CST)
#define cmpxchg_relaxed(at, before, after) SHIM_CMPXCHG(at, before, after, __ATOMIC_RELAXED)
#define cmpxchg64_relaxed(at, before, after) SHIM_CMPXCHG(at, before, after, __ATOMIC_RELAXED)
#define SHIM_TRY_CMPXCHG(at, before, after, order) __atomic_compare_exchange_n(at, before, after, false, order, __ATOMIC_RELAXED)
#define try_cmpxchg64(at, before, after) SHIM_TRY_CMPXCHG(at, before, after, __ATOMIC_SEQ_CST)
#define try_cmpxchg64_release(at, before, after) SHIM_TRY_CMPXCHG(at, before, after, __ATOMIC_RELEASE)
#define try_cmpxchg_release(at, before, after) SHIM_TRY_CMPXCHG(at, before, after, __ATOMIC_RELEASE)
#define xchg(at, value) __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST)
static __always_inline void refcount_set(refcount_t *r, int value) { atomic_set(&r->refs, value); }

/* Locks. */
typedef struct { int locked; } spinlock_t, raw_spinlock_t, rwlock_t;
#define __SPIN_LOCK_UNLOCKED(name) { 0 }
#define DEFINE_SPINLOCK(name) spinlock_t name = { 0 }
static __always_inline void spin_lock_init(spinlock_t *lock) { lock->locked = 0; }
static __always_inline void spin_lock(spinlock_t *lock)
{
	while (unlikely(__atomic_exchange_n(&lock->locked, 1, __ATOMIC_ACQUIRE)))
		while (__atomic_load_n(&lock->locked, __ATOMIC_RELAXED))
			cpu_relax();
}
static __always_inline void spin_unlock(spinlock_t *lock) { __atomic_store_n(&lock->locked, 0, __ATOMIC_RELEASE); }
#define spin_lock_irqsave(lock, flags) do { (flags) = 0; spin_lock(lock); } while (0)
#define spin_unlock_irqrestore(lock, flags) do { (void)(flags); spin_unlock(lock); } while (0)
#define spin_lock_irq spin_lock
#define spin_unlock_irq spin_unlock
#define assert_spin_locked(lock) ((void)0)
#define lockdep_assert_held(lock) ((void)0)
#define lockdep_assert_not_held(lock) ((void)0)
#define lockdep_init_map(...) ((void)0)
#define local_irq_save(flags) ((void)((flags) = 0))
#define local_irq_restore(flags) ((void)(flags))
#define preempt_disable() ((void)0)
#define preempt_enable() ((void)0)
#define might_sleep() ((void)0)
#define might_sleep_if(condition) ((void)0)
#define cond_resched() ((void)0)

struct mutex { spinlock_t lock; };
#define DEFINE_MUTEX(name) struct mutex name = { { 0 } }
#define __MUTEX_INITIALIZER(name) { { 0 } }
static __always_inline void mutex_init(struct mutex *m) { spin_lock_init(&m->lock); }
static __always_inline void mutex_lock(struct mutex *m) { spin_lock(&m->lock); }
static __always_inline void mutex_unlock(struct mutex *m) { spin_unlock(&m->lock); }
static __always_inline void shim_release_mutex(struct mutex **m) { mutex_unlock(*m); }
#define guard(kind) SHIM_GUARD_##kind
#define SHIM_GUARD_mutex(m) \
	struct mutex *shim_held __attribute__((cleanup(shim_release_mutex))) = (mutex_lock(m), (m))
#define mutex_destroy(m) ((void)0)
#define mutex_is_locked(m) ((m)->lock.locked)

/* RCU, whose writers never run here while there are readers. */
struct rcu_head { void *next; void (*func)(struct rcu_head *); };
#define rcu_read_lock() barrier()
#define rcu_read_unlock() barrier()
#define rcu_dereference(p) READ_ONCE(p)
#define rcu_dereference_raw(p) READ_ONCE(p)
#define rcu_dereference_check(p, c) READ_ONCE(p)
#define rcu_assign_pointer(p, value) smp_store_release(&(p), value)
#define RCU_INIT_POINTER(p, value) WRITE_ONCE(p, value)

/* CPUs. Every object of a CPU lies at the same distance from that of CPU 0. */
#define NR_CPUS 2
#define SHIM_CPU_DISTANCE (8UL << 20)
extern __thread unsigned int shim_cpu;
extern __thread unsigned long shim_cpu_offset;
#define smp_processor_id() shim_cpu
#define raw_smp_processor_id() shim_cpu
#define get_cpu() shim_cpu
#define put_cpu() ((void)0)
#define num_online_cpus() NR_CPUS
#define num_possible_cpus() NR_CPUS
#define for_each_possible_cpu(cpu) for ((cpu) = 0; (cpu) < NR_CPUS; (cpu)++)
#define for_each_online_cpu for_each_possible_cpu
#define per_cpu_ptr(object, cpu) ((typeof(object))((char *)(object) + (cpu) * SHIM_CPU_DISTANCE))
#define raw_cpu_ptr(object) ((typeof(object))((char *)(object) + shim_cpu_offset))
#define this_cpu_ptr(object) raw_cpu_ptr(object)
void *__alloc_percpu(size_t bytes, size_t align);
#define alloc_percpu(type) ((type *)__alloc_percpu(sizeof(type), __alignof__(type)))
void free_percpu(void *object);

/* Keys that are decided once: the kernel patches a jump, a load and a branch here. */
struct static_key { int on; };
struct static_key_false { struct static_key key; };
#define DEFINE_STATIC_KEY_FALSE(name) struct static_key_false name
#define static_branch_unlikely(k) unlikely((k)->key.on)
#define static_branch_enable(k) ((void)((k)->key.on = 1))

/* Calls that are decided once: the kernel patches the call, a load of the function's address here. */
#define DEFINE_STATIC_CALL(name, function) static typeof(function) *shim_call_##name = function
#define static_call(name) shim_call_##name
#define static_call_update(name, function) ((void)(shim_call_##name = (function)))

/* Work and timers are noted, and never run: no benchmark is long enough for its age to matter. */
struct work_struct { void (*func)(struct work_struct *); };
struct timer_list { void (*function)(struct timer_list *); unsigned long expires; };
struct delayed_work { struct work_struct work; struct timer_list timer; };
struct workqueue_struct;
struct completion { int done; };
#define INIT_WORK(w, f) ((w)->func = (f))
#define INIT_DELAYED_WORK(w, f) INIT_WORK(&(w)->work, f)
#define schedule_delayed_work(w, delay) ((void)(w))
#define schedule_work(w) ((void)(w))
#define cancel_delayed_work_sync(w) ((void)(w))
#define timer_setup(t, f, flags) ((t)->function = (f))
#define timer_container_of from_timer
#define from_timer(object, t, member) container_of(t, typeof(*(object)), member)
#define mod_timer(t, when) ((t)->expires = (when))
#define del_timer_sync(t) ((void)(t))
#define timer_delete_sync del_timer_sync
#define HZ 250
#define jiffies 0UL
#define msecs_to_jiffies(ms) ((ms) * HZ / 1000UL)

/* No CPU goes away. */
#define CPUHP_IOMMU_IOVA_DEAD 0
#define cpuhp_state_add_instance_nocalls(state, node) 0
#define cpuhp_state_remove_instance_nocalls(state, node) ((void)0)
#define cpuhp_setup_state_multi(state, name, up, down) ((void)(down), 0)
#define cpuhp_remove_multi_state(state) ((void)0)
#define cache_line_size() L1_CACHE_BYTES

#endif
