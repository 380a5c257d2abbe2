//! The RISC-V IOMMU's driver on QEMU's platform device and on its PCI function: real DMA through
//! them, their fault records, and QEMU's own count of their commands.

mod support;

use std::ops::Deref;
use std::sync::Arc;
use support::promised::all_memory;

use portolan::addr::{Iova, StreamId};
use portolan::iommu::{Attach, DeviceTlb, Domain, FaultEvent, FaultReason, Iommu as _, IommuError};
use portolan::iopf::{GroupId, ReplyName, ReplyTo, Responder as _, Response};
use portolan::platform::{Nanos, UnitParts};
use portolan::table::Access;
use portolan::table::format::RiscvLevels;
use portolan_hw::riscv::{CommandKind as K, Config, Event, PageRequestEvent, RiscvIommu};
use portolan_qemu::config::{Architecture, Device, Iommu};
use portolan_qemu::guest_tables::GuestTables;
use portolan_qemu::machine::{Builder, Machine};
use portolan_qemu::mmio::{HostClock, Registers};
use portolan_qemu::trace::RiscvCommand as Q;

use support::{Bench, PAGE, at, map, rw, start, unmap};

type Driver = RiscvIommu<UnitParts<Registers, GuestTables, HostClock>>;

const BASE: Iova = Iova::new(0x1000_0000);
/// The vendor and device of QEMU's function.
const FUNCTION: (u16, u16) = (0x1b36, 0x0014);

/// A machine with an edu, the driver, and a buffer.
struct Ground {
    registers: Registers,
    ground: support::Ground<Driver>,
}

impl Deref for Ground {
    type Target = support::Ground<Driver>;

    fn deref(&self) -> &Self::Target {
        &self.ground
    }
}

impl Ground {
    fn new(iommu: Iommu, config: Config) -> Option<Self> {
        let builder = Builder::new(Architecture::Riscv64).iommu(iommu).device(Device::edu());
        let machine = start(&builder)?;
        let pci = machine.pci().unwrap();
        let registers = machine.iommu_registers().unwrap_or_else(|| {
            let function = pci.first(FUNCTION.0, FUNCTION.1).unwrap();
            function.enable().unwrap();
            function.bar(0).unwrap()
        });
        let unit = enable(&machine, registers.clone(), config).unwrap();
        let bench = Bench::of(machine, &pci);
        let ground = support::Ground { unit, bench };
        Some(Self { registers, ground })
    }

    /// Runs once with the platform device and once with the PCI function.
    fn each(run: impl Fn(&Self)) {
        for iommu in [Iommu::Riscv, Iommu::RiscvPci] {
            if let Some(ground) = Self::new(iommu, Config::default()) {
                run(&ground);
                ground.same_counts();
            }
        }
    }

    /// Checks that each kind of command was executed as often as it was submitted.
    fn same_counts(&self) {
        let ours = self.unit.counts();
        let qemu = self.machine.trace().counts().unwrap();
        let of = |kinds: &[K]| kinds.iter().map(|kind| ours.of(*kind)).sum::<u64>();
        let pairs = [
            (of(&[K::Wait, K::Fence, K::Replaced]), Q::Fence),
            (of(&[K::Device, K::Devices]), Q::InvalDdt),
            (of(&[K::Pages, K::Context, K::Both, K::All]), Q::InvalVma),
            (of(&[K::GuestPages, K::Guest, K::Guests]), Q::InvalGvma),
            (of(&[K::Process]), Q::InvalPdt),
            (of(&[K::DeviceTlb]), Q::AtsInval),
            (of(&[K::Response]), Q::AtsPrgr),
        ];
        for (ours, kind) in pairs {
            let theirs = qemu.riscv(kind);
            assert_eq!(ours, theirs, "{kind:?}: submitted, and executed");
        }
    }
}

fn enable(machine: &Machine, registers: Registers, config: Config) -> Result<Driver, IommuError> {
    RiscvIommu::enable(
        registers,
        machine.tables().clone(),
        UnitParts::new(HostClock::new()),
        config,
    )
}

/// Checks that the only record is of `stream` writing at `iova`, for `reason`.
fn refused(ground: &Ground, iova: Iova, reason: FaultReason) {
    let Some(FaultEvent::Fault(record)) = ground.unit.next_fault().unwrap() else {
        panic!("no record");
    };
    assert_eq!(record.stream, ground.stream());
    assert_eq!((record.iova, record.reason), (Some(iova), reason));
    assert_eq!(ground.unit.next_fault(), Ok(None));
}

/// Checks a domain of any kind on any kind of unit.
fn maps_and_unmaps<D: Domain>(ground: &Ground, domain: &Arc<D>)
where
    Driver: Attach<D>,
{
    let stream = ground.stream();
    ground.unit.attach(stream, domain).unwrap();
    assert!(!ground.reaches(BASE, 0));
    refused(ground, BASE, FaultReason::NotMapped);
    map(domain, BASE, ground.page(0), 2 * PAGE, rw());
    assert!(ground.reaches(BASE, 0) && ground.reaches(at(BASE, PAGE), 1));
    ground.stale_until_paid(domain, BASE, 0);
    assert!(!ground.reaches(BASE, 0));
    refused(ground, BASE, FaultReason::NotMapped);
    assert!(ground.reaches(at(BASE, PAGE), 1));
    ground.unit.block(stream).unwrap();
    assert!(!ground.reaches(at(BASE, PAGE), 1));
    while ground.unit.next_fault().unwrap().is_some() {}
    unmap(domain, at(BASE, PAGE), PAGE);
}

#[test]
fn mapped_is_reached_and_unmapped_is_not() {
    Ground::each(|ground| {
        assert!(!ground.reaches(Iova::new(ground.page(0).get()), 0));
        while ground.unit.next_fault().unwrap().is_some() {}
        for levels in [RiscvLevels::Three, RiscvLevels::Four, RiscvLevels::Five] {
            let first = Arc::new(ground.unit.first_stage(levels).unwrap());
            maps_and_unmaps(ground, &first);
            let second = Arc::new(ground.unit.second_stage(levels).unwrap());
            maps_and_unmaps(ground, &second);
        }
    });
}

#[test]
fn a_page_for_reading_is_not_written() {
    Ground::each(|ground| {
        let domain = Arc::new(ground.unit.first_stage(RiscvLevels::Three).unwrap());
        ground.unit.attach(ground.stream(), &domain).unwrap();
        map(&domain, BASE, ground.page(0), PAGE, Access::READ);
        assert!(!ground.reaches(BASE, 0));
        assert!(ground.unit.next_fault().unwrap().is_some());
    });
}

#[test]
fn streams_move_between_domains_and_pass_through() {
    Ground::each(|ground| {
        let stream = ground.stream();
        let [a, b] = [(); 2].map(|()| {
            let domain = ground.unit.first_stage(RiscvLevels::Three).unwrap();
            Arc::new(domain)
        });
        let c = Arc::new(ground.unit.second_stage(RiscvLevels::Three).unwrap());
        map(&a, BASE, ground.page(0), PAGE, rw());
        map(&b, BASE, ground.page(1), PAGE, rw());
        map(&c, BASE, ground.page(3), PAGE, rw());
        let straight = Iova::new(ground.page(2).get());
        for _ in 0..3 {
            ground.unit.attach(stream, &a).unwrap();
            assert!(ground.reaches(BASE, 0));
            ground.unit.attach(stream, &b).unwrap();
            assert!(!ground.reaches(BASE, 0) && ground.reaches(BASE, 1));
            ground.unit.attach(stream, &c).unwrap();
            assert!(!ground.reaches(BASE, 1) && ground.reaches(BASE, 3));
            ground.unit.pass_through(stream, all_memory()).unwrap();
            assert!(ground.reaches(straight, 2));
            ground.unit.attach(stream, &a).unwrap();
            assert!(ground.reaches(BASE, 0) && !ground.reaches(straight, 2));
            ground.unit.block(stream).unwrap();
            assert!(!ground.reaches(BASE, 0) && !ground.reaches(straight, 2));
        }
    });
}

#[test]
fn blocks_are_split_and_large_pages_go() {
    Ground::each(|ground| {
        let domain = Arc::new(ground.unit.first_stage(RiscvLevels::Three).unwrap());
        ground.splits_a_block(&domain, BASE);
    });
}

#[test]
fn the_queue_wraps_and_every_command_is_counted() {
    Ground::each(|ground| {
        let domain = Arc::new(ground.unit.first_stage(RiscvLevels::Three).unwrap());
        ground.unit.attach(ground.stream(), &domain).unwrap();
        for _ in 0..300 {
            map(&domain, BASE, ground.page(0), PAGE, rw());
            unmap(&domain, BASE, PAGE);
        }
        assert!(ground.unit.counts().of(K::Pages) >= 300);
    });
}

/// No device of QEMU on these machines keeps translations; this checks how the unit treats the commands.
#[test]
fn devices_are_told_and_the_unit_takes_it() {
    for iommu in [Iommu::Riscv, Iommu::RiscvPci] {
        let mut config = Config::default();
        config.requests_lg2 = Some(8);
        let Some(ground) = Ground::new(iommu, config) else {
            return;
        };
        let (unit, stream) = (&ground.unit, ground.stream());
        let tlb = DeviceTlb { depth: 1, physical: stream.get() as u16, twice: false };
        unit.use_device_tlb(stream, tlb, all_memory()).unwrap();
        let first = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
        let second = Arc::new(unit.second_stage(RiscvLevels::Three).unwrap());
        maps_and_unmaps(&ground, &first);
        maps_and_unmaps(&ground, &second);
        // Each unmap told the device, and each move.
        let told = unit.counts().of(K::DeviceTlb);
        assert!(told >= 4, "{told}");
        // Events that may have come while the stream was moved.
        let lost = Ok(Some(PageRequestEvent::Lost));
        assert_eq!(unit.next_page_request(), lost);
        assert_eq!(unit.next_page_request(), Ok(None));
        let name = ReplyName::Group(GroupId::new(5));
        let to = ReplyTo { stream, pasid: None, name };
        unit.respond(to, Response::Invalid).unwrap();
        assert_eq!(unit.counts().of(K::Response), 1);
        ground.same_counts();
    }
}

#[test]
fn what_the_unit_counts_is_what_devices_did() {
    Ground::each(|ground| {
        let (unit, stream) = (&ground.unit, ground.stream());
        let domain = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
        unit.attach(stream, &domain).unwrap();
        map(&domain, BASE, ground.page(0), PAGE, rw());
        let other = StreamId::new(stream.get() ^ 1);
        let count = |event, of| unit.count_event(event, of).unwrap();
        let ours = count(Event::Untranslated, Some(stream));
        let theirs = count(Event::Untranslated, Some(other));
        let misses = count(Event::Misses, Some(stream));
        let devices = count(Event::DeviceWalks, None);
        assert!(ground.reaches(BASE, 0));
        let [first, none, missed, walked] =
            [&ours, &theirs, &misses, &devices].map(|of| unit.read_counter(of).unwrap());
        assert!(first >= 1, "{first}");
        assert_eq!((none, missed), (0, 1));
        // QEMU counts each level.
        assert!(walked >= 1, "{walked}");
        // A translation that is kept is not missed; one that was forgotten is.
        assert!(ground.reaches(BASE, 0));
        let second = unit.read_counter(&ours).unwrap();
        assert!(second > first, "{first}, {second}");
        assert_eq!(unit.read_counter(&misses), Ok(1));
        unmap(&domain, BASE, PAGE);
        assert!(!ground.reaches(BASE, 0));
        assert_eq!(unit.read_counter(&misses), Ok(2));
        assert_eq!(unit.stop_counter(theirs), Ok(0));
        assert!(unit.cycles().is_ok());
        while unit.next_fault().unwrap().is_some() {}
    });
}

#[test]
fn a_unit_left_on_is_taken_over() {
    for iommu in [Iommu::Riscv, Iommu::RiscvPci] {
        let Some(ground) = Ground::new(iommu, Config::default()) else {
            return;
        };
        let domain = Arc::new(ground.unit.first_stage(RiscvLevels::Three).unwrap());
        ground.unit.attach(ground.stream(), &domain).unwrap();
        map(&domain, BASE, ground.page(0), PAGE, rw());
        assert!(ground.reaches(BASE, 0));
        // As another kernel would, without a word from the first.
        let registers = ground.registers.clone();
        let next = enable(&ground.machine, registers, Config::default()).unwrap();
        assert!(!ground.reaches(BASE, 0));
        next.release(all_memory()).unwrap();
        assert!(ground.reaches(Iova::new(ground.page(1).get()), 1));
        let support::Ground { unit, bench } = ground.ground;
        std::mem::forget((unit, domain));
        drop(bench);
    }
}

#[test]
fn a_unit_that_is_gone_is_an_error_at_once() {
    let mut config = Config::default();
    config.limit = Nanos::from_millis(200);
    let Some(ground) = Ground::new(Iommu::Riscv, config) else {
        return;
    };
    let domain = Arc::new(ground.unit.first_stage(RiscvLevels::Three).unwrap());
    let Ground { registers, ground } = ground;
    let again = |machine: &Machine| enable(machine, registers, Config::default());
    ground.goes_away(domain, BASE, again);
}
