//! From firmware's table to a device that does DMA, through one platform and nothing else.
#![allow(missing_docs, unsafe_code)]

mod anywhere;
mod asleep;
mod chips;
mod crashed;
mod embedder;
mod grouped;
mod handed_interrupts;
mod handed_over;
mod lies;
mod limits;
mod machine;
mod old_smmu;
mod once;
mod platform_device;
#[path = "../../../portolan/tests/support/promised.rs"]
mod promised;
mod riscv;
mod told;
mod two;
mod uncached;
mod unserved;
mod untrusted;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan::addr::{Iova, PageSize, PciFunction, PciSegment, PhysAddr, PhysRange, StreamId};
use portolan::dma::{
    Buffer, Buffers, Device, Direction, DmaSpace, Mapping, Pieces, Policy, PolicyPreference,
    SpaceOptions,
};
use portolan::iommu::{IommuDomains, Shadowing, Stage, TrapCost};
use portolan::platform::Platform;
use portolan_chips::chips::SKYLAKE_SP;
use portolan_chips::smmuv3::SmmuIdentification;
use portolan_chips::vtd::{VtdIdentification, VtdRegisters};
use portolan_hw::topology::pci::PciOverrides;
use portolan_hw::topology::{
    DeviceOptions, EnableError, Iommus, OpenError, Options, Remark, Topology, TopologyError,
};
use portolan_sim::decode::AccessKind;

use machine::{
    DEVICE, DISPLAY, FRAMES, IORT, Kernel, Machine, OTHER, OTHER_REGISTERS, REGISTERS, SECOND, amd,
    described, dmar, dmar_with_memory, dmar_with_scopes, ivrs, smmu, table, vtd,
};

/// A page of a network card.
struct Packet(PhysRange);

// SAFETY: the address is a name: no memory of this process is behind it.
unsafe impl Buffer for Packet {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(self.0)
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

fn packet() -> Packet {
    Packet(PhysRange::from_len(PhysAddr::new(0x1234_5000), 0x1000).expect("a range"))
}

#[test]
fn the_smallest_program_has_fewer_than_fifty_lines() {
    let program = include_str!("../../examples/smallest/main.rs");
    assert!(program.lines().count() < 50);
}

/// What a driver does. Its types name the platform and the buffer, and nothing else.
fn driver<P: Platform>(device: &Device<P>, reaches: impl Fn(Iova) -> Option<u64>) {
    let rx: Mapping<P, Packet> = device.map(packet(), Direction::FromDevice).expect("it is mapped");
    let at = rx.iova();
    assert_eq!(reaches(at), Some(0x1234_5000));
    let packet = rx.unmap().expect("the unit completes");
    assert_eq!(packet.0.start().get(), 0x1234_5000);
    assert_eq!(reaches(at), None);
    let ring = device.coherent(0x3000).expect("the platform has memory");
    ring.words()[0].store(7, Ordering::Relaxed);
    assert_eq!(reaches(ring.iova()), Some(ring.memory().start().get()));
    let rx = device.map(packet, Direction::FromDevice);
    let deferred = rx.expect("it is mapped").defer().expect("it is unmapped");
    assert!(deferred.reclaim().is_ok());
}

fn opened(kernel: Kernel, of_units: &[u8]) -> Iommus<Kernel> {
    let apic = table(*b"APIC", &[]);
    let topology = Topology::from_acpi([&apic[..], of_units]).expect("a table of units");
    topology.enable(kernel, Options::default(), described()).expect("units that work")
}

/// The unit of that number, which was enabled.
fn unit_at<P: Platform>(iommus: &Iommus<P>, number: usize) -> &Arc<dyn IommuDomains> {
    iommus.units()[number].as_ref().expect("it is enabled")
}

#[test]
fn a_disk_behind_vtd_does_dma() {
    let machine = vtd(VtdIdentification::default());
    let iommus = opened(machine.kernel(), &dmar(REGISTERS));
    let reach = |function: PciFunction, at| {
        let stream = function.requester.stream();
        let unit = &machine.unit;
        let found = unit.dma(stream, None, at, AccessKind::Write, 8).ok()?;
        found.first().map(|piece| piece.pa.get())
    };
    let device = iommus.trusted_device(DEVICE).expect("a device");
    let policy = device.space().expect("it is translated").policy();
    assert_eq!(policy, Policy::Deferred);
    driver(&device, |at| reach(DEVICE, at));
    // Others reach nothing, and this one neither, once it is closed.
    let rx = device.map(packet(), Direction::FromDevice).expect("mapped");
    let at = rx.iova();
    assert_eq!(reach(OTHER, at), None);
    assert!(rx.unmap().is_ok());
    drop(device);
    assert_eq!(machine.unit.violations(), []);
}

#[test]
fn a_function_belongs_to_the_unit_that_names_it_or_a_bridge_before_it() {
    // Buses 2 to 4 are behind the bridge.
    const BRIDGE: PciFunction = PciFunction::of(0, 1, 0);
    let machine = Machine {
        config: &[(BRIDGE, 0xc, 1 << 16), (BRIDGE, 0x18, 0x0004_0200)],
        ..vtd(VtdIdentification::default())
    };
    let iommus = opened(machine.kernel(), &dmar_with_scopes([REGISTERS, OTHER_REGISTERS]));
    let first = |bus, device, function| {
        let function = PciFunction::of(bus, device, function);
        let (unit, stream) = iommus.unit_of(function).expect("a unit");
        assert_eq!(stream, function.requester.stream());
        Arc::ptr_eq(unit, unit_at(&iommus, 0))
    };
    let named = [(0, 3, 0), (0, 1, 0), (2, 0, 0), (3, 5, 1), (4, 31, 7)];
    for (bus, device, function) in named {
        assert!(first(bus, device, function), "{bus}:{device}.{function}");
    }
    for (bus, device, function) in [(0, 3, 1), (0, 4, 0), (1, 0, 0), (5, 0, 0)] {
        assert!(!first(bus, device, function), "{bus}:{device}.{function}");
    }
}

#[test]
fn a_disk_behind_an_smmu_does_dma() {
    let machine = smmu(SmmuIdentification::default());
    let iommus = opened(machine.kernel(), &IORT.bytes());
    assert_eq!(iommus.units().len(), 1);
    let device = iommus.trusted_device(DEVICE).expect("a device");
    let stream = StreamId::new(DEVICE.requester.get().into());
    driver(&device, |at| {
        let unit = &machine.unit;
        let found = unit.dma(stream, None, at, AccessKind::Write, 8).ok()?;
        found.first().map(|piece| piece.pa.get())
    });
    drop(device);
    assert_eq!(machine.unit.violations(), []);
}

#[test]
fn a_disk_behind_amd_s_unit_does_dma() {
    let machine = amd();
    let iommus = opened(machine.kernel(), &ivrs(SECOND));
    assert_eq!(iommus.units().len(), 2);
    let (unit, stream) = iommus.unit_of(DEVICE).expect("a unit");
    assert!(Arc::ptr_eq(unit, unit_at(&iommus, 1)));
    let device = iommus.trusted_device(DEVICE).expect("a device");
    driver(&device, |at| {
        let found = machine.other.dma(stream, at, AccessKind::Write, 8).ok()?;
        found.first().map(|piece| piece.pa.get())
    });
    drop(device);
    assert_eq!(machine.other.violations(), []);
}

/// IDR5: granules of 4, 16 and 64 KiB.
const GRANULES: [(u32, u32); 3] = [(1 << 4, 12), (1 << 5, 14), (1 << 6, 16)];

#[test]
fn a_domain_has_the_smallest_granule_that_its_smmu_has() {
    let all = GRANULES.iter().fold(0, |bits, (bit, _)| bits | bit);
    for (at, (_, lg2)) in GRANULES.iter().enumerate() {
        // The unit lacks the smaller ones.
        let there = GRANULES[at..].iter().fold(0, |bits, (bit, _)| bits | bit);
        let mut identification = SmmuIdentification::default();
        identification.idr[5] = identification.idr[5] & !all | there;
        // Both stages, and the second alone.
        for first in [1 << 1, 0] {
            identification.idr[0] = identification.idr[0] & !3 | first | 1;
            let iommus = opened(smmu(identification).kernel(), &IORT.bytes());
            let device = iommus.trusted_device(DEVICE).expect("a device");
            let granule = device.space().expect("it is translated").granule();
            assert_eq!(granule, PageSize::of_lg2(*lg2));
        }
    }
}

/// A display that firmware has at work goes on from when its unit is enabled, before a driver opens it and then.
fn a_display_goes_on(iommus: &Iommus<Kernel>, reach: impl Fn(u64) -> Option<u64>) {
    assert_eq!(reach(FRAMES), Some(FRAMES));
    let display = iommus.trusted_device(DISPLAY).expect("a device");
    assert_eq!(reach(FRAMES), Some(FRAMES));
    assert_eq!(reach(FRAMES + 0x1000), None);
    drop(display);
    assert_eq!(reach(FRAMES), None);
}

#[test]
fn a_display_goes_on_while_its_smmu_is_enabled_and_once_it_is_opened() {
    let machine = smmu(SmmuIdentification::default());
    let iommus = opened(machine.kernel(), &IORT.bytes());
    let stream = DISPLAY.requester.stream();
    a_display_goes_on(&iommus, |at| {
        let unit = &machine.unit;
        let found = unit.dma(stream, None, Iova::new(at), AccessKind::Read, 8);
        found.ok()?.first().map(|piece| piece.pa.get())
    });
    assert_eq!(machine.unit.violations(), []);
}

#[test]
fn a_display_goes_on_while_vtd_is_enabled_and_once_it_is_opened() {
    let legacy = VtdIdentification::default();
    for chip in [legacy, SKYLAKE_SP.identification.scalable().caching_mode()] {
        let machine = vtd(chip);
        let iommus = opened(machine.kernel(), &dmar_with_memory());
        let reach = |function: PciFunction, at| {
            let (stream, at) = (function.requester.stream(), Iova::new(at));
            let found = machine.unit.dma(stream, None, at, AccessKind::Read, 8);
            found.ok()?.first().map(|piece| piece.pa.get())
        };
        // With that memory, and nothing else; and no other device.
        assert_eq!(reach(DISPLAY, FRAMES + 0x1000), None);
        assert_eq!(reach(OTHER, FRAMES), None);
        a_display_goes_on(&iommus, |at| reach(DISPLAY, at));
        assert_eq!(machine.unit.violations(), []);
    }
}

#[test]
fn a_display_goes_on_while_amd_vi_is_enabled_and_once_it_is_opened() {
    let machine = amd();
    let iommus = opened(machine.kernel(), &ivrs(SECOND));
    let stream = DISPLAY.requester.stream();
    a_display_goes_on(&iommus, |at| {
        let found = machine.other.dma(stream, Iova::new(at), AccessKind::Read, 8);
        found.ok()?.first().map(|piece| piece.pa.get())
    });
    assert_eq!(machine.unit.violations(), []);
}

#[test]
fn a_virtual_unit_with_first_stage_tables_may_be_lazy_and_one_without_may_not() {
    let kept = DeviceOptions::trusted;
    let lazy = |machine: Machine<VtdRegisters>| {
        let iommus = opened(machine.kernel(), &dmar(REGISTERS));
        let (unit, _) = iommus.unit_of(DEVICE).expect("a unit");
        let conditions = unit.conditions();
        let mut options = kept();
        options.buffers = portolan::dma::Buffers::Kept;
        options.preference = PolicyPreference::Lazy;
        let decision = iommus.decide(&**unit, &options);
        assert!(!decision.reason.is_empty());
        (conditions.stage, conditions.exits, decision.policy)
    };
    let legacy = lazy(vtd(VtdIdentification::default().caching_mode()));
    assert_eq!(legacy, (Stage::Second, TrapCost::Expensive, Policy::Strict));
    let found = lazy(vtd(SKYLAKE_SP.identification.scalable().caching_mode()));
    assert_eq!(found, (Stage::First, TrapCost::Expensive, Policy::Lazy));
    // Who makes a space without asking for a policy is not lazy there either.
    let space = |machine: Machine<VtdRegisters>| {
        let iommus = opened(machine.kernel(), &dmar(REGISTERS));
        let domain = unit_at(&iommus, 0).clone().new_domain().expect("a domain");
        let mut options = SpaceOptions::default();
        options.policy = Policy::Lazy;
        let space = DmaSpace::new(domain, machine.kernel(), &options).expect("a space");
        (space.policy(), space.lazy_refused().is_some())
    };
    let caching = VtdIdentification::default().caching_mode();
    assert_eq!(space(vtd(caching)), (Policy::Strict, true));
    assert_eq!(
        space(vtd(SKYLAKE_SP.identification.scalable().caching_mode())),
        (Policy::Lazy, false)
    );
    // What no register says, the embedder does.
    let iommus = opened(vtd(VtdIdentification::default()).kernel(), &dmar(REGISTERS));
    let mut options = kept();
    options.buffers = Buffers::Kept;
    options.preference = PolicyPreference::Lazy;
    options.space.shadowing = Shadowing::WriteProtection;
    let decision = iommus.decide(&**unit_at(&iommus, 0), &options);
    assert_eq!(decision.policy, Policy::Strict);
    assert!(decision.reason.contains("write-protects"), "{}", decision.reason);
    // On the machine itself the second stage is as good, and the tables have larger pages.
    let own = lazy(vtd(SKYLAKE_SP.identification.scalable()));
    assert_eq!(own, (Stage::Second, TrapCost::None, Policy::Lazy));
}

#[test]
fn what_cannot_be_served_is_refused_with_its_reason() {
    let missing = Topology::from_acpi([&table(*b"APIC", &[])[..]]).err();
    assert_eq!(missing, Some(TopologyError::NoTable));
    let mut damaged = ivrs(SECOND);
    damaged[9] ^= 1;
    let refused = Topology::from_acpi([&damaged[..]]).err();
    assert!(matches!(refused, Some(TopologyError::Table(_))));
    // Of others a wrong checksum is worth a remark.
    let mut damaged = dmar(REGISTERS);
    damaged[9] ^= 1;
    let topology = Topology::from_acpi([&damaged[..]]).expect("a table");
    let survey = topology.survey(PciOverrides::KNOWN, |_, _| None);
    let is_sum = |remark: &Remark| matches!(remark, Remark::Table(TopologyError::Table(_)));
    assert!(survey.remarks().iter().any(is_sum));
    let machine = vtd(VtdIdentification::default());
    let elsewhere = dmar(0xfed8_0000);
    let topology = Topology::from_acpi([&elsewhere[..]]).expect("a table");
    let refused = topology.enable(machine.kernel(), Options::default(), described()).err();
    assert!(matches!(refused, Some(EnableError::NoRegisters { .. })));
    let iommus = opened(machine.kernel(), &dmar(REGISTERS));
    let far = PciFunction { segment: PciSegment::new(1), ..DEVICE };
    let refused = iommus.trusted_device(far).err();
    assert_eq!(refused, Some(OpenError::NotServed { function: far }));
    let untrusted = DeviceOptions::untrusted();
    let device = iommus.device_with(DEVICE, &untrusted).expect("a device");
    // The stream is free again once its device is closed.
    drop(device);
    assert!(iommus.trusted_device(DEVICE).is_ok());
}
