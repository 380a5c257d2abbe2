//! Marks of the pages that devices write (HAD).

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{IovaRange, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain, Iommu as _, IommuError, TrackDirtyError};
use portolan::platform::Mmio as _;
use portolan::table::DirtyError;
use portolan::table::format::DirtyTracking;
use portolan_chips::amd::{AmdMachine as Machine, AmdSetup};
use portolan_chips::chips::RAVEN_RIDGE;
use portolan_chips::machine::Manner;

use super::machine::{of, with};
use super::{STREAM, config};
use crate::amd::Config;
use crate::chassis::tests::suite::{BASE, Driven, PAGE, map, quiet};
use portolan_spec::amd::reg;

fn tracking() -> Config {
    Config { dirty: DirtyTracking::Hardware, ..config() }
}

fn machine() -> Machine {
    let identification = RAVEN_RIDGE.identification.marks();
    let machine = of(AmdSetup { identification, temper: quiet(), ..AmdSetup::default() });
    machine.unit().behave(Manner::Obliging);
    machine
}

fn all() -> IovaRange {
    IovaRange::from_len(BASE, 4 * PAGE).unwrap()
}

fn pages(ranges: &[IovaRange]) -> Vec<u64> {
    ranges.iter().map(|page| (page.start().get() - BASE.get()) / PAGE).collect()
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

fn write(machine: &Machine, page: u64) {
    assert!(machine.write(STREAM, BASE.get() + page * PAGE).is_some());
}

/// Word 0 of the entry of a stream.
fn entry(machine: &Machine, stream: StreamId) -> u64 {
    let base = machine.read64(reg::DEVICE_TABLE) & 0x000f_ffff_ffff_f000;
    machine.word(base + 32 * u64::from(stream.get()))
}

#[test]
fn pages_that_devices_write_are_told() {
    let machine = machine();
    let unit = machine.enable(tracking()).unwrap();
    let domain = Arc::new(unit.domain().unwrap());
    unit.attach(STREAM, &domain).unwrap();
    // V, TV, HAD 3, four levels.
    assert_eq!(entry(&machine, STREAM) & 0xfff, 1 | 2 | 3 << 7 | 4 << 9);
    domain.sync(&mut map(&*domain, 4)).unwrap();
    for page in 0..4 {
        assert!(machine.read(STREAM, BASE.get() + page * PAGE).is_some());
    }
    assert!(written(&*domain).is_empty());
    for _ in 0..2 {
        write(&machine, 1);
        write(&machine, 3);
        assert_eq!(written(&*domain), [1, 3]);
    }
    // Until the debt is paid, the unit goes on with a leaf that it knows as written.
    write(&machine, 2);
    let mut owed = Gather::new();
    domain.read_and_clear_dirty(all(), &mut owed, &mut |_| ()).unwrap();
    write(&machine, 2);
    domain.read_dirty(all(), &mut |page| panic!("{page} is marked")).unwrap();
    domain.sync(&mut owed).unwrap();
    write(&machine, 2);
    let mut found = Vec::new();
    let unmapped = domain.unmap_and_read_dirty(all(), &mut owed, &mut |page| found.push(page));
    unmapped.unwrap();
    assert_eq!(pages(&found), [2]);
    domain.sync(&mut owed).unwrap();
    assert!(machine.write(STREAM, BASE.get()).is_none());
    machine.expect_obedience();
}

#[test]
fn marks_are_switched_in_the_entries_of_a_domain_alone() {
    let machine = machine();
    let unit = machine.enable(tracking()).unwrap();
    let (domain, other) = (Arc::new(unit.domain().unwrap()), Arc::new(unit.domain().unwrap()));
    let (second, third) = (StreamId::new(0x29), StreamId::new(0x30));
    domain.track_dirty(DirtyTracking::Off).unwrap();
    unit.attach(STREAM, &domain).unwrap();
    unit.attach(second, &domain).unwrap();
    unit.attach(third, &other).unwrap();
    let marks = || [STREAM, second, third].map(|of| entry(&machine, of) >> 7 & 3);
    assert_eq!(marks(), [0, 0, 3]);
    domain.sync(&mut map(&*domain, 4)).unwrap();
    for _ in 0..2 {
        write(&machine, 1);
        assert_eq!(domain.read_dirty(all(), &mut |_| ()), Err(DirtyError::NotTracked));
        domain.track_dirty(DirtyTracking::Hardware).unwrap();
        assert_eq!(marks(), [3, 3, 3]);
        assert!(written(&*domain).is_empty(), "marks from before are gone");
        write(&machine, 1);
        write(&machine, 2);
        assert_eq!(written(&*domain), [1, 2]);
        domain.track_dirty(DirtyTracking::Off).unwrap();
        assert_eq!(marks(), [0, 0, 3]);
    }
    unit.block(second).unwrap();
    domain.track_dirty(DirtyTracking::Hardware).unwrap();
    assert_eq!(marks(), [3, 0, 3]);
    machine.expect_obedience();
}

#[test]
fn a_unit_that_marks_nothing_does_not_track() {
    // HASup is bit 49, HDSup bit 52.
    for missing in [1 << 49, 1 << 52] {
        let mut identification = RAVEN_RIDGE.identification.marks();
        identification.features &= !missing;
        let machine = with(identification);
        assert_eq!(machine.enable(tracking()).err(), Some(IommuError::Unsupported));
        assert_eq!(machine.live(), 0);
    }
    let machine = machine();
    let domain = machine.enable(config()).unwrap().domain().unwrap();
    let tracked = domain.track_dirty(DirtyTracking::Hardware);
    assert_eq!(tracked, Err(TrackDirtyError::NotTracked));
}
