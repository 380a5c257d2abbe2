//! A unit that a kernel which crashed has left, with streams that go on through its tables.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::iommu::{
    Attach as _, Domain as _, Iommu as _, IommuDomains as _, IommuError, ReservedKind,
    ReservedRegion,
};
use portolan::platform::{ClaimError, FormerMemory, Mmio as _, TableClaims};
use portolan::table::Access;
use portolan::table::format::RiscvLevels;
use portolan_chips::inject::{Drain, RegisterFaults};
use portolan_chips::machine::Withheld;
use portolan_chips::riscv::{RiscvIdentification, RiscvMachine as Machine};
use portolan_spec::riscv::command::{OPCODE, opcode};
use portolan_spec::riscv::context::{DIRECTORY, GSCID, V};
use portolan_spec::riscv::reg::{self, feature, queue};
use portolan_spec::riscv::{PPN, page_of};

use super::config;
use super::machine::{Iommu, Riscv as _, new_machine, with};
use crate::chassis::tests::former::{TakesOver, takes_over};
use crate::chassis::tests::handover::claims;
use crate::chassis::tests::suite::{BASE, Driven, PAGE, map};
use crate::handover::AdoptError;
use crate::promise::tests::{all_memory, crashed as former_memory, described, preserved};
use crate::reservations::Reserved;
use crate::riscv::{Config, RiscvIommu, Signal};

const STREAM: StreamId = <Machine as Driven>::STREAMS[0];
const OTHER: StreamId = <Machine as Driven>::STREAMS[1];
/// Memory behind [`BASE`] of the stream.
const REACHED: Option<u64> = Some(0x1000);

type Taken = Result<(Iommu, Vec<StreamId>), AdoptError>;

fn take_with(
    machine: &Machine,
    config: Config,
    keep: &[StreamId],
    claims: &mut TableClaims<'_>,
) -> Taken {
    let memory = machine.clone();
    let read = |at: PhysAddr| Some(memory.word(at.get()));
    take_from(machine, config, keep, former_memory(&read), claims)
}

fn take_from(
    machine: &Machine,
    config: Config,
    keep: &[StreamId],
    former: FormerMemory<'_>,
    claims: &mut TableClaims<'_>,
) -> Taken {
    let [regs, mem, clock] = [(); 3].map(|()| machine.clone());
    RiscvIommu::take_over(regs, mem, clock, config, keep, former, claims)
}

fn take(machine: &Machine, keep: &[StreamId]) -> Taken {
    take_with(machine, config(), keep, &mut claims())
}

impl TakesOver for Machine {
    fn make_foreign(&self, stream: StreamId) {
        // A tag of a second stage that it does not have.
        let at = context_at(self, stream) + 8;
        self.store(at, GSCID.at(0x55));
    }

    fn take_over(
        &self,
        keep: &[StreamId],
        former: FormerMemory<'_>,
    ) -> Result<(Iommu, Vec<StreamId>), IommuError> {
        let [regs, mem, clock] = [(); 3].map(|()| self.clone());
        let taken = RiscvIommu::take_over(regs, mem, clock, config(), keep, former, &mut claims());
        taken.map_err(|error| match error {
            AdoptError::Iommu(error) => error,
            other => panic!("{other}"),
        })
    }
}

takes_over! { portolan_chips::riscv::RiscvMachine }

/// Address of the context of a stream with contexts of four words.
fn context_at(machine: &Machine, stream: StreamId) -> u64 {
    let directory = machine.reg(reg::DIRECTORY);
    let mut page = PPN.of(directory) << 12;
    for level in (0..(directory & 0xf) - 2).rev() {
        let index = u64::from(stream.get()) >> (7 + 9 * level) & 0x1ff;
        page = PPN.of(machine.word(page + index * 8)) << 12;
    }
    page + u64::from(stream.get() & 0x7f) * 32
}

/// A kernel that crashed with both streams at work, the second behind a second stage.
fn crash(machine: &Machine) {
    let (unit, domain) = machine.attached();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let second = Arc::new(unit.second_stage(RiscvLevels::Four).unwrap());
    unit.attach(OTHER, &second).unwrap();
    second.sync(&mut map(&*second, 1)).unwrap();
    assert_eq!(both(machine), [REACHED; 2]);
    core::mem::forget((unit, domain, second));
}

fn crashed() -> Machine {
    let machine = new_machine();
    crash(&machine);
    machine
}

fn both(machine: &Machine) -> [Option<u64>; 2] {
    [STREAM, OTHER].map(|stream| machine.read(stream, BASE.get()))
}

#[test]
fn a_directory_of_any_depth_stays_in_place() {
    let able = RiscvIdentification::able();
    for (levels, mode) in [(0b1110, 2), (0b1100, 3), (0b1000, 4)] {
        let machine = with(RiscvIdentification { levels, ..able });
        crash(&machine);
        let directory = machine.reg(reg::DIRECTORY);
        assert_eq!(directory & 0xf, mode);
        let seen = machine.clone();
        machine.judge(Some(Box::new(move || {
            assert_eq!(seen.read(STREAM, BASE.get()), REACHED);
            assert!([REACHED, None].contains(&seen.read(OTHER, BASE.get())));
            assert_eq!(seen.reg(reg::DIRECTORY), directory);
        })));
        let mut claims = claims();
        let (unit, kept) = take_with(&machine, config(), &[STREAM], &mut claims).unwrap();
        machine.judge(None);
        assert_eq!(kept, [STREAM], "{mode}");
        assert_eq!(both(&machine), [REACHED, None], "{mode}");
        assert_eq!(claims.claimed().count(), 1);
        unit.pass_through(OTHER, all_memory()).unwrap();
        assert_eq!(both(&machine), [REACHED, Some(BASE.get())], "{mode}");
        unit.suspend().unwrap();
        unit.resume().unwrap();
        assert_eq!(both(&machine), [REACHED, Some(BASE.get())], "{mode}");
        unit.block(STREAM).unwrap();
        assert_eq!(both(&machine), [None, Some(BASE.get())], "{mode}");
        machine.expect_obedience();
    }
}

/// Streams of pages that lie apart, of which each is found by all of its number.
#[test]
fn streams_with_wide_numbers_are_kept() {
    let machine = new_machine();
    let wide = || Config { streams_lg2: 24, ..config() };
    let unit = machine.enable(wide()).unwrap();
    let all = [0x12_3456, 0x12_3457, 0x12_3056, 0x02_3456, 0x56].map(StreamId::new);
    for (number, stream) in (1..).zip(all) {
        let domain = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
        unit.attach(stream, &domain).unwrap();
        domain.sync(&mut map(&*domain, number)).unwrap();
        core::mem::forget(domain);
    }
    core::mem::forget(unit);
    let pages = |stream| {
        (0..6).filter(|page| machine.read(stream, BASE.get() + page * PAGE).is_some()).count()
    };
    assert_eq!(all.map(pages), [1, 2, 3, 4, 5]);
    let keep = [all[4], all[2], all[0]];
    let (_unit, kept) = take_with(&machine, wide(), &keep, &mut claims()).unwrap();
    assert_eq!(kept, keep);
    assert_eq!(all.map(pages), [1, 0, 3, 0, 5]);
    machine.expect_obedience();
}

#[test]
fn second_stages_are_kept_and_streams_that_pass_with_leave() {
    let passing = |leave| {
        let machine = crashed();
        let at = context_at(&machine, STREAM);
        machine.store(at, V);
        (1..4).for_each(|word| machine.store(at + word * 8, 0));
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
    let fresh = unit.second_stage(RiscvLevels::Four).unwrap();
    assert_eq!(fresh.context().get() & 0xffff, 2);
    // What is kept has no record for a next kernel.
    assert_eq!(unit.handover().err(), Some(IommuError::Unsupported));
    unit.block(OTHER).unwrap();
    assert_eq!(both(&machine), [Some(BASE.get()), None]);
    assert!(unit.handover().is_ok());
    let (machine, _unit, kept) = passing(false);
    assert_eq!(kept, [OTHER]);
    assert_eq!(both(&machine), [None, REACHED]);
}

#[test]
fn a_context_that_does_not_count_or_has_processes_is_not_kept() {
    for words in [[0, V], [V, 0], [DIRECTORY, 0]] {
        let machine = crashed();
        let at = context_at(&machine, STREAM);
        machine.store(at, machine.word(at) & !words[1] | words[0]);
        let (_unit, kept) = take(&machine, &[STREAM, OTHER]).unwrap();
        let expected: &[StreamId] = if words[0] == V { &[STREAM, OTHER] } else { &[OTHER] };
        assert_eq!(kept, expected, "{words:x?}");
        assert_eq!(both(&machine)[1], REACHED);
    }
}

#[test]
fn nothing_is_kept_of_a_unit_without_a_directory() {
    for mode in [0, 1] {
        let machine = crashed();
        let root = machine.reg(reg::DIRECTORY) & !0xf;
        machine.write64(reg::DIRECTORY, root);
        machine.write64(reg::DIRECTORY, root | mode);
        let (_unit, kept) = take(&machine, &[STREAM]).unwrap();
        assert_eq!(kept, []);
        assert_eq!(both(&machine), [None; 2]);
    }
}

/// A stream that is kept is not moved to the memory that firmware names for it; another is.
#[test]
fn streams_that_firmware_has_at_work_reach_its_memory() {
    let machine = crashed();
    let range = IovaRange::from_len(BASE, PAGE).unwrap();
    let region = ReservedRegion { range, kind: ReservedKind::Direct(Access::READ_WRITE) };
    let display = StreamId::new(0x11);
    let mut config = config();
    config.reserved.believe(described());
    for stream in [STREAM, display] {
        config.reserved.add(Reserved::one(stream, region)).unwrap();
    }
    let (_unit, kept) = take_with(&machine, config, &[STREAM], &mut claims()).unwrap();
    assert_eq!(kept, [STREAM]);
    assert_eq!(both(&machine), [REACHED, None]);
    assert_eq!(machine.read(display, BASE.get()), Some(BASE.get()));
}

/// A kernel that crashed may have left its queue at a command that the unit refused, or never fetched.
#[test]
fn a_queue_that_was_left_stuck_does_not_keep_a_unit_from_being_taken_over() {
    for code in [0, queue::ILLEGAL, queue::MEMORY_FAULT, queue::TIME_OUT] {
        let machine = crashed();
        if code == 0 {
            machine.wrong(RegisterFaults::STUCK);
        } else {
            let mut times = 1_u32;
            machine.refuse(move |_| {
                let refused = times > 0;
                times -= u32::from(refused);
                refused.then_some(code)
            });
        }
        let tail = machine.reg32(reg::COMMAND_TAIL);
        machine.write32(reg::COMMAND_TAIL, tail + 1);
        assert_ne!(machine.reg32(reg::COMMAND_HEAD), machine.reg32(reg::COMMAND_TAIL));
        machine.wrong(RegisterFaults::NONE);
        machine.take();
        let (_unit, kept) = take(&machine, &[STREAM]).unwrap();
        assert_eq!(kept, [STREAM]);
        assert_eq!(both(&machine), [REACHED, None]);
        // No more than the new queue's commands are carried out behind one that was refused.
        let mut codes = machine.take_commands().map(|words| OPCODE.of(words[0]));
        assert!(code == 0 || codes.next() == Some(opcode::DIRECTORY), "{code:#x}");
    }
}

/// Faults of the former kernel are not read.
#[test]
fn faults_of_before_are_gone() {
    let machine = crashed();
    assert_eq!(machine.read(StreamId::new(0x13), BASE.get()), None);
    let (unit, _) = take(&machine, &[STREAM]).unwrap();
    assert_eq!(unit.next_fault(), Ok(None));
    assert_eq!(machine.read(OTHER, BASE.get()), None);
    assert!(unit.next_fault().unwrap().is_some());
    assert_eq!(unit.next_fault(), Ok(None));
}

/// Refusals before the unit was told of anything: all streams reach what they did, and none once it is enabled.
#[test]
fn what_cannot_be_kept_is_an_error_before_anything_is_changed() {
    let told = |machine: Machine, config: Config, claims: &mut TableClaims<'_>| {
        machine.take();
        let (live, before) = (machine.live(), both(&machine));
        let error = take_with(&machine, config, &[STREAM], claims).err();
        assert!(machine.take().is_empty(), "{error:?}");
        assert_eq!((machine.live(), both(&machine)), (live, before), "{error:?}");
        machine.lie(reg::CAPABILITIES, 0, 0);
        let unit = machine.enable(super::config()).unwrap();
        assert_eq!(both(&machine), [None; 2]);
        drop(unit);
        error.unwrap()
    };
    let elsewhere = [PhysRange::page(PhysAddr::new(0x4000), PageSize::SIZE_4K)];
    let memory = preserved(&elsewhere, &[]);
    let error = told(crashed(), config(), &mut TableClaims::new(memory));
    assert!(matches!(error, AdoptError::Claim(ClaimError::Outside { .. })), "{error}");
    // Features change in Off alone.
    let wired = Config { signal: Signal::Wired, ..config() };
    let error = told(crashed(), wired, &mut claims());
    let offset = reg::FEATURES;
    assert!(matches!(error, AdoptError::Register { offset: of, .. } if of == offset), "{error}");
    let machine = crashed();
    machine.lie(reg::FEATURES, feature::BIG_ENDIAN.into(), feature::BIG_ENDIAN.into());
    let error = told(machine, config(), &mut claims());
    assert!(matches!(error, AdoptError::Register { offset: of, .. } if of == offset), "{error}");
    let machine = crashed();
    machine.lie(reg::DIRECTORY, 0xf, 9);
    let error = told(machine, config(), &mut claims());
    let offset = reg::DIRECTORY;
    let nonsense = matches!(
        error,
        AdoptError::Iommu(IommuError::Nonsense { offset: of, .. }) if of == offset
    );
    assert!(nonsense, "{error}");
}

/// Registers that do not obey once the queues were stopped: an error, with all streams blocked.
#[test]
fn a_unit_that_does_not_follow_lets_nothing_through() {
    for offset in [reg::COMMAND_BASE, reg::FAULT_BASE, reg::COMMAND_TAIL] {
        let machine = crashed();
        machine.withhold(offset, Withheld::Locked);
        let error = take(&machine, &[STREAM]).err();
        assert!(matches!(error, Some(AdoptError::Iommu(_))), "{offset:#x} {error:?}");
        assert_eq!(both(&machine), [None; 2], "{offset:#x}");
    }
    let machine = crashed();
    machine.wrong(RegisterFaults { control: Drain::Never, ..RegisterFaults::NONE });
    let error = take(&machine, &[STREAM]).err();
    assert!(matches!(error, Some(AdoptError::Iommu(IommuError::TimedOut { .. }))), "{error:?}");
    machine.wrong(RegisterFaults::GONE);
    assert_eq!(take(&machine, &[STREAM]).err(), Some(AdoptError::Iommu(IommuError::Gone)));
}

/// The rest of a former root that holds contexts says nothing.
#[test]
fn contexts_of_the_former_root_are_closed_in_place() {
    let machine = crashed();
    let root = PPN.of(machine.reg(reg::DIRECTORY)) << 12;
    machine.store(root + 3 * 32, V);
    assert_eq!(machine.read(StreamId::new(3), BASE.get()), Some(BASE.get()));
    let (_unit, kept) = take(&machine, &[STREAM]).unwrap();
    assert_eq!(kept, [STREAM]);
    assert_eq!(machine.read(StreamId::new(3), BASE.get()), None);
    assert_eq!(machine.reg(reg::DIRECTORY), page_of(root) | 2);
    assert_eq!(machine.context(3)[0], 0);
}
