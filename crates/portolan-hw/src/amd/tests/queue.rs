//! The command buffer: wrap, errors at any point, and a unit that does not answer.

extern crate std;

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::inval::{Preference, Quirks};
use portolan::table::format::AmdLevels;
use portolan::unit::{Attach, AttachError, Awaited, Domain, Unit as _, UnitError};

use super::mock::{FEATURES, HEADER, Mock, Wrong};
use super::{BASE, PAGE, STREAM, attached, config, map, unmap};
use crate::amd::refusal;
use crate::amd::spec::command::opcode;
use crate::amd::spec::event::code;
use crate::amd::spec::reg::{self, control, status};

#[test]
fn the_buffer_wraps_and_nothing_is_lost() {
    let mock = Mock::new(FEATURES);
    let unit = mock.enable(HEADER, config()).unwrap();
    let quirks = Quirks {
        preference: Preference::ByPage,
        context_above: u64::MAX,
        ..Quirks::default()
    };
    let caps = unit.capabilities();
    let domain = unit.domain_as(AmdLevels::Four, caps, quirks).unwrap();
    for pages in [512, 3, 253, 256, 255, 15, 16, 14] {
        domain.sync(&mut map(&domain, pages)).unwrap();
        mock.take();
        domain.sync(&mut unmap(&domain, pages)).unwrap();
        let named: Vec<u64> = mock.take().iter().map(|words| words[1] & !0xfff).collect();
        let wanted: Vec<u64> = (0..pages).map(|n| BASE.get() + n * PAGE).collect();
        assert_eq!(named, wanted);
    }
    assert_eq!(mock.reg(reg::COMMAND_HEAD), mock.reg(reg::COMMAND_TAIL));
    assert!(mock.reg(reg::COMMAND_TAIL) < 256 * 16);
}

#[test]
fn a_refused_command_is_told_to_its_submitter_and_the_others_go_on() {
    let codes = [
        (code::ILLEGAL_COMMAND, refusal::ILLEGAL),
        (code::COMMAND_HARDWARE, refusal::HARDWARE),
        (0, refusal::UNKNOWN),
    ];
    for (event, code) in codes {
        for which in [opcode::PAGES, opcode::COMPLETION_WAIT] {
            let mock = Mock::new(FEATURES);
            let (unit, domain) = attached(&mock);
            domain.sync(&mut map(&domain, 4)).unwrap();
            let mut owed = unmap(&domain, 4);
            mock.wrong(Wrong::Refuse(which, 1, event));
            let error = UnitError::from(domain.sync(&mut owed).unwrap_err());
            assert_eq!(error, UnitError::Refused { code });
            assert_ne!(mock.reg(reg::STATUS) & status::COMMANDS_RUN, 0);
            assert_ne!(mock.reg(reg::CONTROL) & control::COMMANDS, 0);
            // The debt is still owed, and can be paid.
            domain.sync(&mut owed).unwrap();
            assert_eq!(unit.counts().replaced, 1);
            // Of commands nothing is told as a fault; a record without a code is a lost one.
            let lost = (event == 0).then_some(portolan::unit::FaultEvent::Lost);
            assert_eq!(unit.next_fault(), Ok(lost));
            assert_eq!(mock.0.state.lock().violations, 0);
        }
    }
}

#[test]
fn an_event_that_was_read_first_still_tells_why() {
    let mock = Mock::new(FEATURES);
    let (unit, domain) = attached(&mock);
    domain.sync(&mut map(&domain, 1)).unwrap();
    let tail = mock.reg(reg::COMMAND_TAIL);
    let base = mock.reg(reg::COMMAND_BASE) & 0xf_ffff_f000;
    mock.event([code::ILLEGAL_COMMAND << 60, base + tail]);
    assert_eq!(unit.next_fault(), Ok(None));
    let mut owed = unmap(&domain, 1);
    // No event this time: what was read before has to do.
    mock.wrong(Wrong::Refuse(opcode::PAGES, 1, 0xf));
    let code = refusal::ILLEGAL;
    let error = UnitError::from(domain.sync(&mut owed).unwrap_err());
    assert_eq!(error, UnitError::Refused { code });
    domain.sync(&mut owed).unwrap();
}

#[test]
fn a_unit_that_refuses_everything_ends_in_time() {
    let mock = Mock::new(FEATURES);
    let (_unit, domain) = attached(&mock);
    domain.sync(&mut map(&domain, 1)).unwrap();
    let mut owed = unmap(&domain, 1);
    let event = code::ILLEGAL_COMMAND;
    mock.wrong(Wrong::Refuse(opcode::COMPLETION_WAIT, u32::MAX, event));
    let error = UnitError::from(domain.sync(&mut owed).unwrap_err());
    assert!(matches!(error, UnitError::Refused { .. }));
    mock.wrong(Wrong::Nothing);
    domain.sync(&mut owed).unwrap();
}

#[test]
fn a_unit_that_was_turned_off_has_stopped() {
    let mock = Mock::new(FEATURES);
    let (unit, domain) = attached(&mock);
    domain.sync(&mut map(&domain, 1)).unwrap();
    unit.release().unwrap();
    let mut owed = unmap(&domain, 1);
    let error = UnitError::from(domain.sync(&mut owed).unwrap_err());
    assert_eq!(error, UnitError::Stopped);
}

#[test]
fn a_release_that_fails_keeps_what_may_still_be_reached() {
    let mock = Mock::new(FEATURES);
    let (unit, domain) = attached(&mock);
    let live = mock.0.state.lock().live;
    mock.wrong(Wrong::Stuck);
    let failed = unit.release().unwrap_err();
    assert!(matches!(failed, UnitError::TimedOut { .. }));
    assert_eq!(mock.entry(0x28), [3, 0, 0, 0]);
    // The unit is gone, and nobody can make sure any more.
    assert_eq!(Arc::strong_count(&domain), 2);
    drop(domain);
    assert_eq!(mock.0.state.lock().live, live);
}

#[test]
fn many_producers_share_the_buffer() {
    const PRODUCERS: u64 = 4;
    const ROUNDS: u64 = 200;
    let mock = Mock::new(FEATURES);
    let unit = mock.enable(HEADER, config()).unwrap();
    let before = unit.counts().pages;
    std::thread::scope(|scope| {
        for _ in 0..PRODUCERS {
            scope.spawn(|| {
                let domain = unit.domain().unwrap();
                for _ in 0..ROUNDS {
                    domain.sync(&mut map(&domain, 1)).unwrap();
                    domain.sync(&mut unmap(&domain, 1)).unwrap();
                }
            });
        }
    });
    // Each map and each unmap is one command, as absence is cached too.
    assert_eq!(unit.counts().pages - before, 2 * PRODUCERS * ROUNDS);
    assert_eq!(mock.0.state.lock().violations, 0);
}

#[test]
fn a_queue_that_never_drains_is_an_error_and_the_stream_stays_blocked() {
    let mock = Mock::new(FEATURES);
    let (unit, domain) = attached(&mock);
    mock.wrong(Wrong::Stuck);
    let AttachError::Unit(UnitError::TimedOut { awaited, .. }) = unit.block(STREAM).unwrap_err()
    else {
        panic!("not in time");
    };
    assert_eq!(awaited, Awaited::Completion);
    // The entry blocks, and the domain is kept.
    assert_eq!(mock.entry(0x28)[0], 3);
    assert_eq!(Arc::strong_count(&domain), 2);
    // Once it drains again, what was left over is settled first.
    mock.wrong(Wrong::Nothing);
    unit.attach(STREAM, &domain).unwrap();
    assert_eq!(Arc::strong_count(&domain), 2);
    unit.block(STREAM).unwrap();
    assert_eq!(Arc::strong_count(&domain), 1);
    // A full queue is an error too.
    mock.wrong(Wrong::Stuck);
    let mut waits = Vec::new();
    for _ in 0..300 {
        for moved in [unit.block(STREAM), unit.attach(STREAM, &domain)] {
            match moved {
                Err(AttachError::Unit(UnitError::TimedOut { awaited, .. })) => waits.push(awaited),
                Err(other) => panic!("{other}"),
                Ok(()) => {}
            }
        }
    }
    assert!(waits.contains(&Awaited::QueueRoom));
}

#[test]
fn a_store_that_no_wait_asked_for_is_not_believed() {
    let mock = Mock::new(FEATURES);
    let (_unit, domain) = attached(&mock);
    domain.sync(&mut map(&domain, 1)).unwrap();
    let mut owed = unmap(&domain, 1);
    mock.wrong(Wrong::Stuck);
    // The page behind the command buffer.
    let stores = (mock.reg(reg::COMMAND_BASE) & 0xf_ffff_f000) + PAGE;
    for slot in 0..256 {
        mock.store(stores + slot * 8, u64::MAX - slot);
    }
    let error = UnitError::from(domain.sync(&mut owed).unwrap_err());
    assert!(matches!(error, UnitError::TimedOut { .. }));
    mock.wrong(Wrong::Nothing);
    for slot in 0..256 {
        mock.store(stores + slot * 8, 0);
    }
    domain.sync(&mut owed).unwrap();
}

#[test]
fn a_unit_that_goes_away_is_an_error_at_each_call() {
    let mock = Mock::new(FEATURES);
    let (unit, domain) = attached(&mock);
    domain.sync(&mut map(&domain, 1)).unwrap();
    let mut owed = unmap(&domain, 1);
    mock.wrong(Wrong::Gone);
    assert_eq!(unit.next_fault(), Err(UnitError::Gone));
    let again = mock.enable(HEADER, config());
    assert_eq!(again.err(), Some(UnitError::Gone));
    mock.wrong(Wrong::Stuck);
    let block = || unit.block(STREAM);
    assert!(block().is_err());
    mock.wrong(Wrong::Nothing);
    domain.sync(&mut owed).unwrap();
}
