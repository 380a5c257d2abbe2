//! Interrupt handlers that use the unit whose user they interrupted, and interrupt tables.

use crate::promise::tests::all_memory;
use alloc::boxed::Box;
use alloc::sync::Arc;
use portolan::addr::{PhysAddr, StreamId};
use portolan::iommu::{Attach, AttachError, Domain, FaultEvent, Iommu as _};
use portolan_chips::interrupts::{Masking, Scenario, sweep};

use super::machine::{Amd, ILLEGAL, new_machine};
use super::{STREAM, config};
use crate::amd::command::CommandKind as Kind;
use crate::amd::{Config, InterruptTable, StreamSettings};
use crate::chassis::tests::suite::{Driven, map, unmap};
use portolan::addr::RequesterId;
use portolan_spec::amd::command::opcode;
use portolan_tables::ivrs::{Devices, Passes, Settings, SystemManagement};

/// A handler reads the log and pays a debt of another domain, at any step of a caller that moves
/// streams, pays debts and has a command refused.
fn busy() -> Scenario {
    let machine = new_machine();
    let (unit, domain) = machine.attached();
    let unit = Arc::new(unit);
    let other = Arc::new(unit.domain().unwrap());
    domain.sync(&mut map(&*domain, 20)).unwrap();
    other.sync(&mut map(&*other, 3)).unwrap();
    let in_handler = Arc::clone(&unit);
    assert_eq!(machine.read(STREAM, 0x5000), None);
    machine.refuse_kind(opcode::PAGES, 1, ILLEGAL);
    let last = (Arc::clone(&unit), Arc::clone(&other), Arc::clone(&domain));
    Scenario {
        body: Box::new(move || {
            let mut owed = unmap(&*domain, 20);
            let _ = domain.sync(&mut owed);
            domain.sync(&mut owed).unwrap();
            unit.block(STREAM).unwrap();
        }),
        handler: Box::new(move || {
            let event = in_handler.next_fault().unwrap();
            assert!(matches!(event, Some(FaultEvent::Fault(_))));
            let mut owed = unmap(&*other, 3);
            // It may be its command that the unit refuses.
            let _ = other.sync(&mut owed);
            other.sync(&mut owed).unwrap();
        }),
        after: Box::new(move || {
            drop(last);
            machine.expect_obedience();
        }),
    }
}

#[test]
fn a_handler_on_the_cpu_that_submits_completes() {
    let steps = sweep(Masking::Present, busy);
    assert!(steps > 10, "{steps}");
}

#[test]
#[should_panic(expected = "held by the code that was interrupted")]
fn locks_that_let_a_handler_in_are_noticed() {
    sweep(Masking::Absent, busy);
}

#[test]
fn what_an_entry_says_of_interrupts_stays_when_the_stream_is_moved() {
    let machine = new_machine();
    let streams = alloc::vec![StreamSettings {
        streams: Devices::one(RequesterId::new(0x28)),
        settings: Settings {
            passes: Passes::INIT | Passes::NMI,
            system_management: SystemManagement::Translated,
            ..Settings::default()
        },
    }];
    let config = Config { streams, ..config() };
    let unit = machine.enable(config).unwrap();
    let domain = Arc::new(unit.domain().unwrap());
    let passes = 5 << 56;
    let management = 3 << 40;
    assert_eq!(machine.entry(0x28), [3, management, passes, 0]);
    let table = InterruptTable::new(PhysAddr::new(0x7_7780), 8).unwrap();
    machine.commands();
    unit.set_interrupt_table(STREAM, Some(table)).unwrap();
    let word = passes | 2 << 60 | 0x7_7780 | 8 << 1 | 1;
    assert_eq!(machine.entry(0x28), [3, management, word, 0]);
    let (entry, table) = ([0x2000_0000_0000_0028, 0], [0x5000_0000_0000_0028, 0]);
    assert_eq!(machine.commands(), [entry, table]);
    unit.attach(STREAM, &domain).unwrap();
    assert_eq!(machine.entry(0x28)[1..], [management | 2, word, 0]);
    unit.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(machine.entry(0x28)[1..], [management | 1, word, 0]);
    unit.block(STREAM).unwrap();
    assert_eq!(machine.entry(0x28), [3, management, word, 0]);
    machine.commands();
    unit.invalidate_interrupts(STREAM).unwrap();
    assert_eq!(machine.commands(), [table]);
    assert_eq!(unit.counts().of(Kind::Interrupts), 2);
    unit.set_interrupt_table(STREAM, None).unwrap();
    assert_eq!(machine.entry(0x28), [3, management, passes, 0]);
    let stream = StreamId::new(128);
    let refused = Err(AttachError::NoSuchStream { stream });
    assert_eq!(unit.invalidate_interrupts(stream), refused);
    assert_eq!(unit.set_interrupt_table(stream, None), refused);
}
