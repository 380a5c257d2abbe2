//! Debts, and the requests that a sync sends for them: batches, debts that grew, other CPUs,
//! answers that are late.

use crate::promised::promised;
use core::iter;
use std::sync::mpsc::{Receiver, Sender, channel};

use portolan::addr::{Iova, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::{Attach, AttachError, Awaited, Domain, FaultEvent, Iommu, IommuError};
use portolan::table::TableMapError;

use super::{A, B, READ, RW, map, range, start, try_unmap, unmap};
use crate::link::{Failure, Link};

#[test]
fn what_is_unanswered_keeps_its_addresses_until_the_device_returns_it() {
    for failure in [Failure::Lost, Failure::Late, Failure::Silent] {
        let link = Link::new();
        let unit = start(&link);
        let domain = unit.domain().unwrap();
        unit.attach(A, &domain).unwrap();
        let mapped = TableMapError::AlreadyMapped { iova: Iova::new(0) };
        let timed_out = |result| matches!(result, Err(IommuError::TimedOut { .. }));
        // A map: its owner takes it back at once, and the device is not asked again.
        link.state().failures.push_back(Some(failure));
        assert!(map(&domain, 0, 0x5000, 4096).is_err());
        assert_eq!(domain.translate(Iova::new(0)), None);
        assert_eq!(link.state().seen.len(), 2);
        assert_eq!(map(&domain, 0, 0, 4096), Err(mapped.into()));
        let mut owed = Gather::new();
        owed.owe_unmap(domain.id(), range(0, 4095), domain.granule()).unwrap();
        assert!(timed_out(domain.sync(&mut owed).map(drop).map_err(IommuError::from)));
        link.return_all();
        domain.sync(&mut owed).unwrap();
        assert_eq!(link.reach(8, 0, READ), None);
        // An unmap: it is not repeated while the first may still hit the next owner.
        map(&domain, 0, 0x5000, 4096).unwrap();
        link.state().failures.push_back(Some(failure));
        let (mut owed, failed) = try_unmap(&domain, range(0, 4095));
        assert!(timed_out(failed));
        let seen = link.state().seen.len();
        assert!(timed_out(domain.sync(&mut owed).map(drop).map_err(IommuError::from)));
        assert_eq!(link.state().seen.len(), seen);
        assert_eq!(map(&domain, 0, 0, 4096), Err(mapped.into()), "{failure:?}");
        link.return_all();
        domain.sync(&mut owed).unwrap();
        map(&domain, 0, 0x6000, 4096).unwrap();
        assert_eq!(link.reach(8, 0, READ), Some(0x6000));
    }
}

#[test]
fn maps_and_unmaps_send_nothing_and_a_sync_sends_them_together() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    let mut owed = Gather::new();
    // Every second page of memory; two neighbours are one mapping.
    let piece = |(at, bytes)| promised(PhysAddr::new(at), bytes);
    let pieces = (0..20).map(|n| (n << 13, 4096)).chain([(39 << 12, 8192)]);
    let pieces: Vec<_> = pieces.map(piece).collect();
    domain.map_sg(Iova::new(0), &pieces, RW, &mut owed).unwrap();
    assert!(domain.is_due(&owed));
    assert_eq!(link.state().seen.len(), 1);
    domain.sync(&mut owed).unwrap();
    assert!(owed.is_empty());
    assert_eq!((unit.counts().map, link.state().batches.clone()), (20, vec![16, 4]));
    let all = range(0, 22 * 4096 - 1);
    assert_eq!(link.reach(8, all.last().get(), READ), Some(0x28fff));
    domain.unmap(all, &mut owed).unwrap();
    assert_eq!(unit.counts().unmap, 0);
    assert_eq!(link.reach(8, 0, READ), Some(0));
    domain.sync(&mut owed).unwrap();
    // Neighbours are one request.
    assert_eq!(unit.counts().unmap, 1);
    assert_eq!(link.reach(8, 0, READ), None);
    // A map that was taken back before it was sent is never sent.
    domain.map(Iova::new(0), promised(PhysAddr::new(0), 4096), RW, &mut owed).unwrap();
    domain.unmap(range(0, 4095), &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!((unit.counts().map, unit.counts().unmap), (20, 1));
}

#[test]
fn a_debt_that_has_grown_takes_no_other_mapping_away() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    for page in 0..200 {
        map(&domain, page << 12, page << 12, 4096).unwrap();
    }
    let (mut owed, mut other) = (Gather::new(), Gather::new());
    for page in (0..200).step_by(7) {
        domain.unmap(range(page << 12, page << 12 | 0xfff), &mut other).unwrap();
        domain.absorb(&mut owed, &mut other).unwrap();
    }
    domain.sync(&mut owed).unwrap();
    for page in 0..200 {
        let wanted = (page % 7 != 0).then_some(page << 12);
        assert_eq!(link.reach(8, page << 12, READ), wanted, "{page}");
    }
    // A debt of another domain pays nothing.
    let stranger = unit.domain().unwrap();
    domain.unmap(range(0x1000, 0x1fff), &mut owed).unwrap();
    assert!(stranger.sync(&mut owed).is_err());
    assert!(stranger.absorb(&mut other, &mut owed).is_err());
    domain.sync(&mut owed).unwrap();
    assert_eq!(link.reach(8, 0x1000, READ), None);
}

#[test]
fn one_unmap_of_many_mappings_is_one_request() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    let page = |n: u64| range(n << 12, n << 12 | 0xfff);
    let reached = || {
        let pages = 0..210u64;
        let reached = pages.filter(|n| link.reach(8, n << 12, READ).is_some());
        reached.collect::<Vec<_>>()
    };
    let every_mapping = || {
        for n in 0..210 {
            // The other way round in memory: none is joined with its neighbour.
            map(&domain, n << 12, (300 - n) << 12, 4096).unwrap();
        }
    };
    every_mapping();
    let mut owed = Gather::new();
    let all = range(0, (200 << 12) - 1);
    domain.unmap(all, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!((unit.counts().map, unit.counts().unmap), (210, 1));
    assert_eq!(reached(), (200..210).collect::<Vec<_>>());
    // Nothing stays behind: all addresses can be used again, and go in one request again, though
    // the first is lost, and none of them is repeated before the device returns it.
    unmap(&domain, 200 << 12, (210 << 12) - 1).unwrap();
    every_mapping();
    link.state().failures.push_back(Some(Failure::Lost));
    domain.unmap(all, &mut owed).unwrap();
    assert!(domain.sync(&mut owed).is_err());
    assert!(domain.sync(&mut owed).is_err());
    assert_eq!(unit.counts().unmap, 3);
    link.return_all();
    domain.sync(&mut owed).unwrap();
    assert_eq!(unit.counts().unmap, 4);
    assert_eq!(reached(), (200..210).collect::<Vec<_>>());
    // One that is free parts the others: another CPU may map there before the device answers.
    unmap(&domain, 200 << 12, (210 << 12) - 1).unwrap();
    every_mapping();
    unmap(&domain, 100 << 12, 100 << 12 | 0xfff).unwrap();
    let before = unit.counts().unmap;
    for n in (0..100).chain(101..200) {
        domain.unmap(page(n), &mut owed).unwrap();
    }
    domain.sync(&mut owed).unwrap();
    assert_eq!(unit.counts().unmap, before + 2);
    assert_eq!(reached(), (200..210).collect::<Vec<_>>());
}

/// A request is given up while another CPU is at work in the same range.
#[test]
fn what_is_given_up_meanwhile_is_not_taken_for_returned() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    let last = 40 << 12;
    map(&domain, last, 0x5000, 4096).unwrap();
    // More than are sent together, all in one range.
    for n in 0..20u64 {
        let (iova, pa) = (Iova::new(n << 13), PhysAddr::new(n << 13));
        let mut alone = Gather::new();
        domain.map(iova, promised(pa, 4096), RW, &mut alone).unwrap();
    }
    let mut owed = Gather::new();
    let all = range(0, last | 0xfff);
    owed.owe_map(domain.id(), all, domain.granule()).unwrap();
    let (seen, go) = gate(&link, 0);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| domain.sync(&mut owed).map_err(IommuError::from));
        seen.recv().unwrap();
        link.state().failures.push_back(Some(Failure::Late));
        assert!(try_unmap(&domain, range(last, last | 0xfff)).1.is_err());
        go.send(()).unwrap();
        let waited = sync.join().unwrap().unwrap_err();
        assert!(matches!(waited, IommuError::TimedOut { .. }));
    });
    // Else the addresses were free, and the next mapping there were unmapped.
    let mapped = TableMapError::AlreadyMapped { iova: Iova::new(last) };
    assert_eq!(map(&domain, last, 0, 4096), Err(mapped.into()));
    link.return_all();
    domain.sync(&mut owed).unwrap();
    map(&domain, last, 0x6000, 4096).unwrap();
}

/// A gate for the next request that is not passed over.
pub(super) fn gate(link: &Link, passed_over: usize) -> (Receiver<()>, Sender<()>) {
    let ((came, seen), (go, goes)) = (channel(), channel());
    let mut state = link.state();
    state.gates = iter::repeat_with(|| None).take(passed_over).collect();
    state.gates.push_back(Some((came, goes)));
    (seen, go)
}

#[test]
fn what_is_unmapped_while_it_is_being_mapped_is_unmapped_once_it_was() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    let (seen, go) = gate(&link, 0);
    let mut owed = Gather::new();
    for at in [0, 0x8000] {
        domain.map(Iova::new(at), promised(PhysAddr::new(at), 4096), RW, &mut owed).unwrap();
    }
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| domain.sync(&mut owed).unwrap());
        seen.recv().unwrap();
        // Another CPU does not wait to unmap, and waits for no more than its turn to pay.
        let mut other = Gather::new();
        domain.unmap(range(0, 4095), &mut other).unwrap();
        let IommuError::TimedOut { awaited, .. } = domain.sync(&mut other).unwrap_err().into()
        else {
            panic!("not for the turn");
        };
        assert_eq!(awaited, Awaited::Turn);
        go.send(()).unwrap();
        sync.join().unwrap();
        // The CPU that mapped it has unmapped it, and left the rest of its debt.
        assert_eq!(link.reach(8, 0, READ), None);
        assert_eq!(link.reach(8, 0x8000, READ), Some(0x8000));
        domain.sync(&mut other).unwrap();
    });
    map(&domain, 0, 0x7000, 4096).unwrap();
}

#[test]
fn an_unmap_that_is_refused_because_the_last_endpoint_leaves() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    map(&domain, 0, 0x8000, 0x3000).unwrap();
    map(&domain, 0x8000, 0x8000, 0x1000).unwrap();
    // Cut in the middle: the whole is to be unmapped first.
    let (seen, go) = gate(&link, 0);
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| unmap(&domain, 0x1000, 0x1fff));
        seen.recv().unwrap();
        unit.block(A).unwrap();
        link.state().failures.push_back(Some(Failure::Status(4)));
        go.send(()).unwrap();
        cut.join().unwrap().unwrap();
    });
    // The device has forgotten all; attaching again sends the requests that are left.
    unit.attach(A, &domain).unwrap();
    let reach = |iova| link.reach(8, iova, READ);
    assert_eq!((reach(0), reach(0x1000)), (Some(0x8000), None));
    assert_eq!((reach(0x2000), reach(0x8000)), (Some(0xa000), Some(0x8000)));
    // A whole one: it is gone with the domain.
    let (seen, go) = gate(&link, 0);
    std::thread::scope(|scope| {
        let gone = scope.spawn(|| unmap(&domain, 0x8000, 0x8fff));
        seen.recv().unwrap();
        unit.block(A).unwrap();
        link.state().failures.push_back(Some(Failure::Status(4)));
        go.send(()).unwrap();
        gone.join().unwrap().unwrap();
    });
    unit.attach(A, &domain).unwrap();
    assert_eq!((reach(0), reach(0x8000)), (Some(0x8000), None));
}

#[test]
fn faults_are_read_while_a_stream_is_being_moved() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    let mut record = [0; 24];
    record[4..8].copy_from_slice(&0x102u32.to_le_bytes());
    link.state().faults.push_back((record, 24));
    let (seen, go) = gate(&link, 0);
    std::thread::scope(|scope| {
        let attach = scope.spawn(|| unit.attach(A, &domain));
        seen.recv().unwrap();
        assert!(matches!(unit.next_fault(), Ok(Some(FaultEvent::Fault(_)))));
        map(&domain, 0, 0x1000, 4096).unwrap();
        // Another CPU's turn is over before the device answers.
        let other = unit.block(B).unwrap_err();
        let AttachError::Iommu(IommuError::TimedOut { awaited, .. }) = other else {
            panic!("{other}");
        };
        assert_eq!(awaited, Awaited::Turn);
        go.send(()).unwrap();
        attach.join().unwrap().unwrap();
    });
    assert_eq!(link.reach(8, 0, READ), Some(0x1000));
}
