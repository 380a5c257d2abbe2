//! Requests that an interrupt's handler takes in, and memory that devices cannot use up.

use super::rig::{PASID, Rig, STREAM, last, more, small, to};
use crate::addr::StreamId;
use crate::iopf::{
    Bounds, Cause, Dispatcher, NoMemory, QueueFull, RawPageRequest, Response, Served, Taken,
};

#[test]
fn what_is_queued_is_answered_by_who_serves() {
    let rig = Rig::new(small());
    rig.grant();
    assert_eq!(rig.desk.queue(last(1)), Ok(Taken::Ready));
    let stranger = RawPageRequest { stream: StreamId::new(99), ..last(2) };
    let Ok(Taken::Refused { to: name, .. }) = rig.desk.queue(stranger) else {
        panic!("a stranger was let in");
    };
    // Nothing has gone out: that may wait for the unit.
    assert!(rig.sent.take().is_empty());
    assert_eq!(rig.desk.outstanding(), 2);
    let response = Response::Invalid;
    let answered = Served::Answered { to: name, response };
    assert_eq!(rig.desk.serve(), Ok(Some(answered)));
    assert_eq!((rig.serve_all(), rig.sent.take().len()), (1, 2));
    assert_eq!(rig.desk.outstanding(), 0);
}

#[test]
fn outstanding_are_the_open_the_refused_and_the_unsent() {
    let rig = Rig::new(small());
    rig.grant();
    for group in [1, 2] {
        assert_eq!(rig.desk.queue(more(group)), Ok(Taken::Partial));
    }
    let pasid = None;
    let refused = |raw| RawPageRequest { pasid, ..raw };
    for raw in [more(3), more(4), more(5), last(6)] {
        assert!(rig.desk.queue(refused(raw)).is_ok());
    }
    assert_eq!(rig.desk.outstanding(), 2 + 3 + 1);
    assert_eq!(rig.desk.close().answered, 6);
}

#[test]
fn a_full_queue_takes_nothing_in() {
    let rig = Rig::new(small());
    for group in 0..4 {
        assert!(matches!(rig.desk.queue(last(group)), Ok(Taken::Refused { .. })));
    }
    let before = rig.desk.counts();
    let full = Err(QueueFull { waiting: 4 });
    assert_eq!(rig.desk.queue(last(4)), full);
    assert_eq!(rig.desk.counts(), before);
    assert_eq!((rig.serve_all(), rig.sent.take().len()), (4, 4));
    assert!(rig.desk.queue(last(4)).is_ok());
    // The caller that closes the desk sends them as well, those of devices that are not registered.
    assert_eq!(rig.desk.close().answered, 1);
    assert_eq!(rig.sent.take().len(), 1);
}

#[test]
fn a_device_that_goes_gets_what_was_queued_for_it() {
    let rig = Rig::new(small());
    rig.grant();
    let pasid = None;
    assert!(rig.desk.queue(RawPageRequest { pasid, ..last(1) }).is_ok());
    assert_eq!(rig.desk.remove_device(STREAM).answered, 1);
    let name = crate::iopf::ReplyTo { pasid, ..to(1) };
    assert_eq!(rig.sent.take(), [(name, Response::Invalid)]);
    assert_eq!(rig.serve_all(), 0);
}

#[test]
fn a_handler_that_keeps_its_requests_leaves_less_room_and_no_more() {
    let rig = Rig::new(Bounds { groups: 1, ..small() });
    rig.register(STREAM, PASID, |desk, _| {
        // The group is answered without its handler, which still reads the requests.
        desk.unregister(STREAM, PASID);
        let reach = super::rig::reach();
        let handler = alloc::sync::Arc::new(super::ended::NoOne);
        desk.register(STREAM, PASID, reach, handler).unwrap();
        let cause = Cause::Full;
        let refused = desk.accept(more(2)).unwrap();
        assert_eq!(refused, Taken::RefusedPart { cause });
        Response::Success
    });
    rig.accept(last(1));
    assert_eq!(rig.desk.serve(), Ok(Some(Served::Overtaken { to: to(1) })));
    assert_eq!(rig.accept(last(3)), Taken::Ready);
    rig.serve_all();
    rig.desk.remove_device(STREAM);
    assert_eq!((rig.sent.take().len(), rig.desk.outstanding()), (3, 0));
}

#[test]
fn bounds_beyond_memory_are_an_error() {
    let (groups, requests) = (2, usize::MAX / 2);
    let rig = Rig::new(small());
    let bounds = Bounds { groups, requests, ..small() };
    let made = Dispatcher::new(rig.time.clone(), rig.sent.clone(), bounds);
    assert_eq!(made.err(), Some(NoMemory { groups, requests }));
}
