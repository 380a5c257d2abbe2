//! Pools of every strategy against a list of taken slots.
#![allow(missing_docs)]

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use portolan::addr::{CpuId, PageSize, PhysAddr, PhysRange};
use portolan::bounce::{GiveError, Need, PoolOptions, Slots};
use portolan::dma::Unowned;
use portolan::platform::SpinCpus;
use portolan_chips::fixture::Still;
use portolan_sim::swiotlb::{self, AnyPool, Strategy};

type TestCpus = Arc<SpinCpus<Still, fn() -> CpuId>>;

const START: u64 = 0x4000_0000;

fn pool(strategy: Strategy, slots: u64, areas: u32) -> AnyPool<TestCpus> {
    let cpus = Arc::new(SpinCpus::new(1, Still, (|| CpuId::new(0)) as fn() -> CpuId));
    let memory = PhysRange::from_len(PhysAddr::new(START), slots << 11).unwrap();
    // SAFETY: the addresses are names: no memory of the test is behind them.
    let memory = unsafe { Unowned::new(memory) };
    let options = PoolOptions::of_areas(areas);
    swiotlb::pool(cpus, memory, options, strategy).unwrap()
}

#[test]
fn random_buffers_never_overlap_and_all_come_back() {
    let seed = 0x706f_6f6c;
    for strategy in Strategy::ALL {
        let pool = pool(strategy, 1024, 4);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut held: Vec<Slots> = Vec::new();
        for step in 0..20_000 {
            let context = format!("{strategy:?}, seed {seed:#x}, step {step}");
            if random.u64(..2) == 0 || held.is_empty() {
                let keep = PageSize::of_lg2(random.u64(..14) as u32);
                let need = Need {
                    bytes: 1 + random.u64(..40_000),
                    align: PageSize::of_lg2(random.u64(..14) as u32),
                    like: PhysAddr::new(random.u64(..1 << 20)),
                    keep,
                    ..Need::bytes(1)
                };
                let Ok(slots) = pool.take(&need) else {
                    continue;
                };
                let data = slots.data();
                assert_eq!(data.len_minus_one() + 1, need.bytes, "{context}");
                let differ = data.start().get() ^ need.like.get();
                assert_eq!(differ & (keep.bytes() - 1), 0, "{context}: {need:?} {data:?}");
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
                let at = random.u64(..held.len() as u64) as usize;
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

/// Slots that are no multiple of a list's segment: a run may end at the last one, and none beyond it.
#[test]
fn a_run_ends_in_its_area_whatever_the_area_s_size() {
    for strategy in Strategy::ALL {
        for slots in [64, 192, 320] {
            let context = format!("{strategy:?}, {slots} slots");
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

/// A search of recent-first begins at the run that was freed last and goes up. Runs that are given back and taken one
/// by one stay in place. If two are given back in a row, the next search begins above the lower one, so that pairs
/// move through the whole area, as they do with few jobs and few requests in flight.
#[test]
fn recent_first_drifts_where_runs_come_back_in_pairs() {
    let used = |strategy, together: usize| {
        let pool = pool(strategy, 1024, 1);
        let take = || pool.take(&Need::bytes(4096)).unwrap();
        let mut held: VecDeque<Slots> = (0..4).map(|_| take()).collect();
        let mut seen = BTreeSet::new();
        for _ in 0..1000 {
            for slots in held.drain(..together) {
                pool.give(slots).unwrap();
            }
            held.extend((0..together).map(|_| take()));
            seen.extend(held.iter().map(|slots| slots.data().start()));
        }
        seen.len()
    };
    assert_eq!(used(Strategy::RecentFirst, 1), 4);
    assert_eq!(used(Strategy::RecentFirst, 2), 512);
    assert_eq!(used(Strategy::AreaBitmaps, 1), 512);
    // The library's own takes the lowest of a word.
    assert!(used(Strategy::LockFree, 2) <= 32);
}

#[test]
fn runs_of_two_slots_fill_an_area_to_its_end() {
    for strategy in Strategy::ALL {
        let pool = pool(strategy, 256, 1);
        let runs = core::iter::from_fn(|| pool.take(&Need::bytes(4096)).ok());
        assert_eq!(runs.count(), 128, "{strategy:?}");
    }
}

/// The other pool uses the same memory, which a caller that keeps its promise never does.
#[test]
fn what_is_free_or_of_another_size_is_told() {
    for strategy in Strategy::ALL {
        let [one, other] = [(); 2].map(|()| pool(strategy, 256, 2));
        let take = |pool: &AnyPool<_>, bytes| pool.take(&Need::bytes(bytes)).unwrap();
        let three = take(&one, 5000);
        let at = three.data().start();
        let slot = ((at.get() - START) >> 11) as u32;
        let free = GiveError::AlreadyFree { slot };
        assert_eq!(other.give(three), Err(free));
        assert!(one.is_taken(at) && !other.is_taken(at));
        let three = take(&other, 5000);
        assert_eq!(three.data().start(), at);
        other.give(take(&one, 5000)).expect_err("another slot");
        let single = take(&pool(strategy, 256, 2), 1);
        let size = GiveError::OtherSize { slot, taken: 3, given: 1 };
        assert_eq!(other.give(single), Err(size));
        assert!(other.is_taken(at));
        other.give(three).unwrap();
        assert!(!other.is_taken(at));
    }
}
