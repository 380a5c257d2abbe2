//! IVRS by hand.

extern crate std;

use std::vec;
use std::vec::Vec;

use portolan::addr::{PhysAddr, StreamId};
use portolan::iommu::ReservedKind;
use portolan::table::Access;

use super::bytes::{INFO, acpi, ivrs, ivrs_bytes, memory, reseal, unit};
use crate::TableError;
use crate::ivrs::{
    AcpiDevice, Ats, Block, Devices, EntryKind, Info, Ivrs, Level, Passes, Settings, SpecialKind,
    SystemManagement, Uid, UnitFlags,
};
use crate::reserved::Streams;
use crate::tests::lookup;
use portolan::addr::{PciSegment, RequesterId};

const READ_WRITE: Access = Access::READ.union(Access::WRITE);

fn settings(passes: Passes) -> Settings {
    Settings { passes, ..Settings::default() }
}

#[test]
fn ivrs_by_hand() {
    let bytes = ivrs_bytes();
    let ivrs = Ivrs::parse(&bytes).unwrap();
    assert_eq!(ivrs.info(), Info::FEATURE_IMAGES);
    assert_eq!((ivrs.physical_lg2(), ivrs.virtual_lg2()), (Some(48), Some(57)));
    let mut blocks = ivrs.blocks();
    let all: Vec<_> = blocks.by_ref().map(Result::unwrap).collect();
    assert_eq!((all.len(), blocks.unknown()), (7, 1));
    let Block::Ivhd(basic) = all[0] else {
        panic!("{:?}", all[0]);
    };
    let flags = UnitFlags::DEVICE_TLB | UnitFlags::COHERENT | UnitFlags::PAGE_REQUESTS;
    assert_eq!((basic.level, basic.flags), (Level::Basic, flags));
    assert_eq!((basic.features, basic.features2), (None, None));

    // Each unit once, by its most complete block.
    let units: Vec<_> = ivrs.units().map(Result::unwrap).collect();
    let [other, unit] = units[..] else {
        panic!("{units:?}");
    };
    assert_eq!((other.segment, other.level), (PciSegment::new(1), Level::Basic));
    assert_eq!((unit.segment, unit.level), (PciSegment::new(0), Level::Named));
    assert_eq!(unit.requester, RequesterId::of(0, 0, 2));
    assert_eq!((unit.capability, unit.message, unit.unit_id), (0x40, 3, 7));
    assert_eq!(unit.base, PhysAddr::new(0xfeb8_0000));
    assert_eq!(unit.attributes, 0x8004_8f6e);
    assert_eq!(unit.features, Some(0x22_6729_4afa));
    assert_eq!(unit.features2, Some(0x1_0002));
    // The bits of type 10h alone are not believed in others.
    let full = UnitFlags::all() - UnitFlags::PREFETCH - UnitFlags::PAGE_REQUESTS;
    assert!(matches!(all[1], Block::Ivhd(unit) if unit.flags == full));
    let all = other.flags;
    assert_eq!(all, UnitFlags::from_bits_retain(0x0f));
    assert_eq!(all & !full, UnitFlags::empty());
}

#[test]
fn ivrs_entries_by_hand() {
    let bytes = ivrs_bytes();
    let ivrs = Ivrs::parse(&bytes).unwrap();
    let unit = ivrs.units().nth(1).unwrap().unwrap();
    let mut walk = unit.entries();
    let entries: Vec<_> = walk.by_ref().map(Result::unwrap).collect();
    assert_eq!((entries.len(), walk.unknown()), (9, 4));
    let id = RequesterId::new;
    assert_eq!(entries[0].devices, Devices::new(id(3), id(0xfffe)).unwrap());
    let alias = entries[2];
    assert_eq!(alias.devices, Devices::new(id(0x300), id(0x3ff)).unwrap());
    assert_eq!(alias.kind, EntryKind::Alias(id(0x201)));
    assert_eq!(entries[4].settings.ats, Ats::Disabled);
    let EntryKind::Special(special) = entries[6].kind else {
        panic!("{:?}", entries[6]);
    };
    assert_eq!((special.kind, special.handle), (SpecialKind::IoApic, 8));
    let named = AcpiDevice { hid: b"AMDI0020", cid: b"", uid: Uid::Text(b"\\_SB.FUR0") };
    assert_eq!(entries[8].kind, EntryKind::Acpi(named));
    assert_eq!(entries[8].devices, Devices::one(id(0xa5)));
}

#[test]
fn ivrs_says_what_a_device_may_do() {
    let bytes = ivrs_bytes();
    let ivrs = Ivrs::parse(&bytes).unwrap();
    let on = |segment, id| {
        let found = lookup::ivrs_device(&ivrs, PciSegment::new(segment), RequesterId::new(id));
        found.unwrap().map(|(unit, device)| (unit.base.get(), device))
    };
    let of = |id| on(0, id).unwrap().1;
    let of_alias = |id: u16| of(id).alias.map(RequesterId::get);
    assert_eq!((on(0, 2), on(0, 0xffff), on(2, 0x10)), (None, None, None));
    assert_eq!(on(1, 2).unwrap().0, 0xfec0_0000);
    assert_eq!(of(0x10).settings, Settings::default());
    let managed = Settings {
        passes: Passes::NMI,
        system_management: SystemManagement::Posted,
        ats: Ats::Allowed,
    };
    assert_eq!(of(0x200).settings, managed);
    assert_eq!((of_alias(0x300), of_alias(0x3ff)), (Some(0x201), Some(0x201)));
    assert_eq!((of_alias(0x2ff), of_alias(0x400)), (None, Some(0x401)));
    // The settings of an alias entry are for both.
    assert_eq!(of(0x400).settings, settings(Passes::EXTERNAL));
    assert_eq!(of(0x401).settings, settings(Passes::EXTERNAL));
    assert_eq!(of_alias(0x401), None);
    assert_eq!((of(0x500).settings.ats, of(0x608).settings.ats), (Ats::Disabled, Ats::Allowed));
    let last = of(0x607).settings;
    assert_eq!((last.ats, last.passes), (Ats::Disabled, Passes::LINT0));
    // The timer's entry takes nothing back from the I/O APIC's.
    let through = Passes::all();
    let managed = SystemManagement::Posted;
    let settings = of(0xa0).settings;
    assert_eq!((settings.passes, settings.system_management), (through, managed));
    assert_eq!(of(0xa5).settings.passes, Passes::LINT0);
    let (unit, timer) = ivrs.special(SpecialKind::Timer, 0).unwrap().unwrap();
    assert_eq!((unit.level, timer.source), (Level::Named, RequesterId::of(0, 0x14, 0)));
    assert_eq!(ivrs.special(SpecialKind::IoApic, 9), Ok(None));
}

/// Each bit of an entry and of a unit by its place, not by the parser's name for it.
#[test]
fn ivrs_bits_one_by_one() {
    let of = |data: u8| {
        let bytes = ivrs(INFO, &[unit(0x10, 0, 0xfeb8_0000, 0, &[2, 0x10, 0, data])]);
        let ivrs = Ivrs::parse(&bytes).unwrap();
        let found = lookup::ivrs_device(&ivrs, PciSegment::new(0), RequesterId::new(0x10));
        found.unwrap().unwrap().1.settings
    };
    let passes = [
        (0x01, Passes::INIT),
        (0x02, Passes::EXTERNAL),
        (0x04, Passes::NMI),
        (0x08, Passes::empty()),
        (0x40, Passes::LINT0),
        (0x80, Passes::LINT1),
    ];
    for (data, passes) in passes {
        assert_eq!(of(data), settings(passes), "{data:#x}");
    }
    let managed = [
        (0x00, SystemManagement::Aborted),
        (0x10, SystemManagement::Posted),
        (0x20, SystemManagement::Wired),
        (0x30, SystemManagement::Translated),
    ];
    for (data, system_management) in managed {
        assert_eq!(of(data).system_management, system_management);
        assert_eq!(of(data).passes, Passes::empty());
    }
    let flags = [
        (0x01, UnitFlags::HT_TUNNEL),
        (0x02, UnitFlags::PASS_POSTED_WRITES),
        (0x04, UnitFlags::RESPONSES_PASS_POSTED_WRITES),
        (0x08, UnitFlags::ISOCHRONOUS),
        (0x10, UnitFlags::DEVICE_TLB),
        (0x20, UnitFlags::COHERENT),
        (0x40, UnitFlags::PREFETCH),
        (0x80, UnitFlags::PAGE_REQUESTS),
    ];
    for (bit, flag) in flags {
        let bytes = ivrs(INFO, &[unit(0x10, bit, 0xfeb8_0000, 0, &[])]);
        let unit = Ivrs::parse(&bytes).unwrap().units().next().unwrap();
        assert_eq!(unit.unwrap().flags, flag, "{bit:#x}");
    }
}

#[test]
fn an_alias_of_itself_renames_nothing() {
    let entries = [0x42, 0x10, 0, 2, 0, 0x10, 0, 0];
    let bytes = ivrs(INFO, &[unit(0x10, 0, 0xfeb8_0000, 0, &entries)]);
    let ivrs = Ivrs::parse(&bytes).unwrap();
    let found = lookup::ivrs_device(&ivrs, PciSegment::new(0), RequesterId::new(0x10));
    let (_, device) = found.unwrap().unwrap();
    assert_eq!((device.alias, device.settings), (None, settings(Passes::EXTERNAL)));
}

/// A unit that serves everything comes last, wherever it stands.
#[test]
fn a_unit_that_names_a_device_goes_before_one_that_serves_all() {
    let mut named = unit(0x10, 0, 0xfec0_0000, 0, &[2, 0x10, 0, 0]);
    named[4] = 9;
    let all = unit(0x10, 0, 0xfeb8_0000, 0, &[1, 0, 0, 0x80]);
    for blocks in [[all.clone(), named.clone()], [named, all]] {
        let bytes = ivrs(INFO, &blocks);
        let ivrs = Ivrs::parse(&bytes).unwrap();
        let base = |id| {
            let found = lookup::ivrs_device(&ivrs, PciSegment::new(0), RequesterId::new(id));
            found.unwrap().unwrap().0.base.get()
        };
        assert_eq!((base(0x10), base(0x11)), (0xfec0_0000, 0xfeb8_0000));
    }
}

#[test]
fn ivrs_memory_by_hand() {
    let bytes = ivrs_bytes();
    let ivrs = Ivrs::parse(&bytes).unwrap();
    let of = |segment, id| -> Vec<_> {
        let asked = Streams::one(RequesterId::new(id).stream());
        let found = ivrs.reserved(PciSegment::new(segment), asked);
        let found = found.map(|reserved| reserved.unwrap().region);
        found
            .map(|region| {
                let (start, last) = (region.range.start().get(), region.range.last().get());
                (start, last, region.kind)
            })
            .collect()
    };
    let direct = ReservedKind::Direct;
    let everybody = (0x7000_0000, 0x7000_0fff, direct(Access::READ));
    let one = (0x7100_0000, 0x7100_1fff, direct(READ_WRITE));
    // An exclusion range.
    let range = (0x7200_0000, 0x7200_2fff, direct(READ_WRITE));
    assert_eq!(of(0, 0x100), [everybody]);
    assert_eq!(of(0, 0x200), [everybody, one, range]);
    assert_eq!(of(0, 0x2ff), [everybody, range]);
    assert_eq!(of(0, 0x300), [everybody]);
    assert_eq!(of(1, 0x200), []);
}

/// Firmware that reserves nothing, for no device, past the top or beyond the machine's addresses.
#[test]
fn memory_that_cannot_be_is_refused_and_the_rest_is_read() {
    let good = memory(0x20, 0b0111, [0, 0], 0x7000_0000, 0x1000);
    let nonsense = |at: usize, value| TableError::Nonsense { offset: 48 + at, value };
    let cases = [
        (memory(0x20, 0b0111, [0, 0], 0x1000, 0), nonsense(24, 0)),
        (memory(0x20, 0b0111, [0, 0], u64::MAX, 2), nonsense(24, 2)),
        (memory(0x20, 0b0110, [0, 0], 0x1000, 1), nonsense(1, 6)),
        (memory(0x20, 0b0001, [0, 0], 0x1000, 1), nonsense(1, 1)),
        (memory(0x22, 0b0111, [5, 4], 0x1000, 1), nonsense(6, 4)),
        (memory(0x21, 0b0111, [5, 0], 0x1000, 1 << 48), nonsense(16, (1 << 48) + 0xfff)),
    ];
    for (block, error) in cases {
        let bytes = ivrs(INFO, &[block, good.clone()]);
        let ivrs = Ivrs::parse(&bytes).unwrap();
        let found: Vec<_> =
            ivrs.reserved(PciSegment::new(0), Streams::one(StreamId::new(5))).collect();
        assert_eq!((found.len(), found[0]), (2, Err(error)));
        assert!(found[1].is_ok());
    }
    // A table that does not say how wide addresses are is not held to a width.
    let wide = memory(0x20, 0b0111, [0, 0], 1 << 60, 0x1000);
    let bytes = ivrs(0, &[wide]);
    let ivrs = Ivrs::parse(&bytes).unwrap();
    let mut found = ivrs.reserved(PciSegment::new(0), Streams::one(StreamId::new(5)));
    assert!(found.next().unwrap().is_ok());
}

/// Errors in the entries of one unit, and the number of good ones.
fn wrong(kind: u8, entries: &[u8]) -> (Vec<TableError>, usize) {
    let bytes = ivrs(INFO, &[unit(kind, 0, 0xfeb8_0000, 0, entries)]);
    let ivrs = Ivrs::parse(&bytes).unwrap();
    let unit = ivrs.units().next().unwrap().unwrap();
    let (good, bad): (Vec<_>, Vec<_>) = unit.entries().partition(Result::is_ok);
    (bad.into_iter().filter_map(Result::err).collect(), good.len())
}

#[test]
fn entries_that_make_no_sense_are_refused() {
    let nonsense = |at: usize, value| TableError::Nonsense { offset: 48 + 24 + at, value };
    let one = [2, 9, 0, 0];
    // A start without its end, an end without its start, an end below its start.
    let starts = [[3, 5, 0, 0], one].concat();
    assert_eq!(wrong(0x10, &starts), (vec![nonsense(1, 5)], 1));
    let twice = [[3, 5, 0, 0], [3, 6, 0, 0], [4, 7, 0, 0]].concat();
    assert_eq!(wrong(0x10, &twice), (vec![nonsense(1, 5)], 1));
    let ends = [[4, 5, 0, 0], one].concat();
    assert_eq!(wrong(0x10, &ends), (vec![nonsense(1, 5)], 1));
    let backwards = [[3, 5, 0, 0], [4, 4, 0, 0], one].concat();
    assert_eq!(wrong(0x10, &backwards), (vec![nonsense(5, 4)], 1));
    assert_eq!(wrong(0x10, &[3, 5, 0, 0]), (vec![nonsense(1, 5)], 0));
    // A length that is not known, and entries that reach past the end of the block.
    let unknown = [0xf1, 0, 0, 0, 2, 9, 0, 0];
    assert_eq!(wrong(0x10, &unknown), (vec![nonsense(0, 0xf1)], 0));
    for cut in [&[2, 9, 0][..], &[0x42, 0, 4, 2, 0, 1, 4], &acpi()[..25]] {
        let (bad, good) = wrong(0x10, cut);
        let truncated = matches!(bad[..], [TableError::Truncated { .. }]);
        assert!(truncated && good == 0, "{cut:?}: {bad:?}");
    }
    // A device of the name space is unknown to a block of type 10h, and has to have a name.
    assert_eq!(wrong(0x10, &acpi()), (vec![], 0));
    let at = |at: usize| 48 + 40 + at;
    let mut nameless = acpi();
    nameless[4] = 0;
    let (offset, value) = (at(4), 0);
    let refused = vec![TableError::Nonsense { offset, value }];
    assert_eq!(wrong(0x40, &nameless), (refused, 0));
    for (format, good) in [(0, 1), (1, 0), (2, 1), (3, 0)] {
        let mut entry = acpi();
        entry[20] = format;
        assert_eq!(wrong(0x40, &entry).1, good, "{format}");
    }
}

#[test]
fn a_number_tells_devices_of_the_name_space_apart() {
    let mut entry = acpi();
    entry.truncate(22);
    entry[20..22].copy_from_slice(&[1, 2]);
    entry.extend([0x34, 0x12]);
    let bytes = ivrs(INFO, &[unit(0x40, 0, 0xfeb8_0000, 0, &entry)]);
    let unit = Ivrs::parse(&bytes).unwrap().units().next().unwrap().unwrap();
    let kind = unit.entries().next().unwrap().unwrap().kind;
    assert!(matches!(kind, EntryKind::Acpi(device) if device.uid == Uid::Integer(0x1234)));
}

#[test]
fn ivrs_blocks_that_make_no_sense() {
    let good = ivrs_bytes();
    let errors = |bytes: &[u8]| -> Vec<_> {
        let blocks = Ivrs::parse(bytes).unwrap().blocks();
        blocks.filter_map(Result::err).collect()
    };
    // No length, which would be found for ever.
    let mut bytes = good.clone();
    bytes[50..52].fill(0);
    reseal(&mut bytes);
    let (offset, length) = (48, 0);
    assert_eq!(errors(&bytes), [TableError::Length { offset, length }]);
    // Shorter than its fixed part.
    let bytes = ivrs(INFO, &[vec![0x11, 0, 24, 0], vec![0; 20]]);
    let (offset, length) = (48, 24);
    assert_eq!(errors(&bytes), [TableError::Length { offset, length }]);
    // Registers at 0, and where no window can be.
    for base in [0, 0xfeb8_1000] {
        let bytes = ivrs(INFO, &[unit(0x10, 0, base, 0, &[])]);
        let (offset, value) = (56, base);
        assert_eq!(errors(&bytes), [TableError::Nonsense { offset, value }]);
    }
    // A damaged block leaves the unit to the next lower type.
    let low = unit(0x10, 0, 0xfeb8_0000, 0, &[]);
    let bytes = ivrs(INFO, &[low, unit(0x40, 0, 1, 0, &[])]);
    let ivrs = Ivrs::parse(&bytes).unwrap();
    let units: Vec<_> = ivrs.units().filter_map(Result::ok).collect();
    assert!(matches!(units[..], [unit] if unit.level == Level::Basic));
}

/// Comparing each unit with each takes a time that a table cannot choose.
#[test]
fn more_blocks_than_any_machine_has_are_not_read() {
    let blocks = vec![unit(0x10, 0, 0xfeb8_0000, 0, &[1, 0, 0, 0]); 1025];
    let bytes = ivrs(INFO, &blocks);
    let ivrs = Ivrs::parse(&bytes).unwrap();
    let (offset, most) = (48 + 28 * 1024, 1024);
    let last = ivrs.blocks().last();
    assert_eq!(last, Some(Err(TableError::TooMany { offset, most })));
    assert_eq!(ivrs.units().filter(Result::is_ok).count(), 1);
    let found = lookup::ivrs_device(&ivrs, PciSegment::new(0), RequesterId::new(1));
    assert_eq!(found, Err(TableError::TooMany { offset, most }));
    let unit = ivrs.units().next().unwrap().unwrap();
    let device = lookup::device_of(&unit, RequesterId::new(1)).unwrap().unwrap();
    assert_eq!(device.settings, Settings::default());
}
