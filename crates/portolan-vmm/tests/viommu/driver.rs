//! Under `portolan_hw::virtio::Viommu`.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain, FaultReason, Iommu as _, ReservedKind};
use portolan::table::Access;
use portolan_hw::virtio::{Config, Viommu, VirtioDomain};
use portolan_vmm::Endpoint;
use portolan_vmm::viommu::VirtioIommu;
use vm_memory::iommu::Iommu;
use vm_memory::{GuestAddress, Permissions};

use crate::{ENDPOINTS, Queues, Ticks, doorbell, machine, range, reach, seed};

const PAGE: u64 = 4096;
const LONG: Duration = Duration::from_secs(60);
const READ: Permissions = Permissions::Read;
const WRITE: Permissions = Permissions::Write;

type Space = VirtioDomain<Queues, Ticks>;

fn start(device: &Arc<VirtioIommu>) -> Viommu<Queues, Ticks> {
    let queues = Queues(Arc::clone(device));
    Viommu::start(queues, Ticks::default(), Config::default()).unwrap()
}

fn stream(number: usize) -> StreamId {
    StreamId::new(ENDPOINTS[number].get())
}

fn map(domain: &Space, iova: u64, pa: u64, bytes: u64, access: Access) {
    let mut owed = Gather::new();
    let (iova, pa) = (Iova::new(iova), PhysAddr::new(pa));
    domain.map(iova, pa, bytes, access, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
}

/// Whether it was carried out.
fn unmap(domain: &Space, range: IovaRange) -> bool {
    let mut owed = Gather::new();
    let asked = domain.unmap_part(range, &mut owed).is_ok();
    asked && domain.sync(&mut owed).is_ok()
}

#[test]
fn a_device_reaches_what_its_domain_maps_and_no_more() {
    let (device, [endpoint, other]) = machine(LONG);
    let unit = start(&device);
    let domain = unit.domain().unwrap();
    assert_eq!(reach(&endpoint, 0x2010, 4, READ), None);
    unit.attach(stream(0), &domain).unwrap();
    map(&domain, 0x2000, 0x8000, 2 * PAGE, Access::READ);
    assert_eq!(reach(&endpoint, 0x2010, 4, READ), Some(vec![(0x8010, 4)]));
    assert_eq!(reach(&endpoint, 0x2010, 4, WRITE), None);
    assert_eq!(reach(&endpoint, 0x3ffe, 4, READ), None, "past its end");
    assert_eq!(reach(&other, 0x2010, 4, READ), None, "of no domain");
    // Records in their order: no domain, a write, the end, no domain.
    let reasons = [
        FaultReason::Blocked,
        FaultReason::Permission,
        FaultReason::NotMapped,
        FaultReason::Blocked,
    ];
    for (number, reason) in reasons.into_iter().enumerate() {
        let fault = unit.next_fault().unwrap().unwrap();
        let said = format!("{fault:?}");
        assert!(said.contains(&format!("{reason:?}")), "{number}: {said}");
    }
    assert!(unmap(&domain, range(0x2000, 0x3fff)));
    assert_eq!(reach(&endpoint, 0x2010, 4, READ), None);
}

#[test]
fn endpoints_pass_through_and_are_blocked() {
    let (device, [endpoint, _]) = machine(LONG);
    let unit = start(&device);
    unit.pass_through(stream(0)).unwrap();
    assert_eq!(reach(&endpoint, 0x1234, 8, WRITE), Some(vec![(0x1234, 8)]));
    unit.block(stream(0)).unwrap();
    assert_eq!(reach(&endpoint, 0x1234, 8, WRITE), None);
    // Those without a domain, as the guest says.
    device.write_config(36, 1);
    assert_eq!(reach(&endpoint, 0x1234, 8, WRITE), Some(vec![(0x1234, 8)]));
    device.write_config(36, 2);
    assert_eq!(device.config()[36], 1);
    device.write_config(36, 0);
    assert_eq!(reach(&endpoint, 0x1234, 8, WRITE), None);
}

#[test]
fn a_probe_tells_of_doorbells() {
    let (device, _) = machine(LONG);
    let unit = start(&device);
    let mut found = Vec::new();
    let reserved = |each: &mut dyn FnMut(portolan::iommu::ReservedRegion)| {
        portolan::iommu::Iommu::reserved(&unit, stream(1), each);
    };
    reserved(&mut |region| found.push((region.range, region.kind)));
    assert_eq!(found, [(doorbell(), ReservedKind::Interrupts)]);
}

#[test]
fn an_unmap_is_not_done_while_the_device_holds_a_translation() {
    let (device, [endpoint, _]) = machine(Duration::ZERO);
    let unit = start(&device);
    let domain = unit.domain().unwrap();
    unit.attach(stream(0), &domain).unwrap();
    map(&domain, 0, 0x8000, PAGE, Access::READ);
    map(&domain, 0x10_0000, 0x9000, PAGE, Access::READ);
    let held = endpoint.translate(GuestAddress(0), 8, READ).unwrap();
    assert!(
        unmap(&domain, range(0x10_0000, 0x10_0fff)),
        "another's range"
    );
    assert!(!unmap(&domain, range(0, PAGE - 1)));
    assert_eq!(reach(&endpoint, 0, 8, READ), None, "forgotten for others");
    drop(held);
}

/// What the device reaches is what the driver says.
fn compare(domain: &Space, endpoint: &Endpoint, at: u64) {
    let found = reach(endpoint, at, 1, READ);
    let wanted = domain.translate(Iova::new(at));
    let wanted = wanted.map(|leaf| vec![(leaf.pa.get(), 1)]);
    assert_eq!(found, wanted, "{at:#x}");
}

#[test]
fn the_device_follows_the_driver_at_random() {
    let mut rng = Rng::with_seed(seed());
    let (device, endpoints) = machine(LONG);
    let unit = start(&device);
    let domains = [unit.domain().unwrap(), unit.domain().unwrap()];
    let mut at = [None, None];
    for _ in 0..20_000 {
        let (which, who) = (rng.usize(..2), rng.usize(..2));
        let domain = &domains[which];
        let start = rng.u64(..64) * PAGE;
        let bytes = rng.u64(1..9) * PAGE;
        let range = range(start, start + bytes - 1);
        match rng.u32(..12) {
            0 => {
                unit.attach(stream(who), domain).unwrap();
                at[who] = Some(which);
            }
            1 => {
                unit.block(stream(who)).unwrap();
                at[who] = None;
            }
            2..5 => {
                let (mut owed, pa) = (Gather::new(), PhysAddr::new(rng.u64(..1 << 30) * PAGE));
                // Where something is mapped it is refused.
                let start = range.start();
                let _ = domain.map(start, pa, bytes, Access::READ, &mut owed);
                domain.sync(&mut owed).unwrap();
            }
            5 => {
                // Where nothing is mapped it is refused.
                let mut owed = Gather::new();
                let _ = domain.unmap_part(range, &mut owed);
                domain.sync(&mut owed).unwrap();
            }
            _ => match at[who] {
                Some(which) => compare(&domains[which], &endpoints[who], start + 5),
                None => assert_eq!(reach(&endpoints[who], start, 1, READ), None),
            },
        }
    }
}
