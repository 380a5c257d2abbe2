//! Slots that a pool lends, and requests that it refuses. That buffers never overlap is tested in
//! the model's `swiotlb`, beside other designs.

use alloc::sync::Arc;
use alloc::vec::Vec;

use spin::Mutex;

use super::*;
use crate::addr::{CpuId, PageSize, PhysAddr, PhysRange};
use crate::dma::tests::buffers::{registers, unowned};
use crate::platform::contract::{Sharing, Unowned};
use crate::platform::tests::Still;
use crate::platform::{Clearing, PhysMemory, SpinCpus, Transfer};

type TestCpus = Arc<SpinCpus<Still, fn() -> CpuId>>;

const START: u64 = 0x4000_0000;

fn memory(start: u64, bytes: u64) -> Unowned {
    unowned(PhysRange::from_len(PhysAddr::new(start), bytes).unwrap())
}

fn pool(slots: u64, areas: u32) -> Pool<TestCpus> {
    pool_of(|| CpuId::new(0), START, slots, areas)
}

/// A pool at `start` that the CPU uses which `current` names, of 8.
fn pool_of(current: fn() -> CpuId, start: u64, slots: u64, areas: u32) -> Pool<TestCpus> {
    let cpus = Arc::new(SpinCpus::new(8, Still, current));
    let options = PoolOptions::of_areas(areas);
    Pool::new(cpus, memory(start, slots << 11), options).unwrap()
}

#[test]
fn a_cpu_takes_from_its_own_area_first() {
    // Of four areas; there are more CPUs than areas.
    for (current, area) in
        [((|| CpuId::new(1)) as fn() -> CpuId, 1), (|| CpuId::new(3), 3), (|| CpuId::new(6), 2)]
    {
        let pool = pool_of(current, START, 1024, 4);
        let data = pool.take(&Need::bytes(2048)).unwrap().data();
        assert_eq!(data.start().get(), START + area * (256 << 11));
    }
}

#[test]
fn buffers_far_above_256_kib_fit_and_fill_an_area() {
    let pool = pool(4096, 1);
    let all = pool.take(&Need::bytes(8 << 20)).unwrap();
    let full = pool.take(&Need::bytes(1)).unwrap_err();
    let expected =
        TakeError::Full { wanted: 1, slots: 4096, used: 4096, longest: 0, area: 0, areas: 1 };
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
    let long = TakeError::TooLong { bytes: most + 2048, most };
    assert_eq!(pool.take(&Need::bytes(bytes)), Err(long));
    let long = TakeError::TooLong { bytes: u64::MAX, most };
    assert_eq!(pool.take(&Need::bytes(u64::MAX)), Err(long));
    let align = PageSize::of_lg2(30);
    let aligned = Need { align, ..Need::bytes(1) };
    let most = PageSize::of_lg2(18);
    assert_eq!(pool.take(&aligned), Err(TakeError::Alignment { align, most }));
    let limit = PhysAddr::new(START);
    let last = pool.memory().last();
    let low = Need { limit, ..Need::bytes(1) };
    assert_eq!(pool.take(&low), Err(TakeError::AboveLimit { last, limit }));
}

#[test]
fn a_shape_that_cannot_be_is_refused() {
    let cpus = Arc::new(SpinCpus::new(1, Still, (|| CpuId::new(0)) as fn() -> CpuId));
    let options = PoolOptions { areas: 4, ..PoolOptions::for_cpus(&*cpus) };
    for (start, bytes) in [(START, 100), (START + 1, 512 << 11), (START, 300 << 11)] {
        let memory = memory(start, bytes);
        let range = memory.memory();
        let refused = Pool::new(cpus.clone(), memory, options).err().unwrap();
        assert!(matches!(refused.error, PoolError::Shape { .. }), "{refused}");
        assert_eq!(refused.memory.memory(), range, "it comes back");
    }
}

#[test]
fn the_slots_freed_last_are_taken_first() {
    let pool = pool(1024, 1);
    let held: Vec<_> = (0..512).map(|_| pool.take(&Need::bytes(2048)).unwrap()).collect();
    let mut held = held.into_iter();
    let early = held.next().unwrap();
    let at = early.data();
    pool.give(early).unwrap();
    assert_eq!(pool.take(&Need::bytes(2048)).unwrap().data(), at);
}

#[test]
fn a_cpu_gets_all_slots_of_all_areas_and_each_once() {
    for current in [(|| CpuId::new(0)) as fn() -> CpuId, || CpuId::new(3)] {
        let pool = pool_of(current, START, 256, 4);
        let mut held: Vec<_> = core::iter::from_fn(|| pool.take(&Need::bytes(2048)).ok()).collect();
        held.sort_by_key(|slots| slots.data().start());
        let starts = held.iter().map(|slots| slots.data().start().get());
        assert!(starts.eq((0..256).map(|slot| START + (slot << 11))));
        // Every third is given back.
        for (number, slots) in held.into_iter().enumerate() {
            if number % 3 == 0 {
                pool.give(slots).unwrap();
            }
        }
        for number in 0..256 {
            let at = START + (number << 11);
            let taken = [at, at + 2047].map(|at| pool.is_taken(PhysAddr::new(at)));
            assert_eq!(taken, [number % 3 != 0; 2], "{number}");
        }
        let outside = [START - 1, START + (256 << 11)];
        assert!(!outside.into_iter().any(|at| pool.is_taken(PhysAddr::new(at))));
    }
}

#[test]
fn the_use_is_noted_when_a_search_leaves_its_area() {
    let pool = pool(256, 2);
    let take = || pool.take(&Need::bytes(2048)).unwrap();
    let held: Vec<_> = (0..129).map(|_| take()).collect();
    for slots in held {
        pool.give(slots).unwrap();
    }
    let used = pool.in_use();
    assert_eq!((used.used, used.high_water), (0, 128));
}

#[test]
fn a_buffer_takes_every_slot_that_it_touches() {
    let pool = pool(64, 1);
    for (like, bytes, slots) in [
        (0, 2048, 1),
        (0, 2049, 2),
        (0x7ff, 1, 1),
        (0x7ff, 2, 2),
        (0x810, 0x7f0, 1),
        (0x810, 0x7f1, 2),
    ] {
        let need =
            Need { like: PhysAddr::new(like), keep: PageSize::SIZE_4K, ..Need::bytes(bytes) };
        let taken = pool.take(&need).unwrap();
        assert_eq!(pool.in_use().used, slots, "{like:#x} {bytes:#x}");
        assert_eq!(pool.give(taken), Ok(()), "{like:#x} {bytes:#x}");
        assert_eq!(pool.in_use().used, 0);
    }
}

#[test]
fn as_much_is_aligned_as_areas_and_memory_are() {
    // Memory that is aligned less than its areas are long, as much, and more.
    for (start, most) in [(0x1_0000, 16), (0x4_0000, 18), (0x10_0000, 18)] {
        let pool = pool_of(|| CpuId::new(0), START + start, 256, 2);
        let take = |lg2| {
            let align = PageSize::of_lg2(lg2);
            let need = Need { align, ..Need::bytes(1) };
            pool.take(&need).map(|slots| slots.data().start().get())
        };
        assert_eq!(take(most).unwrap() % (1 << most), 0);
        let (align, most) = (PageSize::of_lg2(most + 1), PageSize::of_lg2(most));
        assert_eq!(take(align.lg2()), Err(TakeError::Alignment { align, most }));
    }
}

#[test]
fn a_pool_has_at_most_two_to_the_thirtieth_slots() {
    let without_memory = |slots: u64| {
        let cpus = Arc::new(SpinCpus::new(1, Still, (|| CpuId::new(0)) as fn() -> CpuId));
        let memory = memory(0, slots << 11);
        let options = PoolOptions::of_areas(1);
        let none = |_| Vec::<u64>::new().try_reserve_exact(usize::MAX);
        Pool::<_, LockFree<core::sync::atomic::AtomicU64>>::with_areas(
            cpus,
            memory,
            options,
            |slots| none(slots).and_then(|()| LockFree::new(1)),
        )
        .err()
        .unwrap()
        .error
    };
    // Only the areas lack memory.
    assert!(matches!(without_memory(1 << 30), PoolError::Memory));
    assert!(matches!(without_memory((1 << 30) + 64), PoolError::Shape { .. }));
}

#[test]
fn slots_of_which_an_area_would_be_longer_than_all_addresses_are_refused() {
    let cpus = Arc::new(SpinCpus::new(1, Still, (|| CpuId::new(0)) as fn() -> CpuId));
    let options = PoolOptions { slot: PageSize::of_lg2(60), ..PoolOptions::of_areas(1) };
    let refused = Pool::new(cpus, memory(0, 1 << 60), options).err().unwrap();
    assert!(matches!(refused.error, PoolError::Shape { .. }), "{refused}");
}

/// Notes the ranges that are copied and cleared.
#[derive(Default)]
struct Notes {
    copied: Mutex<Vec<(u64, u64, u64)>>,
    cleared: Mutex<Vec<(u64, u64)>>,
}

impl PhysMemory for Notes {
    fn copy(&self, transfer: &Transfer) {
        let (from, to) = (transfer.from().get(), transfer.to().get());
        self.copied.lock().push((from, to, transfer.bytes()));
    }

    fn clear(&self, clearing: &Clearing) {
        let memory = clearing.memory();
        let (start, last) = (memory.start().get(), memory.last().get());
        self.cleared.lock().push((start, last));
    }
}

#[test]
fn the_rest_of_a_copy_s_pages_is_cleared_and_nothing_beyond() {
    for (offset, bytes, cleared) in [
        (0, 4096, &[][..]),
        (0, 4095, &[(4095, 4095)]),
        (1, 4095, &[(0, 0)]),
        (0x123, 0x100, &[(0, 0x122), (0x223, 0xfff)]),
        (0xfff, 2, &[(0, 0xffe), (0x1001, 0x1fff)]),
    ] {
        let notes = Arc::new(Notes::default());
        let pool = PoolMemory::new(pool(64, 1), notes.clone());
        let memory = PhysRange::from_len(PhysAddr::new(0x7000 + offset), bytes).unwrap();
        let need = Need {
            align: PageSize::SIZE_4K,
            like: memory.start(),
            keep: PageSize::SIZE_4K,
            ..Need::bytes(bytes)
        };
        let original = Original { memory, sharing: Sharing::Exclusive };
        let copied = Copied::new(&pool, original, &need, Padding::Clear).unwrap();
        let page = copied.copy_range().start().get() - offset;
        let in_page = |&(start, last): &(u64, u64)| (start - page, last - page);
        let found: Vec<_> = notes.cleared.lock().iter().map(in_page).collect();
        assert_eq!(found, cleared, "{offset:#x} {bytes:#x}");
        let start = memory.start().get();
        assert_eq!(notes.copied.lock()[..], [(start, page + offset, bytes)]);
    }
}

#[test]
fn memory_of_the_same_length_is_copied_to_slots_and_from_them() {
    let notes = Arc::new(Notes::default());
    let pool = PoolMemory::new(pool(64, 1), notes.clone());
    let slots = pool.take(&Need::bytes(0x100)).unwrap();
    let data = slots.data();
    let mut buffer = memory(0x7100, 0x100);
    pool.copy_in(&buffer, &slots).unwrap();
    pool.copy_out(&slots, &mut buffer).unwrap();
    let copy = data.start().get();
    let copied = [(0x7100, copy, 0x100), (copy, 0x7100, 0x100)];
    assert_eq!(notes.copied.lock()[..], copied);
    let long = memory(0x7100, 0x101);
    let length = CopyError::Length { memory: long.memory(), data };
    assert_eq!(pool.copy_in(&long, &slots), Err(length));
    let other = pool_of(|| CpuId::new(0), 1 << 40, 64, 1);
    let strange = other.take(&Need::bytes(0x100)).unwrap();
    let at = strange.data().start();
    let foreign = Err(CopyError::Foreign { at });
    assert_eq!(pool.copy_out(&strange, &mut buffer), foreign);
    let registers = registers(buffer.memory());
    let at = PhysAddr::new(0x7100);
    let refused = Err(CopyError::Registers { at });
    assert_eq!(pool.copy_in(&registers, &slots), refused);
    assert_eq!(notes.copied.lock().len(), 2, "nothing else was copied");
}

#[test]
fn memory_comes_back_from_a_pool_of_which_nothing_is_taken() {
    let whole = pool(64, 1);
    let slots = whole.take(&Need::bytes(1)).unwrap();
    let whole = whole.into_memory().expect_err("slots are taken");
    whole.give(slots).unwrap();
    let memory = whole.into_memory().ok().unwrap();
    assert_eq!(memory.memory().start(), PhysAddr::new(START));
    let cpus = Arc::new(SpinCpus::new(1, Still, (|| CpuId::new(0)) as fn() -> CpuId));
    let registers = registers(memory.memory());
    let refused = Pool::new(cpus, registers, PoolOptions::of_areas(1)).err();
    let memory = memory.memory();
    assert_eq!(refused.unwrap().error, PoolError::Registers { memory });
}

/// An area that finds any slot that it was told to.
struct Wrong(u32);

impl Area for Wrong {
    fn take(&self, _want: Want) -> Option<u32> {
        Some(self.0)
    }

    fn give(&self, _first: u32, _count: u32) -> Result<(), GiveError> {
        Ok(())
    }

    fn is_taken(&self, _first: u32, _count: u32) -> bool {
        false
    }

    fn survey(&self) -> (u32, u32) {
        (u32::MAX, u32::MAX)
    }
}

#[test]
fn an_area_that_is_wrong_lends_nothing_beside_the_pool() {
    for slot in [63, 64, 1 << 20, u32::MAX] {
        let cpus = Arc::new(SpinCpus::new(1, Still, (|| CpuId::new(0)) as fn() -> CpuId));
        let memory = memory(START, 64 << 11);
        let options = PoolOptions::of_areas(1);
        let pool = Pool::with_areas(cpus, memory, options, |_| Ok(Wrong(slot))).unwrap();
        let two = pool.take(&Need::bytes(2 << 11));
        assert!(matches!(two, Err(TakeError::Full { .. })), "{slot}: {two:?}");
        let page = Need { align: PageSize::SIZE_4K, ..Need::bytes(1) };
        assert!(pool.take(&page).is_err(), "{slot}: it is not aligned");
    }
}

/// They begin at the same address.
#[test]
fn slots_of_a_longer_pool_are_not_given_to_a_shorter_one() {
    let (short, long) = (pool(64, 1), pool(256, 1));
    let last = (0..256)
        .map(|_| long.take(&Need::bytes(1)).unwrap())
        .max_by_key(|slots| slots.data().start());
    let last = last.unwrap();
    let at = last.data().start();
    assert_eq!(short.give(last), Err(GiveError::Foreign { at }));
}

#[test]
fn an_error_about_all_of_memory_can_be_printed() {
    let all = PhysRange::new(PhysAddr::new(0), PhysAddr::new(u64::MAX)).unwrap();
    let error = PoolError::Shape { memory: all, areas: 1, slot: PageSize::of_lg2(11), wanted: 1 };
    assert!(alloc::format!("{error}").contains("areas"));
}

/// Of another pool over the same memory.
#[test]
fn slots_of_another_size_are_not_given_back() {
    let [one, other] = [(); 2].map(|()| pool(64, 1));
    let single = one.take(&Need::bytes(1)).unwrap();
    for bytes in [2 << 11, 3 << 11, 64 << 11] {
        let given = (bytes >> 11) as u32;
        let strange = pool(64, 1).take(&Need::bytes(bytes)).unwrap();
        let (slot, taken) = (0, 1);
        let size = GiveError::OtherSize { slot, taken, given };
        assert_eq!(one.give(strange), Err(size), "{bytes}");
    }
    assert_eq!(other.give(single), Err(GiveError::AlreadyFree { slot: 0 }));
    assert_eq!(one.in_use().used, 1);
}
