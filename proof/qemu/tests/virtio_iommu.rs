//! The virtio-iommu driver on QEMU's device, on both machines.

mod support;

use std::sync::Arc;
use support::promised::{all_memory, promised};

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{
    Attach, AttachError, Domain, FaultAccess, FaultEvent, FaultReason, FaultRecord, Iommu as _,
    ReservedKind,
};
use portolan::table::Access;
use portolan_hw::virtio::{Config, Viommu, VirtioDomain};
use portolan_qemu::config::{Architecture, Device, Iommu};
use portolan_qemu::edu::Edu;
use portolan_qemu::machine::{Builder, Machine};
use portolan_qemu::mmio::HostClock;
use portolan_qemu::trace::VirtioRequest;
use portolan_qemu::viommu::PciTransport;

use support::start;

type Driver = Viommu<PciTransport, HostClock>;
type Space = VirtioDomain<PciTransport, HostClock>;

const RW: Access = Access::READ.union(Access::WRITE);
const AT: u64 = 0x1234_5000;

/// A machine with the driver and a device behind it.
struct Rig {
    machine: Machine,
    unit: Driver,
    edu: Edu,
    page: PhysAddr,
}

impl Rig {
    /// Runs once for each machine that exists.
    fn each(mut run: impl FnMut(&Self)) {
        for architecture in Architecture::ALL {
            let builder = Builder::new(architecture).iommu(Iommu::Virtio).device(Device::edu());
            let Some(machine) = start(&builder) else {
                continue;
            };
            // A scan gives out addresses anew: there is one only.
            let pci = machine.pci().unwrap();
            let edu = Edu::find(&pci).unwrap();
            let transport = PciTransport::start(&machine, &pci).unwrap();
            let unit = Viommu::start(transport, HostClock::new(), Config::default()).unwrap();
            let page = machine.tables().alloc(PageSize::SIZE_4K).unwrap();
            run(&Self { machine, unit, edu, page });
        }
    }

    fn stream(&self) -> StreamId {
        self.edu.function().stream()
    }

    fn attached(&self) -> Arc<Space> {
        let domain = self.unit.domain().unwrap();
        self.unit.attach(self.stream(), &domain).unwrap();
        domain
    }

    fn map(&self, domain: &Space, access: Access) {
        let mut owed = Gather::new();
        let at = Iova::new(AT);
        domain.map(at, promised(self.page, 4096), access, &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
    }

    fn unmap(&self, domain: &Space) {
        let mut owed = Gather::new();
        let range = IovaRange::from_len(Iova::new(AT), 4096).unwrap();
        domain.unmap(range, &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
    }

    /// Tells if a write through the mapping arrives.
    fn write(&self, value: u16) -> bool {
        let at = self.page.checked_add(8).unwrap();
        self.machine.ram().write32(at, 0xffff_ffff).unwrap();
        self.edu.dma_write32(Iova::new(AT + 8), value).unwrap();
        self.machine.ram().read32(at).unwrap() == u32::from(value)
    }

    fn fault(&self) -> Option<FaultRecord> {
        match self.unit.next_fault().unwrap() {
            Some(FaultEvent::Fault(record)) => Some(record),
            Some(FaultEvent::Lost) => panic!("nothing was lost"),
            None => None,
        }
    }
}

#[test]
fn only_what_is_mapped_is_reached() {
    Rig::each(|rig| {
        let domain = rig.attached();
        assert!(!rig.write(1));
        let missing = rig.fault().unwrap();
        assert_eq!(missing.stream, rig.stream());
        assert_eq!(missing.reason, FaultReason::NotMapped);
        assert_eq!(missing.iova, Some(Iova::new(AT + 8)));
        rig.map(&domain, RW);
        assert!(rig.write(2));
        assert_eq!(rig.fault(), None);
        rig.unmap(&domain);
        assert!(!rig.write(3));
        assert_eq!(rig.fault().unwrap().reason, FaultReason::NotMapped);
        rig.map(&domain, Access::READ);
        assert!(!rig.write(4));
        let forbidden = rig.fault().unwrap();
        assert_eq!(forbidden.reason, FaultReason::Permission);
        assert_eq!(forbidden.access, Some(FaultAccess::Write));
        assert_eq!(rig.fault(), None);
    });
}

#[test]
fn blocked_passed_through_and_attached_again() {
    Rig::each(|rig| {
        // The stream was not named yet.
        let through = |value: u16| {
            let at = rig.page.checked_add(16).unwrap();
            rig.machine.ram().write32(at, 0xffff_ffff).unwrap();
            rig.edu.dma_write32(Iova::new(at.get()), value).unwrap();
            rig.machine.ram().read32(at).unwrap() == u32::from(value)
        };
        assert!(!through(1));
        assert_eq!(rig.fault().unwrap().reason, FaultReason::Blocked);
        rig.unit.pass_through(rig.stream(), all_memory()).unwrap();
        assert!(through(2));
        let domain = rig.unit.domain().unwrap();
        rig.map(&domain, RW);
        rig.unit.attach(rig.stream(), &domain).unwrap();
        assert!(!through(3) && rig.write(4));
        rig.unit.block(rig.stream()).unwrap();
        assert!(!rig.write(5));
        // The mapping outlives the last endpoint.
        rig.unit.attach(rig.stream(), &domain).unwrap();
        assert!(rig.write(6));
        let stream = StreamId::new(0xfff8);
        let none = Err(AttachError::NoSuchStream { stream });
        assert_eq!(rig.unit.attach(stream, &domain), none);
        assert_eq!(rig.unit.block(stream), none);
    });
}

#[test]
fn a_part_of_a_mapping_goes() {
    Rig::each(|rig| {
        let domain = rig.attached();
        let mut owed = Gather::new();
        let size = PageSize::of_lg2(15);
        let block = rig.machine.tables().alloc(size).unwrap();
        let at = Iova::new(AT & !0x7fff);
        domain.map(at, promised(block, size.bytes()), RW, &mut owed).unwrap();
        let start = at.checked_add(0x3000).unwrap();
        let hole = IovaRange::from_len(start, 0x1000).unwrap();
        domain.unmap_part(hole, &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
        for page in 0..8 {
            let iova = at.checked_add(page << 12).unwrap();
            let value = 0x100 + page as u16;
            rig.edu.dma_write32(iova, value).unwrap();
            let there = block.checked_add(page << 12).unwrap();
            let arrived = rig.machine.ram().read32(there) == Ok(value.into());
            assert_eq!(arrived, page != 3, "page {page}");
        }
    });
}

#[test]
fn requests_are_those_that_qemu_saw() {
    Rig::each(|rig| {
        let domain = rig.attached();
        for _ in 0..50 {
            rig.map(&domain, RW);
            rig.unmap(&domain);
        }
        rig.unit.block(rig.stream()).unwrap();
        let (ours, seen) = (rig.unit.counts(), rig.machine.trace().counts().unwrap());
        assert_eq!(ours.map, 50);
        let theirs = [
            VirtioRequest::Attach,
            VirtioRequest::Detach,
            VirtioRequest::Map,
            VirtioRequest::Unmap,
        ]
        .map(|request| seen.virtio(request));
        assert_eq!([ours.attach, ours.detach, ours.map, ours.unmap], theirs);
    });
}

#[test]
fn the_message_window_is_reserved() {
    Rig::each(|rig| {
        let found = rig.unit.reserved(rig.stream()).unwrap();
        for region in &found {
            assert!(region.range.start().get() & 0xfff == 0, "{region:?}");
        }
        if rig.machine.architecture() == Architecture::X86 {
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].kind, ReservedKind::Interrupts);
            assert_eq!(found[0].range.start(), Iova::new(0xfee0_0000));
        }
    });
}
