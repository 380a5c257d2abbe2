//! Address spaces whose ends are nothing round: what is given out comes back.
#![allow(missing_docs)]

use portolan::addr::{CpuId, Iova, IovaRange, PageSize};
use portolan::iova::{Checks, IovaError, IovaOptions, IovaSpace, Request};
use portolan::platform::{Clock, Nanos, SpinCpus};

struct Still;

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

#[test]
fn three_pages_of_a_space_of_three_come_back() {
    let cpus = SpinCpus::new(1, Still, || CpuId::new(0));
    let window = IovaRange::from_len(Iova::new(0x10_0000), 0x3000).unwrap();
    let space = IovaSpace::new(cpus, window, PageSize::SIZE_4K, IovaOptions::default()).unwrap();
    let request = Request {
        bytes: 0x3000,
        align: PageSize::SIZE_4K,
        limit: Iova::new(u64::MAX),
    };
    for _ in 0..2 {
        let range = space.alloc(&request).expect("all of it is free");
        assert_eq!(space.free(range), Ok(()), "it was given out just now");
    }
}

#[test]
fn whatever_the_space_what_was_given_out_comes_back() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..3000u32 {
        let granule = PageSize::of_lg2([12, 14, 16][random.next(3) as usize]);
        let base = match random.next(4) {
            0 => 0,
            1 => random.next(1 << 20) * granule.bytes(),
            2 => (1 << 32) - random.next(300) * granule.bytes(),
            _ => (u64::MAX - (random.next(3000) + 1) * granule.bytes()) & !(granule.bytes() - 1),
        };
        let pages = 1 + random.next(2000);
        let last = base.saturating_add(pages * granule.bytes() - 1);
        let window = IovaRange::new(Iova::new(base), Iova::new(last)).unwrap();
        let cpus = SpinCpus::new(2, Still, || CpuId::new(0));
        let options = IovaOptions {
            front: random.next(8) as u8,
            depot_magazines: random.next(4) as usize,
            refill: random.next(20) as u32,
            rounds: random.next(20) as u16,
            reserve: random.next(20) as u16,
            checks: [Checks::Cheap, Checks::Exact][random.next(2) as usize],
        };
        let Ok(space) = IovaSpace::new(cpus, window, granule, options) else {
            continue;
        };
        let whole = space.window().pages(granule);
        let mut out: Vec<IovaRange> = Vec::new();
        for _ in 0..200 {
            if random.next(3) != 0 {
                let most = (1 + random.next(40)) * granule.bytes();
                let request = Request {
                    bytes: 1 + random.next(most),
                    align: PageSize::of_lg2(random.next(20) as u32),
                    limit: match random.next(3) {
                        0 => Iova::new(u64::MAX),
                        1 => Iova::new(u32::MAX.into()),
                        _ => Iova::new(base.saturating_add(random.next(pages * granule.bytes()))),
                    },
                };
                let found = match random.next(4) {
                    0 => space.try_alloc(&request),
                    1 => {
                        let at = base.saturating_add(random.next(pages) * granule.bytes());
                        let bytes = request.bytes.next_multiple_of(granule.bytes());
                        match IovaRange::from_len(Iova::new(at), bytes) {
                            Some(range) => match space.alloc_at(range) {
                                Ok(()) => Ok(range),
                                Err(_) => continue,
                            },
                            None => continue,
                        }
                    }
                    _ => space.alloc(&request),
                };
                match found {
                    Ok(range) => {
                        assert!(space.window().covers(range), "{round}: {range}");
                        assert!(
                            out.iter().all(|other| !other.overlaps(range)),
                            "{round}: {range}"
                        );
                        out.push(range);
                    }
                    Err(IovaError::Full { .. } | IovaError::Memory) => {}
                    Err(error) => panic!("{error}"),
                }
            } else if !out.is_empty() {
                let at = random.next(out.len() as u64) as usize;
                let range = out.swap_remove(at);
                assert_eq!(
                    space.free(range),
                    Ok(()),
                    "{round}: {range} of {window} {options:?}"
                );
            }
        }
        for range in out.drain(..) {
            assert_eq!(
                space.free(range),
                Ok(()),
                "{round}: {range} of {window} {options:?}"
            );
        }
        space.trim_all();
        assert_eq!(space.stats().free, whole, "{round}: {window} {options:?}");
    }
}
