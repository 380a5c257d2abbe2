//! Units whose host tables firmware has disabled (HATDis).

use alloc::sync::Arc;

use portolan::addr::{IovaRange, RequesterId};
use portolan::iommu::{
    Attach as _, Domain as _, Iommu as _, IommuError, ReservedKind, ReservedRegion,
};
use portolan::platform::Mmio as _;
use portolan::table::Access;
use portolan::table::format::{AmdLevels, AmdV2Levels, DirtyTracking};
use portolan_chips::amd::AmdMachine as Machine;
use portolan_chips::chips::RAVEN_RIDGE;
use portolan_spec::amd::{entry, reg};
use portolan_tables::ivrs::{Devices, HostTranslation, Settings, SystemManagement};

use super::machine::with;
use super::{STREAM, config};
use crate::amd::{Config, StreamSettings};
use crate::chassis::tests::suite::{BASE, Driven, map};
use crate::promise::tests::described;
use crate::reservations::Reserved;

fn machine() -> Machine {
    with(RAVEN_RIDGE.identification.guests().marks())
}

fn disabled() -> Config {
    Config { host_translation: HostTranslation::Disabled, ..config() }
}

fn levels(machine: &Machine, stream: u16) -> u64 {
    let base = machine.read64(reg::DEVICE_TABLE) & 0x000f_ffff_ffff_f000;
    entry::MODE.of(machine.word(base + 32 * u64::from(stream)))
}

#[test]
fn guest_tables_are_used_alone() {
    let machine = machine();
    let mut config = disabled();
    // Erratum 63 is one of older units: an entry that blocks has no tables.
    let posted = SystemManagement::Posted;
    let settings = Settings { system_management: posted, ..Settings::default() };
    let other = RequesterId::new(0x30);
    config.streams.push(StreamSettings { streams: Devices::one(other), settings });
    let unit = machine.enable(config).unwrap();
    assert_eq!(unit.features().levels, 0);
    assert_eq!(unit.domain().err(), Some(IommuError::Unsupported));
    let three = unit.domain_as(AmdLevels::Three, unit.capabilities(), Default::default());
    assert_eq!(three.err(), Some(IommuError::Unsupported));
    let domain = Arc::new(unit.guest_domain(AmdV2Levels::Four).unwrap());
    domain.sync(&mut map(&*domain, 1)).unwrap();
    unit.attach(STREAM, &domain).unwrap();
    assert!(machine.read(STREAM, BASE.get()).is_some());
    for stream in 0..0x40 {
        assert_eq!(levels(&machine, stream), 0, "{stream:#x}");
    }
    unit.block(STREAM).unwrap();
    assert_eq!(machine.read(STREAM, BASE.get()), None);
}

#[test]
fn neither_reservations_nor_marks_are_promised_without_host_tables() {
    let marking = Config { dirty: DirtyTracking::Hardware, ..disabled() };
    assert_eq!(machine().enable(marking).err(), Some(IommuError::Unsupported));
    let mut reserving = disabled();
    reserving.reserved.believe(described());
    let range = IovaRange::from_len(BASE, 0x1000).unwrap();
    let region = ReservedRegion { range, kind: ReservedKind::Direct(Access::READ_WRITE) };
    let streams = Devices::one(RequesterId::new(STREAM.get() as u16)).streams();
    reserving.reserved.add(Reserved { streams, region }).unwrap();
    assert_eq!(machine().enable(reserving).err(), Some(IommuError::Unsupported));
}
