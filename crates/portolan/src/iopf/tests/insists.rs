//! A device that asks again whenever it is answered.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;

use super::rig::{Alone, STREAM};
use crate::addr::Iova;
use crate::iopf::{
    Bounds, Dispatcher, GroupId, Permissions, Place, RawPageRequest, ReplyPasid, ReplyTo,
    RequestKind, Responder, Response,
};
use crate::platform::Nanos;

struct Insists {
    desk: Mutex<Weak<Dispatcher<Alone, Insists>>>,
    answered: AtomicU64,
    place: Place,
}

/// It would go on for ever; the test has to end.
const MOST: u64 = 100_000;

fn request(number: u64, place: Place) -> RawPageRequest {
    RawPageRequest {
        stream: STREAM,
        pasid: None,
        iova: Iova::new(0x1000),
        wants: Permissions::READ,
        kind: RequestKind::Pri { group: GroupId::new((number % 512) as u16), place },
    }
}

impl Responder for Insists {
    type Error = ();

    fn respond(&self, _to: ReplyTo, _response: Response) -> Result<(), ()> {
        let number = self.answered.fetch_add(1, Ordering::Relaxed);
        let desk = self.desk.lock().upgrade();
        if let Some(desk) = desk.filter(|_| number < MOST) {
            let _ = desk.queue(request(number, self.place));
        }
        Ok(())
    }
}

fn desk(place: Place, bounds: Bounds) -> Arc<Dispatcher<Alone, Insists>> {
    let responder = Insists { desk: Mutex::default(), answered: AtomicU64::new(0), place };
    let desk = Dispatcher::new(Alone::default(), responder, bounds).unwrap();
    let desk = Arc::new(desk);
    *desk.responder().desk.lock() = Arc::downgrade(&desk);
    desk.set_reply_pasid(STREAM, ReplyPasid::Never).unwrap();
    desk.queue(request(0, place)).unwrap();
    desk
}

/// Asks for an end that the device does not want; returns the number of groups that were answered
/// until it came.
fn answered(desk: &Dispatcher<Alone, Insists>, end: impl FnOnce()) -> u64 {
    end();
    desk.responder().answered.load(Ordering::Relaxed)
}

#[test]
fn a_device_is_removed_although_it_asks_on() {
    for place in [Place::More, Place::Last] {
        let desk = desk(place, Bounds::default());
        let removed = answered(&desk, || {
            let _ = desk.remove_device(STREAM);
        });
        assert!(removed < 2_000, "{place:?}: {removed}");
        // Its requests now are of a device that is not registered.
        let closed = answered(&desk, || {
            let _ = desk.close();
        });
        assert!(closed < 4_000, "{place:?}: {closed}");
    }
}

#[test]
fn groups_that_are_late_at_once_are_answered_in_time() {
    let bounds = Bounds { timeout: Nanos::new(0), ..Bounds::default() };
    let desk = desk(Place::More, bounds);
    let late = answered(&desk, || {
        let _ = desk.expire();
    });
    assert!(late < 2_000, "{late}");
}
