//! The VT-d driver on QEMU's VT-d: real DMA through it, and QEMU's own count of its commands.

mod support;

use std::sync::Arc;
use support::promised::{all_memory, promised};

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::{Gather, Preference, Quirks};
use portolan::iommu::{
    Attach, AttachError, Domain, FaultAccess, FaultEvent, FaultReason, Iommu as _, IommuError,
    ReservedKind, ReservedRegion,
};
use portolan::platform::{Nanos, UnitParts};
use portolan::table::Access;
use portolan::table::format::VtdLevels;
use portolan_hw::reservations::Reserved;
use portolan_hw::vtd::{CommandKind as K, Config, Invalidation, Mode, Vtd as Driver};
use portolan_qemu::config::{Architecture, Device, Iommu, Vtd, VtdFeature, VtdWidth};
use portolan_qemu::edu::Edu;
use portolan_qemu::guest_tables::GuestTables;
use portolan_qemu::machine::{Builder, Machine};
use portolan_qemu::mmio::{HostClock, Registers};
use portolan_qemu::trace::{Counts, VtdDescriptor as D, VtdInvalidation as I};

use support::{Bench, PAGE, at, described, map, rw, start};

type Unit_ = Driver<UnitParts<Registers, GuestTables, HostClock>>;

const BASE: Iova = Iova::new(0x4000_0000);

/// The driver on a machine with an edu and a buffer.
type Ground = support::Ground<Unit_>;

impl Ground {
    fn new(vtd: Vtd, config: Config) -> Option<Self> {
        let builder = Builder::new(Architecture::X86).iommu(Iommu::Vtd(vtd)).device(Device::edu());
        let machine = start(&builder)?;
        let pci = machine.pci().unwrap();
        let unit = enable(&machine, config).unwrap();
        let bench = Bench::of(machine, &pci);
        Some(Self { unit, bench })
    }

    /// The device's access is refused, and the record has the device, the address and the reason.
    fn faults(&self, iova: Iova, n: u64, reason: FaultReason) {
        while self.unit.next_fault().unwrap().is_some() {}
        assert!(!self.reaches(iova, n), "{iova:?} is reached");
        let Some(FaultEvent::Fault(record)) = self.unit.next_fault().unwrap() else {
            panic!("no record of {iova:?}");
        };
        assert_eq!(record.stream, self.stream());
        assert_eq!(record.reason, reason, "{record:?}");
        assert_eq!(record.access, Some(FaultAccess::Write), "{record:?}");
        if reason != FaultReason::Configuration {
            assert_eq!(record.iova, Some(iova.align_down(PageSize::SIZE_4K)));
        }
        while self.unit.next_fault().unwrap().is_some() {}
    }

    fn counts(&self) -> Counts {
        self.machine.trace().counts().unwrap()
    }
}

fn enable(machine: &Machine, config: Config) -> Result<Unit_, IommuError> {
    let registers = machine.iommu_registers().unwrap();
    let tables = machine.tables().clone();
    Driver::enable(registers, tables, UnitParts::new(HostClock::new()), config)
}

fn scalable() -> Config {
    let mode = Mode::Scalable;
    let mut config = Config::default();
    config.mode = mode;
    config
}

fn registers() -> Config {
    let invalidation = Invalidation::Registers;
    let mut config = Config::default();
    config.invalidation = invalidation;
    config
}

/// All configurations of QEMU 7.2.
fn grounds() -> impl Iterator<Item = Ground> {
    let wide = || Vtd::new(VtdWidth::Bits48);
    let cases = [
        (wide(), Config::default()),
        (Vtd::new(VtdWidth::Bits39), Config::default()),
        (wide().with(VtdFeature::CachingMode), Config::default()),
        (wide(), registers()),
        (wide().with(VtdFeature::CachingMode), registers()),
        (wide().with(VtdFeature::Scalable), scalable()),
        (wide().with(VtdFeature::Scalable).with(VtdFeature::CachingMode), scalable()),
    ];
    cases.into_iter().filter_map(|(vtd, config)| Ground::new(vtd, config))
}

/// Checks that each kind of descriptor was executed as often as it was submitted.
fn same_counts(ground: &Ground) {
    let (ours, qemu) = (ground.unit.counts(), ground.counts());
    let pairs = [
        (ours.of(K::ContextGlobal), qemu.vtd_invalidation(I::ContextGlobal)),
        (ours.of(K::ContextDevice), qemu.vtd_invalidation(I::ContextDevices)),
        (ours.of(K::IotlbGlobal), qemu.vtd_invalidation(I::IotlbGlobal)),
        (ours.of(K::IotlbDomain), qemu.vtd_invalidation(I::IotlbDomain)),
        (ours.of(K::IotlbPages), qemu.vtd_invalidation(I::IotlbPages)),
        (ours.of(K::Wait) + ours.of(K::Replaced), qemu.vtd(D::Wait)),
        (ours.of(K::DeviceTlb), qemu.vtd(D::DeviceIotlb)),
    ];
    for (kind, (ours, qemu)) in pairs.into_iter().enumerate() {
        assert_eq!(ours, qemu, "kind {kind}: {ours} submitted, {qemu} executed");
    }
}

#[test]
fn mapped_is_reached_and_unmapped_is_not() {
    for ground in grounds() {
        let stream = ground.stream();
        ground.faults(BASE, 0, FaultReason::Blocked);
        let domain = Arc::new(ground.unit.second_stage().unwrap());
        ground.unit.attach(stream, &domain).unwrap();
        ground.faults(BASE, 0, FaultReason::NotMapped);
        map(&domain, BASE, ground.page(0), 2 * PAGE, rw());
        assert!(ground.reaches(BASE, 0) && ground.reaches(at(BASE, PAGE), 1));
        ground.stale_until_paid(&domain, BASE, 0);
        ground.faults(BASE, 0, FaultReason::NotMapped);
        assert!(ground.reaches(at(BASE, PAGE), 1));
        map(&domain, BASE, ground.page(2), PAGE, Access::READ);
        ground.faults(BASE, 2, FaultReason::Permission);
        same_counts_of_queue(&ground);
    }
}

/// Runs [`same_counts`] for units with a queue; QEMU traces other lines for registers.
fn same_counts_of_queue(ground: &Ground) {
    if ground.unit.counts().of(K::Wait) > 0 {
        same_counts(ground);
    }
}

#[test]
fn streams_move_between_domains_and_pass_through() {
    for ground in grounds() {
        let stream = ground.stream();
        let [a, b] = [(); 2].map(|()| Arc::new(ground.unit.second_stage().unwrap()));
        map(&a, BASE, ground.page(0), PAGE, rw());
        map(&b, BASE, ground.page(1), PAGE, rw());
        for _ in 0..3 {
            ground.unit.attach(stream, &a).unwrap();
            assert!(ground.reaches(BASE, 0));
            ground.unit.attach(stream, &b).unwrap();
            assert!(!ground.reaches(BASE, 0) && ground.reaches(BASE, 1));
            ground.unit.pass_through(stream, all_memory()).unwrap();
            assert!(ground.reaches(Iova::new(ground.page(2).get()), 2));
            ground.unit.attach(stream, &a).unwrap();
            assert!(ground.reaches(BASE, 0));
            ground.faults(Iova::new(ground.page(2).get()), 2, FaultReason::NotMapped);
            ground.unit.block(stream).unwrap();
            let blocked = match ground.unit.counts().of(K::PasidCache) {
                0 => FaultReason::Blocked,
                // QEMU 7.2 has one code for all that is wrong with a PASID entry.
                _ => FaultReason::Configuration,
            };
            ground.faults(BASE, 0, blocked);
        }
        drop(a);
        let again = Arc::new(ground.unit.second_stage().unwrap());
        ground.unit.attach(stream, &again).unwrap();
        ground.faults(BASE, 0, FaultReason::NotMapped);
        same_counts_of_queue(&ground);
    }
}

#[test]
fn blocks_are_split_and_large_pages_go() {
    for ground in grounds() {
        let domain = Arc::new(ground.unit.second_stage().unwrap());
        ground.splits_a_block(&domain, BASE);
    }
}

#[test]
fn the_queue_wraps_and_every_command_is_counted() {
    let quirks =
        Quirks { preference: Preference::ByPage, context_above: u64::MAX, ..Quirks::default() };
    let Some(ground) = Ground::new(Vtd::new(VtdWidth::Bits48), Config::default()) else {
        return;
    };
    let caps = ground.unit.second_capabilities();
    let domain = ground.unit.second_stage_as(VtdLevels::Four, caps, quirks);
    let domain = Arc::new(domain.unwrap());
    ground.unit.attach(ground.stream(), &domain).unwrap();
    let before = ground.unit.counts().of(K::IotlbPages);
    for _ in 0..3 {
        map(&domain, BASE, PhysAddr::new(0x10_0000), 256 * PAGE, rw());
        let mut owed = Gather::new();
        let range = IovaRange::from_len(BASE, 256 * PAGE).unwrap();
        domain.unmap(range, &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
    }
    assert_eq!(ground.unit.counts().of(K::IotlbPages) - before, 3 * 256);
    same_counts(&ground);
}

#[test]
fn reserved_memory_stays_reachable() {
    let builder = Builder::new(Architecture::X86)
        .iommu(Iommu::Vtd(Vtd::new(VtdWidth::Bits48)))
        .device(Device::edu());
    let Some(machine) = start(&builder) else {
        return;
    };
    let edu = Edu::find(&machine.pci().unwrap()).unwrap();
    let page = machine.tables().alloc(PageSize::SIZE_4K).unwrap();
    let stream = edu.function().stream();
    let range = IovaRange::page(Iova::new(page.get()), PageSize::SIZE_4K);
    let kind = ReservedKind::Direct(rw());
    let region = ReservedRegion { range, kind };
    let mut config = Config::default();
    config.reserved.add(Reserved::one(stream, region)).unwrap();
    config.reserved.believe(described());
    let unit = enable(&machine, config).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    unit.attach(stream, &domain).unwrap();
    edu.dma_write32(Iova::new(page.get()), 5).unwrap();
    assert_eq!(machine.ram().read32(page), Ok(5));
    // If the register holds something else, the stream is not moved.
    let taken = Arc::new(unit.second_stage().unwrap());
    let mut owed = Gather::new();
    let other = PhysAddr::new(0x1000);
    let iova = Iova::new(page.get());
    taken.map(iova, promised(other, PAGE), rw(), &mut owed).unwrap();
    taken.sync(&mut owed).unwrap();
    assert_eq!(unit.attach(stream, &taken), Err(AttachError::Mismatch));
    edu.dma_write32(iova, 6).unwrap();
    assert_eq!(machine.ram().read32(page), Ok(6));
}

#[test]
fn a_unit_left_on_is_taken_over() {
    let Some(ground) = Ground::new(Vtd::new(VtdWidth::Bits48), Config::default()) else {
        return;
    };
    let domain = Arc::new(ground.unit.second_stage().unwrap());
    ground.unit.attach(ground.stream(), &domain).unwrap();
    map(&domain, BASE, ground.page(0), PAGE, rw());
    assert!(ground.reaches(BASE, 0));
    // As another kernel would, without a word from the first.
    let Ground { unit, bench } = ground;
    let next = enable(&bench.machine, Config::default()).unwrap();
    std::mem::forget((unit, domain));
    let ground = Ground { unit: next, bench };
    ground.faults(BASE, 0, FaultReason::Blocked);
}

#[test]
fn dropping_blocks_and_releasing_opens() {
    let Some(ground) = Ground::new(Vtd::new(VtdWidth::Bits48), Config::default()) else {
        return;
    };
    let live = ground.machine.tables().live();
    let domain = Arc::new(ground.unit.second_stage().unwrap());
    ground.unit.attach(ground.stream(), &domain).unwrap();
    map(&domain, BASE, ground.page(0), PAGE, rw());
    let Ground { unit, bench } = ground;
    let Bench { edu, buffer, machine } = bench;
    drop(unit);
    machine.ram().write32(buffer, 1).unwrap();
    edu.dma_write32(BASE, 2).unwrap();
    assert_eq!(machine.ram().read32(buffer), Ok(1));
    drop(domain);
    // The context table is all that came and stayed.
    assert_eq!(machine.tables().live(), live + 1);
    let before = machine.tables().live();
    let unit = enable(&machine, Config::default()).unwrap();
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.tables().live(), before);
    edu.dma_write32(Iova::new(buffer.get()), 3).unwrap();
    assert_eq!(machine.ram().read32(buffer), Ok(3));
}

#[test]
fn a_unit_that_is_gone_is_an_error_at_once() {
    let limit = Nanos::from_millis(200);
    let mut config = Config::default();
    config.limit = limit;
    let Some(ground) = Ground::new(Vtd::new(VtdWidth::Bits48), config) else {
        return;
    };
    let domain = Arc::new(ground.unit.second_stage().unwrap());
    ground.goes_away(domain, BASE, |machine| enable(machine, Config::default()));
}
