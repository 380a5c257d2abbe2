//! Review: a device that asks again whenever it is answered.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;

use super::rig::{Alone, STREAM};
use crate::addr::Iova;
use crate::iopf::{
    Bounds, Dispatcher, GroupId, Permissions, Place, RawPageRequest, ReplyPasid, ReplyTo,
    RequestKind, Responder, Response,
};

struct Insists {
    desk: Mutex<Weak<Dispatcher<Alone, Insists>>>,
    answered: AtomicU64,
}

/// It would go on for ever; the test has to end.
const MOST: u64 = 100_000;

fn request(number: u64) -> RawPageRequest {
    RawPageRequest {
        stream: STREAM,
        pasid: None,
        iova: Iova::new(0x1000),
        wants: Permissions::READ,
        kind: RequestKind::Pri {
            group: GroupId::new((number % 512) as u16),
            place: Place::More,
        },
    }
}

impl Responder for Insists {
    type Error = ();

    fn respond(&self, _to: ReplyTo, _response: Response) -> Result<(), ()> {
        let number = self.answered.fetch_add(1, Ordering::Relaxed);
        let desk = self.desk.lock().upgrade();
        if let Some(desk) = desk.filter(|_| number < MOST) {
            let _ = desk.queue(request(number));
        }
        Ok(())
    }
}

#[test]
fn a_device_is_removed_although_it_asks_on() {
    let responder = Insists {
        desk: Mutex::default(),
        answered: AtomicU64::new(0),
    };
    let desk = Dispatcher::new(Alone::default(), responder, Bounds::default()).unwrap();
    let desk = Arc::new(desk);
    *desk.responder().desk.lock() = Arc::downgrade(&desk);
    desk.set_reply_pasid(STREAM, ReplyPasid::Never).unwrap();
    desk.queue(request(0)).unwrap();
    desk.remove_device(STREAM);
    let answered = desk.responder().answered.load(Ordering::Relaxed);
    assert!(
        answered < 2_000,
        "it returned after {answered} requests, when the device gave up"
    );
}
