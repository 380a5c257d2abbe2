//! Address spaces whose ends are nothing round: ranges that are given out come back.
#![allow(missing_docs)]

use portolan::addr::{CpuId, Iova, IovaRange, PageSize};
use portolan::iova::{AddressOrder, Checks, IovaError, IovaOptions, IovaSpace, Request};
use portolan::platform::{Clock, Nanos, SpinCpus};

struct Still;

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

type Cpus = SpinCpus<Still, fn() -> CpuId>;

fn first() -> CpuId {
    CpuId::new(0)
}

const SPACES: u64 = 3000;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.next(list.len() as u64) as usize]
    }
}

#[test]
fn three_pages_of_a_space_of_three_come_back() {
    let cpus = SpinCpus::new(1, Still, first as fn() -> CpuId);
    let window = IovaRange::from_len(Iova::new(0x10_0000), 0x3000).unwrap();
    let space = IovaSpace::new(cpus, window, PageSize::SIZE_4K, IovaOptions::default()).unwrap();
    let request = Request { bytes: 0x3000, align: PageSize::SIZE_4K, limit: Iova::new(u64::MAX) };
    for _ in 0..2 {
        let range = space.alloc(&request).expect("all of it is free");
        assert_eq!(space.free(range), Ok(()), "it was given out just now");
    }
}

/// A window of up to 2,000 pages, at an end of 32 or of 64 bits as often as not.
fn window(random: &mut Random, granule: PageSize) -> IovaRange {
    let bytes = granule.bytes();
    let base = match random.next(4) {
        0 => 0,
        1 => random.next(1 << 20) * bytes,
        2 => (1 << 32) - random.next(300) * bytes,
        _ => (u64::MAX - (random.next(3000) + 1) * bytes) & !(bytes - 1),
    };
    let last = base.saturating_add((1 + random.next(2000)) * bytes - 1);
    IovaRange::new(Iova::new(base), Iova::new(last)).unwrap()
}

fn options(random: &mut Random) -> IovaOptions {
    IovaOptions {
        front: random.next(8) as u8,
        depot_magazines: random.next(4) as usize,
        refill: random.next(20) as u32,
        rounds: random.next(20) as u16,
        reserve: random.next(20) as u16,
        checks: random.of(&[Checks::Cheap, Checks::Exact]),
        order: random.of(&[AddressOrder::LowFirst, AddressOrder::HighFirst]),
    }
}

/// A range that was found in one of the ways that there are, if there is one.
fn find(random: &mut Random, space: &IovaSpace<Cpus>) -> Option<IovaRange> {
    let (window, granule) = (space.window(), space.granule());
    let pages = window.pages(granule);
    let mut address = || window.start().get() + random.next(pages) * granule.bytes();
    let (at, top) = (address(), address());
    let most = (1 + random.next(40)) * granule.bytes();
    let request = Request {
        bytes: 1 + random.next(most),
        align: PageSize::of_lg2(random.next(20) as u32),
        limit: Iova::new(random.of(&[u64::MAX, u32::MAX.into(), top])),
    };
    let found = match random.next(4) {
        0 => space.try_alloc(&request),
        1 => {
            let bytes = request.bytes.next_multiple_of(granule.bytes());
            let range = IovaRange::from_len(Iova::new(at), bytes)?;
            return space.alloc_at(range).ok().map(|()| range);
        }
        _ => space.alloc(&request),
    };
    match found {
        Ok(range) => Some(range),
        Err(IovaError::Full { .. } | IovaError::Memory) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn whatever_the_space_what_was_given_out_comes_back() {
    for seed in 0..SPACES {
        let mut random = Random(seed);
        let granule = PageSize::of_lg2(random.of(&[12, 14, 16]));
        let (window, options) = (window(&mut random, granule), options(&mut random));
        let cpus = SpinCpus::new(2, Still, first as fn() -> CpuId);
        let Ok(space) = IovaSpace::new(cpus, window, granule, options) else {
            continue;
        };
        let whole = space.window().pages(granule);
        let mut out: Vec<IovaRange> = Vec::new();
        for _ in 0..200 {
            if random.next(3) == 0 && !out.is_empty() {
                let at = random.next(out.len() as u64) as usize;
                let range = out.swap_remove(at);
                assert_eq!(space.free(range), Ok(()), "seed {seed}: {range} of {window}");
            } else if let Some(range) = find(&mut random, &space) {
                assert!(space.window().covers(range), "seed {seed}: {range}");
                let twice = out.iter().any(|other| other.overlaps(range));
                assert!(!twice, "seed {seed}: {range}");
                out.push(range);
            }
        }
        for range in out.drain(..) {
            assert_eq!(space.free(range), Ok(()), "seed {seed}: {range} of {window}");
        }
        space.trim_all();
        assert_eq!(space.stats().free, whole, "seed {seed}: {window} {options:?}");
    }
}
