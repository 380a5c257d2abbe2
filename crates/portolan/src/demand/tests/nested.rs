//! A guest's first stage over a container.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Mutex;

use super::rig::{BASE, PAGE, Rig, pages_at};
use crate::addr::{Iova, Pasid, StreamId};
use crate::demand::{FirstStage, Guest, IoasOptions, Nested, RegionOptions, Residency};
use crate::iopf::{
    Group, GroupId, Handler, PageRequest, Permissions, Place, RawPageRequest, RequestKind, Response,
};
use crate::table::Access;

/// Processes' pages to the guest's pages; all tables are in page 100 of its memory.
#[derive(Default)]
struct Processes {
    pages: Mutex<BTreeMap<(Option<Pasid>, u64), u64>>,
    forwarded: Mutex<Vec<(Option<Pasid>, usize)>>,
    mends: bool,
}

impl Guest for Arc<Processes> {
    fn walk(&self, request: &PageRequest, visit: &mut dyn FnMut(Iova)) -> FirstStage {
        visit(Iova::new(BASE + 100 * PAGE));
        let key = (request.pasid(), request.iova().get() / PAGE);
        match self.pages.lock().get(&key) {
            Some(page) => FirstStage::Leads(Iova::new(BASE + page * PAGE)),
            None => FirstStage::Refuses,
        }
    }

    fn forward(&self, group: &Group<'_>) -> Response {
        let count = group.requests().len();
        self.forwarded.lock().push((group.pasid(), count));
        if !self.mends {
            return Response::Invalid;
        }
        let mut pages = self.pages.lock();
        for (number, request) in group.requests().iter().enumerate() {
            let key = (request.pasid(), request.iova().get() / PAGE);
            pages.entry(key).or_insert(50 + number as u64);
        }
        Response::Success
    }
}

fn ask(handler: &impl Handler, pasid: u32, pages: &[u64]) -> Response {
    ask_for(handler, pasid, pages, Permissions::READ)
}

fn ask_for(handler: &impl Handler, pasid: u32, pages: &[u64], wants: Permissions) -> Response {
    let raw = |page: &u64| RawPageRequest {
        stream: StreamId::new(3),
        pasid: Some(Pasid::new(pasid)),
        iova: Iova::new(page * PAGE),
        wants,
        kind: RequestKind::Pri { group: GroupId::new(9), place: Place::Last },
    };
    let requests: Vec<_> = pages.iter().map(|page| raw(page).check().unwrap()).collect();
    handler.handle(&Group::new(raw(&0).reply_to(), &requests))
}

#[test]
fn each_stage_is_mended_by_its_owner() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(200);
    let guest = Arc::new(Processes { mends: true, ..Processes::default() });
    guest.pages.lock().insert((Some(Pasid::new(1)), 7), 30);
    let nested = Nested::new(rig.container.clone(), guest.clone());
    // The first stage leads somewhere: the guest does not hear of it.
    assert_eq!(ask(&nested, 1, &[7]), Response::Success);
    assert!(guest.forwarded.lock().is_empty());
    assert!(rig.leads(30).is_some() && rig.leads(100).is_some());
    // In another address space it does not: forwarded whole, once, with its PASID.
    assert_eq!(ask(&nested, 2, &[7, 8, 7]), Response::Success);
    assert_eq!(*guest.forwarded.lock(), [(Some(Pasid::new(2)), 3)]);
    assert!(rig.leads(50).is_some() && rig.leads(51).is_some());
    rig.audit(200);
}

#[test]
fn refusals_come_from_the_stage_that_refuses() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(101);
    let guest = Arc::new(Processes::default());
    guest.pages.lock().insert((Some(Pasid::new(1)), 7), 5000);
    let nested = Nested::new(rig.container.clone(), guest.clone());
    assert_eq!(ask(&nested, 1, &[8]), Response::Invalid);
    assert_eq!(guest.forwarded.lock().len(), 1);
    // The first stage leads out of the guest's memory.
    assert_eq!(ask(&nested, 1, &[7]), Response::Invalid);
    assert_eq!(guest.forwarded.lock().len(), 1);
    assert_eq!(rig.container.usage().failed, 1);
}

/// The guest's tables lie in memory that devices may only read; a write through them leads to memory
/// that they may write.
#[test]
fn a_write_needs_no_write_access_to_the_tables_that_lead_there() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(100);
    let tables =
        RegionOptions { range: pages_at(100, 1), access: Access::READ, hold: Residency::OnDemand };
    rig.container.add_region(&tables, rig.memory.clone()).unwrap();
    let guest = Arc::new(Processes::default());
    guest.pages.lock().insert((Some(Pasid::new(1)), 7), 30);
    let nested = Nested::new(rig.container.clone(), guest.clone());
    let write = Permissions::READ | Permissions::WRITE;
    assert_eq!(ask_for(&nested, 1, &[7], write), Response::Success);
    assert!(rig.leads(30).is_some() && rig.leads(100).is_some());
    // Memory that may not be written is not.
    guest.pages.lock().insert((Some(Pasid::new(1)), 8), 100);
    assert_eq!(ask_for(&nested, 1, &[8], write), Response::Invalid);
    assert_eq!(ask(&nested, 1, &[8]), Response::Success);
}

/// A guest that says that it has mended its tables, and has not; the number of times that it said
/// so.
#[derive(Default)]
struct Promises(AtomicU64);

impl Guest for Arc<Promises> {
    fn walk(&self, _: &PageRequest, _: &mut dyn FnMut(Iova)) -> FirstStage {
        FirstStage::Refuses
    }

    fn forward(&self, _: &Group<'_>) -> Response {
        self.0.fetch_add(1, Ordering::Relaxed);
        Response::Success
    }
}

#[test]
fn a_group_goes_to_the_guest_once_even_if_that_helps_nothing() {
    let rig = Rig::new(IoasOptions::default(), 64);
    let guest = Arc::new(Promises::default());
    let nested = Nested::new(rig.container.clone(), guest.clone());
    assert_eq!(ask(&nested, 1, &[7, 8, 9]), Response::Success);
    assert_eq!(guest.0.load(Ordering::Relaxed), 1);
}
