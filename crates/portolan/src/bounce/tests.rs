//! Pools of every strategy against a list of what is taken.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::*;
use crate::addr::{CpuId, PageSize, PhysAddr, PhysRange};
use crate::platform::{Clock, Nanos, SpinCpus};

#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

type TestCpus = Arc<SpinCpus<Still, fn() -> CpuId>>;

const START: u64 = 0x4000_0000;

fn pool(strategy: Strategy, slots: u64, areas: u32) -> Pool<TestCpus> {
    let cpus = Arc::new(SpinCpus::new(1, Still, (|| CpuId::new(0)) as fn() -> CpuId));
    let memory = PhysRange::from_len(PhysAddr::new(START), slots << 11).unwrap();
    let options = PoolOptions {
        slot: PageSize::of_lg2(11),
        areas,
        strategy,
    };
    Pool::new(cpus, memory, options).unwrap()
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn random_buffers_never_overlap_and_all_come_back() {
    let seed = 0x706f_6f6c;
    for strategy in Strategy::ALL {
        let pool = pool(strategy, 1024, 4);
        let mut random = Random(seed);
        let mut held: Vec<Slots> = Vec::new();
        for step in 0..20_000 {
            let context = alloc::format!("{strategy:?}, seed {seed:#x}, step {step}");
            if random.below(2) == 0 || held.is_empty() {
                let keep = PageSize::of_lg2(random.below(14) as u32);
                let need = Need {
                    bytes: 1 + random.below(40_000),
                    align: PageSize::of_lg2(random.below(14) as u32),
                    like: PhysAddr::new(random.below(1 << 20)),
                    keep,
                    limit: PhysAddr::new(u64::MAX),
                };
                let Ok(slots) = pool.take(&need) else {
                    continue;
                };
                let data = slots.data();
                assert_eq!(data.len_minus_one() + 1, need.bytes, "{context}");
                let differ = data.start().get() ^ need.like.get();
                assert_eq!(
                    differ & (keep.bytes() - 1),
                    0,
                    "{context}: {need:?} {data:?}"
                );
                assert!(pool.memory().covers(data), "{context}");
                // The first byte of the pages that only it may use.
                let around = |range: PhysRange| {
                    let mask = need.align.max(PageSize::of_lg2(11)).bytes() - 1;
                    (range.start().get() & !mask, range.last().get() | mask)
                };
                let (start, last) = around(data);
                for other in &held {
                    let other = other.data();
                    let apart = other.last().get() < start || other.start().get() > last;
                    assert!(apart, "{context}: {data:?} and {other:?}");
                }
                held.push(slots);
            } else {
                let at = random.below(held.len() as u64) as usize;
                pool.give(held.swap_remove(at)).unwrap();
            }
        }
        for slots in held.drain(..) {
            pool.give(slots).unwrap();
        }
        let used = pool.in_use();
        let most = if strategy == Strategy::OneLock || strategy == Strategy::AreaLocks {
            128
        } else {
            256
        };
        assert_eq!((used.used, used.longest_free), (0, most), "{strategy:?}");
    }
}

/// Slots that are no multiple of what a list counts in: a run may end at the last one, and none
/// beyond it.
#[test]
fn a_run_ends_in_its_area_whatever_the_area_s_size() {
    for strategy in Strategy::ALL {
        for slots in [64, 192, 320] {
            let context = alloc::format!("{strategy:?}, {slots} slots");
            let pool = pool(strategy, slots, 1);
            let take = |count: u64| pool.take(&Need::bytes(count << 11));
            let ten = take(10).unwrap();
            let mut held = Vec::new();
            while let Ok(run) = take(60) {
                assert!(pool.memory().covers(run.data()), "{context}: {run:?}");
                held.push(run);
            }
            while let Ok(one) = take(1) {
                assert!(pool.memory().covers(one.data()), "{context}: {one:?}");
                held.push(one);
            }
            assert_eq!(u64::from(pool.in_use().used), slots, "{context}");
            held.push(ten);
            for run in held {
                pool.give(run).unwrap();
            }
            assert_eq!(pool.in_use().used, 0, "{context}");
        }
    }
}

#[test]
fn runs_of_two_slots_fill_an_area_to_its_end() {
    for strategy in Strategy::ALL {
        let pool = pool(strategy, 256, 1);
        let runs = core::iter::from_fn(|| pool.take(&Need::bytes(4096)).ok());
        assert_eq!(runs.count(), 128, "{strategy:?}");
    }
}

#[test]
fn a_cpu_takes_from_its_own_area_first() {
    // Of four areas; there are more CPUs than areas.
    for (current, area) in [
        ((|| CpuId::new(1)) as fn() -> CpuId, 1),
        (|| CpuId::new(3), 3),
        (|| CpuId::new(6), 2),
    ] {
        let cpus = Arc::new(SpinCpus::new(8, Still, current));
        let memory = PhysRange::from_len(PhysAddr::new(START), 1024 << 11).unwrap();
        let options = PoolOptions {
            slot: PageSize::of_lg2(11),
            areas: 4,
            strategy: Strategy::LockFree,
        };
        let pool = Pool::new(cpus, memory, options).unwrap();
        let data = pool.take(&Need::bytes(2048)).unwrap().data();
        assert_eq!(data.start().get(), START + area * (256 << 11));
    }
}

#[test]
fn buffers_far_above_256_kib_fit_and_fill_an_area() {
    let pool = pool(Strategy::LockFree, 4096, 1);
    let all = pool.take(&Need::bytes(8 << 20)).unwrap();
    let full = pool.take(&Need::bytes(1)).unwrap_err();
    let expected = TakeError::Full {
        wanted: 1,
        slots: 4096,
        used: 4096,
        longest: 0,
        area: 0,
        areas: 1,
    };
    assert_eq!(full, expected);
    pool.give(all).unwrap();
    let odd = pool.take(&Need::bytes(3 << 20)).unwrap();
    let more = pool.take(&Need::bytes(5 << 20)).unwrap();
    assert!(pool.take(&Need::bytes(1)).is_err());
    pool.give(odd).unwrap();
    pool.give(more).unwrap();
    assert_eq!(pool.in_use().high_water, 4096);
}

#[test]
fn what_cannot_be_met_is_told_with_its_values() {
    let pool = pool(Strategy::LockFree, 256, 2);
    let need = Need::bytes(0);
    assert_eq!(pool.take(&need), Err(TakeError::Empty));
    let most = 128 << 11;
    let bytes = most + 1;
    let long = TakeError::TooLong {
        bytes: most + 2048,
        most,
    };
    assert_eq!(pool.take(&Need::bytes(bytes)), Err(long));
    let long = TakeError::TooLong {
        bytes: u64::MAX,
        most,
    };
    assert_eq!(pool.take(&Need::bytes(u64::MAX)), Err(long));
    let align = PageSize::of_lg2(30);
    let aligned = Need {
        align,
        ..Need::bytes(1)
    };
    let most = PageSize::of_lg2(18);
    assert_eq!(
        pool.take(&aligned),
        Err(TakeError::Alignment { align, most })
    );
    let limit = PhysAddr::new(START);
    let last = pool.memory().last();
    let low = Need {
        limit,
        ..Need::bytes(1)
    };
    assert_eq!(pool.take(&low), Err(TakeError::AboveLimit { last, limit }));
}

#[test]
fn giving_back_twice_or_another_size_is_told() {
    for strategy in Strategy::ALL {
        let pool = pool(strategy, 256, 2);
        let slots = pool.take(&Need::bytes(5000)).unwrap();
        let at = slots.data().start();
        let slot = ((at.get() - START) >> 11) as u32;
        let other = GiveError::OtherSize {
            slot,
            taken: 3,
            given: 1,
        };
        assert_eq!(pool.give_at(at, 2048), Err(other));
        assert!(pool.is_taken(at));
        pool.give_at(at, 5000).unwrap();
        assert!(!pool.is_taken(at));
        let again = GiveError::AlreadyFree { slot };
        assert_eq!(pool.give_at(at, 5000), Err(again));
        let outside = PhysAddr::new(START - 1);
        let foreign = GiveError::Foreign { at: outside };
        assert_eq!(pool.give_at(outside, 1), Err(foreign));
    }
}

#[test]
fn a_shape_that_cannot_be_is_refused() {
    let cpus = Arc::new(SpinCpus::new(1, Still, (|| CpuId::new(0)) as fn() -> CpuId));
    let options = PoolOptions {
        areas: 4,
        ..PoolOptions::for_cpus(&*cpus)
    };
    for (start, bytes) in [(START, 100), (START + 1, 512 << 11), (START, 300 << 11)] {
        let memory = PhysRange::from_len(PhysAddr::new(start), bytes).unwrap();
        let refused = Pool::new(cpus.clone(), memory, options).err().unwrap();
        assert!(matches!(refused, PoolError::Shape { .. }), "{refused}");
    }
}

#[test]
fn the_slots_freed_last_are_taken_first() {
    let pool = pool(Strategy::LockFree, 1024, 1);
    let held: Vec<_> = (0..512)
        .map(|_| pool.take(&Need::bytes(2048)).unwrap())
        .collect();
    let mut held = held.into_iter();
    let early = held.next().unwrap();
    let at = early.data();
    pool.give(early).unwrap();
    assert_eq!(pool.take(&Need::bytes(2048)).unwrap().data(), at);
}
