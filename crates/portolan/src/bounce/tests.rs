//! Which slots a pool lends, and what it refuses. That buffers never overlap is tested in the model's
//! `swiotlb`, beside other designs.

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

fn pool(slots: u64, areas: u32) -> Pool<TestCpus> {
    let cpus = Arc::new(SpinCpus::new(1, Still, (|| CpuId::new(0)) as fn() -> CpuId));
    let memory = PhysRange::from_len(PhysAddr::new(START), slots << 11).unwrap();
    let options = PoolOptions {
        slot: PageSize::of_lg2(11),
        areas,
    };
    Pool::new(cpus, memory, options).unwrap()
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
        };
        let pool = Pool::new(cpus, memory, options).unwrap();
        let data = pool.take(&Need::bytes(2048)).unwrap().data();
        assert_eq!(data.start().get(), START + area * (256 << 11));
    }
}

#[test]
fn buffers_far_above_256_kib_fit_and_fill_an_area() {
    let pool = pool(4096, 1);
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
    let pool = pool(256, 2);
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
    let pool = pool(1024, 1);
    let held: Vec<_> = (0..512)
        .map(|_| pool.take(&Need::bytes(2048)).unwrap())
        .collect();
    let mut held = held.into_iter();
    let early = held.next().unwrap();
    let at = early.data();
    pool.give(early).unwrap();
    assert_eq!(pool.take(&Need::bytes(2048)).unwrap().data(), at);
}
