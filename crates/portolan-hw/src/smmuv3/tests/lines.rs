//! The unit's lines: for events, page requests and global errors.

use super::*;
use crate::promise::tests::all_memory;
use portolan::iopf::RawPageRequest;
use portolan_chips::smmuv3::SmmuSignals;

/// A unit, and its driver with `interrupts` set up.
fn listening(interrupts: Want) -> (SmmuMachine, Driver) {
    let wanted = Config { interrupts, ..config() };
    changed(wanted, |_| {})
}

fn ask(unit: &SmmuMachine) {
    unit.unit().ask(RawPageRequest {
        stream: STREAM,
        pasid: None,
        iova: Iova::new(0x9000),
        wants: Permissions::READ,
        kind: RequestKind::Pri { group: GroupId::new(1), place: Place::Last },
    });
}

/// Number of times that each line was raised: events, page requests, errors.
fn raised(unit: &SmmuMachine) -> [u64; 3] {
    let SmmuSignals { events, requests, errors } = unit.unit().signals();
    [events, requests, errors]
}

#[test]
fn a_line_is_raised_once_until_its_handler_has_read_everything() {
    let (unit, driver) = listening(Want::IfThere);
    assert_eq!(raised(&unit), [0; 3]);
    let event = [0x1234_0000_0010, 0, 0, 0];
    unit.record(event);
    unit.record(event);
    assert_eq!(raised(&unit), [1, 0, 0]);
    while driver.next_fault().unwrap().is_some() {}
    unit.record(event);
    assert_eq!(raised(&unit), [2, 0, 0]);
    ask(&unit);
    ask(&unit);
    assert_eq!(raised(&unit), [2, 1, 0]);
    while driver.next_page_request().unwrap().is_some() {}
    ask(&unit);
    assert_eq!(raised(&unit), [2, 2, 0]);
}

#[test]
fn an_error_raises_its_line_and_the_reader_of_events_deals_with_it() {
    let (unit, driver) = listening(Want::IfThere);
    let message = GlobalErrors::SYNC_MESSAGE.bits();
    for round in 1..4 {
        unit.unit().raise(message);
        assert_eq!(raised(&unit), [0, 0, round]);
        assert_eq!(driver.next_fault(), Ok(None));
    }
    // A command that is refused stops the queue, until the driver has replaced it.
    unit.refuse_kind((op::CFGI_STE, error::ILL, 1));
    let refused = driver.pass_through(STREAM, all_memory());
    let code = error::ILL;
    assert_eq!(refused, Err(IommuError::Refused { code }.into()));
    assert_eq!(raised(&unit), [0, 0, 4]);
    assert_eq!(driver.next_fault(), Ok(None));
    driver.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(raised(&unit), [0, 0, 4]);
}

#[test]
fn nobody_is_interrupted_who_has_not_asked_for_it() {
    let (unit, driver) = listening(Want::No);
    unit.record([0x1234_0000_0010, 0, 0, 0]);
    ask(&unit);
    unit.unit().raise(GlobalErrors::SYNC_MESSAGE.bits());
    assert_eq!(raised(&unit), [0; 3]);
    assert!(driver.next_fault().unwrap().is_some());
}
