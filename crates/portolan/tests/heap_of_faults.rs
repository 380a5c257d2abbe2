//! No heap memory is taken or freed while a lock is held by what serves faults; nor at all by what
//! the handler of a unit's interrupt calls.
#![allow(missing_docs)]

#[path = "support/watched_heap.rs"]
mod watched_heap;

use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, Pasid, StreamId};
use portolan::fault::{
    Bounds, Dispatcher, Flow, Group, GroupId, Handler, Place, RawPageRequest, ReplyPasid, ReplyTo,
    RequestKind, Responder, Response, Taken, Wants,
};
use watched_heap::{Machine, held, uses};

struct Unit;

impl Responder for Unit {
    type Error = ();

    fn respond(&self, _: ReplyTo, _: Response) -> Result<(), ()> {
        assert_eq!(held(), 0, "a response under a lock");
        Ok(())
    }
}

struct Ready;

impl Handler for Ready {
    fn handle(&self, _: &Group<'_>) -> Response {
        assert_eq!(held(), 0, "a handler under a lock");
        Response::Success
    }
}

fn asks(stream: u32, group: u16, place: Place, iova: u64) -> RawPageRequest {
    let group = GroupId::new(group);
    RawPageRequest {
        stream: StreamId::new(stream),
        pasid: Some(Pasid::new(1)),
        iova: Iova::new(iova),
        wants: Wants::READ,
        kind: RequestKind::Pri { group, place },
    }
}

#[test]
fn a_dispatcher_uses_no_heap_under_its_lock() {
    let bounds = Bounds {
        groups: 64,
        groups_of_device: 16,
        requests: 8,
        flow: Flow::UNBOUNDED,
        ..Bounds::default()
    };
    let desk = Dispatcher::new(Machine, Unit, bounds).unwrap();
    uses("making it");
    let reach = IovaRange::new(Iova::new(0x1000), Iova::new(0xffff)).unwrap();
    for stream in 0..20 {
        let stream = StreamId::new(stream);
        desk.set_reply_pasid(stream, ReplyPasid::Never).unwrap();
        for pasid in 0..20 {
            let handler: Arc<dyn Handler> = Arc::new(Ready);
            desk.register(stream, Some(Pasid::new(pasid)), reach, handler)
                .unwrap();
        }
    }
    uses("registering");
    for round in 0..4 {
        for stream in 0..21 {
            for group in 0..40 {
                for number in 0..12 {
                    // Some are outside, some are too large, most are too many.
                    let iova = 0x1000 * (1 + u64::from(group % 17));
                    let place = match number {
                        11 => Place::Last,
                        _ => Place::More,
                    };
                    let raw = asks(stream, group, place, iova);
                    while desk.queue(raw).is_err() {
                        assert_eq!(uses("taking in"), 0, "an interrupt's handler takes in");
                        desk.serve().unwrap();
                        uses("serving");
                    }
                }
            }
        }
        desk.lost();
        assert_eq!(
            uses("taking in"),
            0,
            "round {round}: an interrupt's handler"
        );
        while desk.serve().unwrap().is_some() {}
        desk.expire().unwrap();
        uses("serving");
    }
    assert_eq!(
        desk.accept(asks(1, 1, Place::More, 0x2000)),
        Ok(Taken::Partial)
    );
    desk.unregister(StreamId::new(1), Some(Pasid::new(1)));
    desk.remove_device(StreamId::new(2));
    uses("removing");
    drop(desk);
    uses("closing");
}
