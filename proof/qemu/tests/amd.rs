//! The AMD-Vi driver on QEMU's AMD-Vi: real DMA through it, and QEMU's own count of its commands.

mod support;

use std::ops::Deref;
use std::sync::Arc;
use support::promised::all_memory;

use portolan::addr::{Iova, PhysAddr};
use portolan::inval::{Preference, Quirks};
use portolan::iommu::{Attach, FaultEvent, FaultReason, Iommu as _, IommuError};
use portolan::platform::Mmio as _;
use portolan::platform::{Nanos, UnitParts};
use portolan::table::Access;
use portolan::table::format::AmdLevels;
use portolan_hw::amd::{AmdVi, Capability, CommandKind as K, Config};
use portolan_qemu::config::{Architecture, Device, Iommu};
use portolan_qemu::guest_tables::GuestTables;
use portolan_qemu::machine::{Builder, Machine};
use portolan_qemu::mmio::{HostClock, Registers};
use portolan_qemu::pci::Pci;
use portolan_qemu::trace::{AmdCommand as A, Counts};
use portolan_spec::pci::id;

use support::{Bench, PAGE, at, map, rw, start, unmap};

type Driver = AmdVi<UnitParts<Registers, GuestTables, HostClock>>;

const BASE: Iova = Iova::new(0x4000_0000);

/// The driver on a machine with an edu and a buffer.
struct Ground {
    capability: Capability,
    ground: support::Ground<Driver>,
}

impl Deref for Ground {
    type Target = support::Ground<Driver>;

    fn deref(&self) -> &Self::Target {
        &self.ground
    }
}

impl Ground {
    fn new(config: Config) -> Option<Self> {
        let builder = Builder::new(Architecture::X86).iommu(Iommu::Amd).device(Device::edu());
        let machine = start(&builder)?;
        let pci = machine.pci().unwrap();
        let capability = capability(&pci);
        let unit = enable(&machine, capability, config).unwrap();
        let bench = Bench::of(machine, &pci);
        let ground = support::Ground { unit, bench };
        Some(Self { capability, ground })
    }

    fn counts(&self) -> Counts {
        self.machine.trace().counts().unwrap()
    }

    /// Checks that each kind of command was executed as often as it was submitted.
    fn same_counts(&self) {
        let (ours, qemu) = (self.unit.counts(), self.counts());
        let pairs = [
            (
                "wait",
                ours.of(K::Wait) + ours.of(K::Fence) + ours.of(K::Replaced),
                A::CompletionWait,
            ),
            ("entry", ours.of(K::DeviceEntry), A::DeviceTableEntry),
            ("pages", ours.of(K::Pages) + ours.of(K::Domain), A::Pages),
            ("all", ours.of(K::All), A::All),
        ];
        for (name, ours, kind) in pairs {
            let qemu = qemu.amd(kind);
            assert_eq!(ours, qemu, "{name}: {ours} submitted, {qemu} executed");
        }
    }
}

/// Capability of the IOMMU, as its own PCI function reports it.
fn capability(pci: &Pci) -> Capability {
    for function in pci.functions() {
        if let Ok(at) = function.capability(id::SECURE_DEVICE) {
            let word = |n: u16| function.read32(at + 4 * n).unwrap();
            return Capability::parse([0, 1, 2, 3, 4].map(word)).unwrap();
        }
    }
    panic!("no function is an IOMMU");
}

fn enable(machine: &Machine, capability: Capability, config: Config) -> Result<Driver, IommuError> {
    let registers = machine.iommu_registers().unwrap();
    let tables = machine.tables().clone();
    assert_eq!(capability.base.get(), registers.base());
    AmdVi::enable(registers, tables, UnitParts::new(HostClock::new()), capability, config)
}

#[test]
fn mapped_is_reached_and_unmapped_is_not() {
    let Some(ground) = Ground::new(Config::default()) else {
        return;
    };
    let stream = ground.stream();
    assert!(!ground.reaches(Iova::new(ground.page(0).get()), 0));
    for levels in [AmdLevels::Three, AmdLevels::Four, AmdLevels::Five] {
        let caps = ground.unit.capabilities();
        let domain = ground.unit.domain_as(levels, caps, Quirks::default());
        let domain = Arc::new(domain.unwrap());
        ground.unit.attach(stream, &domain).unwrap();
        assert!(!ground.reaches(BASE, 0));
        map(&domain, BASE, ground.page(0), 2 * PAGE, rw());
        assert!(ground.reaches(BASE, 0) && ground.reaches(at(BASE, PAGE), 1));
        ground.stale_until_paid(&domain, BASE, 0);
        assert!(!ground.reaches(BASE, 0));
        assert!(ground.reaches(at(BASE, PAGE), 1));
        map(&domain, BASE, ground.page(2), PAGE, Access::READ);
        assert!(!ground.reaches(BASE, 2));
        ground.unit.block(stream).unwrap();
        assert!(!ground.reaches(at(BASE, PAGE), 1));
        ground.same_counts();
    }
    // QEMU says nothing of entries that are zero, or that forbid.
    assert_eq!(ground.unit.next_fault(), Ok(None));
}

/// QEMU 7.2 sees that an entry is malformed, and refuses; its log stays empty all the same.
#[test]
fn a_malformed_entry_blocks() {
    let Some(ground) = Ground::new(Config::default()) else {
        return;
    };
    let domain = Arc::new(ground.unit.domain().unwrap());
    ground.unit.attach(ground.stream(), &domain).unwrap();
    map(&domain, BASE, ground.page(0), 2 * PAGE, rw());
    assert!(ground.reaches(BASE, 0));
    let ram = ground.machine.ram();
    let registers = ground.machine.iommu_registers().unwrap();
    let base = registers.read64(0) & !0xfff;
    let entry = PhysAddr::new(base + 32 * u64::from(ground.stream().get()));
    let word = ram.read64(entry).unwrap();
    // A reserved bit; the second page is not cached yet.
    ram.write64(entry, word | 1 << 2).unwrap();
    assert!(!ground.reaches(at(BASE, PAGE), 1));
    let said = ground.unit.next_fault().unwrap();
    let malformed = |event| match event {
        FaultEvent::Fault(record) => {
            record.stream == ground.stream() && record.reason == FaultReason::Configuration
        }
        FaultEvent::Lost => false,
    };
    assert!(said.is_none_or(malformed), "{said:?}");
    ram.write64(entry, word).unwrap();
    assert!(ground.reaches(at(BASE, PAGE), 1));
}

#[test]
fn streams_move_between_domains_and_pass_through() {
    let Some(ground) = Ground::new(Config::default()) else {
        return;
    };
    let stream = ground.stream();
    let [a, b] = [(); 2].map(|()| Arc::new(ground.unit.domain().unwrap()));
    map(&a, BASE, ground.page(0), PAGE, rw());
    map(&b, BASE, ground.page(1), PAGE, rw());
    let straight = Iova::new(ground.page(2).get());
    for _ in 0..3 {
        ground.unit.attach(stream, &a).unwrap();
        assert!(ground.reaches(BASE, 0));
        ground.unit.attach(stream, &b).unwrap();
        assert!(!ground.reaches(BASE, 0) && ground.reaches(BASE, 1));
        ground.unit.pass_through(stream, all_memory()).unwrap();
        assert!(ground.reaches(straight, 2));
        ground.unit.attach(stream, &a).unwrap();
        assert!(ground.reaches(BASE, 0));
        assert!(!ground.reaches(straight, 2));
        ground.unit.block(stream).unwrap();
        assert!(!ground.reaches(BASE, 0) && !ground.reaches(straight, 2));
    }
    drop(a);
    let again = Arc::new(ground.unit.domain().unwrap());
    ground.unit.attach(stream, &again).unwrap();
    assert!(!ground.reaches(BASE, 0));
    ground.same_counts();
}

#[test]
fn blocks_are_split_and_large_pages_go() {
    let Some(ground) = Ground::new(Config::default()) else {
        return;
    };
    let domain = Arc::new(ground.unit.domain().unwrap());
    ground.splits_a_block(&domain, BASE);
    ground.same_counts();
}

#[test]
fn the_buffer_wraps_and_every_command_is_counted() {
    let Some(ground) = Ground::new(Config::default()) else {
        return;
    };
    let quirks =
        Quirks { preference: Preference::ByPage, context_above: u64::MAX, ..Quirks::default() };
    let caps = ground.unit.capabilities();
    let domain = ground.unit.domain_as(AmdLevels::Four, caps, quirks);
    let domain = Arc::new(domain.unwrap());
    ground.unit.attach(ground.stream(), &domain).unwrap();
    for _ in 0..3 {
        map(&domain, BASE, PhysAddr::new(0x10_0000), 300 * PAGE, rw());
        let before = ground.unit.counts().of(K::Pages);
        unmap(&domain, BASE, 300 * PAGE);
        assert_eq!(ground.unit.counts().of(K::Pages) - before, 300);
        ground.same_counts();
    }
}

#[test]
fn a_unit_left_on_is_taken_over() {
    let Some(ground) = Ground::new(Config::default()) else {
        return;
    };
    let domain = Arc::new(ground.unit.domain().unwrap());
    ground.unit.attach(ground.stream(), &domain).unwrap();
    map(&domain, BASE, ground.page(0), PAGE, rw());
    assert!(ground.reaches(BASE, 0));
    // As another kernel would, without a word from the first.
    let Ground { capability, ground } = ground;
    let next = enable(&ground.machine, capability, Config::default()).unwrap();
    std::mem::forget((ground.unit, domain));
    let (unit, bench) = (next, ground.bench);
    let ground = support::Ground { unit, bench };
    assert!(!ground.reaches(BASE, 0));
}

#[test]
fn dropping_blocks_and_releasing_opens() {
    let Some(ground) = Ground::new(Config::default()) else {
        return;
    };
    let live = ground.machine.tables().live();
    let domain = Arc::new(ground.unit.domain().unwrap());
    ground.unit.attach(ground.stream(), &domain).unwrap();
    map(&domain, BASE, ground.page(0), PAGE, rw());
    let Ground { capability, ground } = ground;
    let Bench { edu, buffer, machine } = ground.bench;
    drop(ground.unit);
    machine.ram().write32(buffer, 1).unwrap();
    edu.dma_write32(BASE, 2).unwrap();
    assert_eq!(machine.ram().read32(buffer), Ok(1));
    drop(domain);
    assert_eq!(machine.tables().live(), live);
    let unit = enable(&machine, capability, Config::default()).unwrap();
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.tables().live(), live);
    edu.dma_write32(Iova::new(buffer.get()), 3).unwrap();
    assert_eq!(machine.ram().read32(buffer), Ok(3));
}

#[test]
fn a_unit_that_is_gone_is_an_error_at_once() {
    let limit = Nanos::from_millis(200);
    let mut config = Config::default();
    config.limit = limit;
    let Some(ground) = Ground::new(config) else {
        return;
    };
    let domain = Arc::new(ground.unit.domain().unwrap());
    let Ground { capability, ground } = ground;
    let again = |machine: &Machine| enable(machine, capability, Config::default());
    ground.goes_away(domain, BASE, again);
}
