//! Spaces against a list of the ranges that are given out.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::iova::FreeError;

mod audit;
mod many;
mod places;
mod short;
mod steps;
use crate::addr::CpuId;
use crate::platform::tests::Still;
use crate::platform::{Clock, Nanos, SpinCpus};

/// CPUs of which the test says which one calls.
struct Chosen(Arc<AtomicU64>);

impl Clock for Chosen {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

impl Cpus for Chosen {
    type Word = AtomicU64;
    type Lock<T: Send> = spin::Mutex<T>;

    fn count(&self) -> usize {
        4
    }

    fn current(&self) -> CpuId {
        CpuId::new(self.0.load(Ordering::Relaxed) as u32)
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: crate::platform::LeftBehind) {
        drop(left);
    }
}

fn window(start: u64, last: u64) -> IovaRange {
    IovaRange::new(Iova::new(start), Iova::new(last)).unwrap()
}

fn bytes(bytes: u64) -> Request {
    Request { bytes, align: PageSize::SIZE_4K, limit: Iova::new(u64::MAX) }
}

const MIB: u64 = 1 << 20;

type OneCpu = IovaSpace<SpinCpus<Still, fn() -> CpuId>>;

fn one_cpu(window: IovaRange) -> OneCpu {
    one_cpu_with(window, IovaOptions::default())
}

fn one_cpu_with(window: IovaRange, options: IovaOptions) -> OneCpu {
    let cpus = SpinCpus::new(1, Still, (|| CpuId::new(0)) as fn() -> CpuId);
    IovaSpace::new(cpus, window, PageSize::SIZE_4K, options).unwrap()
}

#[test]
fn a_full_gigabyte_takes_other_sizes_where_one_was_freed() {
    let space = one_cpu(window(0, (1 << 30) - 1));
    let high = space.alloc(&bytes(500 * MIB)).unwrap();
    let middle = space.alloc(&bytes(12 * MIB)).unwrap();
    let low = space.alloc(&bytes(499 * MIB)).unwrap();
    space.free(middle).unwrap();
    // 12 MiB and the 13 left over are neighbours or not: either way both fit.
    let thirteen = space.alloc(&bytes(13 * MIB)).unwrap();
    let two = space.alloc(&bytes(2 * MIB)).unwrap();
    for range in [high, low, thirteen, two] {
        space.free(range).unwrap();
    }
    assert_eq!(space.alloc(&bytes(1 << 30)).unwrap(), window(0, (1 << 30) - 1));
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

/// Addresses that are out, by their first.
type Out = alloc::collections::BTreeMap<u64, u64>;

fn check_apart(out: &Out, range: IovaRange, context: &str) {
    let (start, last) = (range.start().get(), range.last().get());
    if let Some((_, &before)) = out.range(..=last).next_back() {
        assert!(before < start, "{context}: {range:?}");
    }
}

#[test]
fn random_requests_never_overlap_and_all_come_back() {
    for (seed, all) in [(1u64, window(0x1000, (1 << 34) - 1)), (2, window(0, 16 * MIB - 1))] {
        let cpu = Arc::new(AtomicU64::new(0));
        let options = IovaOptions { depot_magazines: 2, refill: 8, ..IovaOptions::default() };
        let cpus = Chosen(cpu.clone());
        let space = IovaSpace::new(cpus, all, PageSize::SIZE_4K, options).unwrap();
        let total = space.stats().free;
        let mut random = Random(seed);
        let mut held: Vec<IovaRange> = Vec::new();
        let mut out = Out::new();
        let mut full = 0;
        for step in 0..60_000 {
            let context = alloc::format!("seed {seed}, step {step}");
            cpu.store(random.below(4), Ordering::Relaxed);
            // Fills and drains in turn, so that magazines go to and fro.
            if random.below(100) < if step / 3000 % 2 == 0 { 60 } else { 40 } || held.is_empty() {
                let pages = match random.below(20) {
                    0 => 1 + random.below(2000),
                    1..=4 => 1 + random.below(512),
                    _ => 1 << random.below(4),
                };
                let limit = [u64::MAX, u64::from(u32::MAX), 8 * MIB][random.below(3) as usize];
                let request = Request {
                    bytes: (pages << 12) - random.below(4096),
                    align: PageSize::of_lg2([0, 12, 16][random.below(3) as usize]),
                    limit: Iova::new(limit),
                };
                let Ok(range) = space.alloc(&request) else {
                    full += 1;
                    continue;
                };
                assert_eq!(range.pages(PageSize::SIZE_4K), pages, "{context}");
                assert!(range.start().is_aligned(request.align), "{context}");
                assert!(range.last().get() <= limit && all.covers(range), "{context}");
                check_apart(&out, range, &context);
                out.insert(range.start().get(), range.last().get());
                held.push(range);
            } else {
                let many = 1 + random.below(held.len().min(300) as u64) as usize;
                let first = random.below((held.len() - many + 1) as u64) as usize;
                let back: Vec<_> = held.drain(first..first + many).collect();
                for range in &back {
                    out.remove(&range.start().get());
                }
                assert_eq!(space.free_all(&back), 0, "{context}");
            }
        }
        assert!(seed == 1 || full > 0);
        assert_eq!(space.free_all(&held), 0);
        space.trim();
        let stats = space.stats();
        assert_eq!(stats.free + stats.in_magazines + stats.in_depots, total);
        space.trim_all();
        let stats = space.stats();
        assert_eq!((stats.free, stats.fragments), (total, 1), "seed {seed}");
        space.reserve(all).unwrap();
    }
}

#[test]
fn caches_of_all_cpus_are_given_back_before_a_request_fails() {
    let cpu = Arc::new(AtomicU64::new(0));
    let all = window(0, 4 * MIB - 1);
    let options = IovaOptions::default();
    let space = IovaSpace::new(Chosen(cpu.clone()), all, PageSize::SIZE_4K, options).unwrap();
    let mut held = Vec::new();
    for number in 0..1024 {
        cpu.store(number % 4, Ordering::Relaxed);
        held.push(space.alloc(&bytes(4096)).unwrap());
    }
    assert!(matches!(space.alloc(&bytes(1)), Err(IovaError::Full { .. })));
    for (number, range) in held.into_iter().enumerate() {
        cpu.store(number as u64 % 4, Ordering::Relaxed);
        space.free(range).unwrap();
    }
    assert!(space.stats().in_magazines > 0);
    assert_eq!(space.alloc(&bytes(4 * MIB)).unwrap(), all);
}

#[test]
fn wide_devices_get_low_addresses_as_long_as_there_are_some_and_then_the_next() {
    const GIB: u64 = 1 << 30;
    let space = one_cpu(window(0, (1 << 40) - 1));
    let wide = |size: u64| space.alloc(&bytes(size)).unwrap();
    let lasts = [1, 2, 1, 3].map(|count| wide(count * GIB).last().get());
    assert_eq!(lasts, [4, 3, 1, 8].map(|end| end * GIB - 1));
    // Large requests have not used up the addresses of small ones.
    let page = wide(4096).start().get();
    assert!((4 * GIB..5 * GIB).contains(&page), "{page:#x}");
    let narrow = Request { limit: Iova::new(u64::from(u32::MAX)), ..bytes(4096) };
    let (bytes, limit) = (narrow.bytes, narrow.limit);
    let full = IovaError::Full { bytes, limit };
    assert_eq!(space.alloc(&narrow), Err(full));
    assert_eq!(space.try_alloc(&narrow), Err(full));
    let all = Request { bytes: 1 << 40, ..narrow };
    let full = |limit| IovaError::Full { bytes: 1 << 40, limit };
    assert_eq!(space.alloc(&all), Err(full(all.limit)));
    let limit = Iova::new(u64::MAX);
    let all = Request { limit, ..all };
    assert_eq!(space.alloc(&all), Err(full(limit)));
}

#[test]
fn low_addresses_come_first_in_interrupts_too() {
    let space = one_cpu(window(0, (1 << 40) - 1));
    let range = space.try_alloc(&bytes(4096)).unwrap();
    assert_eq!(range.last().get(), u64::from(u32::MAX));
    let rest = space.alloc(&bytes((1 << 32) - 4096)).unwrap();
    assert_eq!(rest.start().get(), 0);
    let range = space.try_alloc(&bytes(4096)).unwrap();
    assert_eq!(range.last().get(), (1 << 33) - 1);
}

fn high_first(window: IovaRange) -> OneCpu {
    let options = IovaOptions { order: AddressOrder::HighFirst, ..IovaOptions::default() };
    one_cpu_with(window, options)
}

#[test]
fn narrow_devices_get_low_addresses_and_wide_ones_leave_them() {
    let space = high_first(window(0, (1 << 40) - 1));
    let narrow = Request { limit: Iova::new(u64::from(u32::MAX)), ..bytes(4096) };
    for _ in 0..1000 {
        let high = space.alloc(&bytes(4096)).unwrap();
        assert!(high.start().get() > u64::from(u32::MAX));
        let low = space.alloc(&narrow).unwrap();
        assert!(low.last().get() <= u64::from(u32::MAX));
        space.free(high).unwrap();
        space.free(low).unwrap();
    }
}

#[test]
fn what_was_never_given_out_is_refused_where_it_can_be_seen() {
    let space = one_cpu(window(1 << 20, (1 << 32) - 1));
    let outside = window(0, 0xfff);
    let foreign = FreeError::Foreign { range: outside };
    assert_eq!(space.free(outside), Err(foreign));
    let large = space.alloc(&bytes(4 * MIB)).unwrap();
    space.free(large).unwrap();
    assert!(space.free(large).is_err());
    assert_eq!(space.alloc(&bytes(0)), Err(IovaError::Empty));
}
