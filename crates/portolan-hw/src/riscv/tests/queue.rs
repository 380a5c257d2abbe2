//! The command queue: wrap, errors at any point, and a unit that does not answer.

extern crate std;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use portolan::platform::UnitParts;

use portolan::addr::PhysAddr;
use portolan::inval::{Command, InvalidationQueue, Preference, Quirks, Step, TablesLeft};
use portolan::iommu::{Attach, Domain, IommuError};
use portolan::table::format::RiscvLevels;
use portolan_chips::inject::RegisterFaults;
use portolan_chips::interrupts::{Masking, Scenario, sweep};
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::riscv::{
    CommandKind, RiscvIdentification, RiscvMachine, RiscvRegisters, RiscvSetup,
};
use portolan_sim::clock::PollingClock;

use super::machine::{self, new_machine};
use super::{STREAM, config};
use crate::chassis::tests::suite::{BASE, Driven, PAGE, failure, map, unmap};
use crate::riscv::command::CommandKind as Kind;
use crate::riscv::features::MOST_PAGES;
use crate::riscv::{Config, RiscvIommu, refusal};
use portolan_spec::riscv::command::translations::PSCID;
use portolan_spec::riscv::command::{OPCODE, opcode};
use portolan_spec::riscv::reg::{self, queue};

/// With a unit that has ranges: without them many pages go with their context.
fn extended() -> RiscvMachine {
    machine::with(RiscvIdentification::able().extended())
}

/// Each page is named.
fn by_page() -> Config {
    let quirks =
        Quirks { preference: Preference::ByPage, context_above: u64::MAX, ..Quirks::default() };
    Config { quirks, ..config() }
}

#[test]
fn the_queue_wraps_and_nothing_is_lost() {
    let machine = extended();
    let unit = machine.enable(by_page()).unwrap();
    let domain = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
    unit.attach(STREAM, &domain).unwrap();
    // A page that stays keeps the tables, so that leaves alone are owed.
    domain.sync(&mut map(&*domain, 257)).unwrap();
    for pages in [3, 253, 256, 255, 15, 16, 14] {
        machine.commands();
        domain.sync(&mut unmap(&*domain, pages)).unwrap();
        let commands = machine.commands();
        let named: Vec<u64> = commands.iter().map(|words| words[1] << 2).collect();
        let wanted: Vec<u64> = (0..pages).map(|n| BASE.get() + n * PAGE).collect();
        assert_eq!(named, wanted);
        domain.sync(&mut map(&*domain, pages)).unwrap();
    }
    let [head, tail] = [reg::COMMAND_HEAD, reg::COMMAND_TAIL].map(|at| machine.reg32(at));
    assert_eq!(head, tail);
    machine.expect_obedience();
}

/// As a flush of many buffers' addresses: one command a page up to a limit, and one of the context above it.
#[test]
fn many_pages_go_with_their_context() {
    let machine = new_machine();
    let (_unit, domain) = machine.attached();
    let most = MOST_PAGES;
    for (pages, named) in [(most, most), (most + 1, 0), (300, 0)] {
        // A page that stays keeps the tables, so that leaves alone are owed.
        domain.sync(&mut map(&*domain, pages + 1)).unwrap();
        assert!(machine.read(STREAM, BASE.get()).is_some());
        machine.commands();
        domain.sync(&mut unmap(&*domain, pages)).unwrap();
        let commands = machine.commands();
        match named {
            0 => assert_eq!(commands, [[0x1_0000_1001, 0]], "{pages}"),
            _ => assert_eq!(commands.len() as u64, named),
        }
        assert_eq!(machine.read(STREAM, BASE.get()), None);
        domain.sync(&mut map(&*domain, pages)).unwrap();
        domain.sync(&mut unmap(&*domain, pages + 1)).unwrap();
    }
    machine.expect_obedience();
}

#[test]
fn a_refused_command_is_told_to_its_submitter_and_the_others_go_on() {
    let bits = [(queue::ILLEGAL, refusal::ILLEGAL), (queue::MEMORY_FAULT, refusal::MEMORY)];
    for (bits, code) in bits {
        for which in [opcode::TRANSLATIONS, opcode::FENCE] {
            let machine = new_machine();
            let (unit, domain) = machine.attached();
            domain.sync(&mut map(&*domain, 4)).unwrap();
            assert_eq!(machine.read(STREAM, BASE.get()), Some(0x1000));
            let mut owed = unmap(&*domain, 4);
            machine.refuse_kind(which, 1, bits);
            let error = failure(&*domain, &mut owed);
            assert_eq!(error, IommuError::Refused { code });
            let errors = machine.reg32(reg::COMMAND_CONTROL) & 0xf00;
            assert_eq!(errors, 0);
            // The debt is still owed, and can be paid.
            domain.sync(&mut owed).unwrap();
            assert_eq!(machine.read(STREAM, BASE.get()), None);
            assert_eq!(unit.counts().of(Kind::Replaced), 1);
            machine.expect_obedience();
        }
    }
}

/// A unit that stops at one's command may drop what another has written before it: the other does
/// more than that again, without hearing of it. A handler strikes at every step of the caller that
/// pays.
#[test]
fn commands_that_a_refused_one_took_with_it_are_done_again() {
    const PAGES: u64 = 100;
    let steps = sweep(Masking::Present, || {
        let machine = extended();
        let unit = machine.enable(by_page()).unwrap();
        let domain = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
        unit.attach(STREAM, &domain).unwrap();
        domain.sync(&mut map(&*domain, PAGES + 1)).unwrap();
        let here = |n: u64| BASE.get() + n * PAGE;
        for n in 0..PAGES {
            assert!(machine.read(STREAM, here(n)).is_some());
        }
        let mut owed = unmap(&*domain, PAGES);
        // The handler's command is of a tag that no other command names, and drops nothing of the
        // body's.
        let (another, mut times) = (unit.first_stage(RiscvLevels::Four).unwrap(), 1u32);
        let context = another.context();
        machine.wrong(RegisterFaults::NONE);
        machine.refuse(move |words| {
            let named = PSCID.of(words[0]) == u64::from(context.get());
            let refused = OPCODE.of(words[0]) == opcode::TRANSLATIONS && named && times > 0;
            times -= u32::from(refused);
            refused.then_some(queue::ILLEGAL)
        });
        let in_handler = unit.queue();
        Scenario {
            body: Box::new(move || {
                domain.sync(&mut owed).unwrap();
                for n in 0..PAGES {
                    assert_eq!(machine.read(STREAM, here(n)), None, "{n}");
                }
                machine.expect_obedience();
            }),
            handler: Box::new(move || {
                let steps = [Step::Invalidate(Command::Context { context }), Step::Sync];
                let code = refusal::ILLEGAL;
                let refused = Err(IommuError::Refused { code });
                assert_eq!(in_handler.pay(&mut steps.into_iter(), TablesLeft::ByDepth), refused);
            }),
            after: Box::new(move || drop((another, unit))),
        }
    });
    assert!(steps > 4, "{steps}");
}

#[test]
fn a_device_that_does_not_answer_is_nobodys_fault_here() {
    let machine = new_machine();
    let (_unit, domain) = machine.attached();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    assert_eq!(machine.read(STREAM, BASE.get()), Some(0x1000));
    let mut owed = unmap(&*domain, 1);
    machine.refuse_kind(opcode::FENCE, 1, queue::TIME_OUT);
    domain.sync(&mut owed).unwrap();
    assert_eq!(machine.read(STREAM, BASE.get()), None);
}

#[test]
fn many_producers_share_the_queue() {
    const PRODUCERS: u64 = 4;
    const ROUNDS: u64 = 200;
    let setup = RiscvSetup { identification: RiscvIdentification::able(), ..RiscvSetup::default() };
    let base = PhysAddr::new(0x10_0000);
    let memory = Arc::new(ModelMemory::new(base, 64, Visibility::AtOnce));
    let registers = Arc::new(RiscvRegisters::new(setup, memory.clone()));
    let clock = PollingClock::new(registers.clock().clone(), 100, registers.clone());
    let unit =
        RiscvIommu::enable(registers.clone(), memory, UnitParts::new(Arc::new(clock)), config())
            .unwrap();
    std::thread::scope(|scope| {
        for _ in 0..PRODUCERS {
            scope.spawn(|| {
                let domain = unit.first_stage(RiscvLevels::Four).unwrap();
                for _ in 0..ROUNDS {
                    domain.sync(&mut map(&domain, 1)).unwrap();
                    domain.sync(&mut unmap(&domain, 1)).unwrap();
                }
            });
        }
    });
    // Each was carried out, in any form.
    let counts = unit.counts();
    let submitted = counts.of(Kind::Pages) + counts.of(Kind::Context) + counts.of(Kind::All);
    assert!(submitted >= PRODUCERS * ROUNDS);
    let carried_out = registers.counts().commands[&CommandKind::InvalVma];
    assert_eq!(carried_out, submitted);
    assert_eq!(registers.violations(), []);
}

#[test]
fn heads_that_cannot_be_are_nonsense() {
    let machine = new_machine();
    let (unit, domain) = machine.attached();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let mut owed = unmap(&*domain, 1);
    machine.wrong(RegisterFaults::STUCK);
    let (offset, value) = (reg::COMMAND_HEAD, 0x100);
    machine.lie(offset, u64::MAX, value);
    let error = failure(&*domain, &mut owed);
    assert_eq!(error, IommuError::Nonsense { offset, value });
    machine.wrong(RegisterFaults::NONE);
    domain.sync(&mut owed).unwrap();
    drop(unit);
}
