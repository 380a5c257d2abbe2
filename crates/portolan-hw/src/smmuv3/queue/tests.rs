//! Wrap, lack of room, refusals, messages, several producers, and units that stand still.

extern crate std;

use super::*;
use crate::chassis::{BatchEnd, Outcome};
use crate::smmuv3::tests::kit::{FULL, Kit as _, SLOWLY, machine};
use portolan::iommu::Awaited;
use portolan::platform::{Clock as _, Mmio as _, UnitParts};
use portolan_chips::inject::{Drain, RegisterFaults};
use portolan_chips::machine::LOOK_NS;
use portolan_chips::smmuv3::{SmmuMachine, SmmuRegisters};
use portolan_sim::clock::PollingClock;
use portolan_spec::smmuv3::command::error;

/// A clock that several CPUs look at.
type Shared = UnitParts<SmmuMachine, SmmuMachine, PollingClock<Arc<SmmuRegisters>>>;
type Queue = CommandQueue<Shared>;

const ENTRIES_LG2: u32 = 3;

fn queue(messages: bool) -> (SmmuMachine, Queue) {
    queue_with_syncs(messages, u64::MAX)
}

/// With a sync at least after every `most_unsynced` commands.
fn queue_with_syncs(messages: bool, most_unsynced: u64) -> (SmmuMachine, Queue) {
    let unit = machine(FULL);
    let limit = Nanos::from_millis(10);
    let clock = PollingClock::new(unit.unit().clock().clone(), LOOK_NS, unit.unit().clone());
    let machine = SmmuHardware::new(unit.clone(), unit.clone(), Shared::new(clock), limit, true);
    let queue = Queue::new(Arc::new(machine), ENTRIES_LG2, most_unsynced, messages).unwrap();
    queue.install();
    queue.machine.registers.write32(reg::CR0, reg::cr0::CMDQEN);
    queue.operation.set(OperationState::Running);
    (unit, queue)
}

/// A command that can be told from others.
fn numbered(number: u64) -> Words {
    [op::TLBI_NH_VA, number << 12]
}

fn run(queue: &Queue, commands: impl IntoIterator<Item = Words>) -> Result<(), IommuError> {
    queue.run(commands.into_iter())
}

#[test]
fn order_is_kept_over_many_wraps() {
    for messages in [false, true] {
        for pace in [Drain::Runs, SLOWLY] {
            let (unit, queue) = queue(messages);
            unit.drain(pace);
            let mut next = 0;
            for size in (0..40).chain([200]) {
                run(&queue, (next..next + size).map(numbered)).unwrap();
                next += size;
            }
            let log = unit.take_log();
            let numbers = log.iter().filter(|words| words[0] == op::TLBI_NH_VA);
            assert!(numbers.map(|words| words[1] >> 12).eq(0..next));
            let counts = queue.counters().read();
            assert_eq!(counts.total(), log.len() as u64);
            assert_eq!(counts.of(command::CommandKind::Address), next);
            // One sync for each batch, also for the first, which is empty.
            assert_eq!(counts.of(command::CommandKind::Sync), 41);
        }
    }
}

#[test]
fn a_unit_that_stands_still_ends_the_wait() {
    let (unit, queue) = queue(false);
    unit.drain(Drain::Never);
    let waited = |awaited| move |e: &IommuError| matches!(e, IommuError::TimedOut { awaited: a, .. } if *a == awaited);
    let error = run(&queue, [numbered(1)]).unwrap_err();
    assert!(waited(Awaited::Completion)(&error), "{error:?}");
    let error = run(&queue, (0..20).map(numbered)).unwrap_err();
    assert!(waited(Awaited::QueueRoom)(&error), "{error:?}");
    // It goes on: what was written is still carried out, and new commands too.
    unit.drain(SLOWLY);
    assert_eq!(run(&queue, [numbered(3)]), Ok(()));
}

#[test]
fn a_unit_that_works_slowly_through_a_long_queue_is_not_given_up() {
    // Those of several commands take longer than the limit.
    for messages in [false, true] {
        let (unit, queue) = queue(messages);
        unit.drain(Drain::OneEach(400 * LOOK_NS));
        assert_eq!(run(&queue, (0..7).map(numbered)), Ok(()), "{messages:?}");
        // Neither is it while it makes room.
        assert_eq!(run(&queue, (0..20).map(numbered)), Ok(()), "{messages:?}");
        unit.drain(Drain::Never);
        let still = run(&queue, [numbered(1)]);
        assert!(matches!(still, Err(IommuError::TimedOut { .. })), "{still:?}");
    }
}

#[test]
fn a_lock_that_another_cpu_holds_for_long_does_not_break_the_unit() {
    let (_unit, queue) = queue(false);
    let ring = &queue.ring;
    let (ticket, sync) = ring.place(&queue, &mut None, &[numbered(1)], BatchEnd::Sync).unwrap();
    let long = queue.machine.limit.get() * 2;
    std::thread::scope(|scope| {
        let complete = || ring.complete(&queue, &ticket, sync.unwrap(), &|_| false);
        let mut waiter = None;
        ring.keep_locked(|| {
            waiter = Some(scope.spawn(complete));
            while queue.machine.clock.now().get() < long {
                queue.machine.clock.relax();
                std::thread::yield_now();
            }
        });
        let outcome = waiter.unwrap().join().unwrap();
        assert_eq!(outcome, Ok(Outcome::Done));
    });
}

#[test]
fn a_refusal_goes_to_its_producer_and_the_queue_goes_on() {
    for pace in [Drain::Runs, SLOWLY] {
        let (unit, queue) = queue(false);
        unit.drain(pace);
        unit.refuse_kind((op::TLBI_NH_ASID, error::ILL, 2));
        let bad = [numbered(1), [op::TLBI_NH_ASID, 0], numbered(2)];
        let refused = IommuError::Refused { code: error::ILL };
        assert_eq!(run(&queue, bad), Err(refused));
        let codes = unit.take_codes();
        assert_eq!(codes, [op::TLBI_NH_VA, op::SYNC, op::TLBI_NH_VA, op::SYNC]);
        assert_eq!(run(&queue, [numbered(3)]), Ok(()));
        assert_eq!(run(&queue, bad), Err(refused));
        assert_eq!(run(&queue, bad), Ok(()));
    }
}

#[test]
fn a_silent_device_is_reported_to_all_behind_it() {
    let (unit, queue) = queue(false);
    unit.refuse_kind((op::SYNC, error::ATC_INV_SYNC, 1));
    let device = [op::ATC_INV, 52];
    assert_eq!(run(&queue, [device]), Err(IommuError::DeviceSilent { stream: None }));
    assert_eq!(unit.take_codes(), [op::ATC_INV, op::SYNC]);
    assert_eq!(run(&queue, [device]), Ok(()));
}

#[test]
fn a_silent_device_is_no_concern_of_who_asked_none() {
    let (unit, queue) = queue(false);
    unit.drain(Drain::Never);
    let silent = (op::SYNC, error::ATC_INV_SYNC, 1);
    let ring = &queue.ring;
    let place = |command, ending| ring.place(&queue, &mut None, &[command], ending).unwrap();
    let (device, _) = place([op::ATC_INV, 52], BatchEnd::More);
    let (other, sync) = place(numbered(1), BatchEnd::Sync);
    unit.refuse_kind(silent);
    unit.drain(SLOWLY);
    let complete = |ticket, asked| ring.complete(&queue, ticket, sync.unwrap(), &|_| asked);
    assert_eq!(complete(&other, false), Ok(Outcome::Done));
    let silent = Err(IommuError::DeviceSilent { stream: None });
    assert_eq!(complete(&device, true), silent);
    // Who asked a device behind that sync hears nothing of it.
    assert_eq!(run(&queue, [[op::ATC_INV, 52]]), Ok(()));
}

#[test]
fn a_unit_that_wants_syncs_often_gets_them() {
    for messages in [false, true] {
        for most in [1, 3, 5] {
            let (unit, queue) = queue_with_syncs(messages, most);
            run(&queue, (0..40).map(numbered)).unwrap();
            run(&queue, (40..42).map(numbered)).unwrap();
            for number in 0..20 {
                assert_eq!(queue.post(&[op::RESUME, number]), Ok(true));
            }
            let log = unit.take_log();
            let sync = |words: &Words| words[0] & 0xff == op::SYNC;
            let runs = log.split(sync).map(<[Words]>::len);
            assert!(runs.max() <= Some(most as usize), "{most}");
            let numbers = log.iter().filter(|words| words[0] == op::TLBI_NH_VA);
            assert!(numbers.map(|words| words[1] >> 12).eq(0..42));
        }
    }
}

#[test]
fn what_is_posted_waits_for_nothing() {
    let (unit, queue) = queue(false);
    unit.drain(Drain::Never);
    for _ in 0..1 << ENTRIES_LG2 {
        assert_eq!(queue.post(&[op::RESUME, 1]), Ok(true));
    }
    assert_eq!(queue.post(&[op::RESUME, 1]), Ok(false));
    unit.drain(SLOWLY);
    assert_eq!(queue.post(&[op::RESUME, 1]), Ok(true));
}

#[test]
fn an_aborted_fetch_is_tried_again() {
    let (unit, queue) = queue(false);
    unit.refuse_kind((op::TLBI_NH_VA, error::ABT, 3));
    assert_eq!(run(&queue, [numbered(1)]), Ok(()));
    unit.refuse_kind((op::TLBI_NH_VA, error::ABT, u32::MAX));
    let error = run(&queue, [numbered(1)]).unwrap_err();
    assert!(matches!(error, IommuError::TimedOut { .. }), "{error:?}");
}

#[test]
fn many_refusals_lose_none() {
    let (unit, queue) = queue(false);
    let count = 200;
    unit.refuse_kind((op::TLBI_NH_ASID, error::ILL, count));
    let bad = (0..count).map(|_| [op::TLBI_NH_ASID, 0]);
    assert_eq!(run(&queue, bad), Err(IommuError::Refused { code: error::ILL }));
    assert_eq!(run(&queue, [numbered(0)]), Ok(()));
}

#[test]
fn a_unit_that_is_gone_or_lies_is_found_out() {
    let (unit, queue) = queue(false);
    unit.wrong(RegisterFaults::GONE);
    assert_eq!(run(&queue, [numbered(1)]), Err(IommuError::Gone));
    unit.wrong(RegisterFaults::STUCK);
    unit.lie(reg::CMDQ_CONS, u64::MAX, 9);
    let error = run(&queue, [numbered(1)]).unwrap_err();
    let offset = reg::CMDQ_CONS;
    assert_eq!(error, IommuError::Nonsense { offset, value: 9 });
}

#[test]
fn service_failure_and_disabling_end_it() {
    let (unit, queue) = queue(false);
    unit.refuse_kind((op::TLBI_NH_VA, error::ILL, 1));
    unit.unit().raise(reg::gerror::SFM);
    assert_eq!(run(&queue, [numbered(1)]), Err(IommuError::Stopped));
    assert_eq!(run(&queue, [numbered(1)]), Err(IommuError::Stopped));
    queue.operation.set(OperationState::Off);
    assert_eq!(run(&queue, [numbered(1)]), Ok(()));
    assert_eq!(queue.operation.running(), Err(IommuError::Stopped));
}

#[test]
fn several_producers_share_one_queue() {
    const PRODUCERS: u64 = 4;
    const BATCHES: u64 = 200;
    for messages in [false, true] {
        let (unit, mut queue) = queue(messages);
        let limit = Nanos::from_millis(1_000_000);
        let machine = Arc::get_mut(&mut queue.machine).unwrap();
        machine.limit = limit;
        unit.drain(SLOWLY);
        std::thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let queue = &queue;
                scope.spawn(move || {
                    for batch in 0..BATCHES {
                        let number = |i| numbered((producer << 32) + batch * 5 + i);
                        run(queue, (0..5).map(number)).unwrap();
                    }
                });
            }
        });
        let log = unit.take_log();
        for producer in 0..PRODUCERS {
            let own = log.iter().filter(|w| w[0] == op::TLBI_NH_VA);
            let own = own.map(|w| w[1] >> 12).filter(|n| n >> 32 == producer);
            assert!(own.map(|n| n & 0xffff_ffff).eq(0..BATCHES * 5));
        }
        let counts = queue.counters().read();
        assert_eq!(counts.total(), log.len() as u64);
        assert!(counts.of(command::CommandKind::Sync) <= PRODUCERS * BATCHES);
    }
}
