//! Every interleaving of a CPU that takes requests in or serves them with one that detaches,
//! explored with a model checker.
//!
//! A group that gets no response or two fails the test.
#![allow(missing_docs)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::Arc;
use portolan::addr::{Iova, IovaRange, Pasid, StreamId};
use portolan::iopf::{
    Bounds, Dispatcher, Group, GroupId, Handler, Permissions, Place, RawPageRequest, ReplyTo,
    RequestKind, Responder, Response,
};
use support::loom_cpus::{LoomCpus, explore, on_cpu};

const STREAM: StreamId = StreamId::new(3);
const PASID: Option<Pasid> = Some(Pasid::new(1));

/// Responses sent, by group. Not seen by the model checker, whose threads are one thread.
#[derive(Clone, Default)]
struct Sent(std::sync::Arc<[AtomicUsize; 4]>);

impl Responder for Sent {
    type Error = ();

    fn respond(&self, to: ReplyTo, _: Response) -> Result<(), ()> {
        loom::thread::yield_now();
        let portolan::iopf::ReplyName::Group(group) = to.name else {
            return Err(());
        };
        self.0[usize::from(group.get())].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Sent {
    fn counts(&self) -> [usize; 4] {
        std::array::from_fn(|group| self.0[group].load(Ordering::Relaxed))
    }
}

struct Slow;

impl Handler for Slow {
    fn handle(&self, _: &Group<'_>) -> Response {
        loom::thread::yield_now();
        Response::Success
    }
}

type Desk = Dispatcher<LoomCpus, Sent>;

/// Room for the groups of these tests: memory is made anew for each interleaving.
fn small() -> Bounds {
    Bounds { groups: 4, requests: 2, ..Bounds::default() }
}

fn desk() -> (Arc<Desk>, Sent) {
    let sent = Sent::default();
    let desk = Dispatcher::new(LoomCpus::new(2), sent.clone(), small()).unwrap();
    (Arc::new(desk), sent)
}

fn reach() -> IovaRange {
    IovaRange::new(Iova::new(0), Iova::new(u64::MAX)).unwrap()
}

fn register(desk: &Desk) {
    let handler = std::sync::Arc::new(Slow);
    desk.register(STREAM, PASID, reach(), handler).unwrap();
}

fn asks(group: u16, place: Place) -> RawPageRequest {
    let group = GroupId::new(group);
    RawPageRequest {
        stream: STREAM,
        pasid: PASID,
        iova: Iova::new(0x1000),
        wants: Permissions::READ,
        kind: RequestKind::Pri { group, place },
    }
}

#[test]
fn a_detach_while_groups_are_served() {
    explore(3, || {
        let (desk, sent) = desk();
        register(&desk);
        desk.accept(asks(0, Place::Last)).unwrap();
        desk.accept(asks(1, Place::Last)).unwrap();
        let other = Arc::clone(&desk);
        let cpu = on_cpu(1, move || while other.serve().unwrap().is_some() {});
        desk.unregister(STREAM, PASID);
        assert_eq!(desk.outstanding(), 0);
        cpu.join().unwrap();
        assert_eq!(sent.counts(), [1, 1, 0, 0]);
    });
}

#[test]
fn a_detach_while_a_group_comes_in() {
    explore(3, || {
        let (desk, sent) = desk();
        register(&desk);
        let other = Arc::clone(&desk);
        let cpu = on_cpu(1, move || {
            other.accept(asks(0, Place::More)).unwrap();
            other.accept(asks(0, Place::Last)).unwrap();
            other.accept(asks(1, Place::Last)).unwrap();
            other.serve().unwrap();
        });
        desk.unregister(STREAM, PASID);
        register(&desk);
        desk.serve().unwrap();
        cpu.join().unwrap();
        while desk.serve().unwrap().is_some() {}
        assert_eq!(sent.counts(), [1, 1, 0, 0]);
        assert_eq!(desk.outstanding(), 0);
    });
}

#[test]
fn two_serve_and_the_device_goes() {
    explore(2, || {
        let (desk, sent) = desk();
        register(&desk);
        for group in 0..3 {
            desk.accept(asks(group, Place::Last)).unwrap();
        }
        desk.accept(asks(3, Place::More)).unwrap();
        let other = Arc::clone(&desk);
        let cpu = on_cpu(1, move || {
            other.serve().unwrap();
            other.remove_device(STREAM);
        });
        desk.serve().unwrap();
        desk.remove_device(STREAM);
        cpu.join().unwrap();
        assert_eq!(sent.counts(), [1; 4]);
        assert_eq!(desk.outstanding(), 0);
    });
}
