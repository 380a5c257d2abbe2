//! Faults that cannot be served.

use core::sync::atomic::Ordering;

use super::rig::{BASE, PAGE, Rig};
use crate::addr::{Iova, StreamId};
use crate::fault::{Group, Handler, RawPageRequest, RequestKind, Response, StallTag, Wants};
use crate::inval::Caching;
use crate::passthrough::{FaultError, PassthroughOptions, Window};

#[test]
fn every_shortage_of_table_memory_is_an_answer() {
    for window in [Window::Page, Window::Block] {
        let mut served = 0;
        for tables in 1..8 {
            let options = PassthroughOptions {
                window,
                ..PassthroughOptions::default()
            };
            let rig = Rig::new(options, tables);
            rig.memory.gap.store(1, Ordering::Relaxed);
            rig.region(1024);
            match rig.fault(600) {
                Ok(_) => served += 1,
                Err(error) => assert!(matches!(error, FaultError::Map(_)), "{error}"),
            }
            rig.audit(1024);
        }
        assert_eq!(served, 4);
    }
}

fn raw(page: u64, wants: Wants) -> RawPageRequest {
    RawPageRequest {
        stream: StreamId::new(3),
        pasid: None,
        iova: Iova::new(BASE + page * PAGE),
        wants,
        kind: RequestKind::Stall {
            tag: StallTag::new(1),
        },
    }
}

#[test]
fn devices_are_told() {
    let rig = Rig::caching(PassthroughOptions::default(), 64, Caching::NotPresentToo);
    rig.region(16);
    rig.memory.absent.lock().insert(BASE / PAGE + 5);
    let ask = |pages: &[u64], wants| {
        let requests: alloc::vec::Vec<_> = pages
            .iter()
            .map(|page| raw(*page, wants).check().unwrap())
            .collect();
        rig.container
            .handle(&Group::new(raw(0, wants).reply_to(), &requests))
    };
    assert_eq!(
        ask(&[1, 2, 1], Wants::READ | Wants::WRITE),
        Response::Success
    );
    assert_eq!(ask(&[3, 5], Wants::READ), Response::Invalid);
    assert_eq!(ask(&[6], Wants::READ | Wants::EXECUTE), Response::Invalid);
    assert_eq!(ask(&[16], Wants::READ), Response::Invalid);
    rig.hardware.broken.store(1, Ordering::Relaxed);
    assert_eq!(ask(&[7], Wants::READ), Response::Failure);
    rig.hardware.broken.store(0, Ordering::Relaxed);
    assert_eq!(ask(&[7], Wants::READ), Response::Success);
    rig.audit(16);
}
