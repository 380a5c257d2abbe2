//! A machine that one kernel hands to the next while its devices are at work.

use std::mem;

use portolan::addr::{Iova, PageSize, PciFunction, PhysAddr, PhysRange, StreamId};
use portolan::dma::Direction;

use portolan::platform::{AllMemory, PreservedMemory};
use portolan_chips::amd::AmdRegisters;
use portolan_chips::riscv::RiscvSetup;
use portolan_chips::smmuv3::{SmmuIdentification, SmmuRegisters};
use portolan_chips::vtd::{VtdIdentification, VtdRegisters};
use portolan_hw::handover::{AdoptError, PrepareError, RecordError, SectionError};
use portolan_hw::topology::{Adoption, Iommus, Options, Topology};
use portolan_sim::decode::AccessKind;

use super::machine::{
    DEVICE, IORT, Kernel, Machine, OTHER, OTHER_REGISTERS, REGISTERS, SECOND, Unit, amd, described,
    dmar_with_scopes, ivrs, riscv, smmu, vtd,
};
use super::riscv::platform_device;
use super::{driver, opened, packet};

/// All memory of the machine's tables, and all that its devices are lent.
const TABLES: [PhysRange; 1] = [PhysRange::page(PhysAddr::new(0x8000_0000), PageSize::of_lg2(24))];
const BUFFERS: [PhysRange; 1] = [PhysRange::page(PhysAddr::new(0), PageSize::of_lg2(32))];

pub(super) fn preserved() -> PreservedMemory<'static> {
    // SAFETY: the model's memory is one kernel's after the other, and its devices reach none of this process.
    unsafe { PreservedMemory::new(&TABLES, &BUFFERS) }
}

/// The same, and leave for streams to pass.
fn with_passing() -> PreservedMemory<'static> {
    // SAFETY: as above.
    preserved().passing(unsafe { AllMemory::new() })
}

/// The next kernel's units, by a record.
fn adopted(kernel: Kernel, table: &[u8], record: &[u8]) -> (Iommus<Kernel>, Adoption) {
    let topology = Topology::from_acpi([table]).unwrap();
    topology.adopt(kernel, Options::default(), described(), record, preserved()).unwrap()
}

fn both() -> Vec<u8> {
    dmar_with_scopes([REGISTERS, OTHER_REGISTERS])
}

fn reached(unit: &VtdRegisters, function: PciFunction, at: Iova) -> Option<u64> {
    let found = unit.dma(function.requester.stream(), None, at, AccessKind::Write, 8).ok()?;
    found.first().map(|piece| piece.pa.get())
}

/// Two devices that a former kernel left at work, each behind a unit of its own, and the record.
struct AtWork {
    machine: Machine<VtdRegisters>,
    at: [Iova; 2],
    record: Vec<u8>,
}

impl AtWork {
    fn new() -> Self {
        let machine = vtd(VtdIdentification::default());
        let former = opened(machine.kernel(), &both());
        let at = [DEVICE, OTHER].map(|function| {
            let device = former.trusted_device(function).unwrap();
            let mapping = device.map(packet(), Direction::FromDevice).unwrap();
            let at = mapping.iova();
            mem::forget((device, mapping));
            at
        });
        let mut record = vec![0; 1 << 16];
        let prepared = former.prepare(&mut record).unwrap();
        assert_eq!((prepared.left_out, prepared.in_debt), (vec![], 0));
        record.truncate(prepared.bytes);
        // This kernel has nothing to say any more.
        assert!(former.trusted_device(DEVICE).is_err());
        drop(former);
        let at_work = Self { machine, at, record };
        assert_eq!(at_work.reached(), [Some(0x1234_5000); 2]);
        at_work
    }

    fn reached(&self) -> [Option<u64>; 2] {
        let Self { machine, at, .. } = self;
        [reached(&machine.unit, DEVICE, at[0]), reached(&machine.other, OTHER, at[1])]
    }
}

#[test]
fn devices_go_on_through_an_update_and_are_opened_where_they_were() {
    let at_work = AtWork::new();
    let (next, adoption) = adopted(at_work.machine.kernel(), &both(), &at_work.record);
    assert_eq!((adoption.adopted, adoption.refused), (vec![0, 1], vec![]));
    assert!(adoption.tables.len() >= 6);
    assert_eq!(at_work.reached(), [Some(0x1234_5000); 2]);
    let devices = [DEVICE, OTHER].map(|function| next.trusted_device(function).unwrap());
    // Addresses that are in use are given to no other buffer.
    let more: Vec<_> =
        (0..64).map(|_| devices[0].map(packet(), Direction::FromDevice).unwrap()).collect();
    assert!(more.iter().all(|mapping| mapping.iova() != at_work.at[0]));
    more.into_iter().for_each(|mapping| assert!(mapping.unmap().is_ok()));
    assert_eq!(at_work.reached(), [Some(0x1234_5000); 2]);
    driver(&devices[0], |at| reached(&at_work.machine.unit, DEVICE, at));
    driver(&devices[1], |at| reached(&at_work.machine.other, OTHER, at));
    drop(devices);
    assert_eq!(at_work.reached(), [None; 2]);
    for unit in [&at_work.machine.unit, &at_work.machine.other] {
        assert_eq!(unit.violations(), []);
    }
}

#[test]
fn a_unit_whose_section_is_damaged_is_blocked_and_the_other_goes_on() {
    let mut at_work = AtWork::new();
    // The last byte is the second unit's.
    *at_work.record.last_mut().unwrap() ^= 1;
    let (next, adoption) = adopted(at_work.machine.kernel(), &both(), &at_work.record);
    assert_eq!(adoption.adopted, [0]);
    let [(1, AdoptError::Section(SectionError::Checksum { .. }))] = adoption.refused[..] else {
        panic!("{:?}", adoption.refused);
    };
    assert_eq!(at_work.reached(), [Some(0x1234_5000), None]);
    for (function, unit) in [(DEVICE, &at_work.machine.unit), (OTHER, &at_work.machine.other)] {
        let device = next.trusted_device(function).unwrap();
        driver(&device, |at| reached(unit, function, at));
        assert_eq!(unit.violations(), []);
    }
}

#[test]
fn without_a_record_that_is_one_every_unit_is_blocked() {
    let at_work = AtWork::new();
    let (_, adoption) = adopted(at_work.machine.kernel(), &both(), b"no record");
    let none = AdoptError::Record(RecordError::NoRecord);
    let (refused, interrupts) = (vec![(0, none), (1, none)], vec![]);
    assert_eq!(adoption, Adoption { adopted: vec![], refused, interrupts, tables: vec![] });
    assert_eq!(at_work.reached(), [None; 2]);
}

#[test]
fn a_record_without_room_leaves_the_units_where_they_are() {
    let machine = vtd(VtdIdentification::default());
    let iommus = opened(machine.kernel(), &both());
    let device = iommus.trusted_device(DEVICE).unwrap();
    let mut short = [0; 100];
    let error = iommus.prepare(&mut short).unwrap_err();
    assert!(matches!(error, PrepareError::Room { room: 100, .. }), "{error}");
    driver(&device, |at| reached(&machine.unit, DEVICE, at));
}

/// One device behind any unit goes on through an update, and is opened where it was.
fn goes_on<R: Unit>(
    machine: &Machine<R>,
    topology: impl Fn() -> Topology,
    preserved: PreservedMemory<'_>,
    reach: impl Fn(Iova) -> Option<u64>,
) {
    let former = topology().enable(machine.kernel(), Options::default(), described()).unwrap();
    let device = former.trusted_device(DEVICE).unwrap();
    let mapping = device.map(packet(), Direction::FromDevice).unwrap();
    let at = mapping.iova();
    mem::forget((device, mapping));
    let mut record = vec![0; 1 << 16];
    let prepared = former.prepare(&mut record).unwrap();
    assert_eq!(prepared.left_out, []);
    drop(former);
    assert_eq!(reach(at), Some(0x1234_5000));
    let kernel = machine.kernel();
    let next = topology().adopt(kernel, Options::default(), described(), &record, preserved);
    let (next, adoption) = next.unwrap();
    assert_eq!((adoption.refused, adoption.adopted.len()), (vec![], next.units().len()));
    assert_eq!(reach(at), Some(0x1234_5000));
    let device = next.trusted_device(DEVICE).unwrap();
    assert_eq!(reach(at), Some(0x1234_5000));
    driver(&device, &reach);
    drop(device);
    assert_eq!(reach(at), None);
}

#[test]
fn a_device_behind_amd_s_unit_goes_on() {
    let machine = amd();
    let unit = |unit: &AmdRegisters, at| {
        let found = unit.dma(DEVICE.requester.stream(), at, AccessKind::Write, 8).ok()?;
        found.first().map(|piece| piece.pa.get())
    };
    let topology = || Topology::from_acpi([&ivrs(SECOND)[..]]).unwrap();
    goes_on(&machine, topology, preserved(), |at| unit(&machine.other, at));
}

/// The tree's reserved memory is the device's own.
#[test]
fn a_device_behind_a_riscv_unit_goes_on() {
    let machine = riscv(&RiscvSetup::default());
    // Where the tree's `iommu-map` has it.
    let stream = StreamId::new(0x100 + DEVICE.requester.stream().get());
    let unit = |at| {
        let found = machine.unit.dma(stream, None, at, AccessKind::Write, 8).ok()?;
        found.first().map(|piece| piece.pa.get())
    };
    let tree = platform_device();
    let topology = || Topology::from_device_tree(&tree).unwrap();
    goes_on(&machine, topology, preserved(), unit);
}

fn reached_behind_smmu(unit: &SmmuRegisters, at: Iova) -> Option<u64> {
    let found = unit.dma(DEVICE.requester.stream(), None, at, AccessKind::Write, 8).ok()?;
    found.first().map(|piece| piece.pa.get())
}

fn with_smmu() -> Topology {
    Topology::from_acpi([&IORT.bytes()[..]]).unwrap()
}

/// The display's stream passes, since firmware has memory for it.
#[test]
fn a_device_behind_an_smmu_goes_on() {
    let machine = smmu(SmmuIdentification::default());
    let unit = &machine.unit;
    goes_on(&machine, with_smmu, with_passing(), |at| reached_behind_smmu(unit, at));
}

#[test]
fn a_unit_of_which_a_stream_passes_is_blocked_without_leave() {
    let machine = smmu(SmmuIdentification::default());
    let former = with_smmu().enable(machine.kernel(), Options::default(), described()).unwrap();
    let device = former.trusted_device(DEVICE).unwrap();
    let mapping = device.map(packet(), Direction::FromDevice).unwrap();
    let at = mapping.iova();
    mem::forget((device, mapping));
    let mut record = vec![0; 1 << 16];
    former.prepare(&mut record).unwrap();
    drop(former);
    assert_eq!(reached_behind_smmu(&machine.unit, at), Some(0x1234_5000));
    let kernel = machine.kernel();
    let next = with_smmu().adopt(kernel, Options::default(), described(), &record, preserved());
    let (_next, adoption) = next.unwrap();
    let [(0, AdoptError::Passes { .. })] = adoption.refused[..] else {
        panic!("{:?}", adoption.refused);
    };
    assert_eq!(reached_behind_smmu(&machine.unit, at), None);
}
