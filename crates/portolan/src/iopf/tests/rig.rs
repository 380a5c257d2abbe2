//! A clock that the test moves, locks that are never contended, and a responder that writes down.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Mutex;

use crate::addr::{CpuId, Iova, IovaRange, Pasid, StreamId};
use crate::iopf::{
    Bounds, Dispatcher, Flow, Group, GroupId, Handler, Permissions, Place, RawPageRequest,
    ReplyName, ReplyTo, RequestKind, Responder, Response, StallTag, Taken,
};
use crate::platform::{Clock, Cpus, Lock, Nanos};

pub(super) const STREAM: StreamId = StreamId::new(7);
pub(super) const PASID: Option<Pasid> = Some(Pasid::new(1));

/// Time, set by the test.
#[derive(Clone, Default)]
pub(super) struct Alone(pub Arc<AtomicU64>);

impl Clock for Alone {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.load(Ordering::Relaxed))
    }
}

/// A lock that is free when it is wanted: one that were held across a handler or a response would
/// not be.
pub(super) struct Free<T>(Mutex<T>);

impl<T: Send> Lock<T> for Free<T> {
    type Guard<'a>
        = spin::MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    fn lock(&self) -> spin::MutexGuard<'_, T> {
        self.0.try_lock().expect("the lock is held")
    }

    fn try_lock(&self) -> Option<spin::MutexGuard<'_, T>> {
        self.0.try_lock()
    }

    fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl Cpus for Alone {
    type Word = AtomicU64;
    type Lock<T: Send> = Free<T>;

    fn count(&self) -> usize {
        1
    }

    fn current(&self) -> CpuId {
        CpuId::new(0)
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: crate::platform::LeftBehind) {
        drop(left);
    }
}

/// Responses that were sent.
#[derive(Clone, Default)]
pub(super) struct Sent(pub Arc<Mutex<Vec<(ReplyTo, Response)>>>);

impl Responder for Sent {
    type Error = Broken;

    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), Broken> {
        self.0.lock().push((to, response));
        match to.stream {
            BROKEN => Err(Broken),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// A stream whose responses cannot be sent.
pub(super) const BROKEN: StreamId = StreamId::new(0xdead);

impl Sent {
    /// Responses that were sent since the last call.
    pub fn take(&self) -> Vec<(ReplyTo, Response)> {
        core::mem::take(&mut *self.0.lock())
    }

    /// The responses since the last call.
    pub fn responses(&self) -> Vec<Response> {
        self.take().into_iter().map(|(_, response)| response).collect()
    }
}

pub(super) type Desk = Dispatcher<Alone, Sent>;

type Act = dyn Fn(&Desk, &Group<'_>) -> Response + Send + Sync;

/// A handler that runs code of the test, on the dispatcher as well.
pub(super) struct Says {
    desk: Mutex<alloc::sync::Weak<Desk>>,
    act: Box<Act>,
}

impl Handler for Says {
    fn handle(&self, group: &Group<'_>) -> Response {
        let desk = self.desk.lock().upgrade();
        match desk {
            Some(desk) => (self.act)(&desk, group),
            None => Response::Failure,
        }
    }
}

/// A dispatcher, its time and its responses.
pub(super) struct Rig {
    pub desk: Arc<Desk>,
    pub sent: Sent,
    pub time: Alone,
}

pub(super) fn small() -> Bounds {
    Bounds {
        groups: 4,
        groups_of_device: 3,
        requests: 3,
        timeout: Nanos::new(100),
        flow: Flow::UNBOUNDED,
    }
}

pub(super) fn reach() -> IovaRange {
    IovaRange::new(Iova::new(0x1000), Iova::new(0xf_ffff)).unwrap()
}

impl Rig {
    pub fn new(bounds: Bounds) -> Self {
        let (time, sent) = (Alone::default(), Sent::default());
        let desk = Dispatcher::new(time.clone(), sent.clone(), bounds).unwrap();
        let desk = Arc::new(desk);
        Self { desk, sent, time }
    }

    pub fn register(
        &self,
        stream: StreamId,
        pasid: Option<Pasid>,
        act: impl Fn(&Desk, &Group<'_>) -> Response + Send + Sync + 'static,
    ) {
        let handler = Says { desk: Mutex::new(Arc::downgrade(&self.desk)), act: Box::new(act) };
        self.desk.register(stream, pasid, reach(), Arc::new(handler)).unwrap();
    }

    /// Everything that is asked for is there.
    pub fn grant(&self) {
        self.register(STREAM, PASID, |_, _| Response::Success);
    }

    pub fn accept(&self, raw: RawPageRequest) -> Taken {
        self.desk.accept(raw).unwrap()
    }

    pub fn serve_all(&self) -> usize {
        let mut served = 0;
        while self.desk.serve().unwrap().is_some() {
            served += 1;
        }
        served
    }

    pub fn at(&self, now: u64) {
        self.time.0.store(now, Ordering::Relaxed);
    }
}

pub(super) fn asks(group: u16, place: Place) -> RawPageRequest {
    let group = GroupId::new(group);
    RawPageRequest {
        stream: STREAM,
        pasid: PASID,
        iova: Iova::new(0x2000),
        wants: Permissions::READ,
        kind: RequestKind::Pri { group, place },
    }
}

pub(super) fn more(group: u16) -> RawPageRequest {
    asks(group, Place::More)
}

pub(super) fn last(group: u16) -> RawPageRequest {
    asks(group, Place::Last)
}

pub(super) fn stalls(tag: u16) -> RawPageRequest {
    let tag = StallTag::new(tag);
    let kind = RequestKind::Stall { tag };
    RawPageRequest { kind, ..last(0) }
}

pub(super) fn to(group: u16) -> ReplyTo {
    ReplyTo { stream: STREAM, pasid: PASID, name: ReplyName::Group(GroupId::new(group)) }
}
