//! A unit that a kernel which crashed has left, with streams that go on through its tables.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{PageSize, PhysAddr, PhysRange, StreamId};
use portolan::iommu::{Attach as _, Domain as _, Iommu as _, IommuDomains as _, IommuError};
use portolan::platform::{ClaimError, FormerMemory, Mmio as _, TableClaims, TableMem as _};
use portolan_chips::inject::{Drain, RegisterFaults};
use portolan_chips::machine::Withheld;
use portolan_chips::smmuv3::SmmuMachine;
use portolan_spec::smmuv3::command::{OP, error, op};
use portolan_spec::smmuv3::{reg, ste};

use super::kit::{Driver, FULL, Kit as _, machine};
use super::{AtWork, Config, OPTIONS, Smmu, config};
use crate::chassis::tests::former::{TakesOver, takes_over};
use crate::chassis::tests::handover::claims;
use crate::chassis::tests::hostile::Hosted as _;
use crate::chassis::tests::suite::{BASE, map};
use crate::handover::AdoptError;
use crate::promise::tests::{all_memory, crashed as former_memory, preserved};

const STREAM: StreamId = SmmuMachine::STREAMS[0];
const OTHER: StreamId = SmmuMachine::STREAMS[1];
/// Memory behind [`BASE`] of the stream.
const REACHED: Option<u64> = Some(0x1000);

type Taken = Result<(Driver, Vec<StreamId>), AdoptError>;

fn take_with(
    machine: &SmmuMachine,
    config: Config,
    keep: &[StreamId],
    claims: &mut TableClaims<'_>,
) -> Taken {
    let memory = machine.clone();
    let read = |at: PhysAddr| Some(memory.word(at.get()));
    take_from(machine, config, keep, former_memory(&read), claims)
}

fn take_from(
    machine: &SmmuMachine,
    config: Config,
    keep: &[StreamId],
    former: FormerMemory<'_>,
    claims: &mut TableClaims<'_>,
) -> Taken {
    let [regs, mem, clock] = [(); 3].map(|()| machine.clone());
    Smmu::take_over(regs, mem, clock, config, keep, former, claims)
}

fn take(machine: &SmmuMachine, keep: &[StreamId]) -> Taken {
    take_with(machine, config(), keep, &mut claims())
}

impl TakesOver for SmmuMachine {
    fn make_foreign(&self, stream: StreamId) {
        let at = self.place(stream.get()).unwrap();
        // Another shareability, and a partition of the memory's.
        self.store(at + 8, self.word(at + 8) ^ ste::SHCFG.mask());
        self.store(at + 40, 7);
    }

    fn take_over(
        &self,
        keep: &[StreamId],
        former: FormerMemory<'_>,
    ) -> Result<(Driver, Vec<StreamId>), IommuError> {
        let [regs, mem, clock] = [(); 3].map(|()| self.clone());
        let taken = Smmu::take_over(regs, mem, clock, config(), keep, former, &mut claims());
        taken.map_err(|error| match error {
            AdoptError::Iommu(error) => error,
            other => panic!("{other}"),
        })
    }
}

takes_over! { portolan_chips::smmuv3::SmmuMachine }

/// A kernel that crashed with both streams at work, the second behind a second stage.
fn crashed() -> SmmuMachine {
    let machine = machine(FULL);
    crash(&machine);
    machine
}

fn crash(machine: &SmmuMachine) {
    let (unit, domain) = machine.attached();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let second = Arc::new(unit.second_stage::<12>(&OPTIONS()).unwrap());
    unit.attach(OTHER, &second).unwrap();
    second.sync(&mut map(&*second, 1)).unwrap();
    assert_eq!(both(machine), [REACHED; 2]);
    core::mem::forget((unit, domain, second));
}

fn both(machine: &SmmuMachine) -> [Option<u64>; 2] {
    SmmuMachine::STREAMS.map(|stream| machine.read(stream, BASE.get()))
}

/// Puts the entries of both streams into a table of another shape, with second-level tables of `2^span` streams, and
/// returns its address.
fn reshape(machine: &SmmuMachine, lg2: u32, split: Option<u32>, span: u32) -> PhysAddr {
    let entries =
        SmmuMachine::STREAMS.map(|stream| (stream.get(), machine.entry(stream.get()).unwrap()));
    let bytes = split.map_or(lg2 + 6, |split| lg2 - split + 3).max(12);
    let root = machine.alloc(PageSize::of_lg2(bytes)).unwrap();
    let table = split.map(|_| machine.alloc(PageSize::of_lg2((span + 6).max(12))).unwrap());
    for (stream, entry) in entries {
        let at = match (split, table) {
            (Some(split), Some(table)) => {
                let upper = root.get() + u64::from(stream >> split) * 8;
                machine.store(upper, table.get() | u64::from(span + 1));
                table.get() + u64::from(stream & ((1 << split) - 1)) * 64
            }
            _ => root.get() + u64::from(stream) * 64,
        };
        for (number, word) in (0..).zip(entry) {
            machine.store(at + number * 8, word);
        }
    }
    let shape = match split {
        Some(split) => reg::STRTAB_FMT.at(1) | reg::STRTAB_SPLIT.at(split.into()),
        None => 0,
    };
    let enables = machine.reg32(reg::CR0);
    machine.write32(reg::CR0, enables & !reg::cr0::SMMUEN);
    machine.write64(reg::STRTAB_BASE, root.get());
    machine.write32(reg::STRTAB_BASE_CFG, (shape | reg::STRTAB_LOG2SIZE.at(lg2.into())) as u32);
    machine.write32(reg::CR0, enables);
    root
}

#[test]
fn a_table_of_any_shape_stays_in_place() {
    let shapes = [
        (None, 13, 0),
        (Some(6), 16, 6),
        (Some(8), 16, 8),
        (Some(10), 16, 10),
        // As long as they need to be for the two streams.
        (Some(10), 13, 10),
        (Some(8), 14, 6),
        // A table for more streams than there are.
        (Some(8), 20, 8),
    ];
    for (split, lg2, span) in shapes {
        let machine = crashed();
        let root = reshape(&machine, lg2, split, span);
        let shape = machine.reg32(reg::STRTAB_BASE_CFG);
        let seen = machine.clone();
        machine.judge(Some(Box::new(move || {
            assert_eq!(seen.read(STREAM, BASE.get()), REACHED);
            assert!([REACHED, None].contains(&seen.read(OTHER, BASE.get())));
        })));
        let mut claims = claims();
        let (unit, kept) = take_with(&machine, config(), &[STREAM], &mut claims).unwrap();
        machine.judge(None);
        assert_eq!(kept, [STREAM], "{split:?} {lg2}");
        assert_eq!(both(&machine), [REACHED, None], "{split:?} {lg2}");
        assert_eq!(machine.reg(reg::STRTAB_BASE) & !(1 << 62), root.get());
        assert_eq!(machine.reg32(reg::STRTAB_BASE_CFG), shape);
        assert_eq!(claims.claimed().count(), 1);
        unit.pass_through(OTHER, all_memory()).unwrap();
        assert_eq!(both(&machine), [REACHED, Some(BASE.get())], "{split:?} {lg2}");
        unit.suspend().unwrap();
        unit.resume().unwrap();
        assert_eq!(both(&machine), [REACHED, Some(BASE.get())], "{split:?} {lg2}");
        unit.block(STREAM).unwrap();
        assert_eq!(both(&machine), [None, Some(BASE.get())], "{split:?} {lg2}");
        machine.expect_obedience();
    }
}

/// A second-level table that ends before a stream has nothing of it.
#[test]
fn a_stream_behind_the_end_of_its_table_is_not_kept() {
    let machine = crashed();
    reshape(&machine, 16, Some(8), 4);
    let (unit, kept) = take(&machine, &[STREAM, OTHER]).unwrap();
    assert_eq!(kept, []);
    assert_eq!(both(&machine), [None; 2]);
    drop(unit);
}

#[test]
fn second_stages_are_kept_and_streams_that_pass_with_leave() {
    let passing = |leave| {
        let machine = crashed();
        let at = machine.place(STREAM.get()).unwrap();
        machine.store(at, ste::V.at(1) | ste::CONFIG.at(ste::config::BYPASS));
        let tables = [PhysRange::page(PhysAddr::new(0), PageSize::of_lg2(40))];
        let mut claims = TableClaims::new(preserved(&tables, &[]));
        let memory = machine.clone();
        let read = |at: PhysAddr| Some(memory.word(at.get()));
        let former = former_memory(&read);
        let former = if leave { former.passing(all_memory()) } else { former };
        let keep = [OTHER, STREAM, OTHER];
        let taken = take_from(&machine, config(), &keep, former, &mut claims);
        let (unit, kept) = taken.unwrap();
        (machine, unit, kept)
    };
    let (machine, unit, kept) = passing(true);
    assert_eq!(kept, [STREAM, OTHER]);
    assert_eq!(both(&machine), [Some(BASE.get()), REACHED]);
    // The identifier of the former second stage is out of use.
    let fresh = unit.second_stage::<12>(&OPTIONS()).unwrap();
    assert_ne!(
        fresh.context().get() & 0xffff,
        ste::S2VMID.get(&machine.entry(OTHER.get()).unwrap()) as u32
    );
    // What is kept has no record for a next kernel.
    assert_eq!(unit.handover().err(), Some(IommuError::Unsupported));
    unit.block(OTHER).unwrap();
    assert_eq!(both(&machine), [Some(BASE.get()), None]);
    let (machine, _unit, kept) = passing(false);
    assert_eq!(kept, [OTHER]);
    assert_eq!(both(&machine), [None, REACHED]);
}

#[test]
fn nothing_is_kept_of_a_unit_that_is_off() {
    let machine = crashed();
    machine.write32(reg::CR0, 0);
    let (_unit, kept) = take(&machine, &[STREAM]).unwrap();
    assert_eq!(kept, []);
    assert_eq!(both(&machine), [None; 2]);
    machine.expect_obedience();
}

/// Streams that firmware has at work pass from the moment the unit runs, if nothing else was found of them.
#[test]
fn streams_that_firmware_has_at_work_pass() {
    let machine = crashed();
    let (display, all) = (StreamId::new(0x77), all_memory());
    let at_work = [display, STREAM].map(|stream| AtWork { stream, all }).to_vec();
    let config = Config { at_work, ..config() };
    let (_unit, kept) = take_with(&machine, config, &[STREAM], &mut claims()).unwrap();
    assert_eq!(kept, [STREAM]);
    assert_eq!(both(&machine), [REACHED, None]);
    assert_eq!(machine.read(display, BASE.get()), Some(BASE.get()));
}

/// The device of a kept stream goes on with its own translations, and is asked to forget them when it is moved.
#[test]
fn a_device_with_translations_of_its_own_is_asked_to_forget_them() {
    let machine = machine(FULL);
    let unit = machine.enable(config()).unwrap();
    unit.enable_ats(STREAM, all_memory()).unwrap();
    let domain = super::first(&unit);
    unit.attach(STREAM, &domain).unwrap();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    core::mem::forget((unit, domain));
    let (unit, kept) = take(&machine, &[STREAM]).unwrap();
    assert_eq!(kept, [STREAM]);
    assert_ne!(ste::EATS.get(&machine.entry(STREAM.get()).unwrap()), 0);
    assert_ne!(machine.reg32(reg::CR0) & reg::cr0::ATSCHK, 0);
    machine.take_log();
    unit.block(STREAM).unwrap();
    assert!(machine.take_codes().contains(&op::ATC_INV));
    machine.expect_obedience();
}

/// A kernel that crashed may have left its queue at a command that the unit refused, or never fetched.
#[test]
fn a_queue_that_was_left_stuck_does_not_keep_a_unit_from_being_taken_over() {
    for refused in [false, true] {
        let machine = crashed();
        if refused {
            let mut times = 1_u32;
            machine.refuse(move |_| {
                let refused = times > 0;
                times -= u32::from(refused);
                refused.then_some(error::ILL)
            });
        } else {
            machine.wrong(RegisterFaults::STUCK);
        }
        let tail = machine.reg32(reg::CMDQ_PROD);
        machine.write32(reg::CMDQ_PROD, tail + 1);
        assert_ne!(machine.reg32(reg::CMDQ_CONS) & 0xff, machine.reg32(reg::CMDQ_PROD));
        machine.wrong(RegisterFaults::NONE);
        machine.take_log();
        let (_unit, kept) = take(&machine, &[STREAM]).unwrap();
        assert_eq!(kept, [STREAM]);
        assert_eq!(both(&machine), [REACHED, None]);
        // No more than the new queue's commands are carried out behind one that was refused.
        let mut codes = machine.take_commands().map(|words| OP.get(&words));
        assert!(!refused || codes.next() == Some(op::CFGI_STE_RANGE));
    }
}

/// Events of the former kernel are not read, nor its overflow.
#[test]
fn events_of_before_are_gone() {
    let machine = crashed();
    for _ in 0..40 {
        machine.record([0x10, 0, 0, 0]);
    }
    let (unit, _) = take(&machine, &[STREAM]).unwrap();
    assert_eq!(unit.next_fault(), Ok(None));
    assert_eq!(machine.read(OTHER, BASE.get()), None);
    assert!(unit.next_fault().unwrap().is_some());
    assert_eq!(unit.next_fault(), Ok(None));
}

/// Refusals before the unit was told of anything: all streams reach what they did, and none once it is enabled.
#[test]
fn what_cannot_be_kept_is_an_error_before_anything_is_changed() {
    type Wrong = fn(&SmmuMachine);
    let told = |wrong: Wrong, claims: &mut TableClaims<'_>| {
        let machine = crashed();
        wrong(&machine);
        machine.take();
        let (live, before) = (machine.live(), both(&machine));
        let error = take_with(&machine, config(), &[STREAM], claims).err();
        machine.lie(reg::IIDR, 0, 0);
        assert!(machine.take().is_empty(), "{error:?}");
        assert_eq!((machine.live(), both(&machine)), (live, before), "{error:?}");
        let unit = machine.enable(config()).unwrap();
        assert_eq!(both(&machine), [None; 2]);
        drop(unit);
        error.unwrap()
    };
    let elsewhere = [PhysRange::page(PhysAddr::new(0x4000), PageSize::SIZE_4K)];
    let error = told(|_| {}, &mut TableClaims::new(preserved(&elsewhere, &[])));
    assert!(matches!(error, AdoptError::Claim(ClaimError::Outside { .. })), "{error}");
    // A reserved split, a reserved format; not as this driver writes memory.
    let offset = reg::STRTAB_BASE_CFG;
    let lies: [(u64, Wrong); 2] = [
        (7 << 6 | 1 << 16, |machine| machine.lie(reg::STRTAB_BASE_CFG, !0, 7 << 6 | 1 << 16)),
        (2 << 16, |machine| machine.lie(reg::STRTAB_BASE_CFG, !0, 2 << 16)),
    ];
    for (value, lie) in lies {
        let error = told(lie, &mut claims());
        assert_eq!(error, AdoptError::Iommu(IommuError::Nonsense { offset, value }));
    }
    let error = told(|machine| machine.lie(reg::CR1, !0, 0x820), &mut claims());
    let (offset, recorded) = (reg::CR1, 0xd75);
    assert_eq!(error, AdoptError::Register { offset, value: 0x820, recorded });
    // A first level that begins within a page.
    let error = told(
        |machine| {
            let root = reshape(machine, 13, Some(8), 8);
            let inside = root.get() + 0x400;
            (0..0x100)
                .step_by(8)
                .for_each(|at| machine.store(inside + at, machine.word(root.get() + at)));
            let enables = machine.reg32(reg::CR0);
            machine.write32(reg::CR0, enables & !reg::cr0::SMMUEN);
            machine.write64(reg::STRTAB_BASE, inside);
            machine.write32(reg::CR0, enables);
        },
        &mut claims(),
    );
    assert!(matches!(error, AdoptError::Shape { .. }), "{error}");
}

/// Registers that do not obey once the table has changed: an error, with all streams blocked.
#[test]
fn a_unit_that_does_not_follow_lets_nothing_through() {
    for offset in [reg::CMDQ_BASE, reg::CMDQ_PROD, reg::EVENTQ_BASE] {
        let machine = crashed();
        // The former kernel would have had accesses pass by a unit that is off.
        machine.write32(reg::GBPA, reg::gbpa::UPDATE);
        machine.withhold(offset, Withheld::Locked);
        let error = take(&machine, &[STREAM]).err();
        assert!(matches!(error, Some(AdoptError::Iommu(_))), "{offset:#x} {error:?}");
        assert_eq!(both(&machine), [None; 2], "{offset:#x}");
        assert_ne!(machine.reg32(reg::GBPA) & reg::gbpa::ABORT, 0);
    }
    let machine = crashed();
    machine.wrong(RegisterFaults { control: Drain::Never, ..RegisterFaults::NONE });
    let error = take(&machine, &[STREAM]).err();
    assert!(matches!(error, Some(AdoptError::Iommu(IommuError::TimedOut { .. }))), "{error:?}");
    machine.wrong(RegisterFaults::GONE);
    assert_eq!(take(&machine, &[STREAM]).err(), Some(AdoptError::Iommu(IommuError::Gone)));
}
