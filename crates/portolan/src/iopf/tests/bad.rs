//! Requests that no device should have sent.

use super::rig::{BROKEN, Broken, PASID, Rig, STREAM, last, more, small, stalls, to};
use crate::addr::{Iova, PageSize, Pasid};
use crate::iopf::{
    Cause, GroupId, Place, RawPageRequest, ReplyPasid, RequestKind, Response, StallTag,
};
use crate::iopf::{Permissions, Served, Taken};

fn refused(rig: &Rig, raw: RawPageRequest) -> (Response, Cause) {
    match rig.accept(raw) {
        Taken::Refused { response, cause, .. } => (response, cause),
        taken => panic!("{taken:?}"),
    }
}

const INVALID: Response = Response::Invalid;

#[test]
fn strangers_are_refused() {
    let rig = Rig::new(small());
    let unknown = (INVALID, Cause::UnknownDevice);
    assert_eq!(refused(&rig, last(1)), unknown);
    assert_eq!(refused(&rig, stalls(1)), unknown);
    assert_eq!(rig.accept(more(2)), Taken::Ignored);
    assert_eq!(refused(&rig, last(2)), unknown);
    assert_eq!(rig.sent.take().len(), 3);
    rig.grant();
    let pasid = Some(Pasid::new(2));
    let other = RawPageRequest { pasid, ..last(1) };
    assert_eq!(refused(&rig, other), (INVALID, Cause::UnknownPasid));
    let unnamed = RawPageRequest { pasid: None, ..last(1) };
    assert_eq!(refused(&rig, unnamed), (INVALID, Cause::UnknownPasid));
    assert_eq!((rig.serve_all(), rig.sent.take().len()), (0, 2));
    let counts = rig.desk.counts();
    assert_eq!(counts.refused(Cause::UnknownDevice), 3);
    assert_eq!(counts.refused(Cause::UnknownPasid), 2);
    assert_eq!((counts.ignored, counts.handled), (1, 0));
    assert_eq!(counts.requests, 6);
}

#[test]
fn one_bad_request_refuses_its_group_once() {
    let rig = Rig::new(small());
    rig.grant();
    let outside = RawPageRequest { iova: Iova::new(0x10_0000), ..more(5) };
    assert_eq!(rig.accept(more(5)), Taken::Partial);
    let cause = Cause::Outside;
    assert_eq!(rig.accept(outside), Taken::RefusedPart { cause });
    assert_eq!(rig.accept(more(5)), Taken::RefusedPart { cause });
    assert!(rig.sent.take().is_empty());
    assert_eq!(refused(&rig, last(5)), (INVALID, cause));
    assert_eq!(rig.sent.take(), [(to(5), INVALID)]);
    // The number is free again.
    assert_eq!(rig.accept(last(5)), Taken::Ready);
    assert_eq!((rig.serve_all(), rig.sent.responses()), (1, [Response::Success].into()));
    assert_eq!(rig.desk.outstanding(), 0);
}

#[test]
fn what_cannot_be_is_refused() {
    let rig = Rig::new(small());
    rig.grant();
    let wants = Permissions::WRITE | Permissions::EXECUTE;
    let raw = RawPageRequest { wants, ..last(1) };
    assert_eq!(refused(&rig, raw), (INVALID, Cause::Impossible));
    let nothing = RawPageRequest { wants: Permissions::empty(), ..stalls(4) };
    assert_eq!(refused(&rig, nothing), (INVALID, Cause::Impossible));
    // Numbers wider than there are take up no room.
    for group in 512..=u16::MAX {
        let group = GroupId::new(group);
        let place = Place::More;
        let kind = RequestKind::Pri { group, place };
        assert_eq!(rig.accept(RawPageRequest { kind, ..more(0) }), Taken::Ignored);
    }
    assert_eq!(rig.desk.outstanding(), 0);
    assert_eq!(rig.desk.counts().ignored, 0x1_0000 - 512);
}

#[test]
fn a_group_of_two_address_spaces_is_refused() {
    let rig = Rig::new(small());
    rig.grant();
    let pasid = Some(Pasid::new(2));
    rig.register(STREAM, pasid, |_, _| Response::Success);
    assert_eq!(rig.accept(more(1)), Taken::Partial);
    let other = RawPageRequest { pasid, ..last(1) };
    assert_eq!(refused(&rig, other), (INVALID, Cause::Mixed));
    assert_eq!((rig.serve_all(), rig.desk.outstanding()), (0, 0));
}

#[test]
fn a_stop_marker_gets_nothing() {
    let rig = Rig::new(small());
    rig.grant();
    let wants = Permissions::empty();
    let marker = RawPageRequest { wants, ..last(0) };
    assert_eq!(rig.accept(marker), Taken::StopMarker);
    assert!(rig.sent.take().is_empty());
    assert_eq!(rig.desk.counts().stop_markers, 1);
}

#[test]
fn repetitions_get_no_response_of_their_own() {
    let rig = Rig::new(small());
    rig.register(STREAM, PASID, |desk, group| {
        assert_eq!(group.requests().len(), 2);
        // Under way, and once more.
        assert_eq!(desk.accept(last(1)), Ok(Taken::Duplicate));
        Response::Success
    });
    rig.accept(more(1));
    rig.accept(last(1));
    for raw in [last(1), more(1)] {
        assert_eq!(rig.accept(raw), Taken::Duplicate);
    }
    assert_eq!((rig.serve_all(), rig.sent.take().len()), (1, 1));
    assert_eq!(rig.desk.counts().duplicates, 3);
}

#[test]
fn a_device_that_wants_no_address_space_back_gets_none() {
    let rig = Rig::new(small());
    rig.desk.set_reply_pasid(STREAM, ReplyPasid::Never).unwrap();
    rig.register(STREAM, PASID, |_, group| {
        assert_eq!(group.pasid(), PASID);
        Response::Invalid
    });
    rig.accept(last(1));
    rig.serve_all();
    let sent = rig.sent.take();
    assert_eq!((sent.len(), sent[0].0.pasid), (1, None));
}

#[test]
fn a_response_that_cannot_be_sent_is_told_and_counted() {
    let rig = Rig::new(small());
    let stream = BROKEN;
    let raw = RawPageRequest { stream, ..last(1) };
    assert_eq!(rig.desk.accept(raw), Err(Broken));
    rig.register(stream, PASID, |_, _| Response::Success);
    assert_eq!(rig.desk.accept(raw), Ok(Taken::Ready));
    assert_eq!(rig.desk.serve(), Err(Broken));
    assert_eq!(rig.desk.counts().unsent, 2);
    assert_eq!(rig.desk.outstanding(), 0);
    // Others go on.
    rig.grant();
    rig.accept(last(1));
    assert!(matches!(rig.desk.serve(), Ok(Some(Served::Answered { .. }))));
}

#[test]
fn a_request_is_for_the_page_around_its_address() {
    let raw = RawPageRequest { iova: Iova::new(0x12_3456), ..last(1) };
    let request = raw.check().unwrap();
    assert_eq!(request.iova(), Iova::new(0x12_3456));
    assert_eq!(request.page(PageSize::SIZE_4K), Iova::new(0x12_3000));
    assert_eq!(request.page(PageSize::SIZE_64K), Iova::new(0x12_0000));
}

#[test]
fn tags_are_the_numbers_that_they_were_made_of() {
    for tag in [0, 1, 0x1234, u16::MAX] {
        assert_eq!(StallTag::new(tag).get(), tag);
    }
}
