//! What firmware's tables and the machine's own devices say reaches the units.

use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PciFunction, PhysAddr, PhysRange, StreamId};
use portolan::dma::Direction;
use portolan::iommu::{IommuDomains, RecoverableFaults, ReservedKind, ReservedRegion, Stage};
use portolan::platform::{Mmio, Platform, UnitParts};
use portolan::table::Access;
use portolan_chips::chips::SKYLAKE_SP;
use portolan_chips::smmuv3::SmmuIdentification;
use portolan_chips::vtd::VtdIdentification;
use portolan_hw::topology::pci::PciOverrides;
use portolan_hw::topology::{EnableError, FirmwareMemory, Iommus, Options, Topology};
use portolan_hw::vtd::{Config, Mode, Vtd};
use portolan_sim::clock::PollingClock;
use portolan_sim::decode::AccessKind;

use super::machine::{
    DEVICE, DISPLAY, FRAMES, IORT, Iort, Machine, OTHER, PciWords, REGISTERS, SECOND, Unit, amd,
    described, dmar, dmar_of, dmar_with_memory, ivrs, smmu, table, vtd,
};
use super::{Packet, opened, packet, unit_at};

/// `RTADDR_REG` of VT-d, and its bits for the mode.
const RTADDR: usize = 0x20;
const SCALABLE: u32 = 1 << 10;
const MODE: u32 = 3 << 10;
/// `CR1` of an SMMU: attributes of what it reads and writes by itself.
const CR1: usize = 0x28;

/// Where the display is said to have memory of its own.
fn direct<P: Platform>(iommus: &Iommus<P>) -> Vec<u64> {
    let (unit, stream) = iommus.unit_of(DISPLAY).expect("a unit");
    let mut found = Vec::new();
    unit.reserved(stream, &mut |region| {
        if matches!(region.kind, ReservedKind::Direct(_)) {
            found.push(region.range.start().get());
        }
    });
    found
}

#[test]
fn memory_that_firmware_reserves_is_reached_unless_it_is_to_be_refused() {
    fn check<R: Unit>(machine: impl Fn() -> Machine<R>, table: &[u8]) {
        assert_eq!(direct(&opened(machine().kernel(), table)), [FRAMES]);
        let topology = Topology::from_acpi([table]).expect("a table");
        let mut options = Options::default();
        options.reserved = FirmwareMemory::Refused;
        let iommus = topology.enable(machine().kernel(), options, described()).expect("enabled");
        assert_eq!(direct(&iommus), []);
    }
    check(|| vtd(VtdIdentification::default()), &dmar_with_memory());
    check(|| smmu(SmmuIdentification::default()), &IORT.bytes());
    check(amd, &ivrs(SECOND));
}

#[test]
fn vtd_is_in_scalable_mode_if_first_stage_tables_of_a_hypervisor_s_guest_are_all_there() {
    let root = |cap: u64, ecap: u64| {
        let all = SKYLAKE_SP.identification.scalable().caching_mode();
        let lacking = VtdIdentification { cap: all.cap & !cap, ecap: all.ecap & !ecap, ..all };
        let machine = vtd(lacking);
        let iommus = opened(machine.kernel(), &dmar(REGISTERS));
        assert!(iommus.trusted_device(DEVICE).is_ok());
        machine.unit.read32(RTADDR) & MODE
    };
    assert_eq!(root(0, 0), SCALABLE);
    // Caching mode, scalable mode, first-stage tables.
    for (cap, ecap) in [(1 << 7, 0), (0, 1 << 43), (0, 1 << 47)] {
        assert_eq!(root(cap, ecap), 0, "without {cap:#x}, {ecap:#x}");
    }
    // Large pages alone are not there.
    assert_eq!(root(1 << 56, 0), SCALABLE);
}

#[test]
fn a_unit_in_scalable_mode_without_a_first_stage_has_second_stage_domains() {
    let all = SKYLAKE_SP.identification.scalable();
    let stage = |ecap| {
        let machine = vtd(VtdIdentification { ecap, ..all });
        let clock = PollingClock::new(machine.unit.clock().clone(), 100, machine.unit.clone());
        let mut config = Config::default();
        config.mode = Mode::Scalable;
        let memory = machine.memory.clone();
        let unit =
            Vtd::enable(machine.unit.clone(), memory, UnitParts::new(Arc::new(clock)), config);
        let unit = Arc::new(unit.expect("enabled"));
        assert!(unit.clone().new_domain().is_ok());
        unit.conditions().stage
    };
    assert_eq!(stage(all.ecap), Stage::First);
    assert_eq!(stage(all.ecap & !(1 << 47)), Stage::Second);
}

#[test]
fn a_vtd_unit_without_page_requests_says_so() {
    let faults_of = |identification| {
        let iommus = opened(vtd(identification).kernel(), &dmar(REGISTERS));
        unit_at(&iommus, 0).recoverable_faults()
    };
    // In scalable mode, as it is under a hypervisor.
    let all = SKYLAKE_SP.identification.scalable().caching_mode();
    let faults = |ecap| faults_of(VtdIdentification { ecap, ..all });
    // Device TLBs go with them.
    let ecap = all.ecap | 1 << 2;
    assert_eq!(faults(ecap | 1 << 29), RecoverableFaults::Present);
    assert_eq!(faults(ecap & !(1 << 29)), RecoverableFaults::Absent);
    assert_eq!(faults(ecap & !(1 << 43) | 1 << 29), RecoverableFaults::Absent);
}

#[test]
fn an_smmu_with_neither_stalls_nor_page_requests_says_so() {
    let faults = |bits| {
        let mut identification = SmmuIdentification::default();
        identification.idr[0] = identification.idr[0] & !(1 << 16 | 3 << 24) | bits;
        let iommus = opened(smmu(identification).kernel(), &IORT.bytes());
        unit_at(&iommus, 0).recoverable_faults()
    };
    // Stalls where software wants them; none; none, but page requests.
    assert_eq!(faults(0), RecoverableFaults::Present);
    assert_eq!(faults(1 << 24), RecoverableFaults::Absent);
    assert_eq!(faults(1 << 24 | 1 << 16), RecoverableFaults::Present);
}

#[test]
fn nothing_beyond_the_machine_s_addresses_is_mapped_by_vtd() {
    let beyond = || Packet(PhysRange::from_len(PhysAddr::new(1 << 39), 0x1000).expect("a range"));
    let all = dmar(REGISTERS);
    let is_mapped = |address_lg2| {
        // The structures of the other table.
        let table = dmar_of(address_lg2, &[all[48..].to_vec()]);
        let iommus = opened(vtd(VtdIdentification::default()).kernel(), &table);
        let device = iommus.trusted_device(DEVICE).expect("a device");
        device.map(beyond(), Direction::FromDevice).is_ok()
    };
    assert_eq!([39, 40].map(is_mapped), [false, true]);
}

#[test]
fn a_chipset_that_is_known_for_its_write_buffer_has_it_flushed() {
    // 0:0.0 is the host bridge of a 4 Series chipset, or another maker's of the same number, or a
    // card on bus 1 claims to be one.
    const INTEL: PciWords =
        &[(PciFunction::of(0, 0, 0), 0, 0x2a40_8086), (PciFunction::of(0, 0, 0), 8, 0x0600_0007)];
    const OTHERS: PciWords =
        &[(PciFunction::of(0, 0, 0), 0, 0x2a40_1022), (PciFunction::of(0, 0, 0), 8, 0x0600_0007)];
    const CARD: PciWords =
        &[(PciFunction::of(1, 0, 0), 0, 0x2a40_8086), (PciFunction::of(1, 0, 0), 8, 0x0600_0007)];
    let flushes = |config| {
        let machine = Machine { config, ..vtd(SKYLAKE_SP.identification) };
        let iommus = opened(machine.kernel(), &dmar(REGISTERS));
        let device = iommus.trusted_device(DEVICE).expect("a device");
        assert!(device.map(packet(), Direction::FromDevice).is_ok());
        machine.unit.counts().write_buffer_flushes
    };
    assert_ne!(flushes(INTEL), 0);
    assert_eq!([OTHERS, CARD].map(flushes), [0, 0]);
}

#[test]
fn devices_of_a_few_streams_pass_through_until_they_are_opened_and_claims_to_more_do_not() {
    let reached = |streams| {
        let machine = smmu(SmmuIdentification::default());
        let _iommus = opened(machine.kernel(), &Iort { streams, ..IORT }.bytes());
        let last = DISPLAY.requester.get() + streams as u16 - 1;
        let passes = |requester: u16| {
            let stream = StreamId::new(requester.into());
            let at = Iova::new(FRAMES);
            let unit = &machine.unit;
            unit.dma(stream, None, at, AccessKind::Read, 8).is_ok()
        };
        let first = DISPLAY.requester.get();
        [first - 1, first, last, last + 1].map(passes)
    };
    assert_eq!(reached(16), [false, true, true, false]);
    assert_eq!(reached(17), [false; 4]);
}

#[test]
fn an_smmu_is_as_coherent_as_firmware_says() {
    let attributes = |flags| {
        let machine = smmu(SmmuIdentification::default());
        let _iommus = opened(machine.kernel(), &Iort { flags, ..IORT }.bytes());
        (machine.unit.read32(CR1), machine.memory.cleaned_lines() > 0)
    };
    // Inner shareable and write-back for tables and queues, or outer shareable and not cached.
    assert_eq!(attributes(1), (0xd75, false));
    assert_eq!(attributes(0), (0x820, true));
}

#[test]
fn thunderx2_has_one_page_of_registers() {
    let machine = smmu(SmmuIdentification::default());
    let iommus = opened(machine.kernel(), &Iort { model: 2, ..IORT }.bytes());
    let (unit, stream) = iommus.unit_of(DEVICE).expect("a unit");
    let refused = machine.unit.dma(stream, None, Iova::new(0), AccessKind::Read, 8);
    assert!(refused.is_err());
    assert!(matches!(unit.next_fault(), Ok(Some(_))));
    assert_eq!(machine.unit.violations(), []);
}

#[test]
fn a_function_behind_amd_s_units_belongs_to_the_unit_of_its_entry_and_has_the_stream_of_its_alias()
{
    let iommus = opened(amd().kernel(), &ivrs(SECOND));
    let found = |function: PciFunction| {
        let (unit, stream) = iommus.unit_of(function).ok()?;
        let at = |one: &Result<_, _>| one.as_ref().is_ok_and(|one| Arc::ptr_eq(unit, one));
        Some((iommus.units().iter().position(at)?, stream.get()))
    };
    assert_eq!(found(OTHER), Some((0, 0x20)));
    assert_eq!(found(PciFunction::of(0, 5, 0)), Some((0, 0x29)));
    assert_eq!(found(DEVICE), Some((1, 0x18)));
    assert_eq!(found(PciFunction::of(0, 6, 0)), None);
}

#[test]
fn a_unit_of_amd_whose_function_has_no_capability_block_is_refused() {
    let absent = PciFunction::of(0, 9, 0);
    let table = ivrs(absent);
    let topology = Topology::from_acpi([&table[..]]).expect("a table");
    let iommus = topology.enable(amd().kernel(), Options::default(), described());
    let iommus = iommus.expect("the first unit");
    assert!(iommus.units()[0].is_ok());
    let Some(&EnableError::NoCapability { function, header }) = iommus.units()[1].as_ref().err()
    else {
        panic!("it is enabled");
    };
    assert_eq!((function, header), (absent, u32::MAX));
}

#[test]
fn memory_that_no_table_names_is_reached_where_the_embedder_adds_it() {
    let reached = |topology: Topology| {
        let machine = vtd(VtdIdentification::default());
        let mut options = Options::default();
        options.reserved = FirmwareMemory::Refused;
        let iommus = topology.enable(machine.kernel(), options, described()).expect("enabled");
        let stream = OTHER.requester.stream();
        let at = Iova::new(FRAMES);
        let reaches = || machine.unit.dma(stream, None, at, AccessKind::Read, 8).is_ok();
        let before = reaches();
        let device = iommus.trusted_device(OTHER).expect("a device");
        let open = reaches();
        drop(device);
        assert_eq!(machine.unit.violations(), []);
        (before, open)
    };
    let table = dmar(REGISTERS);
    let topology = || Topology::from_acpi([&table[..]]).expect("a table");
    assert_eq!(reached(topology()), (false, false));
    let last = Iova::new(FRAMES + 0xfff);
    let region = ReservedRegion {
        range: IovaRange::new(Iova::new(FRAMES), last).expect("a range"),
        kind: ReservedKind::Direct(Access::READ_WRITE),
    };
    assert_eq!(reached(topology().reserving(OTHER, region)), (true, true));
}

#[test]
fn a_device_that_the_table_has_behind_the_wrong_unit_is_served_by_the_right_one() {
    let machine = vtd(VtdIdentification::default());
    let table = super::machine::dmar_with_scopes([REGISTERS, super::machine::OTHER_REGISTERS]);
    let topology = Topology::from_acpi([&table[..]]).expect("a table");
    let stream = DEVICE.requester.stream();
    // The first unit names it, and the second one is right.
    let topology = topology.behind(DEVICE, 1, stream);
    let iommus =
        topology.enable(machine.kernel(), Options::default(), described()).expect("enabled");
    let device = iommus.trusted_device(DEVICE).expect("a device");
    let mapped = device.map(packet(), Direction::FromDevice).expect("mapped");
    let at = mapped.iova();
    let reaches = |unit: &portolan_chips::vtd::VtdRegisters| {
        unit.dma(stream, None, at, AccessKind::Write, 8).is_ok()
    };
    assert_eq!([&machine.unit, &machine.other].map(|unit| reaches(unit)), [false, true]);
    assert!(mapped.unmap().is_ok());
}

#[test]
fn a_unit_of_amd_without_host_tables_is_refused_by_name_and_before_it_is_touched() {
    let refused = |attributes: u8| {
        // A block of type 11h, whose attributes are at 20, with its one entry for all.
        let mut block = vec![0x11, 0, 44, 0, 2, 0, 0x40, 0];
        block.extend(REGISTERS.to_le_bytes());
        block.extend([0, 0, 0, 0, attributes, 0, 0, 0]);
        block.extend([0; 16]);
        block.extend([1, 0, 0, 0]);
        let table = table(*b"IVRS", &[vec![0; 12], block].concat());
        let topology = Topology::from_acpi([&table[..]]).expect("a table");
        let survey = topology.survey(PciOverrides::KNOWN, |_, _| None);
        let enabled = topology.enable(amd().kernel(), Options::default(), described());
        assert_eq!(survey.refused(0), enabled.as_ref().err().copied());
        enabled.err()
    };
    let window = PhysRange::from_len(PhysAddr::new(REGISTERS), 0x4000).expect("a range");
    assert_eq!(refused(1), Some(EnableError::NoHostTables { window }));
    assert_eq!(refused(0), None);
}
