//! No heap memory is taken or freed while a lock of the platform is held, since interrupts are out
//! then; nor at all by functions that handlers of interrupts may call.
#![allow(missing_docs)]

#[path = "support/watched_heap.rs"]
mod watched_heap;

use portolan::addr::{Iova, IovaRange, PageSize};
use portolan::iova::{AddressOrder, Checks, IovaOptions, IovaSpace, Request};
use watched_heap::{Machine, uses};

#[test]
fn addresses_come_and_go_with_no_heap_under_a_lock_and_none_on_their_way_back() {
    for checks in [Checks::Cheap, Checks::Exact] {
        let all = IovaRange::from_len(Iova::new(1 << 20), 1 << 40).unwrap();
        let options = IovaOptions {
            checks,
            // More is held at once than low addresses have room for.
            order: AddressOrder::HighFirst,
            ..IovaOptions::default()
        };
        let space = IovaSpace::new(Machine, all, PageSize::SIZE_4K, options).unwrap();
        let request = |step: u64| Request {
            bytes: 0x1000 * (1 + step % 700),
            align: PageSize::SIZE_4K,
            limit: Iova::new([u64::MAX, u64::from(u32::MAX)][step as usize % 2]),
        };
        let mut held = Vec::with_capacity(20_000);
        uses("making it");
        for round in 0..3 {
            let context = format!("{checks:?}, round {round}");
            uses(&context);
            for step in 0..5_000 {
                held.push(space.alloc(&request(step)).unwrap());
            }
            assert!(uses(&context) > 0 || round > 0, "{context}");
            for step in 0..500 {
                held.extend(space.try_alloc(&request(step)).ok());
            }
            assert_eq!(uses(&context), 0, "{context}: a handler takes addresses");
            while held.len() > 100 {
                let at = held.len() * 7 / 11;
                space.free(held.swap_remove(at)).unwrap();
            }
            assert_eq!(space.free_all(&held), 0);
            held.clear();
            assert_eq!(uses(&context), 0, "{context}: a handler gives addresses back");
            space.trim();
            uses(&context);
        }
        space.reserve(IovaRange::from_len(Iova::new(1 << 30), 1 << 20).unwrap()).unwrap();
        uses("setting aside");
    }
}
