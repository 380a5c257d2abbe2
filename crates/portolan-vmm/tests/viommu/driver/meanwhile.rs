//! Translations of a mapping before the device answers, and changes while it is asked.

use crate::promised::promised;
use std::sync::mpsc::channel;

use super::owed::gate;
use super::*;

#[test]
fn what_the_device_never_heard_of_is_unmapped_at_once() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    let mut owed = Gather::new();
    let mut at = |pa| domain.map(Iova::new(0), promised(PhysAddr::new(pa), 4096), RW, &mut owed);
    at(0x5000).unwrap();
    let mut other = Gather::new();
    domain.unmap(range(0, 4095), &mut other).unwrap();
    // The addresses are free although the debt is not paid.
    at(0x6000).unwrap();
    domain.sync(&mut owed).unwrap();
    domain.sync(&mut other).unwrap();
    assert_eq!(link.reach(8, 0, READ), Some(0x6000));
    assert_eq!((unit.counts().map, unit.counts().unmap), (1, 0));
}

#[test]
fn a_mapping_of_a_domain_that_the_device_has_forgotten_is_cut_without_asking_it() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    map(&domain, 0, 0x8000, 0x2000).unwrap();
    unit.block(A).unwrap();
    let seen = link.state().seen.len();
    unmap(&domain, 0x1000, 0x1fff).unwrap();
    assert_eq!(link.state().seen.len(), seen);
    unit.attach(A, &domain).unwrap();
    let reach = |iova| link.reach(8, iova, READ);
    assert_eq!((reach(0), reach(0x1000)), (Some(0x8000), None));
}

#[test]
fn nothing_is_translated_while_nobody_knows_what_the_device_does() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    let at = |page: u64| Iova::new(page << 12);
    let found = |page| domain.translate(at(page)).map(|found| found.pa.get());
    // Lost, answered without a status, and as it should be.
    let answers = [Some(Failure::Lost), Some(Failure::Unwritten), None];
    for (page, answer) in (0..).step_by(2).zip(answers) {
        let (pa, mut owed) = (PhysAddr::new(page << 12), Gather::new());
        domain.map(at(page), promised(pa, 4096), RW, &mut owed).unwrap();
        link.state().failures.push_back(answer);
        assert_eq!(domain.sync(&mut owed).is_ok(), answer.is_none());
    }
    assert_eq!((found(0), found(2), found(4)), (None, None, Some(0x4000)));
    // Unmapped, and not yet paid for.
    domain.unmap(range(0x4000, 0x4fff), &mut Gather::new()).unwrap();
    assert_eq!(link.reach(8, 0x4000, READ), Some(0x4000));
    assert_eq!(found(4), None);
}

#[test]
fn a_mapping_in_doubt_is_taken_away_and_made_anew_by_the_next_sync() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    let mut owed = Gather::new();
    let (iova, pa) = (Iova::new(0), PhysAddr::new(0x5000));
    domain.map(iova, promised(pa, 4096), RW, &mut owed).unwrap();
    link.state().failures.push_back(Some(Failure::Unwritten));
    let doubt = IommuError::from(domain.sync(&mut owed).unwrap_err());
    assert!(matches!(doubt, IommuError::Nonsense { .. }));
    domain.sync(&mut owed).unwrap();
    assert_eq!(link.reach(8, 0, READ), Some(0x5000));
    assert_eq!((unit.counts().map, unit.counts().unmap), (2, 1));
    assert_eq!(domain.translate(iova).unwrap().pa, pa);
}

#[test]
fn what_was_lost_is_forgotten_with_the_domain_once_it_is_returned() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    link.state().failures.push_back(Some(Failure::Lost));
    assert!(map(&domain, 0, 0x5000, 4096).is_err());
    // While it is not returned, the domain can be used again, and the addresses cannot.
    unit.block(A).unwrap();
    unit.attach(A, &domain).unwrap();
    let mapped = TableMapError::AlreadyMapped { iova: Iova::new(0) };
    assert_eq!(map(&domain, 0, 0, 4096), Err(mapped.into()));
    unit.block(A).unwrap();
    link.return_all();
    let seen = link.state().seen.len();
    let mut owed = Gather::new();
    owed.owe_unmap(domain.id(), range(0, 4095), domain.granule()).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(link.state().seen.len(), seen, "nobody is left to be asked");
    map(&domain, 0, 0x6000, 4096).unwrap();
}

#[test]
fn all_of_memory_is_no_piece_that_another_is_joined_with() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    let all = || promised(PhysAddr::new(1), u64::MAX);
    let page = || promised(PhysAddr::new(0), 4096);
    let iova = Iova::new(0);
    for pieces in [[all(), page()], [page(), all()]] {
        let mapped = domain.map_sg(iova, &pieces, RW, &mut Gather::new());
        assert!(matches!(mapped, Err(DomainError::Map(TableMapError::Empty { .. }))), "{mapped:?}");
    }
}

#[test]
fn what_is_unmapped_while_it_is_being_cut_stays_unmapped() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    map(&domain, 0, 0x8000, 0x2000).unwrap();
    let (seen, go) = gate(&link, 0);
    std::thread::scope(|scope| {
        let mut owed = Gather::new();
        let domain = &domain;
        let cut = scope.spawn(move || domain.split(Iova::new(0x1000), &mut owed).is_ok());
        seen.recv().unwrap();
        domain.unmap(range(0, 0x1fff), &mut Gather::new()).unwrap();
        go.send(()).unwrap();
        assert!(cut.join().unwrap());
    });
    let reach = |iova| link.reach(8, iova, READ);
    assert_eq!((reach(0), reach(0x1000)), (None, None));
    assert_eq!(domain.translate(Iova::new(0)), None);
    // Both halves are free.
    map(&domain, 0, 0, 0x1000).unwrap();
    map(&domain, 0x1000, 0x7000, 0x1000).unwrap();
}

/// Another CPU waits for the device; it is told to go on when the CPU that waits for it looks at
/// the clock for the first time, and is done before that look is over.
#[test]
fn a_sync_waits_for_a_request_of_another_cpu_in_its_range() {
    let (link, clock) = (Link::new(), Ticks::default());
    let unit = start_by(&link, &clock);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    let (mut owed, mut other) = (Gather::new(), Gather::new());
    let (iova, pa) = (Iova::new(0), PhysAddr::new(0x5000));
    domain.map(iova, promised(pa, 4096), RW, &mut owed).unwrap();
    other.owe_map(domain.id(), range(0, 4095), domain.granule()).unwrap();
    let (seen, go) = gate(&link, 0);
    let (end, ended) = channel();
    let domain = &domain;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let paid = domain.sync(&mut owed).is_ok();
            end.send(paid).unwrap();
        });
        seen.recv().unwrap();
        // The first look is before the records are; the second is the wait's.
        let again = clock.clone();
        clock.strike(move || {
            again.strike(move || {
                go.send(()).unwrap();
                assert!(ended.recv().unwrap());
            });
        });
        let paid = domain.sync(&mut other);
        clock.strike(|| ());
        paid.unwrap();
    });
    assert_eq!(unit.counts().map, 1);
}

/// The device says that there is no such domain while another CPU detaches its last endpoint.
#[test]
fn a_domain_that_the_device_does_not_know_any_more_is_waited_for() {
    let (link, clock) = (Link::new(), Ticks::default());
    let unit = start_by(&link, &clock);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    map(&domain, 0, 0x5000, 4096).unwrap();
    let mut owed = Gather::new();
    domain.unmap(range(0, 4095), &mut owed).unwrap();
    let (seen, go) = gate(&link, 0);
    let (end, ended) = channel();
    let unit = &unit;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let blocked = unit.block(A).is_ok();
            end.send(blocked).unwrap();
        });
        seen.recv().unwrap();
        // The device has detached it, as it seems, and has not said so yet.
        let (came, arrived) = channel();
        let (answer, goes) = channel();
        link.state().gates.push_back(Some((came, goes)));
        let link = &link;
        let waits = clock.clone();
        scope.spawn(move || {
            arrived.recv().unwrap();
            link.state().failures.push_back(Some(Failure::Status(6)));
            let again = waits.clone();
            // The first look is when the wait begins.
            waits.strike(move || {
                again.strike(move || {
                    go.send(()).unwrap();
                    assert!(ended.recv().unwrap());
                });
            });
            answer.send(()).unwrap();
        });
        let paid = domain.sync(&mut owed);
        // A thread that did not wait has struck no clock: they end here all the same.
        clock.strike(|| ());
        paid.unwrap();
    });
    assert_eq!(domain.translate(Iova::new(0)), None);
    map(&domain, 0, 0x6000, 4096).unwrap();
}

/// A map is answered when the domain has lost its last endpoint and got another: it may be the old
/// domain that has it, or the new one.
#[test]
fn a_map_that_is_answered_after_the_domain_came_to_life_anew_is_made_again() {
    let (link, clock) = (Link::new(), Ticks::default());
    let unit = start_by(&link, &clock);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    let mut owed = Gather::new();
    let (iova, pa) = (Iova::new(0), PhysAddr::new(0x5000));
    domain.map(iova, promised(pa, 4096), RW, &mut owed).unwrap();
    let (seen, go) = gate(&link, 0);
    let (end, ended) = channel();
    let domain = &domain;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let paid = domain.sync(&mut owed).map(drop).map_err(IommuError::from);
            end.send(paid).unwrap();
        });
        seen.recv().unwrap();
        unit.block(A).unwrap();
        let (attaches, goes) = gate(&link, 0);
        let waits = clock.clone();
        scope.spawn(move || {
            attaches.recv().unwrap();
            let again = waits.clone();
            // Once the endpoint is there, the thread that attached it waits for the map that is under way.
            waits.strike(move || {
                again.strike(move || {
                    go.send(()).unwrap();
                    assert_eq!(ended.recv().unwrap(), Ok(()));
                });
            });
            goes.send(()).unwrap();
        });
        let attached = unit.attach(A, domain);
        clock.strike(|| ());
        attached.unwrap();
    });
    assert_eq!(link.reach(8, 0, READ), Some(0x5000));
    assert_eq!((unit.counts().map, unit.counts().unmap), (2, 1));
}

#[test]
fn a_map_that_is_answered_after_the_last_endpoint_has_left_is_none() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    let mut owed = Gather::new();
    let (iova, pa) = (Iova::new(0), PhysAddr::new(0x5000));
    domain.map(iova, promised(pa, 4096), RW, &mut owed).unwrap();
    let (seen, go) = gate(&link, 0);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| domain.sync(&mut owed).is_ok());
        seen.recv().unwrap();
        unit.block(A).unwrap();
        link.state().failures.push_back(Some(Failure::Unwritten));
        go.send(()).unwrap();
        assert!(sync.join().unwrap());
    });
    assert_eq!((unit.counts().map, unit.counts().unmap), (1, 0));
    // It is made when an endpoint needs it.
    unit.attach(B, &domain).unwrap();
    assert_eq!(link.reach(16, 0, READ), Some(0x5000));
}
