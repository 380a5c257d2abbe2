//! Marks of the pages that devices write: second stage (SSADE), first stage, and one nested in the other.

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{IovaRange, PageSize, Pasid};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain, Iommu as _, IommuError, TrackDirtyError};
use portolan::table::DirtyError;
use portolan::table::format::{DirtyTracking, VtdFirstLevels};
use portolan_chips::machine::Manner;
use portolan_chips::vtd::{VtdIdentification, VtdMachine, VtdSetup};
use portolan_spec::vtd::reg;

use super::kit::{CAP, SCALABLE, new_machine};
use super::{STREAM, config};
use crate::chassis::tests::suite::{BASE, Driven, PAGE, machine_at, map, quiet};
use crate::vtd::{Config, Features, Mode};

/// Second-stage marks, and walks that snoop.
const MARKS: u64 = SCALABLE | 1 << 45 | 1 << 48;

fn tracking() -> Config {
    Config { dirty: DirtyTracking::Hardware, ..config(Mode::Scalable) }
}

fn machine() -> VtdMachine {
    let identification = VtdIdentification { version: 0x40, cap: CAP, ecap: MARKS };
    let setup = VtdSetup { identification, temper: quiet(), ..VtdSetup::default() };
    let machine: VtdMachine = machine_at(0x10_0000_0000, setup);
    machine.unit().behave(Manner::Obliging);
    machine
}

fn pages(ranges: &[IovaRange]) -> Vec<u64> {
    let each = ranges.iter().inspect(|page| {
        assert_eq!(**page, IovaRange::page(page.start(), PageSize::SIZE_4K));
    });
    each.map(|page| (page.start().get() - BASE.get()) / PAGE).collect()
}

fn all() -> IovaRange {
    IovaRange::from_len(BASE, 4 * PAGE).unwrap()
}

/// The pages that were written since the last time.
fn written(domain: &dyn Domain) -> Vec<u64> {
    let (mut owed, mut found, mut seen) = (Gather::new(), Vec::new(), Vec::new());
    domain.read_dirty(all(), &mut |page| seen.push(page)).unwrap();
    domain.read_and_clear_dirty(all(), &mut owed, &mut |page| found.push(page)).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(seen, found);
    pages(&found)
}

fn write(machine: &VtdMachine, page: u64) {
    assert!(machine.write(STREAM, BASE.get() + page * PAGE).is_some());
}

fn pages_are_told(machine: &VtdMachine, domain: &dyn Domain) {
    domain.sync(&mut map(domain, 4)).unwrap();
    for page in 0..4 {
        assert!(machine.read(STREAM, BASE.get() + page * PAGE).is_some());
    }
    assert!(written(domain).is_empty());
    for _ in 0..2 {
        write(machine, 1);
        write(machine, 3);
        assert_eq!(written(domain), [1, 3]);
        assert!(machine.read(STREAM, BASE.get() + PAGE).is_some());
        assert!(written(domain).is_empty());
    }
    // Until the debt is paid, the unit goes on with a leaf that it knows as written.
    write(machine, 2);
    let mut owed = Gather::new();
    domain.read_and_clear_dirty(all(), &mut owed, &mut |_| ()).unwrap();
    write(machine, 2);
    domain.read_dirty(all(), &mut |page| panic!("{page} is marked")).unwrap();
    domain.sync(&mut owed).unwrap();
    write(machine, 2);
    // An unmap hands the marks over.
    let mut found = Vec::new();
    let unmapped = domain.unmap_and_read_dirty(all(), &mut owed, &mut |page| found.push(page));
    unmapped.unwrap();
    assert_eq!(pages(&found), [2]);
    domain.sync(&mut owed).unwrap();
    assert!(machine.write(STREAM, BASE.get()).is_none());
}

/// Word 0 of the entry of the stream's requests with a PASID, which is 0 for those without.
fn entry_as(machine: &VtdMachine, pasid: u64) -> u64 {
    let root = machine.reg(reg::RTADDR) & !0xfff;
    let contexts = machine.word(root + 16) & !0xfff;
    let directory = machine.word(contexts + 8 * 32) & !0xfff;
    machine.word((machine.word(directory) & !0xfff) + 64 * pasid)
}

fn entry(machine: &VtdMachine) -> u64 {
    entry_as(machine, 0)
}

#[test]
fn pages_that_devices_write_are_told() {
    let machine = machine();
    let unit = machine.enable(tracking()).unwrap();
    let second = Arc::new(unit.second_stage().unwrap());
    unit.attach(STREAM, &second).unwrap();
    // P, four levels, second stage, SSADE.
    assert_eq!(entry(&machine) & 0xfff, 1 | 2 << 2 | 2 << 6 | 1 << 9);
    pages_are_told(&machine, &*second);
    let first = Arc::new(unit.first_stage(VtdFirstLevels::Four).unwrap());
    unit.attach(STREAM, &first).unwrap();
    assert_eq!(entry(&machine) & 0xfff, 1 | 2 << 2 | 1 << 6);
    pages_are_told(&machine, &*first);
    unit.block(STREAM).unwrap();
    machine.expect_obedience();
}

#[test]
fn marks_are_switched_while_pages_are_mapped() {
    let machine = machine();
    let unit = machine.enable(tracking()).unwrap();
    let second = Arc::new(unit.second_stage().unwrap());
    second.track_dirty(DirtyTracking::Off).unwrap();
    unit.attach(STREAM, &second).unwrap();
    assert_eq!(entry(&machine) & 1 << 9, 0);
    second.sync(&mut map(&*second, 4)).unwrap();
    let not_tracked = Err(DirtyError::NotTracked);
    for _ in 0..2 {
        write(&machine, 1);
        assert_eq!(second.read_dirty(all(), &mut |_| ()), not_tracked);
        second.track_dirty(DirtyTracking::Hardware).unwrap();
        assert_ne!(entry(&machine) & 1 << 9, 0);
        assert!(written(&*second).is_empty(), "marks from before are gone");
        write(&machine, 1);
        write(&machine, 2);
        assert_eq!(written(&*second), [1, 2]);
        write(&machine, 2);
        second.track_dirty(DirtyTracking::Off).unwrap();
        assert_eq!(entry(&machine) & 1 << 9, 0);
        write(&machine, 3);
    }
    let (mut owed, mut found) = (Gather::new(), Vec::new());
    let unmapped = second.unmap_and_read_dirty(all(), &mut owed, &mut |range| found.push(range));
    unmapped.unwrap();
    assert_eq!(found, [all()], "any of it may have been written");
    second.sync(&mut owed).unwrap();
    machine.expect_obedience();
}

#[test]
fn marks_are_switched_below_a_nested_stage() {
    let machine = machine();
    let unit = machine.enable(tracking()).unwrap();
    let parent = Arc::new(unit.second_stage().unwrap());
    let nested = Arc::new(unit.nested(VtdFirstLevels::Four, &parent).unwrap());
    unit.attach(STREAM, &nested).unwrap();
    // P, four levels, nested, SSADE.
    assert_eq!(entry(&machine) & 0xfff, 1 | 2 << 2 | 3 << 6 | 1 << 9);
    parent.track_dirty(DirtyTracking::Off).unwrap();
    assert_eq!(entry(&machine) & 0xfff, 1 | 2 << 2 | 3 << 6);
    parent.track_dirty(DirtyTracking::Hardware).unwrap();
    assert_eq!(entry(&machine) & 0xfff, 1 | 2 << 2 | 3 << 6 | 1 << 9);
    // A stream that has left is left alone.
    let other = Arc::new(unit.second_stage().unwrap());
    other.track_dirty(DirtyTracking::Off).unwrap();
    unit.attach(STREAM, &other).unwrap();
    parent.track_dirty(DirtyTracking::Hardware).unwrap();
    assert_eq!(entry(&machine) & 1 << 9, 0);
    machine.expect_obedience();
}

#[test]
fn entries_of_pasids_are_switched() {
    let machine = machine();
    let unit = machine.enable(tracking()).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    unit.attach(STREAM, &domain).unwrap();
    unit.attach_pasid(STREAM, Pasid::new(5), &domain).unwrap();
    let both = || [0, 5].map(|pasid| entry_as(&machine, pasid) >> 9 & 1);
    assert_eq!(both(), [1, 1]);
    domain.track_dirty(DirtyTracking::Off).unwrap();
    assert_eq!(both(), [0, 0]);
    unit.block_pasid(STREAM, Pasid::new(5)).unwrap();
    domain.track_dirty(DirtyTracking::Hardware).unwrap();
    assert_eq!(both(), [1, 0]);
    machine.expect_obedience();
}

#[test]
fn a_unit_that_marks_nothing_does_not_track() {
    for (ecap, mode) in [
        // Walks that do not snoop; legacy mode.
        (MARKS & !(1 << 48), Mode::Scalable),
        (MARKS, Mode::Legacy),
    ] {
        let machine = new_machine(CAP, ecap);
        let refused = machine.enable(Config { mode, ..tracking() });
        assert_eq!(refused.err(), Some(IommuError::Unsupported));
        assert_eq!(machine.live(), 0);
    }
    // First stage alone.
    let machine = new_machine(CAP, MARKS & !(1 << 45));
    let unit = machine.enable(tracking()).unwrap();
    assert_eq!(unit.second_stage().err(), Some(IommuError::Unsupported));
    assert!(unit.first_stage(VtdFirstLevels::Four).is_ok());
    // Not asked for.
    let machine = new_machine(CAP, MARKS);
    let unit = machine.enable(config(Mode::Scalable)).unwrap();
    let domain = unit.second_stage().unwrap();
    let tracked = domain.track_dirty(DirtyTracking::Hardware);
    assert_eq!(tracked, Err(TrackDirtyError::NotTracked));
    assert_eq!(domain.track_dirty(DirtyTracking::Off), Ok(()));
}

#[test]
fn marks_by_hand() {
    use portolan::iommu::Stage;
    let marks = |ecap, mode| {
        let features = Features::check(CAP, ecap).unwrap();
        [Stage::First, Stage::Second].map(|stage| features.marks(mode, stage))
    };
    // SMTS 43, SSADS 45, SSTS 46, FSTS 47, SMPWC 48.
    let ecap =
        |bits: &[u32]| SCALABLE & !(0x3f << 43) | bits.iter().fold(0, |all, bit| all | 1 << bit);
    assert_eq!(marks(ecap(&[43, 45, 46, 47, 48]), Mode::Scalable), [true, true]);
    assert_eq!(marks(ecap(&[43, 45, 46, 48]), Mode::Scalable), [false, true]);
    assert_eq!(marks(ecap(&[43, 46, 47, 48]), Mode::Scalable), [true, false]);
    assert_eq!(marks(ecap(&[43, 45, 47, 48]), Mode::Scalable), [true, false]);
    assert_eq!(marks(ecap(&[43, 45, 46, 47]), Mode::Scalable), [false, false]);
    assert_eq!(marks(ecap(&[45, 46, 47, 48]), Mode::Scalable), [false, false]);
    assert_eq!(marks(ecap(&[43, 45, 46, 47, 48]), Mode::Legacy), [false, false]);
}
