//! Firmware's settings of a unit: flags, and memory that stays reachable; and units that were on.

use crate::promise::tests::{all_memory, described};
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, IovaRange};
use portolan::iommu::{
    Attach as _, Awaited, Domain as _, Iommu as _, IommuError, ReservedKind, ReservedRegion,
};
use portolan::platform::Mmio as _;
use portolan::table::Access;

use super::machine::{Amd, new_machine};
use super::{STREAM, config};
use crate::amd::tables::DeviceTable;
use crate::amd::{Config, StreamSettings};
use crate::chassis::tests::suite::Driven;
use crate::reservations::{Ignored, Reserved};
use portolan::addr::RequesterId;
use portolan_chips::inject::RegisterFaults;
use portolan_sim::decode::AccessKind;
use portolan_spec::amd::reg::{self, control, status};
use portolan_tables::ivrs::{Devices, Ivrs, Passes, Settings, SystemManagement, UnitFlags};

const ON: u64 = control::ENABLE | control::COMMANDS | control::EVENT_LOG | control::COHERENT;

fn devices(first: u16, last: u16) -> Devices {
    Devices::new(RequesterId::new(first), RequesterId::new(last)).unwrap()
}

fn unity(streams: Devices, start: u64, last: u64) -> Reserved {
    let range = IovaRange::new(Iova::new(start), Iova::new(last)).unwrap();
    let kind = ReservedKind::Direct(Access::READ | Access::WRITE);
    Reserved { streams: streams.streams(), region: ReservedRegion { range, kind } }
}

fn with(maps: &[Reserved]) -> Config {
    let mut config = config();
    for map in maps {
        config.reserved.believe(described());
        config.reserved.add(*map).unwrap();
    }
    config
}

#[test]
fn firmware_s_streams_without_an_entry_are_left_out() {
    let machine = new_machine();
    for lg2 in [7, 8, 12] {
        let table = DeviceTable::new(&machine, &Config { streams_lg2: lg2, ..config() }).unwrap();
        let end = 1 << lg2;
        assert!(table.within(Devices::ALL).eq(0..end));
        assert!(table.within(devices(end - 1, end)).eq(end - 1..end));
        assert_eq!(table.within(devices(end, end + 1)).count(), 0);
        table.free(&machine);
    }
}

#[test]
fn flags_of_the_unit_are_as_firmware_says() {
    let flags = Some(UnitFlags::PASS_POSTED_WRITES | UnitFlags::ISOCHRONOUS);
    let machine = new_machine();
    // Found: tunnelling, a limit for devices' TLBs, guest tables and their log, a table in segments.
    machine.write64(reg::CONTROL, 1 << 1 | 4 << 5 | 1 << 16 | 1 << 28 | 1 << 34);
    let config = Config { flags, ..config() };
    let _unit = machine.enable(config).unwrap();
    assert_eq!(machine.reg(reg::CONTROL), ON | 4 << 5 | 1 << 8 | 1 << 11 | 1 << 16);
}

#[test]
fn interrupts_pass_from_the_streams_that_firmware_names() {
    let settings = |first, last, passes, system_management| StreamSettings {
        streams: devices(first, last),
        settings: Settings { passes, system_management, ..Settings::default() },
    };
    let all = Passes::all();
    let streams = alloc::vec![
        settings(8, 9, all, SystemManagement::Aborted),
        settings(9, 9, Passes::LINT0, SystemManagement::Posted),
        // Streams that the table does not have.
        settings(127, u16::MAX, Passes::INIT, SystemManagement::Aborted),
        settings(128, 300, all, SystemManagement::Translated),
    ];
    let machine = new_machine();
    let config = Config { streams, ..config() };
    let _unit = machine.enable(config).unwrap();
    assert_eq!(machine.entry(7), [3, 0, 0, 0]);
    assert_eq!(machine.entry(8), [3, 0, 0xc700_0000_0000_0000, 0]);
    assert_eq!(machine.entry(9)[2..], [1 << 62, 0]);
    assert_eq!(machine.entry(127), [3, 0, 1 << 56, 0]);
}

/// Erratum 63: the entry permits writes (bit 62), to three levels of tables in which nothing is mapped.
#[test]
fn a_blocked_stream_whose_system_management_writes_pass_permits_writes_and_reaches_nothing() {
    let posted = SystemManagement::Posted;
    let settings = Settings { system_management: posted, ..Settings::default() };
    let streams = alloc::vec![StreamSettings { streams: devices(0x28, 0x28), settings }];
    let machine = new_machine();
    let unit = machine.enable(Config { streams, ..config() }).unwrap();
    let blocked = machine.entry(0x28);
    assert_eq!(blocked[0] & !(0xf_ffff_ffff << 12), 1 << 62 | 3 << 9 | 3);
    assert_eq!(blocked[1..], [1 << 40 | 0xffff, 0, 0]);
    let domain = Arc::new(unit.domain().unwrap());
    let reaches_nothing = || {
        let written = |at| machine.access(STREAM, Iova::new(at), AccessKind::Write);
        [0, 0x5000, 0x7fff_f000].into_iter().all(|at| written(at).is_err())
    };
    assert!(reaches_nothing());
    unit.attach(STREAM, &domain).unwrap();
    domain.sync(&mut super::map(&*domain, 1)).unwrap();
    unit.block(STREAM).unwrap();
    assert_eq!(machine.entry(0x28), blocked);
    assert!(reaches_nothing());
    unit.pass_through(STREAM, all_memory()).unwrap();
    unit.block_all().unwrap();
    assert_eq!(machine.entry(0x28), blocked);
    drop(domain);
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.live(), 0);
}

#[test]
fn streams_of_unity_maps_reach_their_memory_from_the_start() {
    let maps = [
        unity(devices(0x28, 0x29), 0x7f00_0000, 0x7f00_0fff),
        unity(devices(0x29, 0x29), 0x7f00_1000, 0x7f00_1fff),
        // Large, and of streams that there are not.
        unity(devices(0x70, u16::MAX), 1 << 32, (5 << 32) - 1),
    ];
    let machine = new_machine();
    machine.write64(reg::CONTROL, ON);
    let unit = machine.enable(with(&maps)).unwrap();
    assert_eq!(machine.turned_off(), 0);
    let translated = |stream| machine.entry(stream)[0] & (3 << 61 | 7 << 9 | 3);
    for stream in [0x28, 0x29, 0x70, 0x7f] {
        assert_eq!(translated(stream), 3 << 61 | 4 << 9 | 3, "{stream:#x}");
    }
    assert_eq!(machine.entry(0x2a), [3, 0, 0, 0]);
    assert_eq!(machine.entry(0x70), machine.entry(0x7f));
    assert_ne!(machine.entry(0x28), machine.entry(0x29));
    // The stream is the caller's as any other; the last one to leave lets the tables go.
    let live = machine.live();
    machine.commands();
    unit.block(STREAM).unwrap();
    assert_eq!(machine.entry(0x28), [3, 0, 0, 0]);
    let tagged = machine.commands().iter().filter(|words| words[0] == 3 << 60 | 2 << 32).count();
    assert!(tagged >= 1);
    assert!(machine.live() < live);
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.live(), 0);
}

#[test]
fn interrupt_messages_hypertransport_and_unity_maps_are_reserved() {
    let interrupts = unity(devices(0x28, 0x28), 0xfee0_1000, 0xfee0_1fff);
    let beyond = unity(devices(0x28, 0x28), 1 << 50, 1 << 50);
    let maps = [
        unity(devices(0x28, 0x28), 0x7f00_0800, 0x7f00_17ff),
        unity(devices(0x29, 0x29), 0x7f00_2000, 0x7f00_2fff),
        interrupts,
        beyond,
    ];
    let unit = new_machine().enable(with(&maps)).unwrap();
    let left_out = unit.reservations().left_out();
    let why = Ignored::Beyond { reserved: beyond, address_lg2: 48 };
    assert_eq!((left_out.count, left_out.first), (2, Some(why)));
    let mut reserved = Vec::new();
    unit.reserved(STREAM, &mut |region| {
        let (start, last) = (region.range.start().get(), region.range.last().get());
        reserved.push((region.kind, start, last));
    });
    let direct = ReservedKind::Direct(Access::READ | Access::WRITE);
    let wanted = [
        (ReservedKind::Interrupts, 0xfee0_0000, 0xfeef_ffff),
        (ReservedKind::Unusable, 0xfd_0000_0000, 0xff_ffff_ffff),
        (direct, 0x7f00_0000, 0x7f00_1fff),
    ];
    assert_eq!(reserved, wanted);
}

#[test]
fn a_takeover_that_fails_frees_only_what_the_unit_was_not_told_of() {
    let config = || with(&[unity(devices(0x28, 0x28), 0x7f00_0000, 0x7f00_0fff)]);
    // The rings do not stop: nothing was written but the control register.
    let machine = new_machine();
    machine.wrong(RegisterFaults::GONE);
    assert_eq!(machine.enable(config()).err(), Some(IommuError::Gone));
    assert_eq!(machine.live(), 0);
    // Commands are not fetched: the table is in use.
    let machine = new_machine();
    machine.write64(reg::CONTROL, ON);
    machine.wrong(RegisterFaults::STUCK);
    let failed = machine.enable(config()).err();
    assert!(matches!(failed, Some(IommuError::TimedOut { .. })));
    let live = machine.live();
    // Buffer, what it stores, log, device table, and the four tables of the stream.
    assert_eq!(live, 8);
    assert_eq!(machine.turned_off(), 0);
    for n in 1..9 {
        let machine = new_machine();
        machine.fail_in(n);
        assert!(machine.enable(config()).is_err(), "allocation {n}");
        assert_eq!(machine.live(), 0, "allocation {n}");
    }
}

#[test]
fn a_table_in_segments_is_one_table_before_what_is_cached_is_forgotten() {
    let machine = new_machine();
    let guest_tables = 1 << 16;
    machine.write64(reg::CONTROL, ON | guest_tables | 3 << 34);
    // Nothing is forgotten: the takeover ends where it waits for that.
    machine.wrong(RegisterFaults::STUCK);
    assert!(machine.enable(config()).is_err());
    assert_eq!(machine.reg(reg::CONTROL), ON | guest_tables);
}

#[test]
fn memory_of_rings_that_run_on_after_a_release_is_kept() {
    for ring in [status::COMMANDS_RUN, status::EVENT_RUNS] {
        let machine = new_machine();
        let unit = machine.enable(config()).unwrap();
        let live = machine.live();
        machine.lie(reg::STATUS, ring, ring);
        let awaited = Awaited::Control;
        let released = unit.release(all_memory());
        let timed_out =
            matches!(released, Err(IommuError::TimedOut { awaited: of, .. }) if of == awaited);
        assert!(timed_out, "{released:?}");
        assert_eq!(machine.live(), live);
    }
}

/// A table with one unit: select-all with nothing, one device with INIT and SysMgt 1, an alias with
/// LINT1; and a unity map of reads for that alias' source, and an exclusion range for all.
#[test]
fn what_the_table_says_of_a_unit_is_taken_over() {
    let mut table = Vec::from(*b"IVRS\0\0\0\0\x02\0        table   \0\0\0\0    \0\0\0\0");
    table.resize(48, 0);
    // IVHD of type 10h: HtTunEn, ResPassPW; function 0x0002, capability at 0x40, registers.
    let mut unit = Vec::from([0x10, 0b101, 0, 0, 2, 0, 0x40, 0]);
    unit.extend(0xfeb8_0000u64.to_le_bytes());
    unit.extend([0; 8]);
    unit.extend([1, 0, 0, 0]);
    unit.extend([2, 0x10, 0, 0x11]);
    unit.extend([66, 0x20, 0, 0x80, 0, 0x21, 0, 0]);
    unit[2] = unit.len() as u8;
    table.extend(unit);
    let memory = |kind, flags, device: u16, start: u64, bytes: u64| {
        let mut block = Vec::from([kind, flags, 32, 0]);
        block.extend(device.to_le_bytes());
        block.extend([0; 10]);
        block.extend(start.to_le_bytes());
        block.extend(bytes.to_le_bytes());
        block
    };
    table.extend(memory(0x21, 0b0011, 0x21, 0x7f00_0000, 0x2000));
    table.extend(memory(0x20, 0b1000, 0, 0x7e00_0000, 0x1000));
    // Unity without a permission: wrong, and nothing behind it is lost.
    table.extend(memory(0x21, 0b0001, 0x22, 0x7d00_0000, 0x1000));
    table.extend(memory(0x21, 0b0111, 0x22, 0x7c00_0000, 0x1000));
    let bytes = table.len() as u32;
    table[4..8].copy_from_slice(&bytes.to_le_bytes());
    let sum = table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    table[9] = sum.wrapping_neg();

    let table = Ivrs::parse(&table).unwrap();
    let unit = table.units().next().unwrap().unwrap();
    let mut config = config();
    config.reserved.believe(described());
    assert!(config.honour(&table.orders(&unit)).is_err());
    let machine = new_machine();
    let _unit = machine.enable(config).unwrap();
    assert_eq!(machine.reg(reg::CONTROL), ON | 1 << 1 | 1 << 9 | 1 << 16);
    let entry = |stream| machine.entry(stream);
    // Everybody has the exclusion range; the first domain is that of most streams.
    let [memory, domain, ..] = entry(5);
    assert_eq!((memory & !(0xf_ffff_ffff << 12), domain), (3 << 61 | 4 << 9 | 3, 2));
    assert_eq!(entry(0x10), [memory, domain | 1 << 40, 1 << 56, 0]);
    assert_eq!(entry(0x20), [memory, domain, 1 << 63, 0]);
    assert_eq!(entry(0x21)[1..], [3, 1 << 63, 0]);
    assert_eq!(entry(0x22)[1..], [4, 0, 0]);
}
