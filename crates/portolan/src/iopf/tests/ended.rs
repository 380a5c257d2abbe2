//! Registrations, devices and handlers that end while groups are under way.

use super::rig::{Alone, BROKEN, PASID, Rig, STREAM, Sent, asks, last, more, small, stalls, to};
use super::std;
use crate::addr::{Pasid, StreamId};
use crate::iopf::registering::Offer;
use crate::iopf::state::State;
use crate::iopf::{
    Cause, Dispatcher, Ended, Handler, Place, RawPageRequest, RegisterError, Responder, Response,
    Served, Taken,
};
use crate::platform::Nanos;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn unregistering_answers_and_waits_for_no_handler() {
    let rig = Rig::new(small());
    rig.register(STREAM, PASID, |desk, _| {
        let ended = desk.unregister(STREAM, PASID);
        // This one, and the one that waits; the third has no end yet.
        let expected = Ended { answered: 2, unsent: 0 };
        assert_eq!(ended, expected);
        // Its number is free for the device, and this one's end is not its end.
        Response::Success
    });
    rig.accept(last(1));
    rig.accept(last(2));
    rig.accept(more(3));
    assert_eq!(rig.desk.serve(), Ok(Some(Served::Overtaken { to: to(1) })));
    assert_eq!(rig.desk.serve(), Ok(None));
    let invalid = Response::Invalid;
    assert_eq!(rig.sent.take(), [(to(1), invalid), (to(2), invalid)]);
    // The end of the third comes to no handler, even if one registers meanwhile.
    rig.grant();
    let expected = Taken::Refused { to: to(3), response: invalid, cause: Cause::Detached };
    assert_eq!(rig.accept(last(3)), expected);
    assert_eq!(rig.desk.outstanding(), 0);
    assert_eq!(rig.desk.counts().overtaken, 1);
}

#[test]
fn a_late_handler_does_not_answer_a_later_group_of_the_same_number() {
    let rig = Rig::new(small());
    let turns = AtomicUsize::new(0);
    rig.register(STREAM, PASID, move |desk, _| {
        if turns.fetch_add(1, Ordering::Relaxed) == 0 {
            desk.unregister(STREAM, PASID);
            let handler = Arc::new(NoOne);
            let reach = super::rig::reach();
            desk.register(STREAM, PASID, reach, handler).unwrap();
            assert_eq!(desk.accept(last(1)), Ok(Taken::Ready));
        }
        Response::Success
    });
    rig.accept(last(1));
    assert_eq!(rig.desk.serve(), Ok(Some(Served::Overtaken { to: to(1) })));
    assert_eq!(rig.sent.responses(), [Response::Invalid]);
    assert_eq!(rig.serve_all(), 1);
    assert_eq!(rig.sent.responses(), [Response::Failure]);
}

pub(super) struct NoOne;

impl crate::iopf::Handler for NoOne {
    fn handle(&self, _: &crate::iopf::Group<'_>) -> Response {
        Response::Failure
    }
}

#[test]
fn address_spaces_end_one_by_one() {
    let rig = Rig::new(small());
    rig.grant();
    let second = Some(Pasid::new(2));
    rig.register(STREAM, second, |_, _| Response::Success);
    let pasid = second;
    rig.accept(last(1));
    rig.accept(RawPageRequest { pasid, ..last(2) });
    assert_eq!(rig.desk.unregister(STREAM, PASID).answered, 1);
    assert_eq!(rig.desk.unregister(STREAM, PASID), Ended::default());
    assert_eq!(rig.sent.take(), [(to(1), Response::Invalid)]);
    assert_eq!(rig.serve_all(), 1);
    assert_eq!(rig.sent.responses(), [Response::Success]);
    let again = rig.desk.register(STREAM, second, super::rig::reach(), Arc::new(NoOne));
    let taken = RegisterError::Taken { stream: STREAM, pasid: second };
    assert_eq!(again, Err(taken));
}

#[test]
fn a_removed_device_owes_nothing() {
    let rig = Rig::new(small());
    rig.grant();
    rig.register(StreamId::new(6), None, |_, _| Response::Success);
    rig.accept(more(1));
    rig.accept(last(2));
    rig.accept(stalls(3));
    assert_eq!(rig.desk.remove_device(STREAM).answered, 3);
    assert_eq!(rig.sent.responses(), [Response::Invalid; 3]);
    assert_eq!((rig.serve_all(), rig.desk.outstanding()), (0, 0));
    assert!(matches!(rig.accept(last(1)), Taken::Refused { .. }));
    // Once more, with nothing there.
    assert_eq!(rig.desk.remove_device(STREAM), Ended::default());
}

#[test]
fn responses_that_could_not_be_sent_at_the_end_are_counted() {
    let rig = Rig::new(small());
    rig.grant();
    rig.register(BROKEN, PASID, |_, _| Response::Success);
    for group in [1, 2] {
        let stream = BROKEN;
        let raw = RawPageRequest { stream, ..last(group) };
        rig.accept(raw);
    }
    rig.accept(last(1));
    let expected = Ended { answered: 3, unsent: 2 };
    assert_eq!(rig.desk.close(), expected);
    assert_eq!(rig.desk.counts().unsent, 2);
}

#[test]
fn a_device_with_groups_is_not_forgotten() {
    let mut state = State::new(&small()).unwrap();
    let mut offer = Offer::default();
    let handler: Arc<dyn Handler> = Arc::new(NoOne);
    let reach = super::rig::reach();
    while let Err(missing) = state.register(STREAM, PASID, reach, &handler, &mut offer) {
        offer.make(missing).unwrap();
    }
    let refused = RawPageRequest { pasid: None, ..more(1) };
    for raw in [more(1), refused] {
        state.take_in(raw, Nanos::new(0), &small());
        assert!(state.remove_idle(STREAM).is_err());
        assert!(state.next_of_device(STREAM, &small()).is_some());
    }
    assert!(matches!(state.remove_idle(STREAM), Ok(Some(_))));
}

#[test]
fn a_responder_may_be_borrowed_or_shared() {
    fn refuses(responder: impl Responder, sent: &Sent) {
        let desk = Dispatcher::new(Alone::default(), responder, small()).unwrap();
        assert!(matches!(desk.accept(last(1)), Ok(Taken::Refused { .. })));
        assert_eq!(sent.take(), [(to(1), Response::Invalid)]);
    }
    let sent = Sent::default();
    refuses(&sent, &sent);
    refuses(Arc::new(sent.clone()), &sent);
}

#[test]
fn a_dispatcher_prints_its_bounds() {
    let printed = alloc::format!("{:?}", Rig::new(small()).desk);
    assert!(printed.contains("groups_of_device: 3"), "{printed}");
}

#[test]
fn a_dropped_dispatcher_has_answered_everything() {
    let rig = Rig::new(small());
    rig.grant();
    rig.accept(more(1));
    rig.accept(last(2));
    let sent = rig.sent.clone();
    drop(rig);
    assert_eq!(sent.take().len(), 2);
}

#[test]
fn a_handler_that_unwinds_fails_its_group() {
    let rig = Rig::new(small());
    rig.register(STREAM, PASID, |_, _| panic!("as the test wants it"));
    rig.accept(last(1));
    rig.accept(last(2));
    for group in [1, 2] {
        let desk = std::panic::AssertUnwindSafe(&rig.desk);
        let unwound = std::panic::catch_unwind(move || {
            let _ = desk.serve();
        });
        assert!(unwound.is_err());
        assert_eq!(rig.sent.take(), [(to(group), Response::Failure)]);
    }
    assert_eq!(rig.desk.outstanding(), 0);
    assert_eq!(rig.desk.counts().refused(Cause::HandlerLost), 2);
    assert_eq!(rig.accept(asks(1, Place::Last)), Taken::Ready);
}

#[test]
fn a_handler_that_unwinds_after_it_was_unregistered_answers_no_request() {
    let rig = Rig::new(small());
    rig.register(STREAM, PASID, |desk, _| {
        desk.remove_device(STREAM);
        panic!("as the test wants it")
    });
    rig.accept(last(1));
    let desk = std::panic::AssertUnwindSafe(&rig.desk);
    let unwound = std::panic::catch_unwind(move || {
        let _ = desk.serve();
    });
    assert!(unwound.is_err());
    assert_eq!(rig.sent.responses(), [Response::Invalid]);
}
