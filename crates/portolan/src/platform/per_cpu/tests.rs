//! Values that come at first use, by one caller and by many.

use core::sync::atomic::{AtomicU64, AtomicUsize};
extern crate std;

use super::*;

type Values = PerCpu<usize, AtomicU64>;

#[test]
fn a_cpu_without_a_value_of_its_own_asks_and_gets_one_later() {
    let values = Values::new(200, 7).unwrap();
    assert_eq!((values.own(0), values.own(130), values.own(200)), (Some(&7), None, None));
    assert!(values.want(130) && values.want(3) && !values.want(200));
    values.make_wanted(|| Some(9));
    let made: Vec<usize> = (0..300).filter(|&cpu| values.own(cpu).is_some()).collect();
    assert_eq!(made, [0, 3, 130]);
    assert_eq!(values.iter().copied().collect::<Vec<_>>(), [7, 9, 9]);
    // Asked for once, made once.
    values.make_wanted(|| panic!("wanted by no CPU"));
}

#[test]
fn without_memory_there_is_none_and_the_next_caller_tries_again() {
    let values = Values::new(2, 7).unwrap();
    assert_eq!((values.make(1, || None), values.own(1)), (None, None));
    assert_eq!(values.make(1, || Some(8)), Some(&8));
    assert_eq!(values.make(2, || Some(8)), None);
}

#[test]
fn of_callers_at_once_all_get_the_same_value() {
    let values = Values::new(2, 0).unwrap();
    let number = AtomicUsize::new(1);
    let make = || Some(number.fetch_add(1, Ordering::Relaxed));
    let start = std::sync::Barrier::new(4);
    let got: Vec<usize> = std::thread::scope(|scope| {
        let caller = || {
            start.wait();
            *values.make(1, make).unwrap()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(caller)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(got.iter().all(|value| Some(value) == values.own(1)), "{got:?}");
}
