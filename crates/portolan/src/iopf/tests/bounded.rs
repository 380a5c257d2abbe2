//! Bounds: too many, too large, too late, too fast, and lost.

use super::rig::{Rig, STREAM, last, more, small, stalls, to};
use crate::addr::StreamId;
use crate::iopf::{Bounds, Cause, Flow, Permissions, RawPageRequest, Response, Taken};
use crate::platform::Nanos;

#[test]
fn a_group_without_end_is_answered_in_time() {
    let rig = Rig::new(small());
    rig.grant();
    rig.accept(more(1));
    rig.at(60);
    rig.accept(more(1));
    rig.accept(more(2));
    assert_eq!(rig.desk.expire(), Ok(Some(Nanos::new(100))));
    rig.at(100);
    assert_eq!(rig.desk.expire(), Ok(Some(Nanos::new(160))));
    assert_eq!(rig.sent.take(), [(to(1), Response::Invalid)]);
    rig.at(1_000);
    assert_eq!(rig.desk.expire(), Ok(None));
    assert_eq!(rig.sent.take(), [(to(2), Response::Invalid)]);
    assert_eq!(rig.desk.counts().refused(Cause::Late), 2);
    // A later request is a group by itself.
    assert_eq!(rig.accept(last(1)), Taken::Ready);
    assert_eq!((rig.serve_all(), rig.sent.take().len()), (1, 1));
}

#[test]
fn complete_groups_are_not_late() {
    let rig = Rig::new(small());
    rig.grant();
    rig.accept(last(1));
    rig.at(u64::MAX);
    assert_eq!(rig.desk.expire(), Ok(None));
    assert_eq!((rig.serve_all(), rig.sent.responses()), (1, [Response::Success].into()));
}

#[test]
fn a_group_too_large_is_refused_at_its_end_or_in_time() {
    let rig = Rig::new(small());
    rig.grant();
    let cause = Cause::Large;
    for group in [1, 2] {
        for _ in 0..3 {
            assert_eq!(rig.accept(more(group)), Taken::Partial);
        }
        assert_eq!(rig.accept(more(group)), Taken::RefusedPart { cause });
    }
    let response = Response::Invalid;
    let to_first = to(1);
    let expected = Taken::Refused { to: to_first, response, cause };
    assert_eq!(rig.accept(last(1)), expected);
    rig.at(100);
    assert_eq!(rig.desk.expire(), Ok(None));
    assert_eq!(rig.sent.take(), [(to(1), response), (to(2), response)]);
    assert_eq!(rig.desk.counts().refused(cause), 2);
}

#[test]
fn a_device_does_not_use_up_what_others_need() {
    let rig = Rig::new(small());
    rig.grant();
    let other = StreamId::new(8);
    rig.register(other, None, |_, _| Response::Success);
    for group in 0..3 {
        assert_eq!(rig.accept(more(group)), Taken::Partial);
    }
    let cause = Cause::Full;
    assert_eq!(rig.accept(more(3)), Taken::RefusedPart { cause });
    assert!(matches!(rig.accept(last(4)), Taken::Refused { .. }));
    assert!(matches!(rig.accept(stalls(4)), Taken::Refused { .. }));
    // They are to try again.
    assert_eq!(rig.sent.responses(), [Response::Success; 2]);
    let from_other = |raw| RawPageRequest { stream: other, pasid: None, ..raw };
    assert_eq!(rig.accept(from_other(last(0))), Taken::Ready);
    // The fifth of all is one too many.
    assert!(matches!(rig.accept(from_other(last(1))), Taken::Refused { .. }));
    // With room again a refused group stays refused until its end.
    assert_eq!(rig.accept(last(0)), Taken::Ready);
    assert_eq!(rig.serve_all(), 2);
    assert_eq!(rig.accept(more(3)), Taken::RefusedPart { cause });
    assert!(matches!(rig.accept(last(3)), Taken::Refused { .. }));
    assert_eq!(rig.accept(last(3)), Taken::Ready);
    rig.serve_all();
    rig.at(100);
    assert_eq!(rig.desk.expire(), Ok(None));
    assert_eq!((rig.desk.outstanding(), rig.sent.take().len()), (0, 7));
}

#[test]
fn a_flood_is_answered_with_failure() {
    let each = Nanos::new(10);
    let bounds =
        Bounds { groups_of_device: 64, groups: 64, flow: Flow { burst: 8, each }, ..small() };
    let rig = Rig::new(bounds);
    rig.grant();
    for group in 0..100 {
        rig.accept(last(group));
        assert!(rig.desk.outstanding() <= 8);
    }
    assert_eq!(rig.serve_all(), 8);
    let responses = rig.sent.responses();
    let failures = responses.iter().filter(|r| **r == Response::Failure);
    assert_eq!((responses.len(), failures.count()), (100, 92));
    assert_eq!(rig.desk.counts().refused(Cause::Flooded), 92);
    rig.at(10);
    assert_eq!(rig.accept(last(0)), Taken::Ready);
    // Part of a group may be within the flow and part beyond.
    rig.at(20);
    rig.accept(more(1));
    let cause = Cause::Flooded;
    assert_eq!(rig.accept(more(1)), Taken::RefusedPart { cause });
    rig.at(50);
    assert!(matches!(rig.accept(last(1)), Taken::Refused { .. }));
}

#[test]
fn what_the_unit_lost_it_has_answered() {
    let rig = Rig::new(small());
    rig.grant();
    rig.accept(last(1));
    rig.accept(more(2));
    rig.accept(more(3));
    let wants = Permissions::EXECUTE;
    rig.accept(RawPageRequest { wants, ..more(3) });
    rig.desk.lost();
    assert!(rig.sent.take().is_empty());
    assert_eq!(rig.desk.outstanding(), 1);
    // Its last request was not among them.
    assert_eq!(rig.accept(last(2)), Taken::Ready);
    assert_eq!((rig.serve_all(), rig.sent.take().len()), (2, 2));
    let counts = rig.desk.counts();
    assert_eq!((counts.overflows, counts.discarded), (1, 2));
    rig.desk.remove_device(STREAM);
}

/// Each of them takes the dispatcher's time, as others do.
#[test]
fn repetitions_and_stop_markers_are_part_of_the_flow() {
    for marker in [false, true] {
        let mut bounds = small();
        bounds.flow = Flow { burst: 4, each: Nanos::new(10) };
        let rig = Rig::new(bounds);
        rig.grant();
        rig.accept(last(1));
        for _ in 0..4 {
            let wants = match marker {
                true => Permissions::empty(),
                false => Permissions::READ,
            };
            rig.accept(RawPageRequest { wants, ..last(1) });
        }
        let refused = rig.accept(last(2));
        let cause = Cause::Flooded;
        assert!(matches!(refused, Taken::Refused { cause: its, .. } if its == cause), "{marker}");
    }
}
