//! What a line of progress says.

use super::*;

#[test]
fn steps_are_told_with_their_share_their_rate_and_the_time_left() {
    let work = Progress::new(2000);
    let pace = Pace(Duration::from_secs(3));
    assert_eq!(
        work.text(1500, pace),
        "1,500 of 2,000, 75 %, 500/s, 1 s left"
    );
    assert_eq!(
        work.text(6, pace),
        "6 of 2,000, 0 %, 2.0/s, 16 min 37 s left"
    );
    assert_eq!(Progress::unbounded().text(1500, pace), "1,500, 500/s");
    work.set(500);
    work.add(5);
    assert_eq!(work.done.load(Ordering::Relaxed), 505);
}

#[test]
fn time_left_is_told_only_where_it_can_be() {
    let pace = Pace(Duration::from_secs(10));
    assert_eq!(pace.left(0, 100), "");
    assert_eq!(pace.left(1, u64::MAX), "");
    assert_eq!(pace.left(100, 50), ", 0 s left");
    assert_eq!(pace.left(1, 1000), ", 2 h 46 min left");
    assert_eq!(Pace(Duration::ZERO).left(1, 2), ", 0 s left");
}
