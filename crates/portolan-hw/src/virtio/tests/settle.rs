//! Debts told to the device: when, in which requests, and again after answers that are none.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use portolan::iommu::{Attach as _, Awaited, DomainError, Iommu as _, IommuError};
use portolan::table::TableMapError;

use super::kit::*;
use portolan_spec::virtio::{Request, S_NOENT};

const REFUSED: u8 = 1;

fn is_given_up(outcome: Result<(), IommuError>) -> bool {
    let awaited = Awaited::Completion;
    matches!(outcome, Err(IommuError::TimedOut { awaited: of, .. }) if of == awaited)
}

#[test]
fn a_sync_tells_the_device_what_was_mapped_and_unmapped() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    let mut owed = map(&domain, 0x1000, 0x1000);
    assert_eq!(device.take(), []);
    sync(&domain, &mut owed).unwrap();
    assert_eq!(device.take(), [told(0x1000, 0x1000)]);
    let mut owed = unmap(&domain, 0x1000, 0x1000);
    assert_eq!(device.take(), []);
    // In use until the device has forgotten it.
    let again = try_map(&domain, 0x1000, 0x5000, 0x1000, &mut owed);
    let iova = range(0x1000, 1).start();
    let in_use = DomainError::Map(TableMapError::AlreadyMapped { iova });
    assert_eq!(again, Err(in_use));
    sync(&domain, &mut owed).unwrap();
    assert_eq!(device.take(), [untold(0x1000, 0x1000)]);
    mapped(&device, &domain, 0x1000, 0x1000);
}

#[test]
fn an_endpoint_gets_what_was_mapped_before_it_came() {
    let device = Scripted::new();
    let unit = device.start().unwrap();
    let domain = unit.domain().unwrap();
    sync(&domain, &mut map(&domain, 0x1000, 0x1000)).unwrap();
    sync(&domain, &mut map(&domain, 0x8000, 0x1000)).unwrap();
    sync(&domain, &mut unmap(&domain, 0x8000, 0x1000)).unwrap();
    assert_eq!(device.take(), []);
    // And anew after the device has forgotten the domain with its last endpoint.
    for _ in 0..2 {
        unit.attach(FIRST, &domain).unwrap();
        let attach = Request::Attach { domain: DOMAIN, endpoint: FIRST.get(), flags: 0 };
        assert_eq!(device.take(), [attach, told(0x1000, 0x1000)]);
        unit.block(FIRST).unwrap();
        device.take();
    }
    // Without one nothing is sent, and the addresses are free at once.
    sync(&domain, &mut unmap(&domain, 0x1000, 0x1000)).unwrap();
    let _again = map(&domain, 0x1000, 0x1000);
    assert_eq!(device.take(), []);
}

#[test]
fn a_second_endpoint_pays_no_debt_of_another() {
    let device = Scripted::new();
    let (unit, domain) = device.attached();
    mapped(&device, &domain, 0x1000, 0x1000);
    let mut owed = unmap(&domain, 0x1000, 0x1000);
    unit.attach(SECOND, &domain).unwrap();
    let attached = device.take();
    assert!(matches!(attached[..], [Request::Attach { .. }]), "{attached:?}");
    // The device has it still, whichever endpoint leaves.
    unit.block(SECOND).unwrap();
    device.take();
    sync(&domain, &mut owed).unwrap();
    assert_eq!(device.take(), [untold(0x1000, 0x1000)]);
}

#[test]
fn many_mappings_go_in_batches_and_neighbours_are_unmapped_together() {
    let device = Scripted::new();
    let unit = device.start().unwrap();
    let domain = unit.domain().unwrap();
    // More than are looked at under one lock; every second page.
    let places: Vec<u64> = (0..70).map(|n| n * 0x2000).collect();
    for at in &places {
        mapped(&device, &domain, *at, 0x1000);
    }
    unit.attach(FIRST, &domain).unwrap();
    assert_eq!(device.take().len(), 71);
    assert_eq!(device.state().batches, [16, 16, 16, 16, 6]);
    for at in &places {
        mapped(&device, &domain, at + 0x1000, 0x1000);
    }
    let all = 70 * 0x2000;
    sync(&domain, &mut unmap(&domain, 0, all)).unwrap();
    assert_eq!(device.take(), [untold(0, all)]);
    // Each of the records was taken out.
    mapped(&device, &domain, 0, all);
}

#[test]
fn what_the_device_refuses_is_still_owed() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    let code = u32::from(REFUSED);
    for request in [told(0x1000, 0x1000), untold(0x1000, 0x1000)] {
        let mut owed = match request {
            Request::Map { .. } => map(&domain, 0x1000, 0x1000),
            _ => unmap(&domain, 0x1000, 0x1000),
        };
        for _ in 0..2 {
            device.answer(&[Answer::Status(REFUSED)]);
            let refused = sync(&domain, &mut owed);
            assert_eq!(refused, Err(IommuError::Refused { code }));
            assert_eq!(device.take(), [request]);
        }
        sync(&domain, &mut owed).unwrap();
        assert_eq!(device.take(), [request]);
        assert_eq!(sync(&domain, &mut owed), Ok(()));
        assert_eq!(device.take(), []);
    }
}

/// One error of a batch is told, and the other requests in it are done.
#[test]
fn a_refusal_harms_no_other_request_of_its_batch() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    let mut owed = map(&domain, 0x1000, 0x1000);
    try_map(&domain, 0x2000, 0x2000 + MEMORY, 0x1000, &mut owed).unwrap();
    device.answer(&[Answer::Status(REFUSED)]);
    sync(&domain, &mut owed).unwrap_err();
    assert_eq!(device.take().len(), 2);
    sync(&domain, &mut owed).unwrap();
    assert_eq!(device.take(), [told(0x1000, 0x1000)]);
}

#[test]
fn addresses_of_an_unmap_without_an_answer_stay_in_use_until_it_is_returned() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    mapped(&device, &domain, 0x1000, 0x1000);
    let mut owed = unmap(&domain, 0x1000, 0x1000);
    device.answer(&[Answer::Lost]);
    assert!(is_given_up(sync(&domain, &mut owed)));
    assert_eq!(device.take(), [untold(0x1000, 0x1000)]);
    // It may be carried out at any time: nothing may be there then.
    assert!(is_given_up(sync(&domain, &mut owed)));
    assert_eq!(device.take(), []);
    assert!(try_map(&domain, 0x1000, 0x1000, 0x1000, &mut owed).is_err());
    device.state().returned = true;
    sync(&domain, &mut owed).unwrap();
    assert_eq!(device.take(), [untold(0x1000, 0x1000)]);
    mapped(&device, &domain, 0x1000, 0x1000);
}

#[test]
fn a_request_without_an_answer_ends_with_the_domain_once_it_is_returned() {
    let device = Scripted::new();
    let (unit, domain) = device.attached();
    mapped(&device, &domain, 0x1000, 0x1000);
    let mut owed = unmap(&domain, 0x1000, 0x1000);
    device.answer(&[Answer::Lost]);
    assert!(is_given_up(sync(&domain, &mut owed)));
    unit.block(FIRST).unwrap();
    device.take();
    assert!(is_given_up(sync(&domain, &mut owed)));
    device.state().returned = true;
    sync(&domain, &mut owed).unwrap();
    // The device has forgotten all of the domain: there is nothing to ask for.
    assert_eq!(device.take(), []);
}

#[test]
fn a_mapping_whose_answer_made_no_sense_is_taken_away_and_made_anew() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    let mut owed = map(&domain, 0x1000, 0x1000);
    device.answer(&[Answer::Unwritten]);
    let nonsense = sync(&domain, &mut owed);
    assert!(matches!(nonsense, Err(IommuError::Nonsense { .. })));
    assert_eq!(found(&domain, 0x1000), None);
    device.take();
    sync(&domain, &mut owed).unwrap();
    let anew = vec![untold(0x1000, 0x1000), told(0x1000, 0x1000)];
    assert_eq!(device.take(), anew);
    assert_eq!(found(&domain, 0x1000), Some(0x1000 + MEMORY));
}

/// A domain that the device says it does not know is on its way out, or the device is wrong: it is waited
/// for no longer than a turn.
#[test]
fn a_device_that_denies_a_domain_is_an_error_in_time() {
    let device = Scripted::new();
    let (_unit, domain) = device.attached();
    mapped(&device, &domain, 0x1000, 0x1000);
    let mut owed = unmap(&domain, 0x1000, 0x1000);
    device.answer(&[Answer::Status(S_NOENT)]);
    let code = S_NOENT.into();
    assert_eq!(sync(&domain, &mut owed), Err(IommuError::Refused { code }));
    sync(&domain, &mut owed).unwrap();
    assert_eq!(device.take(), [untold(0x1000, 0x1000); 2]);
}

/// The device may have carried the request out for the domain that was, or for the one that is.
#[test]
fn a_map_during_which_the_domain_came_to_life_anew_is_made_anew() {
    for answer in [Answer::Status(0), Answer::Unwritten] {
        let device = Scripted::new();
        let (_unit, domain) = device.attached();
        let mut owed = map(&domain, 0x1000, 0x1000);
        let moves = Arc::clone(&domain);
        device.state().meanwhile = Some(Box::new(move || {
            moves.lost_endpoint();
            moves.gained_endpoint();
        }));
        device.answer(&[answer]);
        assert_eq!(sync(&domain, &mut owed), Ok(()), "{answer:?}");
        let (told, untold) = (told(0x1000, 0x1000), untold(0x1000, 0x1000));
        assert_eq!(device.take(), [told, untold, told], "{answer:?}");
    }
}
