//! Requester identifiers by which QEMU's VT-d sees a device behind bridges to conventional PCI, compared with those
//! that the topology derives from their configuration space.

mod support;

use portolan::platform::UnitParts;
use std::sync::Arc;
use support::promised::promised;

use portolan::addr::{Iova, PageSize, PciFunction, PciSegment, PhysAddr, RequesterId, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain, FaultEvent, Iommu as _};
use portolan::table::Access;
use portolan_hw::topology::pci::{Groups, PciOverrides, PciTree};
use portolan_hw::vtd::{Config, Vtd as Driver};
use portolan_qemu::config::{Architecture, Iommu, Vtd, VtdWidth};
use portolan_qemu::edu::Edu;
use portolan_qemu::machine::Builder;
use portolan_qemu::mmio::HostClock;
use portolan_qemu::pci::Pci;

use support::start;

const AT: Iova = Iova::new(0x4000_0000);
const EDU: &str = "edu,dma_mask=0xffffffffffffffff";

fn tree(pci: &Pci) -> PciTree {
    PciTree::scan([PciSegment::new(0)], PciOverrides::KNOWN, |of, offset| {
        let mut functions = pci.functions().iter();
        let found = functions.find(|one| one.id().get() == of.requester.get())?;
        found.read32(offset).ok()
    })
}

/// Tests an edu behind the last of `bridges`. It reaches memory as soon as the unit has all identifiers that the
/// topology expects, and not before; the identifier in the record of the refused access is among them. Returns the
/// identifiers other than the device's own.
fn identifiers(bridges: &[&str], bus: &str) -> Option<Vec<RequesterId>> {
    let vtd = Iommu::Vtd(Vtd::new(VtdWidth::Bits48));
    let mut builder = Builder::new(Architecture::X86).iommu(vtd);
    let edu = format!("{EDU},bus={bus},addr=05.0");
    for device in bridges.iter().chain([&edu.as_str()]) {
        builder = builder.argument("-device").argument(device);
    }
    let machine = start(&builder)?;
    let pci = machine.pci().unwrap();
    let edu = Edu::find(&pci).unwrap();
    let registers = machine.iommu_registers().unwrap();
    let tables = machine.tables().clone();
    let unit =
        Driver::enable(registers, tables, UnitParts::new(HostClock::new()), Config::default())
            .unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    let page = machine.tables().alloc(PageSize::SIZE_64K).unwrap();
    let mut owed = Gather::new();
    let access = Access::READ | Access::WRITE;
    domain.map(AT, promised(page, 0x1000), access, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    let reached = || {
        let page = PhysAddr::new(page.get());
        machine.ram().write32(page, 0xdead).unwrap();
        edu.dma_write32(AT, 0x1234).unwrap();
        machine.ram().read32(page) == Ok(0x1234)
    };

    let tree = tree(&pci);
    let own = RequesterId::new(edu.function().id().get());
    let at = PciFunction { segment: PciSegment::new(0), requester: own };
    let expected = tree.requesters(at);
    assert_eq!(expected[0], own);
    let groups = Groups::of(&tree);
    let members = groups.members(&tree, at).count();
    assert_eq!(members, bridges.len() + 1, "all bridges and the device");

    unit.attach(own.stream(), &domain).unwrap();
    assert!(!reached(), "by its own identifier {own:?}");
    let Some(FaultEvent::Fault(record)) = unit.next_fault().unwrap() else {
        panic!("no record");
    };
    let others: Vec<StreamId> = expected[1..].iter().map(|one| one.stream()).collect();
    assert!(others.contains(&record.stream), "{record:?}: {others:?}");
    for other in others {
        unit.attach(other, &domain).unwrap();
    }
    assert!(reached(), "by all of {expected:?}");
    Some(expected[1..].to_vec())
}

#[test]
fn a_bridge_from_pci_express_sends_as_the_first_device_of_its_bus() {
    let bridge = ["pcie-pci-bridge,id=one,addr=04.0"];
    if let Some(found) = identifiers(&bridge, "one") {
        assert_eq!(found, [RequesterId::of(1, 0, 0)]);
    }
}

#[test]
fn a_conventional_bridge_sends_as_itself() {
    let bridge = ["i82801b11-bridge,id=one,addr=1e.0"];
    if let Some(found) = identifiers(&bridge, "one") {
        assert_eq!(found, [RequesterId::of(0, 0x1e, 0)]);
    }
}

#[test]
fn the_highest_bridge_has_the_last_word() {
    let bridges =
        ["pcie-pci-bridge,id=one,addr=04.0", "pci-bridge,id=two,chassis_nr=9,bus=one,addr=03.0"];
    if let Some(found) = identifiers(&bridges, "two") {
        assert_eq!(found, [RequesterId::of(1, 3, 0), RequesterId::of(1, 0, 0)]);
    }
}
