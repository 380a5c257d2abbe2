//! A unit that a kernel which crashed has left, with streams that go on through its tables.

use alloc::vec::Vec;

use portolan::addr::{PhysAddr, StreamId};
use portolan::iommu::{Domain as _, Iommu as _, IommuDomains as _, IommuError};
use portolan::platform::{FormerMemory, Mmio as _};
use portolan_chips::amd::AmdMachine;
use portolan_chips::machine::Withheld;
use portolan_spec::amd::entry::{GUEST, IR, IW, MODE, TV, V};
use portolan_spec::amd::reg::{self, control};

use super::machine::{Amd as _, ILLEGAL, Iommu, capability, new_machine};
use super::{STREAM, config};
use crate::amd::{AmdVi, Config};
use crate::chassis::tests::former::{TakesOver, takes_over};
use crate::chassis::tests::suite::{BASE, Driven as _};
use crate::promise::tests::{all_memory, crashed};

/// Address of the device table of the system before: not in memory of this one.
const OLD: u64 = 0x7000_0000;
/// SE and Cache, which this driver does not set.
const FOREIGN: u64 = 1 << 33 | 1 << 37;

fn take_over(
    machine: &AmdMachine,
    config: Config,
    keep: &[StreamId],
    former: FormerMemory<'_>,
) -> Result<(Iommu, Vec<StreamId>), IommuError> {
    let capability = capability(&machine.unit().identification());
    let (regs, mem, clock) = (machine.clone(), machine.clone(), machine.clone());
    AmdVi::take_over(regs, mem, clock, capability, config, keep, former)
}

impl TakesOver for AmdMachine {
    fn make_foreign(&self, stream: StreamId) {
        let at = (self.reg(reg::DEVICE_TABLE) & !0xfff) + u64::from(stream.get()) * 32 + 8;
        self.store(at, self.word(at) | FOREIGN);
    }

    fn take_over(
        &self,
        keep: &[StreamId],
        former: FormerMemory<'_>,
    ) -> Result<(Iommu, Vec<StreamId>), IommuError> {
        take_over(self, config(), keep, former)
    }
}

takes_over! { portolan_chips::amd::AmdMachine }

/// Turns the unit on with a table of 128 entries at [`OLD`].
fn translating(machine: &AmdMachine) {
    machine.write64(reg::DEVICE_TABLE, OLD);
    machine.write64(reg::CONTROL, control::ENABLE);
}

#[test]
fn entries_are_kept_as_far_as_they_are_of_host_tables() {
    let machine = new_machine();
    translating(&machine);
    let (on, four) = (V | TV | IR | IW, MODE.at(4));
    let entries: [[u64; 2]; 12] = [
        // The device keeps translations.
        [on | four | 0x7123_4000 | 1 << 7, 6 | 1 << 32 | FOREIGN],
        // The same tables: the same identifier.
        [on | four | 0x7123_4000, 6],
        [V | TV | IR | MODE.at(3) | 0x7123_5000, 2],
        // Passes.
        [on, 7],
        // Blocks.
        [V | TV | four, 8],
        [0, 0],
        // Its fields about translation do not count.
        [V | IR | IW | four, 9],
        [on | GUEST | four, 10],
        // Levels that there are not.
        [on | MODE.at(7), 11],
        // Identifiers of what blocks, of what passes, and of what has nothing.
        [on | four, 0],
        [on | four, 1],
        [on | four, 0xffff],
    ];
    let read = |at: PhysAddr| {
        let entry = entries.get((at.get() - OLD) as usize / 32)?;
        entry.get(at.get() as usize % 32 / 8).copied()
    };
    let keep: Vec<_> = (0..200).map(StreamId::new).collect();
    let (unit, kept) =
        take_over(&machine, config(), &keep, crashed(&read).passing(all_memory())).unwrap();
    assert_eq!(kept, [0, 1, 2, 3].map(StreamId::new));
    assert_eq!(machine.turned_off(), 0);
    let copied = |stream| machine.entry(stream)[..2].to_vec();
    assert_eq!(copied(0), [entries[0][0], 6 | 1 << 32]);
    assert_eq!(copied(1), entries[1]);
    assert_eq!(copied(2), entries[2]);
    assert_eq!(copied(3), [on, 1]);
    assert!((4..128).all(|stream| copied(stream) == [V | TV, 0]));
    // No domain has an identifier of the old tables.
    let domains: Vec<_> = (0..2).map(|_| unit.domain().unwrap()).collect();
    let ids: Vec<_> = domains.iter().map(|domain| domain.context().get()).collect();
    assert_eq!(ids, [3, 4]);
    // What is kept has no record for a next kernel.
    assert_eq!(unit.handover().err(), Some(IommuError::Unsupported));
    for stream in kept {
        unit.block(stream).unwrap();
    }
    assert!(unit.handover().is_ok());
}

#[test]
fn a_stream_that_passes_is_kept_with_leave_alone() {
    let machine = new_machine();
    translating(&machine);
    let passes = |_: PhysAddr| Some(V | TV | IR | IW);
    let (_unit, kept) = take_over(&machine, config(), &[STREAM], crashed(&passes)).unwrap();
    assert_eq!(kept, []);
    assert!(machine.is_blocked(STREAM));
}

#[test]
fn nothing_is_kept_of_a_unit_that_is_off_or_has_its_table_in_segments() {
    for how in [0, control::ENABLE | control::SEGMENTS] {
        let machine = new_machine();
        machine.write64(reg::DEVICE_TABLE, OLD);
        machine.write64(reg::CONTROL, how);
        let open = |_: PhysAddr| Some(V | TV | IR | IW);
        let (_unit, kept) = take_over(&machine, config(), &[STREAM], crashed(&open)).unwrap();
        assert_eq!(kept, []);
        assert!(machine.is_blocked(STREAM));
    }
}

/// A kernel that crashed may have left its commands at one that the unit refused.
#[test]
fn commands_that_were_left_refused_do_not_keep_a_unit_from_being_taken_over() {
    let machine = new_machine();
    let (former, domain) = machine.attached();
    let mut times = 1_u32;
    machine.refuse(move |_| {
        let refused = times > 0;
        times -= u32::from(refused);
        refused.then_some(ILLEGAL)
    });
    let tail = machine.reg(reg::COMMAND_TAIL);
    machine.write64(reg::COMMAND_TAIL, tail + 16);
    assert_ne!(machine.reg(reg::COMMAND_HEAD), machine.reg(reg::COMMAND_TAIL));
    core::mem::forget((former, domain));
    let memory = machine.clone();
    let read = |at: PhysAddr| Some(memory.word(at.get()));
    let (_unit, kept) = take_over(&machine, config(), &[STREAM], crashed(&read)).unwrap();
    assert_eq!(kept, [STREAM]);
}

/// Streams go on through the former kernel's table, whole, where the unit does not take another.
#[test]
fn registers_that_are_locked_are_an_error_with_the_old_tables_in_place() {
    for offset in [reg::DEVICE_TABLE, reg::COMMAND_BASE, reg::EVENT_BASE] {
        let machine = new_machine();
        let (former, domain) = machine.attached();
        domain.sync(&mut super::map(&*domain, 1)).unwrap();
        core::mem::forget((former, domain));
        let before = machine.read(STREAM, BASE.get());
        machine.withhold(offset, Withheld::Locked);
        let memory = machine.clone();
        let read = |at: PhysAddr| Some(memory.word(at.get()));
        let error = take_over(&machine, config(), &[STREAM], crashed(&read)).err();
        let told = matches!(error, Some(IommuError::Nonsense { offset: of, .. }) if of == offset);
        assert!(told, "{error:?}");
        assert_eq!(machine.read(STREAM, BASE.get()), before);
        assert_eq!(machine.read(StreamId::new(0x30), BASE.get()), None);
    }
}
