//! Threads that take addresses from one space, and give them to each other to be given back.
#![allow(missing_docs)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use portolan::addr::{CpuId, Iova, IovaRange, PageSize};
use portolan::iova::{IovaOptions, IovaSpace, Request};
use portolan::platform::{Clock, Nanos, SpinCpus};

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

struct Still;

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

const PAGES: usize = 1 << 14;
const THREADS: u32 = 4;

struct Out(Vec<AtomicBool>);

impl Out {
    fn set(&self, range: IovaRange, out: bool) {
        let first = (range.start().get() >> 12) as usize;
        for page in &self.0[first..first + range.pages(PageSize::SIZE_4K) as usize] {
            assert_ne!(page.swap(out, Ordering::Relaxed), out, "{range:?}");
        }
    }
}

#[test]
fn no_address_is_out_twice() {
    let all = IovaRange::from_len(Iova::new(0), (PAGES as u64) << 12).unwrap();
    // Two CPUs for four threads: threads move, so that a CPU's cache may have two callers.
    let cpus = SpinCpus::new(2, Still, || CpuId::new(CPU.get()));
    let options = IovaOptions { depot_magazines: 4, rounds: 16, ..IovaOptions::default() };
    let space = IovaSpace::new(cpus, all, PageSize::SIZE_4K, options).unwrap();
    let space = Arc::new(space);
    let out = Out((0..PAGES).map(|_| AtomicBool::new(false)).collect());
    std::thread::scope(|scope| {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..THREADS).map(|_| channel::<IovaRange>()).unzip();
        for (number, receiver) in receivers.into_iter().enumerate() {
            let next = senders[(number + 1) % THREADS as usize].clone();
            let (space, out) = (Arc::clone(&space), &out);
            scope.spawn(move || {
                CPU.set(number as u32);
                let mut held = Vec::new();
                for step in 0..40_000u64 {
                    let request = Request {
                        bytes: 4096 << (step * 7 % 5),
                        align: PageSize::SIZE_4K,
                        limit: Iova::new(u64::MAX),
                    };
                    if let Ok(range) = space.alloc(&request) {
                        out.set(range, true);
                        match step % 3 {
                            0 => held.push(range),
                            _ => drop(next.send(range)),
                        }
                    }
                    held.extend(receiver.try_iter());
                    if held.len() > 100 {
                        held.iter().for_each(|&range| out.set(range, false));
                        assert_eq!(space.free_all(&held), 0);
                        held.clear();
                    }
                }
                drop(next);
                held.extend(receiver.try_iter());
                held.iter().for_each(|&range| out.set(range, false));
                assert_eq!(space.free_all(&held), 0);
            });
        }
        drop(senders);
    });
    // Ranges that were sent to a thread that had ended.
    let left: Vec<_> = (0..PAGES).filter(|&page| out.0[page].load(Ordering::Relaxed)).collect();
    space.trim_all();
    assert_eq!(space.stats().free as usize + left.len(), PAGES);
}
