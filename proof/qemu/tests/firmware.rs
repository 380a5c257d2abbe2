//! The firmware tables that QEMU makes for its machines, read by the parsers.

#[allow(dead_code, missing_docs)]
#[path = "../../../crates/portolan-tables/src/tests/lookup.rs"]
mod lookup;
mod support;

use portolan::addr::PhysAddr;
use portolan::addr::{PciSegment, RequesterId};
use portolan_hw::reservations::Streams;
use portolan_qemu::config::{Architecture, Device, Iommu, Vtd, VtdFeature, VtdWidth};
use portolan_qemu::edu::Edu;
use portolan_qemu::fw_cfg::{self, ACPI_TABLES};
use portolan_qemu::machine::{Builder, Machine};
use portolan_tables::dmar::{self, Dmar, ScopeKind, Serves, Structure};
use portolan_tables::iort::{self, Iort, IortBody};
use portolan_tables::ivrs::{self, Ivrs, UnitFlags};
use portolan_tables::viot::{self, Viommu, Viot};

use support::start;

fn table(machine: &Machine, signature: [u8; 4]) -> Vec<u8> {
    let all = fw_cfg::read(machine, ACPI_TABLES).unwrap();
    fw_cfg::acpi_table(&all, signature).unwrap()
}

/// The edu device's requester, as the machine's bus has it.
fn edu(machine: &Machine) -> RequesterId {
    let edu = Edu::find(&machine.pci().unwrap()).unwrap();
    RequesterId::new(u16::try_from(edu.function().stream().get()).unwrap())
}

#[test]
fn dmar_of_vtd() {
    let vtd = Vtd::new(VtdWidth::Bits48).with(VtdFeature::DeviceIotlb);
    let builder =
        Builder::new(Architecture::X86).iommu(Iommu::Vtd(vtd)).device(Device::edu().behind_port());
    let Some(machine) = start(&builder) else {
        return;
    };
    let bytes = table(&machine, dmar::SIGNATURE);
    let dmar = Dmar::parse(&bytes).unwrap();
    assert_eq!(dmar.address_lg2(), 48);
    let mut structures = dmar.structures();
    let all: Vec<_> = structures.by_ref().map(Result::unwrap).collect();
    assert_eq!(structures.unknown(), 0);
    let units: Vec<_> = all
        .iter()
        .filter_map(|structure| match structure {
            Structure::Drhd(unit) => Some(unit),
            _ => None,
        })
        .collect();
    let [unit] = units.as_slice() else {
        panic!("{} units", units.len());
    };
    // QEMU names each device, so that some can be left out.
    assert_eq!(unit.serves, Serves::Named);
    let registers = machine.iommu_registers().unwrap();
    assert_eq!(unit.registers.start(), PhysAddr::new(registers.base()));
    let mut scopes = unit.scopes;
    let named: Vec<_> = scopes.by_ref().map(Result::unwrap).collect();
    assert_eq!(scopes.unknown(), 0);
    assert!(named.iter().any(|scope| scope.kind == ScopeKind::IoApic));
    // The port that the device is behind is in slot 4.
    let port = RequesterId::of(0, 4, 0);
    assert_eq!(edu(&machine).bus(), 1);
    assert!(named.iter().any(|scope| {
        scope.kind == ScopeKind::Bridge && scope.requester(|_| None) == Some(port)
    }));
    let ports = all.iter().any(|s| matches!(s, Structure::RootPorts(_)));
    assert!(ports, "device-iotlb=on makes QEMU name the root ports");
}

#[test]
fn ivrs_of_amd_vi() {
    let builder = Builder::new(Architecture::X86).iommu(Iommu::Amd).device(Device::edu());
    let Some(machine) = start(&builder) else {
        return;
    };
    let bytes = table(&machine, ivrs::SIGNATURE);
    let ivrs = Ivrs::parse(&bytes).unwrap();
    let mut blocks = ivrs.blocks();
    assert!(blocks.by_ref().all(|block| block.is_ok()));
    assert_eq!(blocks.unknown(), 0);
    let found = lookup::ivrs_device(&ivrs, PciSegment::new(0), edu(&machine)).unwrap();
    let (unit, device) = found.unwrap();
    let registers = machine.iommu_registers().unwrap();
    assert_eq!(unit.base, PhysAddr::new(registers.base()));
    let always = UnitFlags::HT_TUNNEL | UnitFlags::DEVICE_TLB;
    assert!(unit.flags.contains(always), "{:?}", unit.flags);
    assert!(unit.entries().all(|entry| entry.is_ok()));
    assert_eq!(device.alias, None);
    // QEMU reserves no memory.
    assert_eq!(ivrs.reserved(PciSegment::new(0), Streams::ALL).count(), 0);
}

#[test]
fn iort_of_smmuv3() {
    let builder = Builder::new(Architecture::Aarch64).iommu(Iommu::Smmuv3).device(Device::edu());
    let Some(machine) = start(&builder) else {
        return;
    };
    let bytes = table(&machine, iort::SIGNATURE);
    let iort = Iort::parse(&bytes).unwrap();
    let mut nodes = iort.nodes();
    let kinds: Vec<_> = nodes.by_ref().map(|node| node.unwrap().body).collect();
    assert_eq!((kinds.len(), nodes.unknown()), (3, 0));
    let requester = edu(&machine);
    let found = lookup::iort_stream(&iort, PciSegment::new(0), requester).unwrap().unwrap();
    let IortBody::SmmuV3(smmu) = found.unit.body else {
        panic!("{:?}", found.unit);
    };
    let registers = machine.iommu_registers().unwrap();
    assert_eq!(smmu.base, PhysAddr::new(registers.base()));
    assert_eq!(found.stream, requester.stream());
    assert_ne!(smmu.interrupts.event, 0);
}

#[test]
fn iort_without_smmu_leads_to_none() {
    let builder = Builder::new(Architecture::Aarch64).device(Device::edu());
    let Some(machine) = start(&builder) else {
        return;
    };
    let bytes = table(&machine, iort::SIGNATURE);
    let iort = Iort::parse(&bytes).unwrap();
    assert_eq!(lookup::iort_stream(&iort, PciSegment::new(0), edu(&machine)), Ok(None));
}

#[test]
fn viot_of_virtio_iommu() {
    for architecture in [Architecture::X86, Architecture::Aarch64] {
        let builder = Builder::new(architecture).iommu(Iommu::Virtio).device(Device::edu());
        let Some(machine) = start(&builder) else {
            continue;
        };
        let bytes = table(&machine, viot::SIGNATURE);
        let viot = Viot::parse(&bytes).unwrap();
        let requester = edu(&machine);
        let (unit, endpoint) =
            lookup::viot_endpoint(&viot, PciSegment::new(0), requester).unwrap().unwrap();
        assert_eq!(endpoint, requester.stream());
        let pci = machine.pci().unwrap();
        let iommu = pci.first(0x1af4, 0x1057).unwrap();
        let there = u16::try_from(iommu.stream().get()).unwrap();
        let (segment, requester) = (PciSegment::new(0), RequesterId::new(there));
        assert_eq!(unit, Viommu::Pci { segment, requester });
    }
}
