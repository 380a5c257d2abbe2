//! The command buffer: wrap, errors at any point, and a unit that does not answer.

extern crate std;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::{Command, Gather, InvalidationQueue, Preference, Quirks, Step};
use portolan::iommu::{Attach, AttachError, Awaited, Domain, Iommu as _, IommuError};
use portolan::table::Access;
use portolan::table::format::AmdLevels;

use super::mock::{FEATURES, HEADER, Mock, Wrong};
use super::{BASE, PAGE, STREAM, Tables, attached, config, map, unmap};
use crate::amd::counts::CommandKind as Kind;
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
            let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
            assert_eq!(error, IommuError::Refused { code });
            assert_ne!(mock.reg(reg::STATUS) & status::COMMANDS_RUN, 0);
            assert_ne!(mock.reg(reg::CONTROL) & control::COMMANDS, 0);
            // The debt is still owed, and can be paid.
            domain.sync(&mut owed).unwrap();
            assert_eq!(unit.counts().of(Kind::Replaced), 1);
            // Of commands nothing is told as a fault; a record without a code is a lost one.
            let lost = (event == 0).then_some(portolan::iommu::FaultEvent::Lost);
            let told = (0..1000).find_map(|_| unit.next_fault().unwrap());
            assert_eq!(told, lost);
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
    let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
    assert_eq!(error, IommuError::Refused { code });
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
    let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
    assert!(matches!(error, IommuError::Refused { .. }));
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
    let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
    assert_eq!(error, IommuError::Stopped);
}

#[test]
fn a_release_that_fails_keeps_what_may_still_be_reached() {
    let mock = Mock::new(FEATURES);
    let (unit, domain) = attached(&mock);
    let live = mock.0.state.lock().live;
    mock.wrong(Wrong::Stuck);
    let failed = unit.release().unwrap_err();
    assert!(matches!(failed, IommuError::TimedOut { .. }));
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
    let before = unit.counts().of(Kind::Pages);
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
    assert_eq!(
        unit.counts().of(Kind::Pages) - before,
        2 * PRODUCERS * ROUNDS
    );
    assert_eq!(mock.0.state.lock().violations, 0);
}

#[test]
fn a_queue_that_never_drains_is_an_error_and_the_stream_stays_blocked() {
    let mock = Mock::new(FEATURES);
    let (unit, domain) = attached(&mock);
    mock.wrong(Wrong::Stuck);
    let AttachError::Iommu(IommuError::TimedOut { awaited, .. }) = unit.block(STREAM).unwrap_err()
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
                Err(AttachError::Iommu(IommuError::TimedOut { awaited, .. })) => {
                    waits.push(awaited)
                }
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
    let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
    assert!(matches!(error, IommuError::TimedOut { .. }));
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
    assert_eq!(unit.next_fault(), Err(IommuError::Gone));
    let again = mock.enable(HEADER, config());
    assert_eq!(again.err(), Some(IommuError::Gone));
    mock.wrong(Wrong::Stuck);
    let block = || unit.block(STREAM);
    assert!(block().is_err());
    mock.wrong(Wrong::Nothing);
    domain.sync(&mut owed).unwrap();
}

#[test]
fn a_unit_that_is_slow_is_waited_for() {
    let mock = Mock::new(FEATURES);
    let (unit, domain) = attached(&mock);
    domain.sync(&mut map(&domain, 1)).unwrap();
    let mut owed = unmap(&domain, 1);
    // One command in six of the ten milliseconds that a unit may stand still.
    mock.wrong(Wrong::Slow(600));
    domain.sync(&mut owed).unwrap();
    unit.block(STREAM).unwrap();
    assert_eq!(Arc::strong_count(&domain), 1);
    // Also where the buffer is full of what others submitted.
    mock.wrong(Wrong::Stuck);
    for _ in 0..300 {
        let _ = unit.block(STREAM).and(unit.attach(STREAM, &domain));
    }
    mock.wrong(Wrong::Slow(600));
    unit.attach(STREAM, &domain).unwrap();
}

#[test]
fn why_a_command_was_refused_is_found_behind_older_events() {
    let mock = Mock::new(FEATURES);
    let (unit, domain) = attached(&mock);
    // The head of the log is not at its start, and an older event is unread.
    mock.event([2 << 60 | 0x28, 0x5000]);
    assert!(unit.next_fault().unwrap().is_some());
    domain.sync(&mut map(&domain, 1)).unwrap();
    for unread in 1..4 {
        mock.event([2 << 60 | 0x28, 0x6000]);
        domain.sync(&mut map_more(&domain, unread)).unwrap();
        let mut owed = unmap_more(&domain, unread);
        mock.wrong(Wrong::Refuse(opcode::PAGES, 1, code::COMMAND_HARDWARE));
        let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
        let code = refusal::HARDWARE;
        assert_eq!(error, IommuError::Refused { code }, "{unread} unread");
        domain.sync(&mut owed).unwrap();
    }
}

/// Two streams of one domain, whose moves both failed, are each invalidated for themselves.
#[test]
fn what_a_failure_left_of_one_stream_is_not_settled_with_another() {
    let mock = Mock::new(FEATURES);
    let (unit, domain) = attached(&mock);
    let other = StreamId::new(0x29);
    unit.attach(other, &domain).unwrap();
    mock.wrong(Wrong::Stuck);
    assert!(unit.block(STREAM).is_err());
    assert!(unit.block(other).is_err());
    mock.wrong(Wrong::Nothing);
    unit.block(other).unwrap();
    assert_eq!(Arc::strong_count(&domain), 2);
    mock.take();
    unit.block(STREAM).unwrap();
    let entry = [0x2000_0000_0000_0028, 0];
    let of_domain = [3 << 60 | 2 << 32, 0x7fff_ffff_ffff_f003];
    assert_eq!(mock.take(), [entry, of_domain, entry]);
    assert_eq!(Arc::strong_count(&domain), 1);
}

#[test]
fn more_refusals_than_are_remembered_count_for_all_who_wait() {
    let mock = Mock::new(FEATURES);
    let (_unit, domain) = attached(&mock);
    domain.sync(&mut map(&domain, 1)).unwrap();
    let mut owed = unmap(&domain, 1);
    let refused = Arc::new(AtomicU64::new(0));
    // While the first waits, a handler submits what the unit refuses, more often than is remembered.
    mock.wrong(Wrong::Stuck);
    let (in_handler, heard) = (mock.clone(), Arc::clone(&refused));
    let commands = domain.queue().clone();
    mock.strike_in(
        20,
        Box::new(move || {
            for _ in 0..70 {
                in_handler.wrong(Wrong::Refuse(opcode::ALL, 1, code::ILLEGAL_COMMAND));
                let everything = Step::Invalidate(Command::Global);
                let steps = &mut [everything, Step::Sync].into_iter();
                let failed = commands.execute(steps).is_err();
                heard.fetch_add(failed.into(), Ordering::Relaxed);
            }
        }),
    );
    let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
    assert!(!mock.disarm());
    assert_eq!(refused.load(Ordering::Relaxed), 70);
    let code = refusal::UNKNOWN;
    assert_eq!(error, IommuError::Refused { code });
    mock.wrong(Wrong::Nothing);
    domain.sync(&mut owed).unwrap();
}

/// A page at the `n`-th megabyte.
fn map_more(domain: &Tables, n: u64) -> Gather {
    let mut owed = Gather::new();
    let (at, pa) = (Iova::new(n << 20), PhysAddr::new(0x1000));
    domain.map(at, pa, PAGE, Access::READ, &mut owed).unwrap();
    owed
}

fn unmap_more(domain: &Tables, n: u64) -> Gather {
    let mut owed = Gather::new();
    let range = IovaRange::from_len(Iova::new(n << 20), PAGE).unwrap();
    domain.unmap(range, &mut owed).unwrap();
    owed
}
