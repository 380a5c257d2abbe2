//! Places in the guest of a device's ranges, and addresses of the device for a place in the guest.

use fastrand::Rng;
use portolan::addr::{Iova, PhysAddr, PhysRange};
use portolan_chips::fixture::seed;
use portolan_spec::virtio::Request;
use portolan_vmm::NotContiguous;
use vm_memory::Permissions;

use crate::passed::{FIRST, Machine, PAGE, attach, random};
use crate::{ENDPOINTS, range};

/// One mapping of domain 1.
fn map(start: u64, pages: u64, phys: u64) -> Request {
    Request::Map { domain: 1, start, last: start + pages * PAGE - 1, phys, flags: 3 }
}

#[test]
fn a_range_of_one_place_is_found_and_held() {
    let mut machine = Machine::new();
    machine.granted(attach(1, FIRST));
    machine.granted(map(0, 2, 0x10_0000));
    machine.granted(map(2 * PAGE, 1, 0x10_2000));
    machine.granted(map(3 * PAGE, 1, 0x20_0000));
    let endpoint = &machine.endpoints[0];
    let find = |start, last| endpoint.contiguous(range(start, last), Permissions::Write);
    assert_eq!(find(0x10, 3 * PAGE - 1).unwrap().target(), PhysAddr::new(0x10_0010));
    let error = find(0x10, 3 * PAGE).unwrap_err();
    let (first, second) = (PhysAddr::new(0x10_0010), PhysAddr::new(0x20_0000));
    assert_eq!(error, NotContiguous::Pieces { iova: range(0x10, 3 * PAGE), first, second });
    let error = find(0x10, 4 * PAGE).unwrap_err();
    assert!(matches!(error, NotContiguous::NotMapped { .. }), "{error:?}");
    // A request that takes it away waits for the one who holds it.
    let mut options = portolan_vmm::viommu::ViommuOptions::default();
    options.invalidation_limit = std::time::Duration::ZERO;
    let mut machine = Machine::of(options);
    machine.granted(attach(1, FIRST));
    machine.granted(map(0, 1, 0));
    let held = machine.endpoints[0].contiguous(range(0, 7), Permissions::Read).unwrap();
    let unmap = Request::Unmap { domain: 1, start: 0, last: PAGE - 1 };
    assert_eq!(machine.send(unmap), 3);
    drop(held);
    // It is taken away all the same.
    machine.granted.domains.get_mut(&1).unwrap().mappings.clear();
    assert_eq!(machine.send(map(0, 1, 0)), 0);
    assert_eq!(machine.send(unmap), 0);
}

#[test]
fn an_address_that_leads_to_a_place_is_found_if_there_is_one() {
    let mut rng = Rng::with_seed(seed());
    let mut machine = Machine::new();
    let mut counts = [0; 2];
    for _ in 0..4_000 {
        if rng.u32(..64) == 0 {
            machine.set_bypass(rng.bool());
        }
        machine.send(random(&mut rng));
        let endpoint = ENDPOINTS[rng.usize(..2)];
        let (start, bytes) = (rng.u64(..64 * PAGE), rng.u64(1..2 * PAGE));
        let target = PhysRange::from_len(PhysAddr::new(start), bytes).unwrap();
        let found = machine.device.iova_of(endpoint, target, Permissions::Write);
        let (all, mappings) = machine.granted.grants(endpoint.get());
        let mut leading = mappings.iter().filter(|of| {
            let end = of.phys + (of.last - of.start);
            of.flags & 2 != 0 && of.phys <= start && target.last().get() <= end
        });
        let wanted = leading.next().map(|of| of.start + (start - of.phys));
        let wanted = wanted.or(all.then_some(start));
        assert_eq!(found.map(Iova::get), wanted, "{target}");
        counts[usize::from(found.is_some())] += 1;
    }
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
}
