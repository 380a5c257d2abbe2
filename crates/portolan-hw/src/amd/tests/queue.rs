//! The command buffer: wrap, errors at any point, and a unit that does not answer.

extern crate std;

use crate::promise::tests::promised;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use portolan::platform::UnitParts;

use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan::inval::{Command, Gather, InvalidationQueue, Preference, Quirks, Step, TablesLeft};
use portolan::iommu::{Domain, Iommu as _, IommuError};
use portolan::table::Access;
use portolan::table::format::AmdLevels;
use portolan_chips::amd::{AmdRegisters, AmdSetup, CommandKind};
use portolan_chips::chips::RAVEN_RIDGE;
use portolan_chips::interrupts::{Masking, Scenario, Struck, strike, sweep};
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_sim::clock::PollingClock;

use super::machine::{ILLEGAL, capability, new_machine};
use super::{STREAM, Tables, config};
use crate::amd::AmdVi;
use crate::amd::command::CommandKind as Kind;
use crate::amd::refusal;
use crate::chassis::tests::suite::{BASE, Driven, PAGE, failure, map, unmap};
use portolan_chips::inject::RegisterFaults;
use portolan_spec::amd::command::opcode;
use portolan_spec::amd::event::code;
use portolan_spec::amd::reg::{self, control, status};

#[test]
fn the_buffer_wraps_and_nothing_is_lost() {
    let machine = new_machine();
    let unit = machine.enable(config()).unwrap();
    let quirks =
        Quirks { preference: Preference::ByPage, context_above: u64::MAX, ..Quirks::default() };
    let caps = unit.capabilities();
    let domain = unit.domain_as(AmdLevels::Four, caps, quirks).unwrap();
    for pages in [512, 3, 253, 256, 255, 15, 16, 14] {
        domain.sync(&mut map(&domain, pages)).unwrap();
        machine.commands();
        domain.sync(&mut unmap(&domain, pages)).unwrap();
        let named: Vec<u64> = machine.commands().iter().map(|words| words[1] & !0xfff).collect();
        let wanted: Vec<u64> = (0..pages).map(|n| BASE.get() + n * PAGE).collect();
        assert_eq!(named, wanted);
    }
    assert_eq!(machine.reg(reg::COMMAND_HEAD), machine.reg(reg::COMMAND_TAIL));
    assert!(machine.reg(reg::COMMAND_TAIL) < 256 * 16);
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
            let machine = new_machine();
            let (unit, domain) = machine.attached();
            domain.sync(&mut map(&*domain, 4)).unwrap();
            let mut owed = unmap(&*domain, 4);
            machine.refuse_kind(which, 1, event as u32);
            let error = failure(&*domain, &mut owed);
            assert_eq!(error, IommuError::Refused { code });
            assert_ne!(machine.reg(reg::STATUS) & status::COMMANDS_RUN, 0);
            assert_ne!(machine.reg(reg::CONTROL) & control::COMMANDS, 0);
            // The debt is still owed, and can be paid.
            domain.sync(&mut owed).unwrap();
            assert_eq!(unit.counts().of(Kind::Replaced), 1);
            // Of commands nothing is told as a fault; a record without a code is a lost one.
            let lost = (event == 0).then_some(portolan::iommu::FaultEvent::Lost);
            let told = (0..1000).find_map(|_| unit.next_fault().unwrap());
            assert_eq!(told, lost);
            machine.expect_obedience();
        }
    }
}

/// A handler reads the log at any step of a caller whose command is refused.
#[test]
fn an_event_that_was_read_first_still_tells_why() {
    let steps = sweep(Masking::Present, || {
        let machine = new_machine();
        let (unit, domain) = machine.attached();
        domain.sync(&mut map(&*domain, 1)).unwrap();
        let mut owed = unmap(&*domain, 1);
        machine.refuse_kind(opcode::PAGES, 1, ILLEGAL);
        let unit = Arc::new(unit);
        let in_handler = Arc::clone(&unit);
        Scenario {
            body: Box::new(move || {
                let code = refusal::ILLEGAL;
                let error = failure(&*domain, &mut owed);
                assert_eq!(error, IommuError::Refused { code });
                domain.sync(&mut owed).unwrap();
            }),
            handler: Box::new(move || assert_eq!(in_handler.next_fault(), Ok(None))),
            after: Box::new(move || {
                drop(unit);
                machine.expect_obedience();
            }),
        }
    });
    assert!(steps > 10, "{steps}");
}

#[test]
fn many_producers_share_the_buffer() {
    const PRODUCERS: u64 = 4;
    const ROUNDS: u64 = 200;
    let identification = RAVEN_RIDGE.identification.caching_absence();
    let setup = AmdSetup { identification, ..AmdSetup::default() };
    let base = PhysAddr::new(0x10_0000);
    let memory = Arc::new(ModelMemory::new(base, 64, Visibility::AtOnce));
    let amd = Arc::new(AmdRegisters::new(setup, memory.clone()));
    let clock = Arc::new(PollingClock::new(amd.clock().clone(), 100, amd.clone()));
    let capability = capability(&identification);
    let unit =
        AmdVi::enable(amd.clone(), memory, UnitParts::new(clock), capability, config()).unwrap();
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
    assert_eq!(unit.counts().of(Kind::Pages) - before, 2 * PRODUCERS * ROUNDS);
    let carried_out = amd.counts().commands;
    let of_domains = unit.counts().of(Kind::Pages) + unit.counts().of(Kind::Domain);
    assert_eq!(carried_out[&CommandKind::InvalidateIommuPages], of_domains);
    assert_eq!(amd.violations(), []);
}

#[test]
fn a_store_that_no_wait_asked_for_is_not_believed() {
    let machine = new_machine();
    let (_unit, domain) = machine.attached();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let mut owed = unmap(&*domain, 1);
    machine.wrong(RegisterFaults::STUCK);
    // The page behind the command buffer.
    let stores = (machine.reg(reg::COMMAND_BASE) & 0xf_ffff_f000) + PAGE;
    for slot in 0..256 {
        machine.store(stores + slot * 8, u64::MAX - slot);
    }
    let error = failure(&*domain, &mut owed);
    assert!(matches!(error, IommuError::TimedOut { .. }));
    machine.wrong(RegisterFaults::NONE);
    for slot in 0..256 {
        machine.store(stores + slot * 8, 0);
    }
    domain.sync(&mut owed).unwrap();
}

#[test]
fn why_a_command_was_refused_is_found_behind_older_events() {
    let machine = new_machine();
    let (unit, domain) = machine.attached();
    // The head of the log is not at its start, and an older event is unread.
    assert_eq!(machine.read(STREAM, 0x5000), None);
    assert!(unit.next_fault().unwrap().is_some());
    domain.sync(&mut map(&*domain, 1)).unwrap();
    for unread in 1..4 {
        assert_eq!(machine.read(STREAM, 0x6000), None);
        domain.sync(&mut map_more(&domain, unread)).unwrap();
        let mut owed = unmap_more(&domain, unread);
        machine.refuse_kind(opcode::PAGES, 1, code::COMMAND_HARDWARE as u32);
        let error = failure(&*domain, &mut owed);
        let code = refusal::HARDWARE;
        assert_eq!(error, IommuError::Refused { code }, "{unread} unread");
        domain.sync(&mut owed).unwrap();
    }
}

/// While one waits, a handler submits commands that the unit refuses, more often than is
/// remembered.
#[test]
fn more_refusals_than_are_remembered_count_for_all_who_wait() {
    let machine = new_machine();
    let (_unit, domain) = machine.attached();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let mut owed = unmap(&*domain, 1);
    let refused = Arc::new(AtomicU64::new(0));
    machine.wrong(RegisterFaults::STUCK);
    let (in_handler, heard) = (machine.clone(), Arc::clone(&refused));
    let commands = domain.queue().clone();
    // At a step of the wait, long before it is over.
    let struck = strike(
        Masking::Present,
        300,
        Scenario {
            body: Box::new(move || {
                let error = failure(&*domain, &mut owed);
                let code = refusal::UNKNOWN;
                assert_eq!(error, IommuError::Refused { code });
                machine.wrong(RegisterFaults::NONE);
                domain.sync(&mut owed).unwrap();
            }),
            handler: Box::new(move || {
                for _ in 0..70 {
                    in_handler.refuse_kind(opcode::ALL, 1, ILLEGAL);
                    let everything = Step::Invalidate(Command::Global);
                    let steps = &mut [everything, Step::Sync].into_iter();
                    let failed = commands.pay(steps, TablesLeft::ByDepth).is_err();
                    heard.fetch_add(failed.into(), Ordering::Relaxed);
                }
            }),
            after: Box::new(|| {}),
        },
    );
    assert_eq!(struck, Struck::Yes);
    assert_eq!(refused.load(Ordering::Relaxed), 70);
}

/// A page at the `n`-th megabyte.
fn map_more(domain: &Tables, n: u64) -> Gather {
    let mut owed = Gather::new();
    let (at, pa) = (Iova::new(n << 20), PhysAddr::new(0x1000));
    domain.map(at, promised(pa, PAGE), Access::READ, &mut owed).unwrap();
    owed
}

fn unmap_more(domain: &Tables, n: u64) -> Gather {
    let mut owed = Gather::new();
    let range = IovaRange::from_len(Iova::new(n << 20), PAGE).unwrap();
    domain.unmap(range, &mut owed).unwrap();
    owed
}
